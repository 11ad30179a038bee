"""A reader's program is started as Python starts it, and its requests are understood."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import checks
import plays
import pytest
import report
import runner
import steps
import stub
from builders import typed
from readme import ROOT
from runner import Play, Player, played
from stub import reply
from test_judge import SMALL, in_one_line, reported, written

pytestmark = pytest.mark.slow

# --- What a request is for ---

CALL = {"type": "tool_use", "id": "1", "name": "bash", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "1", "content": "ok"}
OWN = "What matters of all this?"
TOOLS = [{"name": "bash", "input_schema": {}}]
CALLED = [typed("Go."), {"role": "assistant", "content": [CALL]}, typed([RESULT])]


def player(*replies, summaries=("It went well.",)):
    """A model with these replies, and a user who has typed "Go."."""
    written = {"summaries": lambda: map(reply, summaries), "more": False}
    play = Play("", lambda: replies, ("Go.",), **written)
    client = Player(play)
    client.type_next()
    return client


def ask(client, *messages, **more):
    """The text of the reply to these messages, of which a string was typed."""
    sent = [typed(m) if type(m) is str else m for m in messages]
    request = {"model": "m", "max_tokens": 9, "tools": TOOLS, "messages": sent}
    content = client.answer({**request, **more})["content"]
    return "".join(part.get("text", "") for part in content)


ASKS_FOR_ONE = {  # how a request ends, and if it asks for a summary
    "results": (CALLED, False),
    "what was typed": ([*CALLED, "Go."], False),
    "it as a block": ([*CALLED, typed(stub.blocks("Go. "))], False),
    "words of its own": ([*CALLED, OWN], True),
    "them as a block": ([*CALLED, typed(stub.blocks(OWN))], True),
    "all in one text": ([f"{OWN} Go."], True),
    "a reminder": ([*CALLED, "<reminder>Plan.</reminder>"], False),
    "a reminder without a tag": ([*CALLED, "Reminder: plan your work."], False),
}


@pytest.mark.parametrize("how", ASKS_FOR_ONE)
def test_a_request_for_a_summary_is_recognised_by_its_end(how):
    messages, asks = ASKS_FOR_ONE[how]
    client = player(reply(content=[CALL]), reply("Done."))
    ask(client, "Go.")
    assert ask(client, *messages) == ("It went well." if asks else "Done.")


IN_A_ROW = {  # the first words of requests, and the replies
    "the one after a summary goes on": (
        ["Go.", OWN, "Summary: It went well.", OWN],
        ["0", "It went well.", "1", "It went well."],
    ),
    "a question can be repeated": (
        ["Go.", OWN, OWN, "Summary: Ok."],
        ["0", "", "Ok.", "1"],
    ),
}


@pytest.mark.parametrize("how", IN_A_ROW)
def test_requests_in_a_row_are_told_apart(how):
    asked, said = IN_A_ROW[how]
    summaries = [text for text in said if text not in ("0", "1")]
    client = player(reply("0"), reply("1"), summaries=summaries)
    for words in asked:
        ask(client, words)
    assert [exchange.text for exchange in client.run.exchanges] == said


def test_a_refused_request_for_a_summary_uses_up_no_reply():
    client = player(reply("0"), reply("1"), summaries=["Well.", "Well."])
    ask(client, "Go.")
    with pytest.raises(stub.TooLong):
        ask(client, "x" * 800_000)
    assert ask(client, "Shorter.") == "Well." and len(client.queue) == 1


def test_requests_without_tools_ask_for_a_summary_in_two_steps():
    client = player(reply("0"), summaries=["A.", "B."])
    ask(client, "Go.")
    assert [ask(client, text, tools=[]) for text in ("0.", "A. 0.")] == ["A.", "B."]


def test_a_status_that_names_the_tool_asks_for_no_summary():
    asks = runner.ASKS_AT_END.search
    assert not asks("9% used. When full, use the compact tool.")
    assert asks("Now compact what was said.")


# --- Programs of every kind: their source, and the words of their report ---

ASKS = "from anthropic import Anthropic\nclient = Anthropic()\nprompt = input()\n"
SEND = "reply = client.messages.create(model='m', max_tokens=9, messages=messages"
LOOP = f"{ASKS}messages = [dict(role='user', content=prompt)]\n{SEND}"
TOOL = "dict(name='read_file', input_schema=dict(properties=dict(path={})))"
READS = f", tools=[{TOOL}])"
PROGRAMS = {
    # they are no agents
    f"{LOOP.replace('messages=', 'messages=7 + ')})": "It made no request, because it "
    "stopped with TypeError",
    "import sys; sys.argv[1]": "IndexError: list index out of range (mine.py, line 1). It "
    "has to get its prompts from `input()`: two, one after the other.",
    "if:": "It isn't valid Python in line 1: ",
    "x = '\0'": "It isn't valid Python",
    "": "It made no request. It has to get its prompts from `input()`",
    "print(input())": "It got a prompt, but made no request with a client",
    "import none_such": "ModuleNotFoundError: No module named 'none_such' (mine.py, line "
    "1). Only Anthropic's client can be tested; other packages must be installed for the "
    "Python that runs this report.",
    "from anthropic import Bedrock": "because it stopped with ImportError: ",
    "import anthropic\nanthropic.AsyncAnthropic()": "It uses `AsyncAnthropic`",
    f"{ASKS}client.beta.messages.create()": "It uses `client.beta`",
    "import sys\nsys.stdin.readline()": "It reads `sys.stdin`. Use `input()` for",
    "import sys\nfor line in sys.stdin:\n    pass": "It reads `sys.stdin`",
    "try:\n    input()\n    [][0]\nexcept IndexError as error:\n    print(error)": "a "
    'client from `anthropic.Anthropic()`. It printed last: "list index out',
    f"{ASKS}client.ask(prompt)": "because it stopped with AttributeError: ",
    f"{LOOP})": "None of its requests offers a tool.",
    f"{LOOP}{READS.replace('read_file', 'view')}": "Its request doesn't offer the tool "
    "`read_file`, but view. ... --tools NAME NAME",
    "import os\nos.environ['MY_KEY']": "because it stopped with KeyError: 'MY_KEY' "
    "(mine.py, line 2) Next:",
    "input()\ninput()\ninput()": "It read both prompts before its first request; here, a",
    "import os\ninput()\nopen(os.environ['ANTHROPIC_BASE_URL'])": "FileNotFoundError: [Errno "
    "2] No such file or directory: 'http://127.0.0.1:",
    "import os\ninput()\nint(os.environ['ANTHROPIC_API_KEY'])": "int() with base 10: 'none'",
    f"{ASKS.replace('input()', 'input() + input()')}messages = [dict(role='user', "
    f"content=prompt)]\n{SEND}{READS}": "It read both prompts as one; here, a line is a",
    f"{LOOP}{READS}\nwhile input('1, 2 or 3? ') not in '123': pass": "It asks again and "
    'again: "1, 2 or 3?" was answered with y.',
    # they do to their process what they like
    "while True:\n    pass": "It did not finish within 0.2 seconds.",
    "while 1:\n    try: input()\n    except: pass": "It never ends: a bare `except:`",
    "import threading\nthreading.Event().wait()": "did not finish within 0.2 seconds",
    "import signal\nsignal.setitimer(0, 0)\nsignal.pause()": "finish within 0.2 seconds",
    "import os\nos._exit(3)": "It ended its process without a word (`os._exit`).",
    "import os\nos.kill(os.getpid(), 9)": "It killed its own process with SIGKILL.",
    "import os\nos.killpg(0, 15)": "It killed its own process with SIGTERM.",
    # they stop early
    f"{LOOP}{READS}\nprint('Hello.')": "stopped Its turn ended, although the model had "
    'called `read_file`. It printed last: "Hello."',
    LOOP.replace("role", "rule") + READS: "stopped messages.0.role: Field required",
    LOOP.replace("[dict", "[7, dict")
    + READS: "messages.0: Input should be a valid dict",
    LOOP.replace("=prompt", "=[prompt]")
    + READS: "messages.0.content.0: Input should be",
    f"{LOOP}, tools=[{TOOL}], temperature=1)": "temperature: Extra inputs",
    LOOP.replace("=prompt", "=b'Go.'")
    + READS: "TypeError: Object of type bytes is not",
    f"{LOOP}{READS}\n1 / 0": "ZeroDivisionError: division by zero (mine.py, line 6) ! "
    "files ... Next: fix line 6 of mine.py",
    f"{LOOP}{READS}\ndef halve():\n    int('x')\nhalve()": "ValueError: invalid literal "
    "for int() with base 10: 'x' (mine.py, line 7, in halve) ! files ... Next: fix line 7 "
    "of mine.py",
}


@pytest.fixture
def own_handler():
    """A handler of the caller's, which no program inherits."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("own_handler")
@pytest.mark.parametrize("source", PROGRAMS)
def test_a_program_of_any_kind_gets_a_reason(source, monkeypatch):
    told = PROGRAMS[source]
    seconds = 0.2 if "0.2 seconds" in told else 30  # others may take their time
    monkeypatch.setattr(report, "work", plays.work._replace(seconds=seconds))
    shown, is_right = report.play_mine(written(source))
    shown = in_one_line(shown)
    assert [part for part in told.split(" ... ") if part not in shown] == []
    assert not is_right and re.search("! (problem|stopped) ", shown)


@pytest.mark.parametrize("name", ["agent.ts", "Agent.java", "agent.mjs", "main.go"])
def test_a_file_in_another_language_is_told_how_it_can_be_tested(name):
    Path(name).write_text("")
    told = in_one_line(report.play_mine(Path(name))[0])
    assert "python3 tests/lessons/steps.py small --serve" in told


def test_a_missing_file_is_reported_by_name(capsys):
    assert steps.main(["small", "--mine", "none.py"]) == 1
    told = in_one_line(capsys.readouterr().out)
    assert told.startswith("none.py, ")
    assert "problem It cannot be read: No such file or directory." in told


# --- What a program can use, and what is noted about it ---

WITH = LOOP + READS[:-1]
STREAM = f"""{WITH.replace("create", "stream").replace("reply =", "with")}) as stream:
    text = "".join(stream.text_stream)
print(text, stream.get_final_text(), stream.get_final_message().role)"""
REFUSED = f"""{ASKS}
try:
    client.messages.create(model='m', max_tokens=9, messages=[])
except (RateLimitError, InternalServerError, APITimeoutError):
    pass
except APIStatusError as error:
    print(error.status_code, error.message)"""
SAVES = "\nimport atexit, stub\natexit.register(print, stub.WORDS)"
THREAD = "\nimport threading\nthreading.Thread(target=print, args=['So.']).start()"
USES = {  # a program that uses a feature of Python or the SDK, and its output
    STREAM: "Done. Done. assistant",
    REFUSED: "400 messages: at least one message is required",
    f"{WITH}, tool_choice=NOT_GIVEN, system=omit)\nprint(len(reply.content))": "1",
    f"{WITH})\nprint(reply.content[0].model_dump(exclude_none=True)['text'])": "Done.",
    f"{WITH})\nprint(isinstance(reply.content[0], TextBlock))": "True",
    f"{WITH})\nprint(isinstance(reply.content[0], ToolUseBlock))": "False",
    f"{WITH.replace('dict(r', 'MessageParam(r')})\nprint(reply.stop_reason)": "end_turn",
    f"{WITH.replace('c()', 'c().with_options(timeout=9)')})\nprint('So.')": "So.",
    f"{WITH})\nprint(reply.to_dict()['role'])": "assistant",
    f"{WITH})\nprint(reply.usage.model_dump()['output_tokens'] > 0)": "True",
    f"{WITH})\nprint(client.models.retrieve('m').max_input_tokens)": "200000",
    f"{WITH})\nwith Anthropic() as client: print(client is not None)": "True",
    f"{WITH}){SAVES}": "from a module of its own",
    f"{WITH}){THREAD}": "So.",
}
IMPORTS = """\
from anthropic import NOT_GIVEN, APIStatusError, APITimeoutError, InternalServerError
from anthropic import RateLimitError, omit
from anthropic.types import MessageParam, TextBlock, ToolUseBlock
"""


@pytest.mark.parametrize("source", USES)
def test_a_program_can_use_the_features_of_python_and_the_sdk(source):
    Path("stub.py").write_text("WORDS = 'from a module of its own'")
    run = played(written(IMPORTS + source), Play("", list, ("Go.",)))
    assert (run.ended, run.lines[-1]) == ("", USES[source])


MESSAGE = {"role": "user", "content": [RESULT]}
ON_DISK = {  # a program's file, and the number of messages in it
    "a line": (json.dumps(MESSAGE) + "\n" + json.dumps(MESSAGE), 2),
    "a line with a time": (json.dumps({"time": 1, "message": MESSAGE}), 1),
    "a list": (json.dumps([MESSAGE, MESSAGE], indent=1), 2),
    "a list in an object": (json.dumps({"messages": [MESSAGE] * 3}, indent=1), 3),
    "one after another": (json.dumps(MESSAGE, indent=1) * 2, 2),
    "between other lines": (f"# log\n12:00\n{json.dumps(MESSAGE)}\n{{", 1),
    "in a text": (json.dumps({"text": json.dumps(MESSAGE)}), 0),
    "words": ("role content", 0),
}


@pytest.mark.parametrize("how", ON_DISK)
def test_messages_on_disk_are_counted_in_any_json_format(how):
    text, number = ON_DISK[how]
    assert checks.messages_in([text]) == number


UNDONE = {  # an agent's question and the answer it wants: findings
    ("Run it (yes/no)? ", "yes"): [
        'asked "Run it (yes/no)?" was answered with y',
        'results 28 were "The user refused."',
    ],
    ("[0 tokens] ", "y"): [
        'asked "[0 tokens]" was taken for a prompt, because it has the same words',
    ],
}


@pytest.mark.parametrize("question, wanted", UNDONE)
def test_the_report_shows_a_question_that_y_does_not_answer(question, wanted):
    source = (ROOT / "tests/agents/classes.py").read_text().replace("(y/n) ", question)
    words = reported(source.replace('"y"', f'"{wanted}"'))
    assert "files 0 of 24" in words
    assert [told for told in UNDONE[question, wanted] if told not in words] == []


def test_a_request_after_the_end_of_a_turn_is_shown():
    path = written(f"{WITH})\n{SEND}{READS}")
    run = played(path, Play("", lambda: [reply("Done.")], more=False))
    assert checks.stopped(run) == runner.TURN_IS_OVER


IGNORES = """
import os, signal
from pathlib import Path
signal.signal(signal.SIGINT, signal.SIG_IGN)
print(os.getpid(), file=Path(__file__).with_name("started").open("w"), flush=True)
while True:
    pass
"""


def test_ctrl_c_of_the_reader_ends_the_report_and_the_program_whatever_it_does():
    Path("mine.py").write_text(IGNORES)
    argv = [sys.executable, "-S", steps.__file__, "small", "--mine", "mine.py"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(argv, **pipes) as process:
        while not (Path("started").exists() and Path("started").read_text()):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        told = process.communicate()
    assert told == ("", "It was interrupted, so there is no report.\n")
    with pytest.raises(ProcessLookupError):
        os.kill(int(Path("started").read_text()), 0)
    assert process.returncode == 130


@pytest.mark.parametrize("needed", ["os.fork", "tempfile.TemporaryDirectory"])
def test_a_machine_that_can_play_nothing_gets_a_reason(needed, monkeypatch):
    monkeypatch.setattr(needed, Mock(side_effect=OSError("there is none")))
    with pytest.raises(runner.CannotPlay, match="for it: there is none"):
        played(SMALL, plays.blank_prompt)


RULES = {  # the API's words, and the chapter with the rule
    "messages: text content blocks must be non-empty": "chapter 3",
    "Requests with `tool_use` or `tool_result` blocks must define tools": "chapter 7",
}


@pytest.mark.parametrize("said", RULES)
def test_an_error_leads_to_the_chapter_with_its_rule(said):
    assert checks.place_for(None, said) == RULES[said]
