"""Files and paths: reading, writing and editing, and what is out of bounds."""

import json
import os
import re
import socket
import stat
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from builders import (
    TASK,
    call,
    history,
    outputs,
    read,
    typed,
)
from stub import reply

import agent as program
from agent import (
    TOOLS,
    run_tool,
    run_tools,
    save_result,
    take_turn,
    tokens_in,
    tool_result_budget,
)

pytestmark = pytest.mark.usefixtures("no_hang")


# --- read_file ---


def pages(use, path, **given):
    """Read a file page by page; return the pages without their notes."""
    found = []
    while True:
        answer = use("read_file", path=path, **given)
        note = re.search(r"\n\(more follows.*offset=(\d+)\)$", answer)
        found.append(answer[: note.start()] if note else answer)
        if not note or len(found) == 100:
            return found
        given["offset"] = int(note[1])


AS_READ = {
    b"one\ntwo\n": "one\ntwo",
    b"one\r\ntwo\r\n": "one\ntwo",
    b"caf\xe9": "caf\ufffd",
    "one\u2028still one\x0cand so".encode(): "one\u2028still one\x0cand so",
}


@pytest.mark.parametrize("data, text", AS_READ.items())
def test_read_file_returns_the_text(use, data, text):
    Path("file").write_bytes(data)
    assert use("read_file", path="file") == text


@pytest.mark.parametrize(
    "given, text, more",
    [
        ({"limit": 2}, "1\n2", "offset=3"),
        ({"offset": 4, "limit": 2}, "4\n5", "offset=6"),
        ({"offset": 9}, "9\n10", ""),
        ({"offset": 99}, "(nothing at offset 99: the file has 10 lines)", ""),
        ({"offset": 9, "limit": 2}, "9\n10", ""),
        ({"offset": -7, "limit": 2}, "1\n2", "offset=3"),
        ({"offset": 3, "limit": -1}, "3\n4\n5\n6\n7\n8\n9\n10", ""),
        ({"offset": 9, "limit": 0}, "9\n10", ""),
    ],
)
def test_read_file_honours_offset_and_limit(use, given, text, more):
    Path("file").write_text("".join(f"{i}\n" for i in range(1, 11)))
    lines, _, note = use("read_file", path="file", **given).partition("\n(")
    assert lines == text
    assert more in note and bool(note) == bool(more)


@pytest.mark.parametrize("text, offset", [("", 1), ("\n", 1), ("a\n\n", 2)])
def test_reading_only_blank_lines_says_that_there_is_nothing_else(use, text, offset):
    Path("file").write_text(text)
    blank = "(the file is empty, or blank from here)"
    assert use("read_file", path="file", offset=offset) == blank


PAGED = {
    "many lines": "".join(f"line {i}\n" for i in range(4_500)),
    "wide lines": "".join("x" * 999 + "\n" for _ in range(120)),
    "blank lines": "a\n\n\n" * 2_000 + "b",
    "Japanese": "\u65e5\u672c\u8a9e\n" * 5_000,
}


@pytest.mark.parametrize("text", PAGED.values(), ids=PAGED)
def test_the_pages_of_a_file_join_into_the_whole_file(use, text):
    Path("file").write_text(text, "utf-8")
    found = pages(use, "file")
    assert "\n".join(found) == text.rstrip("\n") and 1 < len(found) < 10
    assert all(len(page) <= 50_000 for page in found)


WIDE = {"x" * 50_002: 49_700, "\U0001f600" * 9**5: 12_400, "x" * 5_000_000: 49_700}


@pytest.mark.parametrize("wide", WIDE, ids=len)
@pytest.mark.parametrize("around, given", [("", {}), ("a\nb\n", {"limit": 1})])
def test_a_line_alone_may_fill_a_page_and_a_longer_one_keeps_its_start_and_end(
    use, wide, around, given
):
    Path("file").write_text(f"{around}{wide}\n{around}", "utf-8")
    offset = 1 + around.count("\n")
    head, note, tail, *_ = use("read_file", path="file", offset=offset, **given).split(
        "\n"
    )
    assert {*head, *tail} == {*wide} and len(head + tail) >= WIDE[wide]
    assert "left out here" in note


@pytest.mark.parametrize("wide", ["x" * 200_000, "\u65e5" * 9_000])
def test_a_long_line_among_others_takes_600_tokens_and_can_be_edited(use, wide):
    Path("file").write_text(f"a\n{wide}here{wide}\nb\n" * 8, "utf-8")
    page = use("read_file", path="file")
    assert page.count("left out here") == 8 and page.endswith("b")
    assert 4_500 < program.tokens_in(page) < 5_500
    Path("file").write_text(f"a\n{wide}here{wide}\nb\n", "utf-8")
    use("edit_file", path="file", old_text="here", new_text="there")
    assert Path("file").read_text("utf-8") == f"a\n{wide}there{wide}\nb\n"


def test_read_file_refers_to_bash_above_10_mb(use, error_of):
    Path("file").write_text("x" * 9_999_999 + "\n")
    assert "are left out here" in use("read_file", path="file")
    Path("file").write_text("x" * 9_999_999 + "\ny")
    assert "use bash" in error_of("read_file", path="file")


# --- Files that are too large, and pages that fit ---


@pytest.mark.parametrize(
    "name, given",
    [
        ("edit_file", {"old_text": "y", "new_text": "z"}),
        ("write_file", {"content": "z"}),
    ],
)
def test_editing_a_file_above_1_mb_is_left_to_bash(use, error_of, name, given):
    Path("file").write_text("x" * 999_998 + "\ny")
    use(name, path="file", **given)
    Path("file").write_text("x" * 999_999 + "\ny")
    assert "use bash" in error_of(name, path="file", **given)


def test_editing_a_file_above_20_000_lines_is_left_to_bash(use, error_of):
    edit = {"path": "file", "old_text": "y", "new_text": "z"}
    Path("file").write_text("x\n" * 19_999 + "y\n")
    use("edit_file", **edit)
    Path("file").write_text("x\n" * 20_000 + "y\n")
    assert "bash" in error_of("edit_file", **edit)
    assert "bash" in error_of("write_file", path="new", content="x\n" * 20_001)


def test_an_edit_cannot_grow_a_file_above_1_mb(error_of):
    Path("file").write_text("x" * 1_000)
    edit = {"old_text": "x", "new_text": "y" * 2_000, "replace_all": True}
    assert "bash" in error_of("edit_file", path="file", **edit)
    assert Path("file").read_text() == "x" * 1_000


LANGUAGES = {
    "English": "x" * 70,
    "Japanese": "\u65e5\u672c\u8a9e" * 20,
    "quoted": '"\\\t"',
    "emoji": "\U0001f600" * 50,
    "control characters": "\x01" * 40,
}
SIZES = [(2_000, 4), (20_000, 9), (167_000, 1), (167_000, 12)]


@pytest.mark.slow
@pytest.mark.parametrize("threshold, count", SIZES)
@pytest.mark.parametrize("line", LANGUAGES.values(), ids=LANGUAGES)
def test_a_page_never_exceeds_the_result_budget_in_any_language(
    make, line, threshold, count
):
    text = f"{line}\n" * (600_000 // len(line))
    Path("file").write_text(text, "utf-8")
    calls = [
        call("read_file", path="file") | {"id": f"toolu_{n}"} for n in range(count)
    ]
    agent = make(threshold=threshold, keep_recent=0)
    agent.messages = [typed("Read."), {"role": "assistant", "content": calls}]
    run_tools(agent, calls)
    messages = tool_result_budget(agent.messages, agent.limits.max_results, save_result)
    assert messages is agent.messages
    for page in outputs(agent.messages[-1]):
        shown, _, note = page.rpartition("\n(more follows")
        assert text.startswith(shown) and note and len(shown) >= 40


def test_a_saved_result_can_be_read_page_by_page(make):
    text = "\n".join("\u65e5\u672c\u8a9e" * 30 for _ in range(900))
    path = save_result(text)
    agent = make(threshold=20_000)
    found = pages(lambda name, **given: TOOLS[name].handler(agent, **given), str(path))
    assert "\n".join(found) == text and max(map(tokens_in, found)) <= 6_666


@pytest.mark.parametrize(
    "limit, lines", [(2_000, 2_000), (5_000, 2_000), (1_999, 1_999)]
)
def test_a_page_has_at_most_2_000_lines(use, limit, lines):
    Path("file").write_text("x\n" * 5_000)
    assert use("read_file", path="file", limit=limit).count("x\n") == lines


# --- write_file and edit_file ---


CONTENTS = ["", "one\n", "no newline", "one\r\ntwo\n", "caf\u00e9 \u65e5\u672c\n"]


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("path", ["file", "new/folders/file", "./new/../file"])
def test_write_file_writes_the_exact_bytes(use, path, content):
    Path("file").write_text("what was there before")
    use("write_file", path=path, content=content)
    assert Path(os.path.normpath(path)).read_bytes() == content.encode()


ALL = {"replace_all": True}
EDITS = {
    "deletion": (b"a b c", " b", "", {}, b"a c"),
    "replace all": (b"a b a", "a", "x", ALL, b"x b x"),
    "not a regular expression": (b"a.c abc", "a.c", r"\1", {}, rb"\1 abc"),
    "invalid UTF-8": (b"caf\xe9 one \xff\n", "one", "two", {}, b"caf\xe9 two \xff\n"),
    "CRLF": (b"a\r\nb\r\nc\r\n", "b", "x", {}, b"a\r\nx\r\nc\r\n"),
    "across CRLF": (b"a\r\nb\r\nc\r\n", "a\nb", "x\ny", {}, b"x\r\ny\r\nc\r\n"),
    "LF to CRLF": (b"a\r\nb\r\n", "a\nb", "x\n\ny", {}, b"x\r\n\r\ny\r\n"),
    "replace all in CRLF": (b"a\r\na\r\n", "a\n", "x\n", ALL, b"x\r\nx\r\n"),
    "LF in mixed": (b"a\r\nb\nc\n", "b\nc", "x\ny", {}, b"a\r\nx\ny\n"),
    "CRLF in mixed": (b"a\r\nb\r\nc\n", "a\nb", "x\ny", {}, b"x\r\ny\r\nc\n"),
    "line in mixed": (b"a\r\nb\nc\n", "b", "x\ny", {}, b"a\r\nx\ny\nc\n"),
    "longer CRLF": (b"a\r\nb\r\n", "b", "x\ny", {}, b"a\r\nx\r\ny\r\n"),
    "form feed": (b"a\x0cb\n", "b", "x", {}, b"a\x0cx\n"),
}


@pytest.mark.parametrize("before, old, new, more, after", EDITS.values(), ids=EDITS)
def test_an_edit_leaves_every_other_byte_alone(use, before, old, new, more, after):
    Path("file").write_bytes(before)
    said = use("edit_file", path="file", old_text=old, new_text=new, **more)
    assert Path("file").read_bytes() == after
    count = "2 replacements" if more else "1 replacement"
    assert said == f"Made {count} in file."


NOT_ONCE = [("a", {}), ("a", {"replace_all": "false"}), ("absent", {}), ("absent", ALL)]
NOT_ONCE += [("", {}), ("", ALL), ("A B", {}), (" ", {}), ("c\nc", {})]


@pytest.mark.parametrize("old, more", NOT_ONCE)
def test_edit_file_needs_a_text_that_occurs_exactly_once(error_of, old, more):
    text = "a b a c\nc\nc"  # "c\nc" occurs twice, overlapping
    Path("file").write_text(text)
    error = error_of("edit_file", path="file", old_text=old, new_text="x", **more)
    is_there = old and old in text
    assert ("more than once" if is_there else "does not contain") in error
    assert Path("file").read_text() == text


def test_a_very_repetitive_edit_fails_quickly(error_of):
    Path("file").write_text("x" * 900_000)
    given = {"path": "file", "old_text": "x" * 2_000, "new_text": "y"}
    assert "more than once" in error_of("edit_file", **given)


# --- Files that the user has changed ---


KNOWN_BY = {  # the calls with which the model got to know the file
    "read": [("read_file", {})],
    "read in part": [("read_file", {"limit": 1})],
    "written": [("write_file", {"content": "one\n2\n"})],
    "edited": [("edit_file", {"old_text": "two", "new_text": "2"})],
}


@pytest.mark.parametrize("calls", KNOWN_BY.values(), ids=KNOWN_BY)
def test_write_file_does_not_replace_what_the_user_has_changed(use, error_of, calls):
    Path("file").write_text("one\ntwo\n")
    for tool, given in calls:
        use(tool, path="./file", **given)
    Path("file").write_text("the user's own\n")
    refused = error_of("write_file", path="file", content="new")
    assert refused == "file has changed since you read it; read it again."
    assert use("read_file", path="file") == "the user's own"
    use("write_file", path="file", content="new")
    use("write_file", path="file", content="newer")


def test_write_file_replaces_a_file_of_which_only_the_time_has_changed(use):
    Path("file").write_bytes(b"caf\xe9\r\n")
    use("read_file", path="file")
    os.utime("file", (9, 9))  # as after `git stash; git stash pop`
    use("write_file", path="file", content="new")
    os.utime("file", (9, 9))
    use("write_file", path="file", content="newer")
    assert Path("file").read_text() == "newer"


def test_write_file_notices_a_change_that_leaves_the_time_as_it_was(use, error_of):
    Path("file").write_text("one\n")
    use("read_file", path="file")
    before = os.stat("file")
    Path("file").write_text("two\n")
    os.utime("file", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "changed since" in error_of("write_file", path="file", content="new")


def test_an_edit_of_a_changed_file_does_not_make_the_change_known(use, error_of):
    Path("file").write_text("one\n")
    use("read_file", path="file")
    Path("file").write_text("one, and mine\n")
    use("edit_file", path="file", old_text="one", new_text="1")
    assert "changed since" in error_of("write_file", path="file", content="new")
    assert Path("file").read_text() == "1, and mine\n"


def test_write_file_may_replace_a_file_that_was_never_read_or_was_deleted(use):
    Path("file").write_text("one\n")
    Path("file").write_text("two\n")
    use("write_file", path="file", content="three")
    Path("file").unlink()
    use("write_file", path="file", content="four")
    assert Path("file").read_text() == "four"


def test_what_a_subagent_writes_must_be_read_before_it_is_replaced(make):
    Path("file").write_text("one\n")
    os.utime("file", (9, 9))
    look = ("read_file", {"path": "file"})
    own = reply(calls=[("write_file", {"path": "file", "content": "its own"})])
    other = reply(calls=[("write_file", {"path": "file", "content": "another"})])
    agent = make(reply(calls=[look]), reply(calls=[TASK]), own, reply("Done."))
    agent.client.enqueue(other, reply("I see."))
    take_turn(agent, "Work.")
    assert "changed since you read it" in outputs(agent.messages[-2])[0]


@pytest.mark.parametrize("changed", [True, False])
def test_after_a_resume_a_file_changed_since_must_be_read_again(make, changed):
    Path("notes.md").write_text("mine\n")
    look = reply(calls=[("read_file", {"path": "notes.md"})])
    write = reply(calls=[("write_file", {"path": "notes.md", "content": "new\n"})])
    first = make(look, reply("Read."))
    take_turn(first, "Read it.")
    if changed:
        later = first.transcript.stat().st_mtime_ns + 10**9
        os.utime("notes.md", ns=(later, later))
    agent = make(write, reply("Done."))
    program.resume(agent, str(first.transcript))
    take_turn(agent, "Write it.")
    assert Path("notes.md").read_text() == ("mine\n" if changed else "new\n")


def test_a_conversation_whose_files_are_gone_can_be_resumed(make):
    Path("notes.md").write_text("mine\n")
    first = make(reply(calls=[("read_file", {"path": "notes.md"})]), reply("Read."))
    take_turn(first, "Read it.")
    Path("notes.md").unlink()
    program.resume(agent := make(reply("Yes.")), str(first.transcript))
    assert take_turn(agent, "Are you there?") == "Yes."


# --- The diff that the user sees ---


def diff_of(old, new):
    """The diff the user sees when a file with the old text is to get the new one."""
    Path("f").write_bytes(old.encode(errors="surrogateescape"))
    asked = []
    agent = program.Agent(approve=lambda name, what: asked.append(what))
    program.change_file(agent, "write_file", Path("f").resolve(), old, new)
    return asked[0].removeprefix("f\n")


MANY_LINES = [f"line {i}" for i in range(1, 9_001)]
HEAD, TAIL = " line 697\n line 698\n line 699", " line 701\n line 702\n line 703"


@pytest.mark.parametrize("new", ["new", "line 700\r", "a\x0cb", "a\u2028b", "\udce9"])
def test_a_diff_shows_exactly_the_changed_line(new):
    new_lines = [*MANY_LINES[:699], new, *MANY_LINES[700:], ""]
    diff = diff_of("\n".join([*MANY_LINES, ""]), "\n".join(new_lines))
    hunk = f"@@ -697,7 +697,7 @@\n{HEAD}\n-line 700\n+{new}\n{TAIL}"
    assert diff == hunk


LAST_LINES = {("", "a\n"): "+a", ("a\n\n", "a\n"): " a\n-", ("a", ""): "-a"}


@pytest.mark.parametrize("texts, lines", LAST_LINES.items())
def test_a_diff_has_no_extra_line_at_the_end_of_the_file(texts, lines):
    assert diff_of(*texts).split("@@\n")[1] == lines


NO_NEWLINE = "\\ No newline at end of file"
NEWLINES = {
    ("a\nb", "a\nb\n"): f" a\n-b\n{NO_NEWLINE}\n+b",
    ("b\n", "b"): f"-b\n+b\n{NO_NEWLINE}",
}
NEWLINES |= {("b", "c"): "-b\n+c", ("", "b"): "+b"}  # here it's no change


@pytest.mark.parametrize("texts, lines", NEWLINES.items())
def test_a_diff_says_where_a_last_newline_comes_or_goes(texts, lines):
    assert diff_of(*texts).split("@@\n")[1] == lines


def test_the_diff_of_a_new_empty_file_says_that_it_has_no_lines(make):
    asked = []
    agent = make(approve=lambda name, what: asked.append(what))
    run_tool(agent, call("write_file", path="new", content=""))
    assert asked == ["new\nno line changes"] and Path("new").read_text() == ""


# --- Marks of ours, and changes that change nothing ---


LEFT_OUT = "one\n[at least 23,813 bytes are left out here]\ntwo\n"
LEFT_OUT_BEFORE = LEFT_OUT.replace("at least ", "")  # as an older transcript has it
FOLLOWS = "one\n(more follows; continue with offset=2)\n"


@pytest.mark.parametrize("text", [LEFT_OUT, LEFT_OUT_BEFORE, FOLLOWS])
def test_a_mark_of_ours_is_not_written_into_a_file(use, error_of, text):
    Path("a.txt").write_text("one\ntwo\n")
    use("read_file", path="a.txt")
    assert "left out" in error_of("write_file", path="a.txt", content=text)
    given = {"path": "a.txt", "old_text": "two", "new_text": text}
    assert "left out" in error_of("edit_file", **given)
    assert Path("a.txt").read_text() == "one\ntwo\n"


def test_a_file_that_has_such_a_mark_already_can_be_changed(use):
    Path("a.txt").write_text(LEFT_OUT)
    use("edit_file", path="a.txt", old_text="two", new_text="2")
    assert Path("a.txt").read_text() == LEFT_OUT.replace("two", "2")


def test_a_change_that_changes_nothing_says_so_and_does_not_ask(make):
    Path("a.txt").write_text("one\n")
    agent = make(approve=lambda *question: pytest.fail("asked"))
    edit = call("edit_file", path="a.txt", old_text="one", new_text="one")
    for same in edit, call("write_file", path="a.txt", content="one\n"):
        said = run_tool(agent, same)["content"]
        assert said == "a.txt already has this text, so nothing changed."


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
UNEXPANDED += ["C:\\x", "c:/x/y", "file:///x", "file:x", "src\\deep\\x.py"]
QUOTED_PATHS = ['"a.py"', "'a b.py'", "a.py\n", "two\nlines", "a.py ", "a\t"]


@pytest.mark.parametrize("path", QUOTED_PATHS)
@pytest.mark.parametrize("name", ["read_file", "write_file"])
def test_a_path_in_quotes_or_with_a_newline_or_a_blank_at_its_end_is_an_error(
    error_of, name, path
):
    error = error_of(name, path=path, **ARGS[name])
    assert f"{path} would be taken literally" in error and os.listdir() == []


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


# --- Pipes, sockets and binary files ---


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


BINARY = [b"hidden\n" * 1_000 + b"\0 hidden\n", "hidden\n".encode("utf-16")]


@pytest.mark.parametrize("data", BINARY, ids=["NUL", "UTF-16"])
@pytest.mark.parametrize("name", ["read_file", "edit_file", "grep"])
def test_a_named_binary_file_is_an_error_and_any_other_is_skipped_by_grep(
    error_of, use, name, data
):
    Path("file").write_bytes(data)
    Path("text").write_text("hidden\n")
    assert "binary" in error_of(name, path="file", **ARGS[name])
    assert Path("file").read_bytes() == data
    assert use("grep", pattern="hidden") == "text:1:hidden"


# --- Files with secrets ---


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


KEY_FILES = ".ssh/id_rsa .ssh/config server.pem tls.key .npmrc .netrc credentials.json"
KEY_FILES += " id_ecdsa id_ed25519_sk code.PFX .pypirc .pgpass .git-credentials"
KEY_FILES += " .aws/credentials .kube/config"


@pytest.mark.parametrize("path", KEY_FILES.split())
def test_common_key_files_are_left_alone(error_of, path):
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_text("secret")
    assert "may hold secrets" in error_of("read_file", path=path)


SIMILAR = ["keys.py", "monkey", "key", "pem.md", "ssh/a.txt", "id_ecdsa.pub", ".awsome"]


@pytest.mark.parametrize("path", SIMILAR)
def test_files_with_similar_names_are_read(use, path):
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_text("text")
    assert use("read_file", path=path) == "text"


# --- Odd file names ---


ODD_NAMES = ["two\nlines", "tab\tspace ", "-rf", "'\"$(x)`", "\u65e5\u672c", "a:1:b"]


@pytest.mark.parametrize("path", ODD_NAMES)
def test_all_tools_work_on_a_file_with_an_odd_name(use, path):
    Path(path).write_text("zero\n")
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


# --- How a file is replaced ---


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


CALLS_FOR_LARGE_FILES = {
    "yes": call("bash", command="yes", timeout=1),
    "grep in one line": call("grep", pattern="x{9}", path="line"),
    "read_file": call("read_file", path="sparse"),
    "edit_file": call("edit_file", path="sparse", old_text="a", new_text="b"),
    "grep in 5 GB": call("grep", pattern="x", path="sparse"),
    "grep in 5 GB that start as text": call("grep", pattern="x", path="text"),
    "write_file": call("write_file", path="sparse", content="x"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "block", CALLS_FOR_LARGE_FILES.values(), ids=CALLS_FOR_LARGE_FILES
)
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
