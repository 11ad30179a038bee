"""The tutorial's two small agents: the API never rejects small.py; first.py stops."""

import ast
import importlib
import json
import os
import random
import re
import runpy
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import httpx2
import pytest
import small
import small_run
from builders import LONG_TESTS, lines_of, outputs, roles
from readme import ROOT
from stage import price, use, write_files
from stub import Refused, reply
from wire import mock_client, serve

FIRST, SCRIPT = ROOT / "tests/lessons/first.py", ROOT / "tests/lessons/small.py"
BETWEEN = sorted((ROOT / "tests/lessons/small").glob("step*.py"))
RULE = "Lies alles. テストには触らないで。"
TINY = {"THRESHOLD": 4_000, "MIN_SAVINGS": 1_600, "MAX_CHARS": 3_200}  # of 16,000
PROMPT = "Summarise this conversation"
CLEARED = "[Old result, cleared]"


fake_api = partial(small_run.fake_api, summaries=[reply("All is well.")])


@pytest.fixture
def agent():
    """small.py as a module; the user approves every command."""
    program = importlib.reload(small)
    program.input = lambda _: "y"
    return program


def talk(agent, client, *prompts):
    """Take these prompts one after another, as the last lines of the program do."""
    messages = []
    for prompt in prompts:
        with suppress(KeyboardInterrupt, ConnectionError, ValueError):
            messages.append(agent.log("user", prompt))
            agent.agent_loop(client, messages)
    return messages


def blocks(messages, kind):
    lists = [m["content"] for m in messages if isinstance(m["content"], list)]
    return [b for content in lists for b in content if b["type"] == kind]


def on_disk(agent):
    """The lines of the transcript."""
    return lines_of(agent.TRANSCRIPT)


# --- What holds in every conversation ---


def nothing_is_rejected(agent, client):
    assert (client.refused, client.too_long) == ([], [])


def everything_is_on_disk(agent, client):
    kept = {json.dumps(line) for line in on_disk(agent)}
    whole = {b["tool_use_id"]: b for b in blocks(on_disk(agent), "tool_result")}
    for message in [m for r in client.requests for m in r["messages"]]:
        content = message["content"]
        if type(content) is list:
            content = [whole.get(block.get("tool_use_id"), block) for block in content]
        if PROMPT not in content:
            assert json.dumps({**message, "content": content}) in kept


def every_result_is_seen_before_it_is_cleared(agent, client):
    seen = {
        text for request in client.requests for text in outputs(*request["messages"])
    }
    lines = on_disk(agent)
    ends = [at for at, line in enumerate(lines) if line["role"] == "assistant"]
    assert {*outputs(*lines[: max(ends, default=0)])} <= seen


def no_user_message_is_lost(agent, client):
    prompts = [
        line["content"] for line in on_disk(agent) if type(line["content"]) is str
    ]
    for request in client.requests:
        contents = [m["content"] for m in request["messages"]]
        words = [text for text in contents if type(text) is str and PROMPT not in text]
        assert words == prompts[: len(words)]
    assert len(words) == len(prompts)


def a_placeholder_is_shorter_than_its_result(agent, client):
    lines = blocks(on_disk(agent), "tool_result")
    whole = {result["tool_use_id"]: result["content"] for result in lines}
    sent = [message for request in client.requests for message in request["messages"]]
    for result in blocks(sent, "tool_result"):
        if (text := result["content"]) != whole[result["tool_use_id"]]:
            assert text == CLEARED and len(whole[result["tool_use_id"]]) > 100


INVARIANTS = [
    nothing_is_rejected,
    every_result_is_seen_before_it_is_cleared,
    no_user_message_is_lost,
]
INVARIANTS += [a_placeholder_is_shorter_than_its_result, everything_is_on_disk]


# --- Sixty reads ---


def sixty(batch, names):
    """The replies: read this many files at a time, and call `compact` half-way."""
    script = [
        use("read_file", *names[at : at + batch], thinking="Hm.")
        for at in range(0, len(names), batch)
    ]
    compact = use("compact", focus="the names", thinking="Hm.")
    half = len(script) // 2
    return [*script[:half], compact, *script[half:], reply("Done.", thinking="Well.")]


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 2, 4])
def test_sixty_reads_with_a_compact_half_way(agent, batch):
    client = fake_api(*sixty(batch, write_files(60, 9_000)))
    messages = talk(agent, client, RULE)
    for holds in INVARIANTS:
        holds(agent, client)
    assert not client.queue and len(client.asked) == 1
    assert len(outputs(*on_disk(agent))) == 61
    assert all(r["messages"][0]["content"] == RULE for r in client.requests)
    assert messages[-1]["content"] == [{"type": "text", "text": "Done."}]


@pytest.mark.slow
def test_sixty_reads_cost_less_than_without_forgetting(agent):
    agent.SYSTEM = "You write code."  # the same in each folder
    client = fake_api(*sixty(1, write_files(60, 9_000)))
    talk(agent, client, RULE)
    assert price(client.usages) == pytest.approx(
        322_000, rel=0.01
    )  # without forgetting: 477,000


# --- Random conversations ---

WORDS = ["Go on.", "テストを直して。", "🙂", "a\u2028b\r\n\x00c"]
WORDS += ["long " * 60, "図" * 300]
ODD_FILES = {
    "short": "x",
    "empty": "",
    "日本": "日本語\n" * 300,
    "bytes": "\udcff" * 900,
}
ODD_FILES |= {"long": "a line of it\n" * 90, "huge": "要約" * 4_500}
WRONG_CALLS = [("read_file", {}), ("none", {}), ("none", {"command": "touch made"})]
WRONG_CALLS += [
    ("bash", {"x": 1}),
    ("read_file", {"path": 7}),
    ("bash", {"command": None}),
]
WRONG_CALLS += [
    ("read_file", given) for given in ([], "short", 7, None, [{"path": "short"}])
]
PATHS = [*ODD_FILES, "long", "日本", "gone", ".", "a\0b"]
CALLS = [("read_file", {"path": name}) for name in PATHS]
CALLS += [("bash", {"command": c}) for c in ("echo 図; exit 3", "head -c 900 huge")]
CALLS += [("compact", {"focus": "names"}), *WRONG_CALLS]
STOP_REASONS = ["max_tokens", "refusal", "end_turn", None]
BLANK = [{"type": "text", "text": " \n"}]
NO_SUMMARIES = [reply(stop="refusal"), reply("Half a", stop="max_tokens")]
NO_SUMMARIES += [reply(content=BLANK), reply("No", [CALLS[0]]), reply(thinking="Hm.")]


def random_reply(chance):
    """Any reply that a model may give, or an error in its place."""
    calls = chance.choices(CALLS, k=chance.choice([1, 1, 2, 3, 12]))
    thinking = chance.choice([None, "Hm."])
    good = reply(chance.choice(["", "Next."]), calls, thinking)
    text, stop = chance.choice(["", "Well,"]), chance.choice(STOP_REASONS)
    cut_off = reply(text, calls[:1], thinking, chance.choice(STOP_REASONS[:2]))
    odd = [cut_off, reply(text, (), thinking, stop), reply(content=BLANK)]
    odd += [reply("Done."), ConnectionError("it broke"), KeyboardInterrupt()]
    return chance.choice([good] * 10 + odd)


def stop_now(name, given):
    raise KeyboardInterrupt


def random_conversation(agent, seed):
    """Answer eight prompts at random, and interrupt some of them."""
    chance = random.Random(seed)
    summaries = chance.choices([reply("All is well."), *NO_SUMMARIES], k=7)
    client = fake_api(summaries=[*summaries, reply("短い")], window=16_000)
    run_tool, messages = agent.run_tool, []
    for _ in range(8):
        client.queue.clear()
        client.enqueue(*(random_reply(chance) for _ in range(12)), reply("Done."))
        messages.append(agent.log("user", chance.choice(WORDS)))
        agent.run_tool = stop_now if chance.random() < 0.1 else run_tool
        with suppress(KeyboardInterrupt, ConnectionError):
            agent.agent_loop(client, messages)
    return client


@pytest.fixture
def odd_files(workspace):
    for name, text in ODD_FILES.items():
        (workspace / name).write_bytes(text.encode(errors="surrogateescape"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200 if LONG_TESTS else 20))
def test_a_random_conversation_is_never_rejected_and_loses_nothing(
    agent, seed, odd_files
):
    agent.__dict__.update(TINY)
    client = random_conversation(agent, seed)
    for holds in INVARIANTS:
        holds(agent, client)


# --- One promise at a time ---


def test_a_long_conversation_is_summarised(agent):
    client = fake_api(*[reply("A long answer. " * 2_000) for _ in range(30)])
    talk(agent, client, *["Go on."] * 30)
    assert len(client.asked) == 4 and max(map(sum, client.usages)) < 80_000


def test_results_the_model_has_not_seen_survive_a_broken_connection(agent):
    names = write_files(12, 9_000)
    pairs = [use("read_file", *names[at : at + 4]) for at in range(0, 12, 4)]
    client = fake_api(*pairs, ConnectionError("it broke"), reply("Done."))
    agent.KEEP_RECENT = 1
    talk(agent, client, RULE, "Go on.")
    newest = outputs(*client.requests[-1]["messages"])[-4:]
    assert [len(text) for text in newest] == [8_999] * 4


def test_a_failed_summary_replaces_nothing(agent, odd_files):
    for no_summary in NO_SUMMARIES:
        script = [use("read_file", "long"), use("compact", focus="a"), reply("Done.")]
        messages = talk(agent, fake_api(*script, summaries=[no_summary]), RULE)
        assert len(outputs(*messages)) == 2


def test_a_truncated_call_is_not_run(agent):
    cut = reply("Well,", [("bash", {"command": "touch made"})], stop="max_tokens")
    talk(agent, fake_api(cut), RULE)
    assert not (Path.cwd() / "made").exists()


def test_an_invalid_call_gets_an_error_as_its_result(agent, odd_files):
    messages = talk(agent, fake_api(reply(calls=WRONG_CALLS), reply("Done.")), RULE)
    assert len(outputs(*messages)) == len(WRONG_CALLS) and not Path("made").exists()
    wrong = r"\w+Error: |There is no tool none"
    assert all(re.match(wrong, text) for text in outputs(*messages))


def test_undecodable_bytes_are_read_as_replacement_characters(agent, odd_files):
    read = use("read_file", "bytes", "gone")
    text, missing = outputs(*talk(agent, fake_api(read, reply("Done.")), RULE))
    assert text == "\ufffd" * 900 and missing.startswith("FileNotFoundError: ")


def test_a_reply_that_is_not_json_does_not_join_the_messages(agent):
    for bad in [float("nan"), float("inf"), "\ud800"]:
        odd = 200, {}, json.dumps(use("bash", x=bad)).encode()
        client = mock_client(odd, reply("Done."))
        messages = talk(agent, client, RULE, "Go on.")
        assert roles(messages) == ["user", "user", "assistant"]


def test_a_command_does_not_run_without_approval(agent):
    agent.input = lambda _: ""
    client = fake_api(
        reply(calls=[("bash", {"command": "touch made"})]), reply("Done.")
    )
    talk(agent, client, RULE)
    assert not (Path.cwd() / "made").exists()


def test_a_stopped_tool_leaves_no_call_without_its_result(agent):
    agent.run_tool = stop_now
    client = fake_api(reply(calls=[CALLS[0]]), reply("Done."))
    talk(agent, client, RULE, "Go on.")
    assert not client.refused and not client.queue


def test_japanese_is_not_escaped_on_disk(agent):
    talk(agent, fake_api(reply("はい。")), RULE)
    assert "テスト" in agent.TRANSCRIPT.read_text("utf-8")


# --- The programs as a reader starts them ---


def started(capsys, client, *lines):
    """Start small.py, type these lines or raise these errors; returns its output."""
    left = iter([*lines, EOFError()])

    def type_next(_):
        if isinstance(text := next(left), BaseException):
            raise text
        return text

    with pytest.MonkeyPatch.context() as patch:
        sdk = SimpleNamespace(Anthropic=lambda: client)
        patch.setitem(sys.modules, "anthropic", sdk)
        runpy.run_path(str(SCRIPT), {"input": type_next}, "__main__")
    return capsys.readouterr().out


ODD_ERRORS = [
    httpx2.ReadError("it broke"),
    TypeError("no key"),
    json.JSONDecodeError("", "", 0),
]
ODD_ERRORS += [
    AssertionError(),
    KeyboardInterrupt(),
    Refused("no"),
    OSError("disk full"),
]


@pytest.mark.parametrize("error", ODD_ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_ends_the_turn_but_not_the_program(error, capsys):
    client = fake_api(error, reply("Done."))
    output = started(capsys, client, "Go.", "Go on.", " ", "unread")
    assert output.split("\n")[0].startswith(f"Stopped: {type(error).__name__}: ")
    assert "Done." in output and len(client.requests) == 2


def test_ctrl_c_at_the_prompt_asks_again_and_ctrl_d_exits(capsys):
    client = fake_api(reply("Done."))
    output = started(capsys, client, KeyboardInterrupt(), "Go.", EOFError(), "unread")
    assert "Done." in output and len(client.requests) == 1


def test_ctrl_d_does_not_approve_a_command(capsys):
    command = reply(calls=[("bash", {"command": "touch made"})])
    client = fake_api(command, reply("Done."))
    assert "Done." in started(capsys, client, "Go.", EOFError())
    assert not Path("made").exists()


@pytest.fixture
def run_script(capsys, monkeypatch):
    """run_script(script, text, **settings): the output of a script with the real SDK.

    LONG_TESTS start it in a process of its own, as a reader would.
    """

    def run(script, text="", **settings):
        if LONG_TESTS:
            options = {"capture_output": True, "text": True, "input": text}
            argv, env = [sys.executable, script], {**os.environ, **settings}
            done = subprocess.run(argv, check=True, env=env, **options)
            return done.stdout, done.stderr
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        lines = iter(text.splitlines())

        def type_next(question):
            print(question, end="")
            for line in lines:
                return line
            raise EOFError

        runpy.run_path(str(script), {"input": type_next}, "__main__")
        return capsys.readouterr()

    return run


@pytest.mark.slow
def test_small_works_with_the_real_sdk(run_script, odd_files):
    stub = fake_api(
        reply(calls=[("bash", {"command": "cat long"})]), reply("It is read.")
    )
    with serve(stub) as url:
        keys = {"ANTHROPIC_API_KEY": "k" * 20, "ANTHROPIC_BASE_URL": url}
        output, errors = run_script(SCRIPT, f"{RULE}\ny\n", **keys)
    assert (errors, stub.refused) == ("", [])
    assert "Run 'cat long'? [y/N]" in output and "It is read." in output
    assert len(lines_of(Path("transcript.jsonl"))) == 4


def test_without_a_key_small_says_so_and_asks_again(run_script):
    output, errors = run_script(SCRIPT, "Go.\nGo on.\n")
    assert errors == "" and output.count("Stopped: TypeError: ") == 2


@pytest.mark.slow
def test_first_works_with_the_real_sdk(run_script, odd_files):
    thinks = use("read_file", "short", "long", thinking="Hm.")
    stub = fake_api(thinks, reply("It is read.", thinking="Well."))
    with serve(stub) as url:
        keys = {"ANTHROPIC_API_KEY": "k" * 20, "ANTHROPIC_BASE_URL": url}
        output, errors = run_script(FIRST, f"{RULE}\n", **keys)
    assert (output, errors) == ("> It is read.\n", "")
    assert outputs(*stub.requests[1]["messages"]) == [
        ODD_FILES["short"],
        ODD_FILES["long"],
    ]
    assert stub.refused == []


@pytest.mark.slow
@pytest.mark.parametrize("script", BETWEEN, ids=lambda path: path.stem)
def test_a_step_between_them_works_with_the_real_sdk(run_script, script, odd_files):
    thinks = use("read_file", "short", "gone", thinking="Hm.")
    stub = fake_api(thinks, reply("It is read.", thinking="Well."))
    with serve(stub) as url:
        keys = {"ANTHROPIC_API_KEY": "k" * 20, "ANTHROPIC_BASE_URL": url}
        output, errors = run_script(script, f"{RULE}\n", **keys)
    assert (errors, stub.refused) == ("", []) and "It is read." in output
    text, missing = outputs(*stub.requests[1]["messages"])
    assert text == ODD_FILES["short"] and missing.startswith("FileNotFoundError: ")


@pytest.mark.parametrize("script, most", [(FIRST, 39), (SCRIPT, 140)])
def test_the_programs_are_small(script, most):
    source = script.read_text("utf-8")
    functions = [n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef)]
    assert source.count("\n") <= most and max(map(len, source.split("\n"))) <= 88
    assert max(n.end_lineno - n.lineno + 1 for n in functions) <= 20
