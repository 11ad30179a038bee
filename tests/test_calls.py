"""Calls of tools: how they are read, approved, run, shown and answered."""

import json
import os
import re
from pathlib import Path

import pytest
from builders import (
    BASH,
    TASK,
    call,
    layers,
    lines_of,
    outputs,
    shown,
)
from stub import reply

import agent as program
from agent import (
    TOOLS,
    run_tool,
    run_tools,
    take_turn,
)

ASKING = {
    "bash": {"command": "touch made"},
    "write_file": {"path": "made", "content": "x"},
    "edit_file": {"path": "there", "old_text": "a", "new_text": "b"},
}
QUESTIONS = {  # the question for each of these calls
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


EMPTY_RESULTS = [("bash", {"command": "true"}, "(no output)")]
EMPTY_RESULTS += [
    ("read_file", {"path": "blank"}, "(the file is empty, or blank from here)")
]
EMPTY_RESULTS += [("grep", {"pattern": "absent"}, "(no matches)")]
EMPTY_RESULTS += [("glob", {"pattern": "absent"}, "(no matching files)")]


@pytest.mark.parametrize("name, given, text", EMPTY_RESULTS)
def test_an_empty_result_says_what_was_not_found(use, name, given, text):
    Path("blank").write_text("\n\n")
    assert use(name, **given) == text


def test_a_lone_surrogate_is_replaced_before_it_reaches_the_model(make):
    agent = make(reply(calls=[("glob", {"pattern": "*"})]), reply("Done."))
    agent.tools["glob"] = TOOLS["glob"]._replace(handler=lambda *_, **__: "a\ud800b")
    take_turn(agent, "Look.")
    assert outputs(*agent.client.requests[1]["messages"]) == ["a?b"]


WRONG_INPUTS = {
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
    WRONG_INPUTS[f"item {ITEM!r}"] = (
        "todo_write",
        {"items": ["[ ] good", ITEM]},
        "[ ]",
    )


@pytest.mark.parametrize("name, given, named", WRONG_INPUTS.values(), ids=WRONG_INPUTS)
def test_a_wrong_argument_is_an_error_that_names_it(error_of, name, given, named):
    Path("there").write_text("a")
    assert named in error_of(name, **given)
    assert Path("there").read_text() == "a" and os.listdir() == ["there"]


PLAN_ITEMS = ["[ ] one", "[x] two"]
IN_JSON = {  # inputs of calls that are right but for one, which is JSON in JSON
    "list": ("todo_write", {"items": PLAN_ITEMS}, "items"),
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


NULLS = [("read_file", {"path": "f"}, {"offset": None, "limit": "null"})]
NULLS += [("bash", {"command": "echo a"}, {"timeout": None})]
NULLS += [("grep", {"pattern": "a"}, {"path": None}), ("compact", {}, {"focus": None})]


@pytest.mark.parametrize("name, given, nulls", NULLS)
def test_null_for_an_optional_input_is_as_if_it_were_left_out(make, name, given, nulls):
    Path("f").write_text("a\nb\n")
    block = run_tool(make(), call(name, **given))
    assert run_tool(agent := make(), call(name, **given, **nulls)) == block
    assert "is_error" not in block and "None" not in repr(agent.events)


def test_null_for_a_required_input_is_an_error_that_names_it(error_of):
    assert "'pattern'" in error_of("grep", pattern=None)


def test_a_call_is_sent_back_as_the_model_wrote_it_even_if_it_is_json_in_json(make):
    given = {"items": json.dumps(PLAN_ITEMS)}
    agent = make(reply(calls=[("todo_write", given)]), reply("Done."))
    take_turn(agent, "Plan.")
    assert agent.messages[1]["content"][0]["input"] == given
    assert outputs(*agent.messages) == ["1 of 2 still to do."]


EXCEPTIONS = [RuntimeError, OSError, TypeError, ValueError, RecursionError, MemoryError]
EXCEPTIONS += [AssertionError, program.AgentError, program.ToolError]


@pytest.mark.parametrize("error", EXCEPTIONS)
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
    assert asked == ([] if (name, given) in QUIET else [(name, *QUESTIONS[name])])
    done = Path("there").read_text() == "b" or Path("made").exists()
    assert done == ((name, given) not in QUIET)


@pytest.mark.parametrize("path", FORGED)
def test_the_question_names_the_real_file_on_one_line(make, path):
    Path("there").write_text("a")
    Path("link").symlink_to("there")
    asked = []
    agent = make(approve=lambda name, *question: asked.append(question))
    run_tool(agent, call("write_file", path=path, content="b"))
    assert asked == [QUESTIONS["edit_file"]] and Path("there").read_text() == "b"


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


# --- Several calls ---


THREE_CALLS = [call("bash", command=f"echo {i} | tee -a ran") for i in (1, 2, 3)]
THREE_CALLS = [block | {"id": f"toolu_{i}"} for i, block in enumerate(THREE_CALLS)]


def test_tool_calls_run_in_order_and_share_one_result_message(make):
    agent = make()
    agent.messages = [{"role": "assistant", "content": THREE_CALLS}]
    run_tools(agent, THREE_CALLS)
    _, message = agent.messages
    assert message["role"] == "user"
    assert [b["tool_use_id"] for b in message["content"]] == [
        c["id"] for c in THREE_CALLS
    ]
    assert outputs(message) == ["1\n", "2\n", "3\n"]
    assert Path("ran").read_text() == "1\n2\n3\n"


ALONE = "The user refused this call. If they do not say why, ask them."
REFUSAL = "The user refused this call and said: Stop! Not store.py"
CANNOT = "Cannot ask for approval without a terminal; use --yes."


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
    calls = [(block["name"], block["input"]) for block in THREE_CALLS]
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
    look = [call("read_file", path="quoted"), call("list_dir"), *THREE_CALLS]
    calls = [(block["name"], block["input"]) for block in look]
    agent = make(reply(calls=calls), reply("I see."), approve=refusing(0, CANNOT))
    take_turn(agent, "Work.")
    found = outputs(agent.messages[-2])
    assert found[0] == ALONE and found[2:] == [CANNOT, "2\n", "3\n"]
    assert CANNOT in shown(agent, "failed")


def test_a_refusal_in_a_subagent_ends_only_the_subagents_reply(make):
    two = [(block["name"], block["input"]) for block in THREE_CALLS[:2]]
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
    calls = [*THREE_CALLS[:at], call("glob", pattern="*"), *THREE_CALLS[at + 1 :]]
    program.commit(agent, {"role": "assistant", "content": calls})
    with pytest.raises(KeyboardInterrupt):
        run_tools(agent, calls)
    _, message = agent.messages
    assert [b["tool_use_id"] for b in message["content"]] == [c["id"] for c in calls]
    errors = [b.get("is_error", False) for b in message["content"]]
    assert errors == [False] * at + [True] * (3 - at)
    ran = Path("ran").read_text().split() if at else []
    assert ran == ["1", "2"][:at] and lines_of(agent.transcript) == agent.messages


def test_a_call_that_is_stopped_at_its_question_is_not_said_to_have_run(make):
    def stop(*question):
        raise KeyboardInterrupt

    agent = make(reply(calls=[BASH, BASH]), approve=stop)
    with pytest.raises(KeyboardInterrupt):
        take_turn(agent, "Work.")
    said = "The user interrupted the work: this call didn't run, or only partly."
    assert outputs(agent.messages[-1]) == [said] * 2


# --- todo_write ---


PLANS = [(["[ ] one", "[x] two", "[ ] three"], 2, 3), (["[x] one"], 0, 1), ([], 0, 0)]


@pytest.mark.parametrize("items, todo, count", PLANS)
def test_a_plan_is_shown_and_its_open_items_are_counted(make, items, todo, count):
    agent = make()
    answer = run_tool(agent, call("todo_write", items=items))["content"]
    assert re.findall(r"\d+", answer) == [str(todo), str(count)]
    assert shown(agent, "plan") == ["\n".join(items)]


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
    assert "required" not in schema and program.TOOLS["roll"].label == "sides"


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
