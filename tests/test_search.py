"""Searching: files by name with glob, and lines in them with grep."""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from builders import call, create_files, did, outputs, typed
from stub import reply

import agent as program
from agent import run_tool, take_turn

pytestmark = pytest.mark.usefixtures("no_hang")


# --- What is found ---


@pytest.fixture
def tree():
    """A few files to search."""
    for path in ("a.py", "src/b.py", "src/deep/c.py", "src/d.txt", "-e", "v1..2"):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(f"first\n{path} is here\n")


@pytest.mark.parametrize(
    "pattern, names",
    [
        ("*.py", ["a.py"]),
        ("src/*", ["src/b.py", "src/d.txt", "src/deep/"]),
        ("**/*.py", ["a.py", "src/b.py", "src/deep/c.py"]),
        ("v1..*", ["v1..2"]),
        ("src/{b.py,deep/*.py}", ["src/b.py", "src/deep/c.py"]),
        ("{src/{b,x},a}.{py,txt}", ["a.py", "src/b.py"]),
        ("src/deep", ["src/deep/"]),
        ("src/deep/", ["src/deep/c.py"]),
        (".", ["-e", "a.py", "src/", "v1..2"]),
        ("s*", ["src/"]),
    ],
)
def test_glob_lists_matches_in_order(use, tree, pattern, names):
    assert use("glob", pattern=pattern).split("\n") == names


def test_a_long_glob_result_keeps_its_start_and_end(make):
    for i in range(900):
        Path(f"file{i:03}").touch()
    block = run_tool(make(threshold=4_000), call("glob", pattern="*"))
    lines = block["content"].split("\n")
    assert (lines[0], lines[-1]) == ("file000", "file899") and len(lines) < 800
    assert "bytes are left out here" in block["content"]


@pytest.mark.parametrize(
    "given, found",
    [
        ({"pattern": "py is"}, ["a.py", "src/b.py", "src/deep/c.py"]),
        ({"pattern": "here", "path": "src/deep"}, ["src/deep/c.py"]),
        ({"pattern": "here", "path": "src/d.txt"}, ["src/d.txt"]),
        ({"pattern": "here", "path": "-e"}, ["-e"]),
        ({"pattern": "(a|b)[.]py is"}, ["a.py", "src/b.py"]),
    ],
)
def test_grep_gives_the_file_and_line_of_each_match(use, tree, given, found):
    lines = use("grep", **given).split("\n")
    assert lines == [f"{name}:2:{name} is here" for name in found]


def test_a_carriage_return_in_a_name_or_line_hides_no_match(use):
    create_files("Icon\r", "a.py")
    Path("build.log").write_bytes(b"1%\r2%\rhidden\r\n")
    assert use("glob", pattern="*") == "Icon\\r\na.py\nbuild.log"
    lines = use("grep", pattern="hidden").split("\n")
    assert lines == ["Icon\r:1:hidden", "a.py:1:hidden", "build.log:1:1%\r2%\rhidden"]


def test_glob_treats_brackets_as_literal_characters(use):
    create_files("app/[id]/page.tsx", "app/i/page.tsx")
    for pattern in ("app/[id]/*", "app/[id]/page.tsx"):
        assert use("glob", pattern=pattern) == "app/[id]/page.tsx"
    assert "Brackets are literal" in program.TOOLS["glob"].schema["description"]


# --- Files that glob and grep leave out ---


PROTECTED = (".git", ".transcripts", ".task_outputs")


@pytest.fixture
def protected_files():
    """A file in each protected folder, in a nested one, and in an ordinary one."""
    for folder in (*PROTECTED, "sub/.git", "sub"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        Path(folder, "file").write_text("hidden\n")


def test_glob_and_grep_leave_out_protected_folders(answer, protected_files):
    for pattern in ("**/file", "*/file", ".*/file", "**/*", "*"):
        names = re.split("[\n/]", answer("glob", pattern=pattern)[0])
        assert not {*PROTECTED} & {*names}
    assert answer("grep", pattern="hidden")[0] == "sub/file:1:hidden"


@pytest.mark.parametrize("folder", PROTECTED)
def test_glob_and_grep_search_a_protected_folder_if_it_is_named(
    use, protected_files, folder
):
    assert use("glob", pattern=f"{folder}/*") == f"{folder}/file"
    assert use("grep", pattern="hidden", path=folder) == f"{folder}/file:1:hidden"
    assert use("grep", pattern="hidden", path=f"{folder}/file").endswith("1:hidden")
    assert use("read_file", path=f"{folder}/file") == "hidden"


IGNORED_FILES = ["node_modules/pkg/x.py", "src/build/x.py", "a.log", "lib/b.log"]
IGNORED_FILES += ["logs/only.log"]
NOT_IGNORED = ["a.py", "build/x.py", "lib/node_modules", "src/a.py"]
IN_KNOWN_FOLDERS = [
    ".venv/lib/x.py",
    "a/node_modules/pkg/dist/x.py",
    "a/__pycache__/x.py",
]


def found_by(use, pattern="**/*", path="."):
    """The files that glob and grep find, as two sets."""
    listed = {n for n in use("glob", pattern=pattern).split("\n") if Path(n).is_file()}
    lines = use("grep", pattern="hidden", path=path).split("\n")
    return listed, {line.partition(":")[0] for line in lines}


@pytest.fixture
def repository():
    """A repository in which git ignores some files."""
    create_files(*IGNORED_FILES, *NOT_IGNORED)
    Path(".gitignore").write_text("/node_modules/\nsrc/build\n*.log\n!kept.log\n")
    subprocess.run(["git", "init", "-q"], check=True)


@pytest.mark.parametrize("folder", [".", "src"])
def test_glob_and_grep_leave_out_files_that_git_ignores(
    use, repository, monkeypatch, folder
):
    monkeypatch.chdir(folder)
    names = [name for name in NOT_IGNORED if folder == "." or name.startswith(folder)]
    work = {os.path.relpath(name, folder) for name in names}
    listed, searched = found_by(use)
    assert (listed - {".gitignore"}, searched) == (work, work)


def test_git_also_lists_a_repository_that_belongs_to_another_user(
    use, repository, monkeypatch
):
    create_files(".github/a.yml")
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    refused = subprocess.run(["git", "status"], capture_output=True)
    assert b"dubious ownership" in refused.stderr
    listed, searched = found_by(use)
    assert searched == {*NOT_IGNORED, ".github/a.yml"} == listed - {".gitignore"}


NAMED_FOLDERS = {
    "node_modules/**/*.py": ("node_modules", {"node_modules/pkg/x.py"}),
    "src/build/*": ("src/build", {"src/build/x.py"}),
    "logs/*.log": ("logs", {"logs/only.log"}),
}


def test_naming_a_folder_only_includes_its_own_ignored_files(use, repository):
    create_files("src/tool/src", "src/c.log", "src/tool/d.log")
    Path(".gitignore").write_text("*.log\nsrc/tool/src\n")
    assert found_by(use, "src/**/*", "src")[1] == {"src/a.py", "src/build/x.py"}
    assert use("glob", pattern="src/*.log") == "(no matching files)"


def test_folders_above_the_workspace_do_not_count_as_named(use, monkeypatch):
    create_files("build/here/a.py", "build/here/node_modules/x.py")
    monkeypatch.chdir("build/here")
    assert found_by(use, path=os.getcwd())[1] == {"a.py"}


@pytest.mark.parametrize("pattern, named", NAMED_FOLDERS.items(), ids=NAMED_FOLDERS)
def test_an_ignored_file_is_found_if_its_folder_is_named(
    use, repository, pattern, named
):
    path, files = named
    assert found_by(use, pattern, path) == (files, files)


@pytest.mark.parametrize("how", ["submodule", "nested", "not checked out"])
def test_files_ignored_by_a_nested_repository_are_left_out(use, how):
    git, sub = ["git", "-c", "protocol.file.allow=always"], "../sub"
    create_files("../sub/a.py", "mine.py")
    Path("../sub/.gitignore").write_text("node_modules/\n")
    for folder in (sub, "."):
        subprocess.run([*git, "init", "-q", folder], check=True)
    commit = ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]
    subprocess.run([*git, "-C", sub, "add", "."], check=True)
    subprocess.run([*git, "-C", sub, *commit], check=True)
    add = ["clone", "-q"] if how == "nested" else ["submodule", "--quiet", "add"]
    subprocess.run([*git, *add, sub, "lib"], check=True)
    if how == "not checked out":
        shutil.rmtree("lib")
        Path("lib").mkdir()
    else:
        create_files("lib/node_modules/x.py", "lib/b.py")
    own = set() if how == "not checked out" else {"lib/a.py", "lib/b.py"}
    assert found_by(use)[1] == {"mine.py"} | own


def test_a_worktree_within_the_project_is_searched_only_if_it_is_named(use):
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    create_files("a.py", "lib/b.py")
    commit = ["commit", "-qm", "a"]
    copy = ["worktree", "add", "-q", "work/copy"]
    for command in (["init", "-q"], ["add", "."], commit, copy):
        subprocess.run([*git, *command], check=True)
    assert found_by(use) == ({"a.py", "lib/b.py"},) * 2
    assert found_by(use, "work/**", "work")[1] == {"(no matches)"}
    named = {"work/copy/a.py", "work/copy/lib/b.py"}
    assert found_by(use, "work/copy/**", "work/copy") == (named, named)


LIES = ["../secret.txt", "{above}/secret.txt", "link/secret.txt", "..", "a/../.."]


def forge_index(folder, name):
    """Make the folder a repository whose index has an entry with this name."""
    honest = Path(folder, "x" * len(name))
    honest.touch()
    subprocess.run(["git", "init", "-q", folder], check=True)
    subprocess.run(["git", "-C", folder, "add", honest.name], check=True)
    index = Path(folder, ".git/index")
    data = index.read_bytes()[:-20].replace(honest.name.encode(), name.encode())
    index.write_bytes(data + hashlib.sha1(data).digest())
    honest.unlink()


@pytest.mark.parametrize("lie", LIES)
def test_a_forged_git_index_leads_to_nothing_outside_the_searched_folder(use, lie):
    create_files("../secret.txt", "sub/a.py", "a/b.py", "sub/a/c.py")
    for folder in ".", "sub":
        above = Path(folder, "..").resolve()
        Path(folder, "link").symlink_to(above)
        forge_index(folder, lie.format(above=above))
    assert found_by(use) == ({"a/b.py", "sub/a.py", "sub/a/c.py"},) * 2
    assert found_by(use, "sub/**", "sub") == ({"sub/a.py", "sub/a/c.py"},) * 2


HOSTILE_SETTINGS = {
    "core.fsmonitor": "touch ran; false",
    "core.sshCommand": "touch ran; false",
    "core.hooksPath": "hooks",
}


@pytest.mark.parametrize("setting", HOSTILE_SETTINGS)
def test_searching_runs_no_program_from_the_git_config(use, repository, setting):
    commit = ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]
    skip = ["update-index", "--skip-worktree", ".gitignore"]
    for command in (["add", "-A"], commit, skip):
        subprocess.run(["git", *command], check=True)
    Path(".gitignore").unlink()  # now git needs its copy in the objects
    shutil.rmtree(".git/objects")  # and would fetch the missing one
    Path(".git/objects").mkdir()
    Path("hooks").mkdir()
    Path("hooks/post-index-change").write_text("#!/bin/sh\ntouch ran\n")
    Path("hooks/post-index-change").chmod(0o755)
    remote = {"remote.origin.url": "ssh://nowhere/x", "remote.origin.promisor": "true"}
    remote |= {"extensions.partialClone": "origin", "core.repositoryFormatVersion": "1"}
    for name, value in (remote | {setting: HOSTILE_SETTINGS[setting]}).items():
        subprocess.run(["git", "config", name, value], check=True)
    use("glob", pattern="*")
    answer = use("grep", pattern="hidden")
    assert "a.py" in answer and not Path("ran").exists()


def test_a_named_folder_whose_files_are_ignored_is_searched(use):
    subprocess.run(["git", "init", "-q"], check=True)
    Path(".gitignore").write_text("data/*\n!data/README.md\n")
    Path("data").mkdir()
    for name in "README.md", "rates.csv":
        Path("data", name).write_text("needle\n")
    found = use("grep", pattern="needle", path="data").split("\n")
    assert {line.split(":")[0] for line in found} == {
        "data/README.md",
        "data/rates.csv",
    }
    assert use("grep", pattern="needle") == "data/README.md:1:needle"


@pytest.mark.parametrize("git", ["no git", "no repository", "all ignored"])
def test_well_known_folders_are_left_out_if_git_cannot_tell(use, monkeypatch, git):
    create_files(*IN_KNOWN_FOLDERS, "a/b.py")
    if git == "no git":
        Path("../bin").mkdir()
        monkeypatch.setenv("PATH", os.path.abspath("../bin"))
    if git == "all ignored":
        subprocess.run(["git", "init", "-q", ".."], check=True)
        Path("../.gitignore").write_text("*\n")
    assert found_by(use) == ({"a/b.py"}, {"a/b.py"})
    assert found_by(use, ".venv/**/*", ".venv") == (
        {IN_KNOWN_FOLDERS[0]},
        {IN_KNOWN_FOLDERS[0]},
    )
    assert found_by(use, "a/node_modules/pkg/**/*", "a/node_modules/pkg/dist")[1] == {
        IN_KNOWN_FOLDERS[1]
    }


# --- The time limit ---


@pytest.mark.parametrize("pattern", ["*a" * 30 + "*b", "**/a/" * 12 + "x"])
def test_glob_with_a_catastrophic_pattern_stops_in_time(answer, monkeypatch, pattern):
    monkeypatch.setattr(program, "SEARCH_SECONDS", 0.3)
    create_files("a/" * 40 + "a" * 250)
    begun = time.monotonic()
    content, is_error = answer("glob", pattern=pattern)
    assert time.monotonic() - begun < 3
    assert (
        "narrow the path" in content if is_error else content == "(no matching files)"
    )


@pytest.mark.parametrize("name, pattern", [("glob", "**/*.py"), ("grep", "x")])
def test_the_search_time_limit_includes_git(error_of, monkeypatch, name, pattern):
    (fake := Path("../bin/git")).parent.mkdir()
    fake.write_text("#!/bin/sh\nexec sleep 600\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent.resolve()}:{os.environ['PATH']}")
    monkeypatch.setattr(program, "SEARCH_SECONDS", 0.5)
    assert "narrow the path" in error_of(name, pattern=pattern)


def test_time_limit_restores_the_timer_and_the_signal_handler(no_hang):
    before = signal.getsignal(signal.SIGALRM)
    with program.time_limit(9):
        assert signal.getsignal(signal.SIGALRM) is not before
    assert signal.getsignal(signal.SIGALRM) is before
    assert 9 < signal.getitimer(signal.ITIMER_REAL)[0] <= 60


CATASTROPHIC = r"^(a*)(a*)(a*)(a*)(a*)\1\2\3\4\5b"


def test_grep_with_a_catastrophic_pattern_stops_in_time(error_of, monkeypatch):
    monkeypatch.setattr(program, "SEARCH_SECONDS", 0.3)
    Path("file").write_text("a" * 200 + "cb\n")
    assert "narrow the path" in error_of("grep", pattern=CATASTROPHIC)


@pytest.mark.parametrize("files", ["a.py", "a.py b.py"])
def test_grep_out_of_time_returns_what_it_found_so_far(use, monkeypatch, files):
    create_files(*files.split(), "slow.py")
    search = program.matching_lines

    def run_out_of_time(name, regex):
        if name == "slow.py":
            signal.raise_signal(signal.SIGALRM)
        yield from search(name, regex)

    monkeypatch.setattr(program, "matching_lines", run_out_of_time)
    *found, note = use("grep", pattern="hidden").split("\n")
    assert found == [f"{name}:1:hidden" for name in files.split()]
    assert note == "(Timed out after 10 s; narrow the path or the pattern.)"


# --- grep: long lines ---


X, HERE = "x" * 220, "x" * 900 + "needle" + "x" * 900
EXCERPT = f" ... {X}needle{'x' * 214}"  # the part of HERE that is shown
# a line, a pattern, and the part of the line that is shown
LONG_LINES = {
    "one match": (HERE, "needle", EXCERPT),
    "greedy": (HERE, ".*needle.*", EXCERPT),
    "anchored": (HERE, "^.*needle.*$", EXCERPT),
    "lazy": (HERE, ".*?needle", EXCERPT),
    "literal star": (f"{HERE}.*", r"needlex*\.\*", EXCERPT),
    "three of four": ("-".join([HERE] * 4), "needle", EXCERPT * 3),
    "close together": (
        f"{X}{X}ab{'-' * 90}ab{X}{X}",
        "ab",
        f" ... {X}ab{'-' * 90}ab{'x' * 218}",
    ),
    "adjacent": ("x" * 9_000, "x", "x" * 222),
    "at the start": (f"needle{X * 3}", "needle", f"needle{'x' * 214}"),
    "at the end": (f"{X * 3}needle", "needle", f" ... {X}needle"),
    "Japanese": (
        f"{'日' * 900}針{'本' * 900}",
        "針",
        f" ... {'日' * 220}針{'本' * 219}",
    ),
}


@pytest.mark.parametrize("case", LONG_LINES)
def test_grep_shows_a_long_line_around_its_first_three_matches(use, case):
    line, pattern, shown = LONG_LINES[case]
    Path("min.js").write_text(f"\n{line}\r\n", "utf-8")
    found = use("grep", pattern=pattern, path="min.js").split("\n")[-1]
    assert found == f"min.js:2:{shown} [line clipped]"


def test_grep_clips_each_long_line_and_shows_short_ones_whole(use):
    lines = [HERE, "needle " + "日" * 400, HERE, "日" * 900 + "needle", "no", HERE]
    Path("file").write_text("\n".join(lines), "utf-8")
    found = use("grep", pattern="needle").split("\n")
    assert [line[:7] for line in found] == [f"file:{n}:" for n in (1, 2, 3, 4, 6)]
    assert found[1] == f"file:2:{lines[1]}" and found[3].endswith(
        f"{'日' * 220}needle [line clipped]"
    )
    assert {line[7:] for line in found[::2]} == {f"{EXCERPT} [line clipped]"}


def test_the_model_can_find_an_old_message_in_the_transcript(make):
    told = f"{'We talked. ' * 400}The port is 4711.{' And so on.' * 400}"
    look = reply(calls=[("grep", {"pattern": "port is", "path": ".transcripts"})])
    agent = make(reply("Yes."), look, reply("4711."))
    take_turn(agent, told)
    take_turn(agent, "Which one?")
    [found] = outputs(*agent.client.requests[-1]["messages"])
    assert "The port is 4711." in found and found.startswith(f"{agent.transcript}:1:")


LINE_BY_LINE = r"(no matches; each line is searched alone, and \| or \( is literal)"
TOLD = 'one "two"\nprint("hi\\n")\n\tx = C:\\new\nsize 42\r\n\\\n"end"\\'
AS_SHOWN = {  # patterns, and the lines of TOLD that they match
    '"hi': ['print("hi\\n")'],
    r'^one "two"$': ['one "two"'],
    r"i\\n": ['print("hi\\n")'],
    r"C:\\new$": ["\tx = C:\\new"],
    r"^\t": ["\tx = C:\\new"],
    "\tx": ["\tx = C:\\new"],
    r"size \d+$": ["size 42"],
    r"^\\$": ["\\"],
    r'^"end"\\$': ['"end"\\'],
    "two|new|end": ['one "two"', "\tx = C:\\new", '"end"\\'],
    'two"\nprint': [],  # each line is searched alone
}


@pytest.fixture
def told(make):
    """The transcript in which TOLD is typed, an input of a call, and its result."""
    agent = make()
    calls = did(TOLD, tool="load_skill", given={"id": TOLD})
    for message in [typed(TOLD), *calls]:
        program.commit(agent, message)
    return str(agent.transcript)


@pytest.mark.parametrize("pattern, lines", AS_SHOWN.items())
def test_grep_finds_in_a_transcript_what_was_shown_as_it_was_shown(
    use, told, pattern, lines
):
    found = use("grep", pattern=pattern, path=".transcripts")
    wanted = [f"{told}:{number}:{line}" for number in (1, 2, 3) for line in lines]
    assert found.split("\n") == (wanted or [LINE_BY_LINE])


def test_grep_also_finds_the_json_of_a_transcript(use, told):
    found = use("grep", pattern='{"role": ?"user"', path=told)
    assert use("grep", pattern="^(role|content)$", path=told) == "(no matches)"
    assert found.startswith(told + ':1:{"role": "user", "content": "one \\"two')
    with open(told, "a") as file:
        file.write('{"role":"user","content":"torn \\')
    assert use("grep", pattern="torn", path=told) == f"{told}:4:torn \\"


@pytest.mark.parametrize(
    "path", [".transcripts/history", "data.jsonl", ".task_outputs/tool-results/a.txt"]
)
def test_grep_searches_any_other_file_as_it_is(use, path):
    data = json.dumps({"text": TOLD})
    create_files(path)
    Path(path).write_text(f'{data}\nsay "hi"\n')
    assert use("grep", pattern=r'^say "hi"$', path=path) == f'{path}:2:say "hi"'
    assert use("grep", pattern=r'\\"hi', path=path) == f"{path}:1:{data}"


def test_grep_finds_words_wherever_they_are_in_a_long_line(use):
    for at in range(19_985, 20_003):
        Path("file").write_text("-" * at + "two words" + "-" * 50_000 + "\nnext")
        shown = " ... " + "-" * 220 + "two words" + "-" * 211 + " [line clipped]"
        found = use("grep", pattern="two words|next").split("\n")
        assert shown in str(found) and found[-1] == "file:2:next"


@pytest.mark.parametrize("length", [19_998, 19_999, 20_000, 20_001, 39_000])
@pytest.mark.parametrize("end", ["", "\n", "\nx\n"])
def test_grep_counts_lines_that_are_as_long_as_a_piece(use, length, end):
    Path("file").write_text("-" * length + end + "last")
    *_, last = use("grep", pattern="last").split("\n")
    assert last.startswith(f"file:{1 + end.count(chr(10))}:") and "last" in last


def test_a_slow_pattern_is_tried_on_a_piece_of_a_line_at_a_time(use, monkeypatch):
    searched = []
    slow = Mock(search=lambda text: searched.append(len(text)))
    monkeypatch.setattr(program.re, "compile", lambda pattern: slow)
    Path("file").write_text("x" * 100_000)
    use("grep", pattern="\\S+@\\S+")
    assert sum(searched) > 100_000 and max(searched) == 20_000


# --- grep: patterns ---


PATTERNS = {
    r"\d+ \w+": ["port 80 open"],
    r"\bcat\b": ["a cat sat"],
    r"^\s+x": ["\tx = 1"],
    r"(foo|ba[rz])\(\)": ["bar()", "foo()"],
    r"(?i)CAT": ["a cat sat", "concat"],
    "a{2}": ["aa"],
}


@pytest.mark.parametrize("pattern, lines", PATTERNS.items())
def test_grep_understands_the_patterns_that_models_write(use, pattern, lines):
    text = "port 80 open\na cat sat\nconcat\n\tx = 1\nbar()\nfoo()\nfoo\naa\nd+ w+\n"
    Path("file").write_text(text)
    found = use("grep", pattern=pattern, path="file").split("\n")
    assert sorted(line.split(":", 2)[2] for line in found) == sorted(lines)


ANOTHER_DIALECT = [r"a\|b", r"\(a\)", r"\<a\>", r"a\+", r"a\{2\}", "a\nb", r"a\nb"]


@pytest.mark.parametrize("pattern", ANOTHER_DIALECT)
def test_grep_says_what_a_pattern_in_another_dialect_means_if_it_finds_nothing(
    use, pattern
):
    Path("file").write_text("aa\nb\n")
    assert use("grep", pattern=pattern) == LINE_BY_LINE
    assert use("grep", pattern=r"x[|]y\.\d") == "(no matches)"


def test_grep_finds_an_operator_that_is_meant_literally(use):
    Path("file").write_text("aa\nx | y\nf(x)\n")
    assert use("grep", pattern=r"x \| y") == "file:2:x | y"
    assert use("grep", pattern=r"f\(") == "file:3:f(x)"


INVALID_PATTERNS = ["(", "a)", "[a", "*a", "(?<name", "[[:space:]]"]


@pytest.mark.parametrize("pattern", INVALID_PATTERNS)
def test_an_invalid_pattern_is_an_error_that_says_where(error_of, pattern):
    error = error_of("grep", pattern=pattern)
    assert re.search(r"^\w+: .* at position \d", error)


# --- grep: too many matches ---


def test_grep_shows_the_first_of_too_many_matches_and_gives_advice(use, monkeypatch):
    Path("file").write_text("x\n" * 9)
    monkeypatch.setattr(program, "MAX_FOUND", 9)
    assert use("grep", pattern="x").split("\n")[-1] == "file:9:x"
    Path("more").write_text("x\n")
    *found, note = use("grep", pattern="x").split("\n")
    assert len(found) == 9 and "narrow the path" in note


def test_grep_leaves_out_the_middle_of_more_than_a_megabyte(use):
    Path("file").write_text("x" * 400 + "\n" + "x" * 400_000 + "\n")
    assert "bytes are left out" not in use("grep", pattern="x")
    Path("file").write_text(("x" * 400 + "\n") * 4_000)
    assert "bytes are left out" in use("grep", pattern="x")


def test_grep_reads_a_long_line_in_parts_but_counts_it_once(use, monkeypatch):
    monkeypatch.setattr(program, "MAX_LINE", 10)
    Path("file").write_text("a\n" + "-" * 20 + "b\nab\n")
    assert use("grep", pattern="a|b") == "file:1:a\nfile:2:b\nfile:3:ab"
