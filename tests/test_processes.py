"""The tools against a hostile model: no leak, hang, memory growth or escape."""

import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from builders import (
    LONG_TESTS,
    call,
    history,
    lines_of,
    outputs,
    read,
    shown,
    turn_into,
)
from stub import reply

import agent as program
from agent import take_turn

KEY = "sk-ant-test-0123456789abcdef"
PROTECTED = (".git", ".transcripts", ".task_outputs")


@pytest.fixture(autouse=True)
def no_hang():
    """Fail a test after a minute, in a way that no `except Exception` swallows."""

    def fail(*_):
        pytest.fail("it hangs")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


# --- Paths outside the workspace ---


@pytest.fixture
def outside(workspace):
    """The folder above the workspace; it has a secret, and links lead to it."""
    folder = workspace.parent
    (folder / "secret.txt").write_text("hidden\n")
    (folder / "workspace-2").mkdir()
    (folder / "workspace-2" / "secret.txt").write_text("hidden\n")
    Path("sub").mkdir()
    Path("link.txt").symlink_to("../secret.txt")
    Path("folder").symlink_to(folder)
    Path("dangling").symlink_to("../made.txt")
    return folder


OUTSIDE = {
    "parent": "../secret.txt",
    "same prefix": "../workspace-2/secret.txt",
    "absolute": "{outside}/secret.txt",
    "link": "link.txt",
    "linked folder": "folder/secret.txt",
    "dangling link": "dangling",
    "device": "/dev/zero",
    "NUL byte": "sub/\0/../../secret.txt",
    "root": "/",
}
ARGS = {
    "read_file": {},
    "write_file": {"content": "overwritten"},
    "edit_file": {"old_text": "hidden", "new_text": "overwritten"},
    "grep": {"pattern": "hidden"},
}


def first_path_for_all_tools_others_for_one(paths):
    """Pairs (tool, path). Few suffice, because one function checks all paths."""
    first, *others = paths
    return [*((name, first) for name in ARGS), *(("read_file", p) for p in others)]


@pytest.mark.parametrize(
    "name, path", first_path_for_all_tools_others_for_one(OUTSIDE.values())
)
def test_no_file_tool_leaves_the_workspace(error_of, outside, name, path):
    before = sorted(outside.rglob("*"))
    content = error_of(name, path=path.format(outside=outside), **ARGS[name])
    assert "hidden" not in content
    assert (outside / "secret.txt").read_text() == "hidden\n"
    assert sorted(outside.rglob("*")) == before


UNEXPANDED = ["~/notes", "~user/notes", "~a.b-c/x", "$HOME/x", "${HOME}/x", "$A_1/a/b"]
UNEXPANDED += ["C:\\x", "c:/x/y", "file:///x", "file:x"]


@pytest.mark.parametrize("path", UNEXPANDED)
@pytest.mark.parametrize("name", [*ARGS, "glob"])
def test_a_path_that_a_shell_would_expand_is_an_error_that_names_the_workspace(
    error_of, workspace, name, path
):
    path = path.replace("{HOME}", "HOME") if name == "glob" else path  # {} are its own
    given = {"pattern": f"{path}/*"} if name == "glob" else {"path": path} | ARGS[name]
    error = error_of(name, **given)
    assert error.endswith(f" would be taken literally; give a path in {workspace}.")
    assert path in error and os.listdir() == []


@pytest.mark.parametrize("path", [*UNEXPANDED, "~", "~x", "$x", "$HOME", "a~/b"])
def test_a_file_that_has_such_a_name_can_be_read_changed_and_found(use, path):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("one\n")
    use("edit_file", path=path, old_text="one", new_text="two")
    use("write_file", path=path, content="two of them\n")
    assert use("read_file", path=path) == "two of them"
    assert use("grep", pattern="two", path=path).endswith(":1:two of them")
    use("write_file", path=f"./{path}.new", content="")
    assert os.path.exists(f"{path}.new")
    assert os.path.normpath(path) in use("glob", pattern="**").split("\n")


INSIDE = ["file", "./file", "sub/../file", "{workspace}/file", "alias", "linked/file"]


@pytest.mark.parametrize("path", INSIDE)
def test_a_path_that_resolves_inside_the_workspace_is_allowed(use, workspace, path):
    Path("sub").mkdir()
    Path("file").write_text("here\n")
    Path("alias").symlink_to("file")
    Path("linked").symlink_to(workspace)
    assert use("read_file", path=path.format(workspace=workspace)) == "here"


ESCAPING = ["../*", "../**/*.txt", "**/../../*.txt", "folder/*", "*/*", "*.txt"]
ESCAPING += ["../**/*", "sub/../../**/*", "folder/**/*"]


@pytest.mark.parametrize("pattern", ESCAPING)
def test_glob_lists_nothing_outside_the_workspace(answer, outside, pattern):
    content, _ = answer("glob", pattern=pattern)
    assert "secret" not in content and "workspace-2" not in content


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


# --- Pipes, sockets, binary files and secrets ---


@pytest.fixture
def odd_files():
    """A pipe, a socket, a folder and a link to itself, next to a file."""
    Path("loop").symlink_to("loop")
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        Path("folder").mkdir()
        Path("file").write_text("hidden\n")
        yield


@pytest.mark.parametrize("path", ["pipe", "socket", "folder"])
@pytest.mark.parametrize("name", ["read_file", "write_file", "edit_file"])
def test_a_pipe_socket_or_folder_is_an_error_instead_of_a_hang(
    error_of, odd_files, name, path
):
    before = Path(path).stat()
    error_of(name, path=path, **ARGS[name])
    assert Path(path).stat() == before
    assert sorted(os.listdir()) == ["file", "folder", "loop", "pipe", "socket"]


def test_grep_and_glob_skip_pipes_sockets_and_link_loops(use, error_of, odd_files):
    assert use("grep", pattern="hidden") == "file:1:hidden"
    assert use("glob", pattern="*") == "file"
    for name in ("read_file", "edit_file", "grep"):
        error_of(name, path="loop", **ARGS[name])


@pytest.mark.parametrize("name", ["read_file", "edit_file"])
def test_a_binary_file_is_an_error_and_grep_skips_it(error_of, use, name):
    data = b"hidden\n" * 1_000 + b"\0 hidden\n"
    Path("file").write_bytes(data)
    Path("text").write_text("hidden\n")
    assert "binary" in error_of(name, path="file", **ARGS[name])
    assert Path("file").read_bytes() == data
    assert use("grep", pattern="hidden") == "text:1:hidden"


SECRETS = [".env", "sub/.ENV", ".env.e2e", ".envrc", ".envrc.local", ".env~"]
SECRETS += [".env-prod", ".env_local", "..env.swp", ".env.a.example.b", ".env.a\nb"]
SECRETS += ["prod.env", ".flaskenv", ".env2", "docker.env"]
TEMPLATES = [
    ".env.example",
    ".env.sample",
    ".env.local.template",
    ".env-dist",
    ".ENV.Dist",
    "example.env",
    "sample.env",
]
LINKS = ["linked/.env", "link"]


@pytest.fixture
def secret_files():
    """Secrets under all their names and behind links, and files that aren't secret."""
    Path("sub").mkdir()
    Path("linked").mkdir()
    for path in [*SECRETS, *TEMPLATES, ".environment"]:
        Path(path).write_text("hidden\n")
    Path("linked/.env").symlink_to("../.environment")
    Path("link").symlink_to(".env")


@pytest.mark.parametrize(
    "name, path", first_path_for_all_tools_others_for_one([*LINKS, *SECRETS])
)
def test_file_tools_neither_read_nor_write_secrets(error_of, secret_files, name, path):
    before = Path(path).read_bytes()
    assert "may hold secrets" in error_of(name, path=path, **ARGS[name])
    assert Path(path).read_bytes() == before


def test_grep_and_compaction_leave_out_every_secret(use, make, secret_files):
    found = use("grep", pattern="hidden").split("\n")
    named = [*TEMPLATES, ".environment"]
    assert sorted(found) == sorted(f"{name}:1:hidden" for name in named)
    assert ".env.e2e" in use("glob", pattern=".env*").split("\n")
    assert use("read_file", path=".env.example") == "hidden"
    calls = [read(path) for path in ("link", ".env.e2e", ".env.example")]
    restored = program.restore_recent_files(make(), history(*calls), 9_000)
    texts = [exchange.result["content"] for exchange in restored]
    assert ["hidden" in text for text in texts] == [True, False, False]


# --- Odd file names ---


ODD_NAMES = ["two\nlines", "tab\tspace ", "-rf", "'\"$(x)`", "\u65e5\u672c", "a:1:b"]


@pytest.mark.parametrize("path", ODD_NAMES)
def test_all_tools_work_on_a_file_with_an_odd_name(use, path):
    use("write_file", path=path, content="one\n")
    use("edit_file", path=path, old_text="one", new_text="two")
    assert use("read_file", path=path) == "two"
    assert use("grep", pattern="two", path=path).endswith(":1:two")
    assert os.listdir() == [path]
    assert use("glob", pattern="*") == program.visible(path, "\n\t")
    assert use("grep", pattern="two") == f"{path}:1:two"


@pytest.mark.skipif(sys.platform == "darwin", reason="file names are UTF-8 there")
def test_glob_and_grep_survive_a_name_that_isnt_utf_8(use):
    for name in (b"caf\xe9", b"b"):
        Path(os.fsdecode(name)).write_text("one\n")
    assert use("glob", pattern="*") == "b\ncaf\\udce9"
    assert use("grep", pattern="one") == "b:1:one\ncaf\udce9:1:one"


# --- Writing ---


@pytest.fixture(params=["write_file", "edit_file"])
def change(request, answer):
    """change(path): use a tool to change a file from "before" to "after"."""
    given = {"content": "after"}
    if request.param == "edit_file":
        given = {"old_text": "before", "new_text": "after"}
    return lambda path: answer(request.param, path=path, **given)


def test_writing_works_on_a_file_system_without_modes_and_owners(change, monkeypatch):
    Path("file").write_text("before")
    for owner, name in ((Path, "chmod"), (os, "chmod"), (os, "chown")):
        monkeypatch.setattr(owner, name, Mock(side_effect=PermissionError))
    change("file")
    program.save_result("saved")
    program.append(Path(".transcripts/file"), b"line")
    assert Path("file").read_text() == "after"


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755])
def test_a_file_is_replaced_atomically_and_keeps_its_mode(change, mode):
    Path("file").write_text("before")
    Path("file").chmod(mode)
    with Path("file").open() as reader:
        change("file")
        assert reader.read() == "before"  # an open reader still gets the old text
    assert stat.S_IMODE(Path("file").stat().st_mode) == mode
    assert Path("file").read_text() == "after" and os.listdir() == ["file"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change owners")
def test_a_file_keeps_its_owner_and_group(change):
    Path("file").write_text("before")
    os.chown("file", 1_234, 4_321)
    change("file")
    about = Path("file").stat()
    assert (about.st_uid, about.st_gid) == (1_234, 4_321)


def test_only_root_can_change_a_read_only_file(change):
    Path("file").write_text("before")
    Path("file").chmod(0o444)
    _, is_error = change("file")
    root = os.geteuid() == 0
    assert is_error != root
    assert Path("file").read_text() == ("after" if root else "before")
    assert stat.S_IMODE(Path("file").stat().st_mode) == 0o444


def test_a_failed_write_leaves_the_file_unchanged(error_of):
    resource = pytest.importorskip("resource")
    Path("file").write_text("before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, hard))
    try:
        error_of("write_file", path="file", content="x" * 2_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert Path("file").read_text() == "before" and os.listdir() == ["file"]


GUARDED = [".transcripts/file", ".task_outputs/tool-results/file", ".Transcripts/file"]
GUARDED += ["sub/../.transcripts/file", "{workspace}/.TRANSCRIPTS/file", "alias/file"]
GUARDED += [".git/hooks/file", "sub/.GIT/hooks/file", ".git/new"]


@pytest.mark.parametrize("path", GUARDED)
def test_no_tool_writes_into_git_transcripts_or_saved_results(change, workspace, path):
    folders = ".transcripts", ".task_outputs/tool-results", ".git/hooks"
    for folder in (*folders, "sub/.GIT/hooks"):
        Path(folder).mkdir(parents=True)
        Path(folder, "file").write_text("before")
    Path("alias").symlink_to(".transcripts")
    content, is_error = change(path.format(workspace=workspace))
    assert is_error, content
    texts = [p.read_text() for p in Path().rglob("file")]
    assert texts and set(texts) == {"before"}


# --- Files that glob and grep leave out ---


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


IGNORED = ["node_modules/pkg/x.py", "src/build/x.py", "a.log", "lib/b.log"]
IGNORED += ["logs/only.log"]
WORK = ["a.py", "build/x.py", "lib/node_modules", "src/a.py"]
IGNORED_DIRS = [".venv/lib/x.py", "a/node_modules/pkg/dist/x.py", "a/__pycache__/x.py"]


def create_files(*paths):
    """Create a file at each of these paths."""
    for path in paths:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text("hidden\n")


def found_by(use, pattern="**/*", path="."):
    """The files that glob and grep find, as two sets."""
    listed = {n for n in use("glob", pattern=pattern).split("\n") if Path(n).is_file()}
    lines = use("grep", pattern="hidden", path=path).split("\n")
    return listed, {line.partition(":")[0] for line in lines}


@pytest.fixture
def repository():
    """A repository in which git ignores some files."""
    create_files(*IGNORED, *WORK)
    Path(".gitignore").write_text("/node_modules/\nsrc/build\n*.log\n!kept.log\n")
    subprocess.run(["git", "init", "-q"], check=True)


@pytest.mark.parametrize("folder", [".", "src"])
def test_glob_and_grep_leave_out_files_that_git_ignores(
    use, repository, monkeypatch, folder
):
    monkeypatch.chdir(folder)
    names = [name for name in WORK if folder == "." or name.startswith(folder)]
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
    assert searched == {*WORK, ".github/a.yml"} == listed - {".gitignore"}


NAMED = {
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


@pytest.mark.parametrize("pattern, named", NAMED.items(), ids=NAMED)
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


@pytest.mark.parametrize("git", ["no git", "no repository", "all ignored"])
def test_well_known_folders_are_left_out_if_git_cannot_tell(use, monkeypatch, git):
    create_files(*IGNORED_DIRS, "a/b.py")
    if git == "no git":
        Path("../bin").mkdir()
        monkeypatch.setenv("PATH", os.path.abspath("../bin"))
    if git == "all ignored":
        subprocess.run(["git", "init", "-q", ".."], check=True)
        Path("../.gitignore").write_text("*\n")
    assert found_by(use) == ({"a/b.py"}, {"a/b.py"})
    assert found_by(use, ".venv/**/*", ".venv") == (
        {IGNORED_DIRS[0]},
        {IGNORED_DIRS[0]},
    )
    assert found_by(use, "a/node_modules/pkg/**/*", "a/node_modules/pkg/dist")[1] == {
        IGNORED_DIRS[1]
    }


# --- grep ---

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


X, HERE = "x" * 220, "x" * 900 + "needle" + "x" * 900
EXCERPT_CHARS = f" ... {X}needle{'x' * 214}"  # the part of HERE that is shown
# a line, a pattern, and the part of the line that is shown
LONG_LINES = {
    "one match": (HERE, "needle", EXCERPT_CHARS),
    "greedy": (HERE, ".*needle.*", EXCERPT_CHARS),
    "anchored": (HERE, "^.*needle.*$", EXCERPT_CHARS),
    "lazy": (HERE, ".*?needle", EXCERPT_CHARS),
    "literal star": (f"{HERE}.*", r"needlex*\.\*", EXCERPT_CHARS),
    "three of four": ("-".join([HERE] * 4), "needle", EXCERPT_CHARS * 3),
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
    assert {line[7:] for line in found[::2]} == {f"{EXCERPT_CHARS} [line clipped]"}


def test_the_model_can_find_an_old_message_in_the_transcript(make):
    told = f"{'We talked. ' * 400}The port is 4711.{' And so on.' * 400}"
    look = reply(calls=[("grep", {"pattern": "port is", "path": ".transcripts"})])
    agent = make(reply("Yes."), look, reply("4711."))
    take_turn(agent, told)
    take_turn(agent, "Which one?")
    [found] = outputs(*agent.client.requests[-1]["messages"])
    assert "The port is 4711." in found and found.startswith(f"{agent.transcript}:1:")


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
    hint = r"(no matches; each line is searched alone, and \| or \( is literal)"
    assert use("grep", pattern=pattern) == hint
    assert use("grep", pattern=r"x[|]y\.\d") == "(no matches)"


def test_grep_finds_an_operator_that_is_meant_literally(use):
    Path("file").write_text("aa\nx | y\nf(x)\n")
    assert use("grep", pattern=r"x \| y") == "file:2:x | y"
    assert use("grep", pattern=r"f\(") == "file:3:f(x)"


WRONG = ["(", "a)", "[a", "*a", "(?<name", "[[:space:]]"]


@pytest.mark.parametrize("pattern", WRONG)
def test_an_invalid_pattern_is_an_error_that_says_where(error_of, pattern):
    error = error_of("grep", pattern=pattern)
    assert re.search(r"^\w+: .* at position \d", error)


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


# --- bash ---

NEVER_ENDING = {
    "busy loop": "while :; do :; done",
    "ignores signals": "trap '' HUP INT QUIT TERM; while :; do sleep 600; done",
    "closes its output": "exec >&- 2>&-; sleep 600",
    "keeps printing": "while :; do echo on; sleep 0.02; done",
    "waits for a child": "sleep 600 & wait",
}


@pytest.mark.parametrize("command", NEVER_ENDING.values(), ids=NEVER_ENDING)
def test_a_command_is_killed_at_its_timeout(command):
    output = bytearray()
    status = program.run_process(f"echo begun; {command}", 0.3, output, str)
    assert status is None and output.startswith(b"begun\n")


def test_bash_says_when_a_command_was_killed(use):
    content = use("bash", command="echo begun; sleep 600", timeout=1)
    assert content == "begun\n(killed after 1 seconds)"


@pytest.fixture
def tight_limits(monkeypatch):
    """Less time for background processes, and a tenth of the output limits."""
    monkeypatch.setattr(program, "SETTLE_SECONDS", 0.1)
    monkeypatch.setattr(program, "MAX_BYTES", 1_000_000)
    monkeypatch.setattr(program, "MAX_KEPT", 25_000)


@pytest.fixture
def writers():
    """writers(): all that was written to the pipe `alive`, once its writers have ended.

    This works without /proc, and even if nobody reaps the processes.
    """
    os.mkfifo("alive")
    reader = os.open("alive", os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reader, True)

    def wait_for_end():
        with os.fdopen(os.dup(reader)) as pipe:
            return pipe.read()

    yield wait_for_end
    os.close(reader)


CHILD = "(echo up >&9; touch up; exec sleep 600) 9>alive"
CHILDREN = {
    "in the background": f"{CHILD} & ",
    "grandchild": f"({CHILD} & ) & ",
    "ignores signals": f"(trap '' HUP INT TERM; {CHILD}) & ",
    "own process group": f"set -m; {CHILD} & ",
    "nohup": "nohup bash -c 'echo up; touch up; exec sleep 600' >alive 2>&1 & ",
}
ENDED = "\n(What was left running has been ended; setsid would keep it.)"
IS_UP = "until [ -e up ]; do sleep 0.02; done; "


@pytest.mark.parametrize("child", CHILDREN.values(), ids=CHILDREN)
def test_a_child_that_holds_the_output_open_ends_with_its_command(
    use, tight_limits, writers, child
):
    said = use("bash", command=child + IS_UP + "echo done", timeout=600)
    assert said == f"done\n{ENDED}"
    assert writers() == "up\n"


def test_a_child_that_keeps_writing_does_not_keep_the_tool_waiting(use, tight_limits):
    begun = time.monotonic()
    use("bash", command="yes & sleep 0.1; exit 0", timeout=6)
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("jobs", ["", "set -m; "])
def test_ctrl_c_kills_the_command_and_its_children(make, writers, jobs):
    interrupt = f"{jobs}{CHILD} & {IS_UP} kill -INT $PPID; sleep 600"
    agent = make(reply(calls=[("bash", {"command": interrupt})]), reply("Yes."))
    with pytest.raises(KeyboardInterrupt):
        take_turn(agent, "Work.")
    assert writers() == "up\n"
    assert agent.messages[-1]["content"][0]["is_error"] is True
    assert take_turn(agent, "Are you there?") == "Yes."


# Start commands, interrupt each within its first ten milliseconds, and print how many
# were stopped. Each command holds the pipe `alive` open while it lives.
INTERRUPTED = """
import os, signal, sys, threading, time
import agent as program

def interrupt(seconds):
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGINT)

stopped, times = 0, int(sys.argv[1])
signal.signal(signal.SIGINT, signal.default_int_handler)
for number in range(times):
    later = threading.Thread(target=interrupt, args=[number % 50 / 5_000])
    try:
        later.start()
        program.run_process("exec 9>alive; sleep 600 & sleep 600", 60, bytearray(), str)
    except KeyboardInterrupt:
        stopped += 1
    later.join()
print(stopped)
"""


def test_the_user_sees_the_output_of_an_interrupted_command(make):
    command = "echo begun; kill -INT $PPID; sleep 600"
    agent = make(reply(calls=[("bash", {"command": command})]))
    with pytest.raises(KeyboardInterrupt):
        take_turn(agent, "Work.")
    assert shown(agent, "result") == ["begun\n"]


def test_a_command_that_cannot_be_killed_does_not_block_the_program(use, monkeypatch):
    monkeypatch.setattr(program.os, "killpg", Mock(side_effect=PermissionError))
    begun = time.monotonic()
    content = use("bash", command="echo begun; exec sleep 4", timeout=1)
    assert time.monotonic() - begun < 3
    assert content.startswith("begun\n") and "Part of it is still running" in content


def test_an_interrupt_while_a_command_starts_leaves_no_process(writers):
    times = 600 if LONG_TESTS else 40
    signal.alarm(15 + times // 4)
    env = os.environ | {"PYTHONPATH": str(Path(program.__file__).parent)}
    argv = [sys.executable, "-c", INTERRUPTED, str(times)]
    assert int(subprocess.check_output(argv, env=env)) == times
    assert writers() == ""  # waits for every process that still lives


@pytest.fixture
def patient(monkeypatch):
    """As much time to clean up as it takes, once a command is being ended."""
    end_session = program.end_session

    def end_patiently(*given):
        monkeypatch.setattr(program, "SETTLE_SECONDS", 600)
        end_session(*given)

    monkeypatch.setattr(program, "end_session", end_patiently)


STOP = "kill -INT $PPID; while :; do sleep 0.02; done"
CLEANING = {
    "stopped": f"trap 'echo cleaned; exit' TERM; {STOP}",
    "in a group of its own": f"set -m; (trap 'echo cleaned; exit' TERM; {STOP}); true",
    "more than a pipe holds": f"trap 'yes cleaned | head -n 50000; exit' TERM; {STOP}",
}


@pytest.mark.parametrize("command", CLEANING.values(), ids=CLEANING)
def test_a_command_that_is_stopped_can_clean_up_first(patient, command):
    output = bytearray()
    with pytest.raises(KeyboardInterrupt):
        program.run_process(command, 600, output, str)
    assert output.count(b"cleaned\n") == (50_000 if "yes" in command else 1)


def test_a_process_left_in_the_background_can_clean_up_first(use, patient, monkeypatch):
    monkeypatch.setattr(program, "SETTLE_SECONDS", 0.1)
    child = "trap 'touch cleaned; exit' TERM; touch up; while :; do sleep 0.02; done"
    said = use("bash", command=f"({child}) >&- 2>&- & {IS_UP} echo done")
    assert said == f"done\n{ENDED}"
    assert Path("cleaned").exists()


def test_a_stopped_commit_leaves_no_lock_in_the_repository(patient, monkeypatch):
    monkeypatch.setenv("TESTS", str(os.getpid()))
    create_files("a.py", "hooks/pre-commit")
    Path("hooks/pre-commit").write_text("#!/bin/sh\nkill -INT $TESTS\nsleep 600\n")
    Path("hooks/pre-commit").chmod(0o755)
    git = "git -c user.name=a -c user.email=a@b -c core.hooksPath=hooks"
    commit = f"git init -q && git add a.py && {git} commit -qam a"
    with pytest.raises(KeyboardInterrupt):
        program.run_process(commit, 600, bytearray(), str)
    subprocess.run(["git", "add", "a.py"], check=True)
    assert not [*Path(".git").rglob("*.lock")]


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="no /proc here")
def test_the_shells_own_process_group_is_signalled_first_and_each_only_once(
    monkeypatch,
):
    killpg, sent = os.killpg, []
    monkeypatch.setattr(os, "killpg", lambda *to: sent.append(to) or killpg(*to))
    command = "set -m; " + "sleep 600 | sleep 600 & " * 9 + "kill -INT $PPID; wait"
    with pytest.raises(KeyboardInterrupt):
        program.run_process(command, 600, bytearray(), str)
    for number, count in {signal.SIGTERM: 10, signal.SIGKILL: 1}.items():
        groups = [group for group, given in sent if given == number]
        assert groups[0] == sent[0][0] and len(groups) == len({*groups}) >= count


def test_a_process_that_nobody_reaps_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(program, "SETTLE_SECONDS", 600)
    orphan = "bash -c 'sleep 600 & sleep 0 & exec sleep 600'"
    process = program.start_session(f"{orphan} & wait")
    program.end_session(process, bytearray())
    assert process.returncode == -signal.SIGTERM


@pytest.mark.skipif(not shutil.which("timeout"), reason="no timeout here")
def test_a_stop_does_not_start_the_next_command():
    for _ in range(9):
        stopped = "timeout 60 sleep 600; touch next"
        assert program.run_process(stopped, 0.05, bytearray(), str) is None
    assert not Path("next").exists()


def test_what_a_python_program_printed_is_kept_when_it_is_stopped():
    stop = "import os, time; print('begun'); os.kill({}, 2); time.sleep(600)"
    command = f'{sys.executable} -c "{stop.format(os.getpid())}"'
    output = bytearray()
    with pytest.raises(KeyboardInterrupt):
        program.run_process(command, 600, output, str)
    assert output == b"begun\n"


def test_output_written_just_after_a_command_ends_is_read(use, monkeypatch):
    monkeypatch.setattr(program, "SETTLE_SECONDS", 600)
    rest = "(until [ -e ended ]; do sleep 0.02; done; yes x | head -n 50000) & "
    said = use("bash", command=f"{rest} touch ended; exit 0")
    assert said.count("x\n") == 50_000


def test_ctrl_c_after_a_command_kills_its_background_processes(
    use, writers, monkeypatch
):
    kill, faults = program.kill_session, [KeyboardInterrupt]

    def look(*given):
        if faults:
            raise faults.pop()
        return kill(*given)

    monkeypatch.setattr(program, "kill_session", look)
    with pytest.raises(KeyboardInterrupt):
        use("bash", command=CHILD + " & " + IS_UP)
    assert writers() == "up\n"


@pytest.mark.skipif(not shutil.which("setsid"), reason="no setsid here")
@pytest.mark.parametrize("end", ["&", "& true", "", "& exit 0"])
def test_a_process_started_with_setsid_outlives_its_command(use, writers, end):
    child = "setsid bash -c 'sleep 0.1; echo on' >alive 2>&1"
    for _ in range(5):
        use("bash", command=f"{child} {end}")
    assert writers() == "on\n" * 5


@pytest.fixture
def standard_input():
    """Text waiting on the program's own standard input."""
    reader, writer = os.pipe()
    os.write(writer, b"waiting\n" * 9)
    before = os.dup(0)
    os.dup2(reader, 0)
    yield
    os.dup2(before, 0)
    for file in (reader, writer, before):
        os.close(file)


READING = [("cat", "(no output)"), ("head -c 5; echo end", "end\n")]
READING += [("read line </dev/tty || echo no terminal", "no terminal\n")]


@pytest.mark.parametrize("command, output", READING)
def test_a_command_cannot_read_the_programs_standard_input(
    use, standard_input, command, output
):
    content = use("bash", command=command, timeout=600)
    assert content.endswith(output) and "waiting" not in content


ODD_OUTPUT = {
    "NUL byte": (r"a\0b", "a\0b"),
    "invalid UTF-8": (r"a\377b", "a\ufffdb"),
    "colors": (r"\033[1;31mred\033[0m \033]0;title\007a", "red a"),
    "unfinished title": (r"\033]0;title\nso\n", "\nso\n"),
    "overwritten line": (r"10%%\r 50%%\r100%%\r\nso\r\n", "100%\nso\n"),
}


@pytest.mark.parametrize("bytes, text", ODD_OUTPUT.values(), ids=ODD_OUTPUT)
def test_odd_output_reaches_the_model_and_the_transcript_as_text(make, bytes, text):
    command = ("bash", {"command": f"printf '{bytes}'"})
    agent = make(reply(calls=[command]), reply("Done."))
    take_turn(agent, "Go.")
    assert outputs(*agent.client.requests[1]["messages"]) == [text]
    assert lines_of(agent.transcript) == agent.messages


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


def test_a_command_that_looks_like_an_option_is_run_as_a_command(use):
    assert "--version: command not found" in use("bash", command="--version")


def test_bash_keeps_the_start_and_end_of_long_output(use, tight_limits):
    filling = "head -c 900000 /dev/zero | tr '\\0' x"
    content = use("bash", command=f"echo first; {filling}; echo last", timeout=600)
    assert content.startswith("first\nxxx") and content.endswith("xxxlast\n")
    assert re.search(r"\n\[at least 80\d,\d{3} bytes are left out here\]\n", content)
    assert 99_000 < len(content) < 101_000


@pytest.mark.parametrize("command", ["yes more", "yes more | head -c 1002000"])
def test_a_command_that_writes_too_much_is_killed_and_its_output_kept(
    use, tight_limits, command
):
    content = use("bash", command=f"echo first; {command}", timeout=600)
    *lines, end = content.split("\n")
    assert lines[:2] == ["first", "more"] and len(content) > 80_000
    assert end == "(killed: more than 10 MB of output)"


def test_writing_to_dev_stderr_does_not_erase_earlier_output(use):
    said = use("bash", command="echo one; echo two >/dev/stderr; echo three")
    assert said == "one\ntwo\nthree\n"


# --- Output of a command that comes from our own records ---


FOUND = "a.py:1:needle\n"
OWN = ".transcripts/t.jsonl:1:needle", ".task_outputs/tool-results/a.txt-2-near"
OWN_LINES = {  # the output of a command, and what is left of it
    "grep": (f"./{OWN[0]}\n./{FOUND}./{OWN[1]}\n", f"./{FOUND}"),
    "rg": (f"{FOUND}{OWN[0]}\n{OWN[1]}\n", FOUND),
    "absolute": (
        f"/my own/code/{OWN[0]}\n/my own/code/{FOUND}",
        f"/my own/code/{FOUND}",
    ),
    "find": (
        "./.transcripts\n./.transcripts/history\n./a.py\n",
        "./.transcripts\n./a.py\n",
    ),
    "no newline": (f"{FOUND}{OWN[0]}", FOUND),
    "nothing else": (f"{OWN[0]}\n", ""),
}
KEPT = [".transcripts/\n.task_outputs/*\n", "a.py:1:see ./.transcripts/t.jsonl\n"]
KEPT += ['x = ["sub/../.transcripts/file"]\n', "?? .transcripts/\n", ".transcripts:\n"]
KEPT += ["my.transcripts/a.jsonl\n", "two words/.transcripts/t.jsonl\n"]


@pytest.mark.parametrize("output, kept", OWN_LINES.values(), ids=OWN_LINES)
def test_output_has_no_lines_from_our_own_records_and_says_so(make, output, kept):
    Path("output").write_text(output)
    result = program.run_tool(agent := make(), call("bash", command="cat output"))
    assert result["content"] == f"{kept}{program.LEFT_OUT}\n"
    assert agent.events[1:] == [("result", result["content"])]


@pytest.mark.parametrize("output", KEPT)
def test_lines_that_only_mention_our_records_stay(use, output):
    Path("output").write_text(output)
    assert use("bash", command="cat output") == output


def test_a_folder_of_records_that_the_command_names_stays_in_its_output(use):
    Path("output").write_text(f"{OWN[0]}\n{OWN[1]}\n")
    named = use("bash", command="cat output # .transcripts")
    assert named == f"{OWN[0]}\n{program.LEFT_OUT}\n"
    both = "cat output # .task_outputs and .transcripts"
    assert use("bash", command=both) == f"{OWN[0]}\n{OWN[1]}\n"


def test_the_exit_status_follows_the_line_on_what_is_left_out(make):
    Path("output").write_text(f"{FOUND}{OWN[0]}\n")
    agent = make()
    program.run_tool(agent, call("bash", command="cat output; exit 3"))
    lines = f"{FOUND}{program.LEFT_OUT}\n(exit status 3)"
    assert agent.events[1:] == [("failed", lines)]


def test_the_same_search_by_bash_costs_the_same_every_time(make):
    create_files("a.py", "b.py")
    search = ("bash", {"command": "grep -rn hidden . | sort"})
    agent = make(*[reply(calls=[search])] * 4, reply("Done."))
    take_turn(agent, "Where is it hidden?")
    found = f"./a.py:1:hidden\n./b.py:1:hidden\n{program.LEFT_OUT}\n"
    assert outputs(*agent.messages) == [found] * 4


# --- Memory ---

# Print how many megabytes a call added to this process, the peak of its children in
# megabytes, and the length of the result.
MEASURE = """
import json, resource, sys
import agent as program

def peak(who):
    unit = 1_000_000 if sys.platform == "darwin" else 1_000
    return resource.getrusage(who).ru_maxrss / unit

program.SEARCH_SECONDS = 1
agent = program.Agent(approve=lambda *_: None)
before = peak(resource.RUSAGE_SELF)
block = program.run_tool(agent, json.loads(sys.argv[1]))
grown = peak(resource.RUSAGE_SELF) - before
children = peak(resource.RUSAGE_CHILDREN)
print(json.dumps([grown, children, len(block["content"])]))
"""


LARGE = {
    "yes": call("bash", command="yes", timeout=1),
    "grep in one line": call("grep", pattern="x{9}", path="line"),
    "read_file": call("read_file", path="sparse"),
    "edit_file": call("edit_file", path="sparse", old_text="a", new_text="b"),
    "grep in 5 GB": call("grep", pattern="x", path="sparse"),
    "grep in 5 GB that start as text": call("grep", pattern="x", path="text"),
    "write_file": call("write_file", path="sparse", content="x"),
}


@pytest.mark.parametrize("block", LARGE.values(), ids=LARGE)
def test_memory_is_bounded(block):
    with Path("sparse").open("wb") as file:
        file.truncate(5_000_000_000)
    Path("text").write_text("x" * 9_999)
    os.truncate("text", 5_000_000_000)
    Path("line").write_text("x" * 5_000_000)
    # Use a shell in between, because a child starts with its parent's peak.
    argv = ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-c", MEASURE]
    env = os.environ | {"PYTHONPATH": str(Path(program.__file__).parent)}
    measured = subprocess.check_output([*argv, json.dumps(block)], env=env)
    grown, children, length = json.loads(measured)
    assert grown < 40 and children < 250 and length < 1_001_000


# --- The environment, and API keys ---


OURS, THEIRS = f"{sys.prefix}/bin:", "/their/venv/bin:"
ENVIRONMENTS = {  # settings, and what a command sees of the last two
    "uv run": (("1", sys.prefix, OURS), ("", "")),
    "uv run in an activated environment": (
        ("1", sys.prefix, f"{OURS}{THEIRS}"),
        ("", THEIRS),
    ),
    "activated": (("", sys.prefix, OURS), (sys.prefix, OURS)),
    "uv run of another program": (
        ("1", "/their/venv", THEIRS),
        ("/their/venv", THEIRS),
    ),
}


@pytest.mark.parametrize("settings, seen", ENVIRONMENTS.values(), ids=ENVIRONMENTS)
def test_commands_see_the_users_python_environment(use, monkeypatch, settings, seen):
    depth, folder, path = settings
    if depth:
        monkeypatch.setenv("UV_RUN_RECURSION_DEPTH", depth)
    monkeypatch.setenv("VIRTUAL_ENV", folder)
    monkeypatch.setenv("PATH", f"{path}/usr/bin:/bin")
    said = use("bash", command='echo "$VIRTUAL_ENV $PATH"')
    assert said == f"{seen[0]} {seen[1]}/usr/bin:/bin\n"


def test_gpg_is_not_told_about_our_terminal(use, monkeypatch):
    monkeypatch.setenv("GPG_TTY", "/dev/pts/7")
    assert "GPG_TTY" not in use("bash", command="env")


@pytest.fixture(params=["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"])
def key(request, monkeypatch):
    """The environment variable that holds the key, which is in two files as well."""
    monkeypatch.setenv(request.param, KEY)
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", "X-Mine: hidden")
    Path(".env").write_text(f"{request.param}={KEY}\n")
    Path("config").write_text(f"key: {KEY}\n")
    return request.param


ENV_COMMANDS = ["env", 'printf "<%s>" "${key}"', "bash -c 'bash -c env'"]


@pytest.mark.parametrize("command", ENV_COMMANDS)
def test_a_commands_environment_has_everything_but_the_keys(
    use, key, monkeypatch, command
):
    monkeypatch.setenv("OTHER_SETTING", "reaches it")
    content = use("bash", command=command.format(key=key))
    assert not any(text in content for text in (KEY, "[redacted]", "X-Mine"))
    assert content == "<>" or "OTHER_SETTING=reaches it" in content


SHOWING = {
    "cat .env": ("bash", {"command": "cat .env"}),
    "read_file": ("read_file", {"path": "config"}),
    "grep": ("grep", {"pattern": "key", "path": "config"}),
    "much output": ("bash", {"command": 'yes "$(cat config)" | head -n 9000'}),
}


@pytest.mark.parametrize("block", SHOWING.values(), ids=SHOWING)
def test_a_key_in_a_tool_result_is_never_sent_saved_or_shown(make, key, block):
    agent = make(reply(calls=[block]), reply("Done."))
    take_turn(agent, "Go.")
    files = [*Path(".transcripts").rglob("*.*"), *Path(".task_outputs").rglob("*.*")]
    written = "".join(path.read_text("utf-8") for path in files)
    for seen in (repr(agent.client.requests), written):
        assert KEY not in seen and "[redacted]" in seen
    seen = repr(agent.events)  # without the texts of files that were read
    assert KEY not in seen and ("[redacted]" in seen) == (block[0] != "read_file")


def test_a_key_in_an_error_is_redacted(error_of, broken_glob, key):
    broken_glob(RuntimeError(f"no access with {KEY}"))
    assert error_of("glob", pattern="*").endswith("no access with [redacted]")


CAT, MUCH = ("bash", {"command": "cat config"}), "a" * 100_000
LEAKS = {
    "clipped by grep": ("grep", {"pattern": "is"}, f"is {MUCH[:170]}{KEY}{MUCH}"),
    "match inside": ("grep", {"pattern": "t-te"}, MUCH[:9_000] + KEY + MUCH),
    "killed mid-key": (
        "bash",
        {"command": "head -c 1000012 config; sleep 9"},
        MUCH * 10 + KEY,
    ),
    "across every cut": (*CAT, KEY * 5_000),
    "cut by read_file": ("read_file", {"path": "config"}, MUCH[:49_990] + KEY),
}


@pytest.mark.parametrize("name, given, text", LEAKS.values(), ids=LEAKS)
def test_a_key_at_a_truncation_point_is_redacted(
    use, tight_limits, key, name, given, text
):
    Path("config").write_text(text)
    content = use(name, **given)
    assert KEY[:9] not in content and KEY[-9:] not in content


LONG_KEY = "sk-" + "".join(f"{n:04}" for n in range(25))


@pytest.mark.parametrize(
    "tool, given, before",
    [
        ("grep", {"pattern": "model"}, "q" * 300),
        ("read_file", {"path": "config"}, "x" * 39_900),
    ],
)
def test_clipping_a_long_line_shows_no_part_of_a_long_key(
    use, monkeypatch, tool, given, before
):
    monkeypatch.setenv("ANTHROPIC_API_KEY", LONG_KEY)
    for more in range(0, 400, 20):
        line = f"{before}{LONG_KEY}{'z' * (60 + more)} model {'y' * 60_000}\n"
        Path("config").write_text("x" * more + line)
        content = use(tool, **given)
        shown = [at for at in range(0, 90, 10) if LONG_KEY[at : at + 12] in content]
        assert shown == []


def test_the_diff_shows_that_a_key_would_be_replaced(make, key):
    Path("config").write_text(f"key: {KEY}\nport: 1\n")
    asked = []
    agent = make(approve=lambda name, what: asked.append(what))
    text = program.run_tool(agent, call("read_file", path="config"))["content"]
    write = call("write_file", path="config", content=text.replace("1", "2") + "\n")
    program.run_tool(agent, write)
    assert f"-key: {KEY}\n" in asked[0] and "+key: [redacted]\n" in asked[0]
    assert KEY not in repr(agent.events) and KEY not in str(agent.messages)


@pytest.mark.parametrize("short", ["", "a", "not-needed", "lm-studio-12345"])
def test_a_short_placeholder_key_is_not_redacted(use, monkeypatch, short):
    monkeypatch.setenv("ANTHROPIC_API_KEY", short)
    assert use("bash", command=f"echo a {short}").strip() == f"a {short}".strip()
    monkeypatch.setenv("ANTHROPIC_API_KEY", "lm-studio-123456")
    assert use("bash", command="echo lm-studio-123456") == "[redacted]\n"


# --- After a compaction ---

BROKEN = ["nothing", "folder", "pipe", b"\0", "file", "../secret"]


@pytest.mark.parametrize("what", BROKEN)
def test_compaction_copes_with_files_it_cannot_read_again(make, what):
    Path("../secret").write_text("hidden\n")
    Path("file").write_text("here\n")
    turn_into(Path("file"), what)
    [exchange] = program.restore_recent_files(make(), history(read("file")), 9_000)
    text = exchange.result["content"]
    assert text and "hidden" not in text
