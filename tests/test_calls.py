"""The result of each tool, and the error the model sees when a call fails."""

import json
import os
import re
import subprocess
import time
from pathlib import Path

import pytest
from builders import (
    BASH,
    NO_SUMMARY,
    SUMMARY,
    TASK,
    call,
    layers,
    lines_of,
    outputs,
    roles,
    shown,
    sized,
    typed,
)
from stub import api_error, reply

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

ALWAYS = {"read_file", "write_file", "edit_file", "glob", "grep", "bash"}
ALWAYS |= {"todo_write", "compact", "task"}  # load_skill needs a skill
ASKING = {
    "bash": {"command": "touch made"},
    "write_file": {"path": "made", "content": "x"},
    "edit_file": {"path": "there", "old_text": "a", "new_text": "b"},
}
ASKED = {  # the question for each of these calls
    "bash": ("touch made",),
    "write_file": ("made\n@@ -0,0 +1 @@\n+x",),
    "edit_file": ("there\n@@ -1 +1 @@\n-a\n+b",),
}
FORGED = ["there", "./new/../there", "README.md\n-a typo\n+mended/../there", "link"]


# --- Schemas ---


TYPES = ["bash command string", "bash timeout integer", "read_file offset integer"]
TYPES += ["edit_file replace_all boolean", "todo_write items array"]


@pytest.mark.parametrize("words", TYPES)
def test_schema_types_match_the_handlers_annotations(words):
    name, key, type = words.split()
    schema = TOOLS[name].schema["input_schema"]
    assert (schema["type"], schema["properties"][key]["type"]) == ("object", type)


# --- One call ---


REPORTED = {
    "success": ("echo hi", "result", "hi\n", "hi\n"),
    "silent success": ("true", "result", "(no output)", "(no output)"),
    "failure": ("echo hi; exit 3", "failed", *["hi\n(exit status 3)"] * 2),
    "exception": ("echo a\0b", "failed", *["ValueError: embedded null byte"] * 2),
}


@pytest.mark.parametrize("command, style, seen, sent", REPORTED.values(), ids=REPORTED)
def test_a_tool_call_and_its_result_are_shown(make, command, style, seen, sent):
    agent = make()
    block = run_tool(agent, call("bash", command=command))
    assert agent.events == [("tool", "[bash]"), (style, seen)]
    about = {"type": "tool_result", "tool_use_id": "toolu_bash", "content": sent}
    assert block == about | ({"is_error": True} if "Error" in seen else {})


LINES_OF_CALLS = {
    "[bash]": ("bash", {"timeout": 60, "command": "ls"}),  # approval shows it
    "[read_file] a": ("read_file", {"offset": 5, "path": "a"}),
    "[edit_file] a": ("edit_file", {"old_text": "x", "new_text": "y", "path": "a"}),
    "[grep] a": ("grep", {"path": "b", "pattern": "a"}),
    "[task] look": ("task", {"prompt": " ", "description": "look"}),
    "[todo_write]": ("todo_write", {"items": ["[ ] one"]}),
    "[compact] files": ("compact", {"focus": "files"}),
    "[compact]": ("compact", {}),
    "[list_dir]": ("list_dir", {"path": "a"}),
}


@pytest.mark.parametrize("line, given", LINES_OF_CALLS.items())
def test_a_tool_call_is_shown_with_its_most_useful_argument(make, line, given):
    run_tool(agent := make(), call(given[0], **given[1]))
    assert shown(agent, "tool") == [line]


EMPTY = [("bash", {"command": "true"}, "(no output)")]
EMPTY += [("read_file", {"path": "blank"}, "(no output)")]
EMPTY += [("grep", {"pattern": "absent"}, "(no matches)")]
EMPTY += [("glob", {"pattern": "absent"}, "(no matching files)")]


@pytest.mark.parametrize("name, given, text", EMPTY)
def test_an_empty_result_says_what_was_not_found(use, name, given, text):
    Path("blank").write_text("\n\n")
    assert use(name, **given) == text


def test_a_lone_surrogate_is_replaced_before_it_reaches_the_model(make):
    agent = make(reply(calls=[("glob", {"pattern": "*"})]), reply("Done."))
    agent.tools["glob"] = TOOLS["glob"]._replace(handler=lambda *_, **__: "a\ud800b")
    take_turn(agent, "Look.")
    assert outputs(*agent.client.requests[1]["messages"]) == ["a?b"]


WRONG = {
    "unknown tool": ("list_dir", {}, "There is no tool list_dir"),
    "missing argument": ("edit_file", {"path": "there"}, "old_text"),
    "agent as argument": ("glob", {"pattern": "*", "agent": "x"}, "agent"),
    "number as command": ("bash", {"command": 5}, "command"),
    "word as offset": ("read_file", {"path": "there", "offset": "end"}, "offset"),
    "no number": ("read_file", {"path": "there", "offset": "NaN"}, "offset"),
    "list in part": ("todo_write", {"items": '["[ ] one"'}, "items"),
    "no such file": ("read_file", {"path": "absent"}, "absent"),
    "file as folder": ("write_file", {"path": "there/b", "content": "x"}, ""),
    "grep in no file": ("grep", {"pattern": "a", "path": "absent"}, "absent"),
    "glob from the root": ("glob", {"pattern": "/etc/*"}, ""),
}
for ITEM in ("one", "[] one", "[X]one", "- [ ] one", ""):
    WRONG[f"item {ITEM!r}"] = ("todo_write", {"items": ["[ ] good", ITEM]}, "[ ]")


@pytest.mark.parametrize("name, given, named", WRONG.values(), ids=WRONG)
def test_a_wrong_argument_is_an_error_that_names_it(error_of, name, given, named):
    Path("there").write_text("a")
    assert named in error_of(name, **given)
    assert Path("there").read_text() == "a" and os.listdir() == ["there"]


ITEMS = ["[ ] one", "[x] two"]
IN_JSON = {  # inputs of calls that are right but for one, which is JSON in JSON
    "list": ("todo_write", {"items": ITEMS}, "items"),
    "boolean": (
        "edit_file",
        {"path": "f", "old_text": "a", "new_text": "b", "replace_all": True},
        "replace_all",
    ),
    "number": ("read_file", {"path": "f", "offset": 2}, "offset"),
}


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("name, given, key", IN_JSON.values(), ids=IN_JSON)
def test_an_input_that_is_json_in_json_is_decoded_unless_it_is_meant_as_text(
    answer, name, given, key, times
):
    Path("f").write_text("a\na\n")
    right = answer(name, **given)
    Path("f").write_text("a\na\n")
    encoded = given[key]
    for _ in range(times):
        encoded = json.dumps(encoded)
    assert answer(name, **given | {key: encoded}) == right and not right[1]
    assert answer("write_file", path="g", content='"[1]"')[1] is False
    assert Path("g").read_text() == '"[1]"'


def test_a_call_is_sent_back_as_the_model_wrote_it_even_if_it_is_json_in_json(make):
    given = {"items": json.dumps(ITEMS)}
    agent = make(reply(calls=[("todo_write", given)]), reply("Done."))
    take_turn(agent, "Plan.")
    assert agent.messages[1]["content"][0]["input"] == given
    assert outputs(*agent.messages) == ["1 of 2 still to do."]


ERRORS = [RuntimeError, OSError, TypeError, ValueError, RecursionError, MemoryError]
ERRORS += [AssertionError, program.AgentError, program.ToolError]


@pytest.mark.parametrize("error", ERRORS)
def test_an_exception_in_a_tool_becomes_an_error_result(error_of, broken_glob, error):
    broken_glob(error("broken"))
    assert "broken" in error_of("glob", pattern="*")


# --- Approval ---


@pytest.mark.parametrize("name, given", ASKING.items())
def test_tools_are_denied_by_default_and_a_denial_is_an_error(name, given):
    Path("there").write_text("a")
    block = run_tool(program.Agent(), call(name, **given))
    assert block["is_error"] is True and "refused" in block["content"]
    assert Path("there").read_text() == "a" and os.listdir() == ["there"]


QUIET = [("read_file", {"path": "there"}), ("glob", {"pattern": "*"}), ("compact", {})]
QUIET += [("grep", {"pattern": "a"}), ("todo_write", {"items": []}), ("list_dir", {})]
QUIET += [("bash", {"comand": "ls"}), ("bash", {"command": "ls", "timeout": "5 s"})]
QUIET += [("edit_file", {"path": "there", "old_text": "absent", "new_text": "b"})]
QUIET += [("write_file", {"path": "../made", "content": "x"})]


@pytest.mark.parametrize("name, given", [*ASKING.items(), *QUIET])
def test_approval_is_asked_only_for_valid_calls_and_shows_the_change(make, name, given):
    Path("there").write_text("a")
    asked = []
    agent = make(approve=lambda *question: asked.append(question))
    run_tool(agent, call(name, **given))
    assert asked == ([] if (name, given) in QUIET else [(name, *ASKED[name])])
    done = Path("there").read_text() == "b" or Path("made").exists()
    assert done == ((name, given) not in QUIET)


@pytest.mark.parametrize("path", FORGED)
def test_the_question_names_the_real_file_on_one_line(make, path):
    Path("there").write_text("a")
    Path("link").symlink_to("there")
    asked = []
    agent = make(approve=lambda name, *question: asked.append(question))
    run_tool(agent, call("write_file", path=path, content="b"))
    assert asked == [ASKED["edit_file"]] and Path("there").read_text() == "b"


def test_an_edit_fails_if_the_file_changed_while_the_user_was_asked(make):
    Path("there").write_text("one two")

    def approve(*question):
        Path("there").write_text("one two, and the user's own")

    edit = call("edit_file", path="there", old_text="two", new_text="2")
    block = run_tool(make(approve=approve), edit)
    assert block["is_error"] and "changed in the meantime" in block["content"]
    assert Path("there").read_text() == "one two, and the user's own"


def test_a_symlink_made_during_the_question_cannot_redirect_a_write_into_git(make):
    Path(".git").mkdir()
    agent = make(approve=lambda *_: Path("made").symlink_to(".git/hook"))
    block = run_tool(agent, call("write_file", path="made", content="x"))
    assert block["is_error"] and not Path(".git/hook").exists()


def diff_of(old, new):
    """The diff the user sees when a file with the old text is to get the new one."""
    Path("f").write_bytes(old.encode(errors="surrogateescape"))
    asked = []
    agent = program.Agent(approve=lambda name, what: asked.append(what))
    program.change_file(agent, "write_file", Path("f").resolve(), old, new)
    return asked[0].removeprefix("f\n")


LINES = [f"line {i}" for i in range(1, 9_001)]
HEAD, TAIL = " line 697\n line 698\n line 699", " line 701\n line 702\n line 703"


@pytest.mark.parametrize("new", ["new", "line 700\r", "a\x0cb", "a\u2028b", "\udce9"])
def test_a_diff_shows_exactly_the_changed_line(new):
    new_lines = [*LINES[:699], new, *LINES[700:], ""]
    diff = diff_of("\n".join([*LINES, ""]), "\n".join(new_lines))
    hunk = f"@@ -697,7 +697,7 @@\n{HEAD}\n-line 700\n+{new}\n{TAIL}"
    assert diff == hunk


ENDS = {("", "a\n"): "+a", ("a\n\n", "a\n"): " a\n-", ("a", ""): "-a"}


@pytest.mark.parametrize("texts, lines", ENDS.items())
def test_a_diff_has_no_extra_line_at_the_end_of_the_file(texts, lines):
    assert diff_of(*texts).split("@@\n")[1] == lines


BARE = "\\ No newline at end of file"
NEWLINES = {("a\nb", "a\nb\n"): f" a\n-b\n{BARE}\n+b", ("b\n", "b"): f"-b\n+b\n{BARE}"}
NEWLINES |= {("b", "c"): "-b\n+c", ("", "b"): "+b"}  # here it's no change


@pytest.mark.parametrize("texts, lines", NEWLINES.items())
def test_a_diff_says_where_a_last_newline_comes_or_goes(texts, lines):
    assert diff_of(*texts).split("@@\n")[1] == lines


def test_the_diff_of_a_new_empty_file_says_that_it_has_no_lines(make):
    asked = []
    agent = make(approve=lambda name, what: asked.append(what))
    run_tool(agent, call("write_file", path="new", content=""))
    assert asked == ["new\nno line changes"] and Path("new").read_text() == ""


# --- Several calls ---

THREE = [call("bash", command=f"echo {i} | tee -a ran") for i in (1, 2, 3)]
THREE = [block | {"id": f"toolu_{i}"} for i, block in enumerate(THREE)]


def test_tool_calls_run_in_order_and_share_one_result_message(make):
    agent = make()
    agent.messages = [{"role": "assistant", "content": THREE}]
    run_tools(agent, THREE)
    _, message = agent.messages
    assert message["role"] == "user"
    assert [b["tool_use_id"] for b in message["content"]] == [c["id"] for c in THREE]
    assert outputs(message) == ["1\n", "2\n", "3\n"]
    assert Path("ran").read_text() == "1\n2\n3\n"


ALONE = "The user refused this call. If they do not say why, ask them."
REFUSAL = "The user refused this call and said: Stop! Not store.py"
CANNOT = "Cannot ask for approval without a terminal; use --yes to allow tools."


def refusing(at, text):
    """An `approve` that refuses the call with this index, and allows all others."""
    answers = iter([None] * at + [program.ToolError(text)] + [None] * 9)

    def approve(*question):
        if error := next(answers):
            raise error

    return approve


@pytest.mark.parametrize("text", [ALONE, REFUSAL])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_after_a_refusal_the_other_calls_of_that_reply_do_not_run(make, at, text):
    calls = [(block["name"], block["input"]) for block in THREE]
    agent = make(reply(calls=calls), reply("I see."), approve=refusing(at, text))
    assert take_turn(agent, "Work.") == "I see."
    ran = ["1\n", "2\n"][:at]
    assert outputs(agent.messages[-2]) == [*ran, text, *[program.NOT_RUN] * (2 - at)]
    errors = [block.get("is_error", False) for block in agent.messages[-2]["content"]]
    assert errors == [False] * at + [True] * (3 - at)
    assert Path("ran").exists() == bool(ran)
    assert shown(agent, "result", "failed") == [*ran, "You refused this call."]


def test_without_a_reason_a_denial_tells_the_model_to_ask():
    with pytest.raises(program.ToolError) as error:
        program.deny()
    assert str(error.value) == ALONE


def test_calls_run_after_one_that_failed_or_that_nobody_could_be_asked_about(make):
    Path("quoted").write_text(ALONE)
    look = [call("read_file", path="quoted"), call("list_dir"), *THREE]
    calls = [(block["name"], block["input"]) for block in look]
    agent = make(reply(calls=calls), reply("I see."), approve=refusing(0, CANNOT))
    take_turn(agent, "Work.")
    found = outputs(agent.messages[-2])
    assert found[0] == ALONE and found[2:] == [CANNOT, "2\n", "3\n"]
    assert CANNOT in shown(agent, "failed")


def test_a_refusal_in_a_subagent_ends_only_the_subagents_reply(make):
    two = [(block["name"], block["input"]) for block in THREE[:2]]
    work = reply(calls=two), reply("It was refused.")
    answers = reply(calls=[TASK, BASH]), *work, reply("I see.")
    agent = make(*answers, approve=refusing(0, REFUSAL))
    assert take_turn(agent, "Work.") == "I see."
    assert outputs(agent.messages[-2]) == ["It was refused.", "from bash\n"]
    assert not Path("ran").exists()


@pytest.mark.parametrize("at", [0, 1, 2])
def test_after_ctrl_c_every_call_still_has_a_result_in_one_message(
    make, broken_glob, at
):
    agent = make()
    broken_glob(KeyboardInterrupt())
    calls = [*THREE[:at], call("glob", pattern="*"), *THREE[at + 1 :]]
    program.commit(agent, {"role": "assistant", "content": calls})
    with pytest.raises(KeyboardInterrupt):
        run_tools(agent, calls)
    _, message = agent.messages
    assert [b["tool_use_id"] for b in message["content"]] == [c["id"] for c in calls]
    errors = [b.get("is_error", False) for b in message["content"]]
    assert errors == [False] * at + [True] * (3 - at)
    ran = Path("ran").read_text().split() if at else []
    assert ran == ["1", "2"][:at] and lines_of(agent.transcript) == agent.messages


# --- bash ---


@pytest.mark.parametrize(
    "command, output",
    [
        ("echo out; echo err >&2", "out\nerr\n"),
        ("echo said; exit 3", "said\n(exit status 3)"),
        ("exit 3", "(exit status 3)"),
        ("echo 'caf\u00e9 \u65e5\u672c'", "caf\u00e9 \u65e5\u672c\n"),
    ],
)
def test_bash_returns_output_and_exit_status(use, command, output):
    assert use("bash", command=command) == output


def test_each_command_starts_in_the_workspace_and_the_model_is_told_so(use, workspace):
    Path("build").mkdir()
    use("bash", command="cd build && export MODE=debug && f() { :; }")
    assert use("bash", command='echo "$PWD $MODE"; f') == (
        f"{workspace} \nbash: line 1: f: command not found\n(exit status 127)"
    )
    told = program.TOOLS["bash"].schema["description"]
    assert "from the workspace each time" in told
    assert "cd, export and functions don't last" in told


@pytest.mark.parametrize(
    "given, seconds", [({}, 120), ({"timeout": 9_999}, 600), ({"timeout": -5}, 1)]
)
def test_the_timeout_is_two_minutes_by_default_and_ten_at_most(
    use, monkeypatch, given, seconds
):
    monkeypatch.setattr(program, "run_process", lambda _, seconds, *__: seconds)
    assert use("bash", command="true", **given) == f"(exit status {seconds})"


def test_the_latest_output_line_is_shown_while_a_command_runs(make):
    waited, seen = [], "printf 'one\n'; sleep 0.3; printf 'two\rthree'; sleep 0.3"
    agent = make(emit=lambda *event: waited.append(event))
    run_tool(agent, call("bash", command=seen))
    lines = [text for style, text in waited if style == "wait"]
    assert [*dict.fromkeys(lines)][-2:] == ["one", "three"]


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


TEXTS = {
    b"one\ntwo\n": "one\ntwo",
    b"one\r\ntwo\r\n": "one\ntwo",
    b"caf\xe9": "caf\ufffd",
    "one\u2028still one\x0cand so".encode(): "one\u2028still one\x0cand so",
}


@pytest.mark.parametrize("data, text", TEXTS.items())
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
        ({"limit": -1}, "1", "offset=2"),
    ],
)
def test_read_file_honours_offset_and_limit(use, given, text, more):
    Path("file").write_text("".join(f"{i}\n" for i in range(1, 11)))
    lines, _, note = use("read_file", path="file", **given).partition("\n(")
    assert lines == text
    assert more in note and bool(note) == bool(more)


@pytest.mark.parametrize("text, offset", [("", 1), ("\n", 1), ("a\n\n", 2)])
def test_reading_only_blank_lines_gives_no_output(use, text, offset):
    Path("file").write_text(text)
    assert use("read_file", path="file", offset=offset) == "(no output)"


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
WINDOWS = [(2_000, 4), (20_000, 9), (167_000, 1), (167_000, 12)]


@pytest.mark.parametrize("threshold, count", WINDOWS)
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


def change(path, text):
    """Change a file as its user would, so that its time differs from what it was."""
    before = os.stat(path).st_mtime_ns
    Path(path).write_text(text)
    os.utime(path, ns=(before, before + 1))


SEEN = {  # the calls with which the model got to know the file
    "read": [("read_file", {})],
    "read in part": [("read_file", {"limit": 1})],
    "written": [("write_file", {"content": "one\n2\n"})],
    "edited": [("edit_file", {"old_text": "two", "new_text": "2"})],
}


@pytest.mark.parametrize("calls", SEEN.values(), ids=SEEN)
def test_write_file_does_not_replace_what_the_user_has_changed(use, error_of, calls):
    Path("file").write_text("one\ntwo\n")
    for tool, given in calls:
        use(tool, path="./file", **given)
    change("file", "the user's own\n")
    refused = error_of("write_file", path="file", content="new")
    assert refused == "file has changed since you read it; read it again."
    assert use("read_file", path="file") == "the user's own"
    use("write_file", path="file", content="new")
    use("write_file", path="file", content="newer")


def test_an_edit_of_a_changed_file_does_not_make_the_change_known(use, error_of):
    Path("file").write_text("one\n")
    use("read_file", path="file")
    change("file", "one, and mine\n")
    use("edit_file", path="file", old_text="one", new_text="1")
    assert "changed since" in error_of("write_file", path="file", content="new")
    assert Path("file").read_text() == "1, and mine\n"


def test_write_file_may_replace_a_file_that_was_never_read_or_was_deleted(use):
    Path("file").write_text("one\n")
    change("file", "two\n")
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


# --- glob and grep ---


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


# --- todo_write ---


PLANS = [(["[ ] one", "[x] two", "[ ] three"], 2, 3), (["[x] one"], 0, 1), ([], 0, 0)]


@pytest.mark.parametrize("items, todo, count", PLANS)
def test_a_plan_is_shown_and_its_open_items_are_counted(make, items, todo, count):
    agent = make()
    answer = run_tool(agent, call("todo_write", items=items))["content"]
    assert re.findall(r"\d+", answer) == [str(todo), str(count)]
    assert shown(agent, "plan") == ["\n".join(items)]


# --- task ---


def subtranscript():
    """The path of the only subagent's transcript."""
    [path] = Path(".transcripts").glob("task_*.jsonl")
    return path


def test_a_subagent_starts_with_only_the_prompt(make):
    work = reply("Looking.", calls=[("bash", {"command": "echo detail"})])
    agent = make(reply(calls=[TASK]), work, reply("There are 3."), reply("Thanks."))
    assert take_turn(agent, "How many?") == "Thanks."
    assert outputs(*agent.messages) == ["There are 3."]
    assert lines_of(agent.transcript) == agent.messages and len(agent.messages) == 4
    assert roles(lines_of(subtranscript())) == ["user", "assistant"] * 2
    sent = agent.client.requests
    assert sent[1]["messages"] == [typed(TASK[1]["prompt"])]
    given = [{tool["name"] for tool in request["tools"]} for request in sent]
    assert given == [ALWAYS, ALWAYS - {"task"}, ALWAYS - {"task"}, ALWAYS]


SEQ = ("bash", {"command": "seq 1100"})
COMPACTING = {
    "auto_compact": ([[SEQ]] * 3, {"threshold": 6_000, "keep_recent": 9}),
    "compact": ([[SEQ, SEQ], [("compact", {})]], {"min_savings": 0}),
}


@pytest.mark.parametrize("event", COMPACTING)
def test_a_subagent_is_compacted_without_touching_its_parent(make, event):
    work, limits = COMPACTING[event]
    replies = [reply(calls=calls) for calls in [[TASK], *work]]
    answers = SUMMARY, reply("There are 3."), reply("Thanks.")
    agent = make(*replies, *answers, **limits)
    assert take_turn(agent, "How many?") == "Thanks."
    assert shown(agent, "error") == [] and agent.focus is None
    events = [e["event"] for e in lines_of(subtranscript()) if "event" in e]
    assert events == [event] and len(agent.messages) == 4


def test_a_failed_compaction_in_a_subagent_names_the_subagent(make):
    first, second = reply(sized(1_000), calls=[BASH]), reply(calls=[("compact", {})])
    work = first, second, NO_SUMMARY, reply("There are 3.")
    agent = make(reply(calls=[TASK]), *work, reply("Thanks."), min_savings=0)
    assert take_turn(agent, "How many?") == "Thanks."
    [error] = shown(agent, "error")
    assert error.startswith("look: [compact] failed")


FAILURES = {
    "no such thing": ("Look.", [reply(calls=[BASH]), api_error(400, "no such thing")]),
    "declined to answer": ("Look.", [reply(stop="refusal")]),
    "message is empty": (" \n", []),
}


@pytest.mark.parametrize("why", FAILURES)
def test_a_failed_subagent_gives_the_reason_and_its_transcript(make, why):
    prompt, failure = FAILURES[why]
    task = ("task", {"description": "count", "prompt": prompt})
    agent = make(reply(calls=[task]), *failure, reply("I see."))
    assert take_turn(agent, "How many?") == "I see."
    [result] = agent.messages[-2]["content"]
    assert result["is_error"] is True and why in result["content"]
    where = f"Its transcript is {subtranscript()}" if failure else "say what to do."
    assert where in result["content"]
    assert len(agent.client.requests) == 2 + len(failure)


def test_ctrl_c_in_a_subagent_keeps_both_conversations_valid(make, broken_glob):
    work = reply(calls=[("glob", {"pattern": "*"})])
    agent = make(reply(calls=[TASK, TASK]), work, reply("Yes."))
    broken_glob(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        take_turn(agent, "How many?")
    assert lines_of(subtranscript())[-1]["content"][0]["is_error"] is True
    assert [b["is_error"] for b in agent.messages[-1]["content"]] == [True, True]
    assert take_turn(agent, "Are you there?") == "Yes."


def test_a_subagents_calls_need_approval_and_are_shown_with_its_name(make):
    work = reply("Let me see.", calls=[BASH])
    answers = reply(calls=[TASK]), work, reply("There are 3."), reply("Thanks.")
    asked = []
    agent = make(*answers, approve=lambda *question: asked.append(question))
    take_turn(agent, "How many?")
    assert asked == [("bash", "echo from bash")]
    own, its = shown(agent, "tool")
    assert own.startswith("[task]") and its.startswith("look: [bash]")
    assert shown(agent, "result") == ["from bash\n"]
    assert shown(agent, "answer") == ["There are 3."]
    assert "".join(shown(agent, "text")) == "Thanks."


# --- Custom tools ---


@pytest.fixture
def restored_tools(monkeypatch):
    """Restore the tables of tools after the test."""
    monkeypatch.setattr(program, "TOOLS", dict(program.TOOLS))
    monkeypatch.setattr(program, "COMPACTABLE_TOOLS", {**program.COMPACTABLE_TOOLS})


def roll(agent, sides: int = 6, *, bonus: float = 0.0, fair: bool = True):
    """Roll the dice."""
    return sides + bonus if fair else None


@pytest.mark.parametrize("kind", [dict, "int | None", "list[int]", "inspect._empty"])
def test_a_parameter_of_another_type_is_named_with_the_types_there_are(kind):
    def guess(agent, number):
        """Guess."""

    if kind != "inspect._empty":
        guess.__annotations__ = {"number": kind}
    with pytest.raises(TypeError, match=r"guess: number.* needs one of .*int.*list"):
        program.tool(guess)


def test_a_custom_tool_may_have_no_parameters_and_return_a_number(
    restored_tools, answer
):
    @program.tool
    def dice(agent):
        return 4

    program.tool(roll)
    agent = program.Agent()
    given = {"dice": {}, "roll": {"sides": 3, "bonus": 0.5}}
    said = [run_tool(agent, call(name, **given[name]))["content"] for name in given]
    assert said == ["4", "3.5"]
    nothing = run_tool(agent, call("roll", fair=False))
    assert nothing["content"] == "(no output)" and "is_error" not in nothing
    schema = program.TOOLS["roll"].schema["input_schema"]
    types = {name: shape["type"] for name, shape in schema["properties"].items()}
    assert types == {"sides": "integer", "bonus": "number", "fair": "boolean"}
    assert schema["required"] == [] and program.TOOLS["roll"].label == "sides"


def test_old_results_of_a_custom_tool_are_cleared_and_saved(restored_tools, make):
    @program.tool
    def weather(agent):
        """Say what the weather is."""
        return f"{len(agent.messages)} " + "sun " * 2_000

    calls = [reply(calls=[("weather", {})]) for _ in range(30)]
    agent = make(*calls, reply("Sunny."), threshold=60_000)
    assert take_turn(agent, "How was May?") == "Sunny."
    cleared = [text for text in outputs(*agent.messages) if text.startswith("[Prev")]
    assert len(cleared) > 10 and "micro_compact" in layers(agent)
    for at, text in enumerate(cleared):
        path = Path(text.partition("saved at ")[2].rstrip("]"))
        assert path.read_text().startswith(f"{2 * at + 2} sun")


@pytest.mark.parametrize("leaving", [SystemExit(3), RecursionError("deep"), "\ud800"])
def test_no_custom_tool_can_end_the_loop(restored_tools, make, leaving):
    @program.tool
    def leave(agent):
        if isinstance(leaving, str):
            return leaving
        raise leaving

    agent = make(reply(calls=[("leave", {})]), reply("Still here."))
    assert take_turn(agent, "Leave.") == "Still here."


def test_a_conversation_resumes_without_the_task_tool(make, monkeypatch):
    monkeypatch.delitem(program.TOOLS, "task")
    agent = make(reply("Hello."), tools=dict(program.TOOLS))
    take_turn(agent, "Hi")
    program.resume(other := make(), "1")
    assert program.user_texts(other.messages) == ["Hi"]


# --- What mustn't be written, what is unchanged, and what a resumed agent knows ---

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


KEY_FILES = ".ssh/id_rsa .ssh/config server.pem tls.key .npmrc .netrc credentials.json"


@pytest.mark.parametrize("path", KEY_FILES.split())
def test_common_key_files_are_left_alone(error_of, path):
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_text("secret")
    assert "may hold secrets" in error_of("read_file", path=path)


@pytest.mark.parametrize("path", ["keys.py", "monkey", "key", "pem.md", "ssh/a.txt"])
def test_files_with_similar_names_are_read(use, path):
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_text("text")
    assert use("read_file", path=path) == "text"


def test_a_time_limit_in_milliseconds_means_seconds(use):
    assert "killed after 1 seconds" in use("bash", command="sleep 60", timeout=1)
    start = time.monotonic()
    assert "(killed after 10 seconds)" not in use(
        "bash", command="true", timeout=20_000
    )
    assert time.monotonic() - start < 60


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


def test_an_interrupted_subagent_names_its_transcript(make, broken_glob):
    work = reply(calls=[("glob", {"pattern": "*"})])
    agent = make(reply(calls=[TASK]), work)
    broken_glob(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        take_turn(agent, "How many?")
    [result] = agent.messages[-1]["content"]
    assert f"Its transcript is {subtranscript()}." in result["content"]
    assert "The user interrupted the work" in result["content"]
