"""The smallest agent of the tutorial is never refused, and its lines have reasons."""

import ast
import importlib.util
import itertools
import json
import os
import random
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import faults
import pytest
from builders import LONG_TESTS, lines_of, outputs, roles
from naive import use, write_files
from readme import ROOT
from stub import CACHE_READ, CACHE_WRITE, EmptyQueue, Refused, reply
from wire import mock_client, serve

SCRIPT = ROOT / "tests/lessons/small.py"
SOURCE = SCRIPT.read_text("utf-8")
RULE = "Lies alles. テストには触らないで。"
LESSON = "agent_loop", "micro_compact", "auto_compact", "estimate_tokens"
TINY = {"THRESHOLD": 4_000, "MIN_SAVINGS": 1_600, "MAX_CHARS": 3_200}  # of 16,000
PROMPT = "Summarise this conversation"

numbers = itertools.count(1)


class Model(faults.Model):
    """The stand-in; it gives a summary when asked, and knows what was paid."""

    def __init__(self, *replies, summaries=(), **limits):
        summaries = summaries or [reply("All is well.")]
        super().__init__(*replies, summaries=summaries, **limits)

    @property
    def price(self):
        new, written, read = map(sum, zip(*self.usages))
        return round(new + CACHE_WRITE * written + CACHE_READ * read)


def small(source=SOURCE, **settings):
    """The program as a module, of this source and with these settings."""
    path = Path(f"small_{next(numbers)}.py")
    path.write_text(source, "utf-8")
    spec = importlib.util.spec_from_file_location("small", path)
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    module.__dict__.update(settings, input=lambda _: "y")
    return module


def live(agent, client, *prompts):
    """What the person types, one after another, as the program's own last lines do."""
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


# --- What must hold in every life ---


def nothing_is_refused(agent, client):
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


def every_result_is_seen_before_it_goes(agent, client):
    seen = {
        text for request in client.requests for text in outputs(*request["messages"])
    }
    lines = on_disk(agent)
    ends = [at for at, line in enumerate(lines) if line["role"] == "assistant"]
    assert {*outputs(*lines[: max(ends, default=0)])} <= seen


def no_words_are_lost(agent, client):
    typed = [line["content"] for line in on_disk(agent) if type(line["content"]) is str]
    for request in client.requests:
        said = [m["content"] for m in request["messages"]]
        words = [text for text in said if type(text) is str and PROMPT not in text]
        assert words == typed[: len(words)]
    assert len(words) == len(typed)


def placeholders_are_true_and_short(agent, client):
    lines = on_disk(agent)
    names = {call["id"]: call["name"] for call in blocks(lines, "tool_use")}
    whole = {r["tool_use_id"]: r["content"] for r in blocks(lines, "tool_result")}
    sent = [message for request in client.requests for message in request["messages"]]
    for result in blocks(sent, "tool_result"):
        if (text := result["content"]) != whole[result["tool_use_id"]]:
            assert text == f"[Previous: used {names[result['tool_use_id']]}]"
            assert len(text) < len(whole[result["tool_use_id"]])


HOLDS = [nothing_is_refused, every_result_is_seen_before_it_goes, no_words_are_lost]
HOLDS += [placeholders_are_true_and_short, everything_is_on_disk]


# --- Sixty reads ---


def sixty(batch, names):
    """The model thinks and reads so many files a reply; half-way it calls `compact`."""
    script = [
        use("read_file", *names[at : at + batch], thinking="Hm.")
        for at in range(0, len(names), batch)
    ]
    compact = use("compact", focus="the names", thinking="Hm.")
    half = len(script) // 2
    return [*script[:half], compact, *script[half:], reply("Done.", thinking="Well.")]


def read_sixty(agent, batch=1, characters=9_000, **settings):
    client = Model(*sixty(batch, write_files(60, characters)), **settings)
    messages = live(agent, client, RULE)
    return client, messages


def sixty_are_read(agent, batch=4):
    client, messages = read_sixty(agent, batch)
    for holds in HOLDS:
        holds(agent, client)
    assert not client.queue and len(client.asked) == 1
    assert len(outputs(*on_disk(agent))) == 61
    assert all(r["messages"][0]["content"] == RULE for r in client.requests)
    assert messages[-1]["content"] == [{"type": "text", "text": "Done."}]


@pytest.mark.parametrize("batch", [1, 2, 4])
def test_sixty_files_are_read_with_compact_in_the_middle(batch):
    sixty_are_read(small(), batch)


@pytest.mark.parametrize("batch", [1, 2, 4])
def test_over_the_real_sdk_the_same_holds(batch):
    script = sixty(batch, write_files(60, 9_000))
    half = script.index(next(r for r in script if "compact" in str(r["content"]))) + 1
    client = mock_client(*script[:half], reply("All is well."), *script[half:])
    live(agent := small(), client, RULE)
    for holds in HOLDS:
        holds(agent, client.stub)
    assert not client.stub.queue


# of sixty reads, in thousands, and of doing nothing: {characters: (T, ours, nothing)}
PRICES = {2_000: (10_000, 92, 115), 9_000: (50_000, 335, 477)}


def price(agent, characters, **limits):
    agent.SYSTEM = "You write code."  # the same in each folder
    client, _ = read_sixty(agent, 1, characters, **limits)
    return round(client.price / 1_000)


def sixty_cost_little(agent):
    assert price(agent, 9_000) == pytest.approx(335, rel=0.01)


@pytest.mark.parametrize("characters", PRICES)
def test_what_sixty_reads_cost(characters):
    threshold, ours, nothing = PRICES[characters]
    clears = small(THRESHOLD=threshold, MIN_SAVINGS=threshold * 2 // 5)
    never = small(micro_compact=list, auto_compact=lambda *_: None)
    prices = price(clears, characters), price(never, characters, window=1_000_000)
    assert prices == pytest.approx((ours, nothing), rel=0.01)


# --- Random lives ---

WORDS = [
    "Go on.",
    "テストを直して。",
    "🙂",
    "a\u2028b\r\n\x00c",
    "long " * 60,
    "図" * 300,
]
FILES = {"short": "x", "empty": "", "日本": "日本語\n" * 300, "bytes": "\udcff" * 900}
FILES |= {"long": "a line of it\n" * 90, "huge": "要約" * 4_500}
WRONG = [
    ("read_file", {}),
    ("none", {}),
    ("bash", {"x": 1}),
    ("read_file", {"path": 7}),
]
PATHS = [*FILES, "long", "日本", "gone", "."]
CALLS = [("read_file", {"path": name}) for name in PATHS]
CALLS += [("bash", {"command": c}) for c in ("echo 図; exit 3", "head -c 900 huge")]
CALLS += [("compact", {"focus": "names"}), *WRONG]
STOPS = ["max_tokens", "refusal", "end_turn", None]
BLANK = [{"type": "text", "text": " \n"}]
NO_SUMMARY = [reply(stop="refusal"), reply("Half a", stop="max_tokens")]
NO_SUMMARY += [reply(content=BLANK), reply("No", [CALLS[0]]), reply(thinking="Hm.")]


def random_reply(chance):
    """Anything that a model may answer, and what may happen in place of an answer."""
    calls = chance.choices(CALLS, k=chance.choice([1, 1, 2, 3, 12]))
    thinking = chance.choice([None, "Hm."])
    good = reply(chance.choice(["", "Next."]), calls, thinking)
    said, stop = chance.choice(["", "Well,"]), chance.choice(STOPS)
    cut_off = reply(said, calls[:1], thinking, chance.choice(STOPS[:2]))
    odd = [
        cut_off,
        reply(said, (), thinking, stop),
        reply(content=BLANK),
        reply("Done."),
    ]
    odd += [ConnectionError("it broke"), KeyboardInterrupt()]
    return chance.choice([good] * 10 + odd)


def stop_now(name, given):
    raise KeyboardInterrupt


def random_life(agent, seed):
    """What the person types is answered at random, and at random stopped."""
    chance = random.Random(seed)
    summaries = chance.choices([reply("All is well."), *NO_SUMMARY], k=7)
    client = Model(summaries=[*summaries, reply("短い")], window=16_000)
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
def files(workspace):
    for name, text in FILES.items():
        (workspace / name).write_bytes(text.encode(errors="surrogateescape"))


def life_is_valid(agent, seed=1):
    agent.__dict__.update(TINY)
    client = random_life(agent, seed)
    for holds in HOLDS:
        holds(agent, client)


@pytest.mark.parametrize("seed", range(200 if LONG_TESTS else 20))
def test_a_random_life_is_never_refused_and_loses_nothing(seed, files):
    life_is_valid(small(), seed)


# --- What else is promised, each by one small work ---


def a_long_talk_is_summarised(agent):
    client = Model(*[reply("A long answer. " * 2_000) for _ in range(30)])
    live(agent, client, *["Go on."] * 30)
    assert len(client.asked) == 4 and max(map(sum, client.usages)) < 80_000


def compact_makes_room_and_work_goes_on(agent):
    names = write_files(6, 9_000)
    script = use("read_file", *names), use("compact", focus="a"), reply("Done.")
    client = Model(*script)
    messages = live(agent, client, RULE)
    assert not client.queue and roles(messages) == ["user", "user", "assistant"]


def the_newest_results_stay(agent):
    names = write_files(20, 9_000)
    client = Model(*[use("read_file", name) for name in names], reply("Done."))
    newest = outputs(*live(agent, client, RULE))[-agent.KEEP_RECENT :]
    assert [len(text) for text in newest] == [8_999] * agent.KEEP_RECENT


def what_is_no_summary_replaces_nothing(agent):
    for no_summary in NO_SUMMARY:
        script = [use("read_file", "long"), use("compact", focus="a"), reply("Done.")]
        messages = live(agent, Model(*script, summaries=[no_summary]), RULE)
        assert len(outputs(*messages)) == 2


def a_call_that_was_cut_off_is_not_run(agent):
    cut = reply("Well,", [("bash", {"command": "touch made"})], stop="max_tokens")
    live(agent, Model(cut), RULE)
    assert not (Path.cwd() / "made").exists()


def many_large_results_fit_the_window(agent):
    calls = [("read_file", {"path": "huge"})] * 12
    client = Model(*[reply(calls=calls)] * 3, reply("Done."))
    live(agent, client, RULE)
    assert (
        not client.too_long and "[cut: 9,000 characters]" in outputs(*on_disk(agent))[0]
    )


def a_wrong_call_is_answered(agent):
    messages = live(agent, Model(reply(calls=WRONG), reply("Done.")), RULE)
    assert len(outputs(*messages)) == 4


def a_command_runs_when_the_person_says_yes(agent):
    agent.input = lambda _: ""
    client = Model(reply(calls=[("bash", {"command": "touch made"})]), reply("Done."))
    live(agent, client, RULE)
    assert not (Path.cwd() / "made").exists()


def a_stopped_tool_leaves_no_open_call(agent):
    agent.run_tool = stop_now
    client = Model(reply(calls=[CALLS[0]]), reply("Done."))
    live(agent, client, RULE, "Go on.")
    assert not client.refused and not client.queue


def japanese_can_be_found_on_disk(agent):
    live(agent, Model(reply("はい。")), RULE)
    assert "テスト" in agent.TRANSCRIPT.read_text("utf-8")


# of each promise the lines that keep it, and what each is changed into to break it
LINES = {
    sixty_are_read: {
        "reply, _ = ask(client, messages)\n        micro_compact(messages)": (
            "micro_compact(messages)\n        reply, _ = ask(client, messages)"
        ),
        "names[result['tool_use_id']]": "'unknown'",
        "[*typed, log(": "[log(",
        'kept = "text", ': 'kept = "text", "thinking", ',
        'log("user", [*run_tools(calls)])]': (
            '{"role": "user", "content": [*run_tools(calls)]}]'
        ),
        '.open("a"': '.open("w"',
    },
    sixty_cost_little: {
        "        micro_compact(messages)": "        pass",
        "if estimate_tokens(old) >= MIN_SAVINGS:": "if old:",
        'cache = {"cache_control": {"type": "ephemeral"}}': "cache = {}",
    },
    life_is_valid: {
        "if reply else []": "",
        'if len(r["content"]) > 100]': "]",
        '.get("text", "call").strip()': '.get("text", "call")',
        ' or "(no output)"': "",
    },
    a_long_talk_is_summarised: {
        "if estimate_tokens(messages) > THRESHOLD:": "if False:"
    },
    compact_makes_room_and_work_goes_on: {
        'if any(call["name"] == "compact" for call in calls):': "if False:",
        "messages[:] =": "messages =",
    },
    the_newest_results_stay: {"results[:-KEEP_RECENT]": "results"},
    what_is_no_summary_replaces_nothing: {
        "if reply and stop": "if stop",
        'if reply and stop == "end_turn":': "if reply:",
    },
    a_call_that_was_cut_off_is_not_run: {
        'kept = "text", reply.stop_reason': 'kept = "text", "tool_use"'
    },
    many_large_results_fit_the_window: {
        "if len(text) > MAX_CHARS // len(calls):": "if False:",
        "MAX_CHARS // len(calls)": "MAX_CHARS",
    },
    a_wrong_call_is_answered: {
        "(KeyError, OSError, TypeError, ValueError, TimeoutExpired)": "ArithmeticError"
    },
    a_command_runs_when_the_person_says_yes: {'!= "y":': "== 0:"},
    a_stopped_tool_leaves_no_open_call: {
        '[log("assistant", reply), log(': (
            '[log("assistant", reply)]\n        messages += [log('
        )
    },
    japanese_can_be_found_on_disk: {", ensure_ascii=False": ""},
}
BROKEN = AssertionError, LookupError, OSError, TypeError, ValueError, Refused
CHANGES = [(promise, line) for promise, lines in LINES.items() for line in lines]


@pytest.mark.parametrize("promise", LINES)
def test_a_promise_is_kept(promise, files):
    promise(small())


@pytest.mark.parametrize("promise, line", CHANGES)
def test_without_this_line_a_promise_breaks(promise, line, files):
    assert line in SOURCE
    with pytest.raises((*BROKEN, EmptyQueue)):
        promise(small(SOURCE.replace(line, LINES[promise][line])))


# --- The program as it is started, and what it promises to be ---


def test_it_works_in_a_terminal_over_the_real_sdk(files):
    stub = Model(reply(calls=[("bash", {"command": "cat long"})]), reply("It is read."))
    with serve(stub) as url:
        env = {**os.environ, "ANTHROPIC_API_KEY": "k" * 20, "ANTHROPIC_BASE_URL": url}
        argv, typed = [sys.executable, SCRIPT], f"{RULE}\ny\n\n"
        done = subprocess.run(
            argv, check=True, input=typed, env=env, capture_output=True, text=True
        )
    (path,) = Path(".transcripts").iterdir()
    assert "Run 'cat long'? [y/N]" in done.stdout and "It is read." in done.stdout
    assert len(path.read_text("utf-8").split("\n")) == 5 and not stub.refused


def test_its_run_shows_each_layer_without_a_package():
    run = ROOT / "tests/lessons/small_run.py"
    argv = [sys.executable, "-S", "-E", run]
    done = subprocess.run(argv, check=True, capture_output=True, text=True, env={})
    assert re.findall("(?m)^layer (.)", done.stdout) == [*"1123"]
    assert "requests: 33, refused: 0" in done.stdout
    assert "typed in them: 33" in done.stdout and "on disk: 30 of 30" in done.stdout


def test_it_is_small():
    functions = [n for n in ast.parse(SOURCE).body if isinstance(n, ast.FunctionDef)]
    lesson = [n for n in functions if n.name in LESSON]
    assert len(SOURCE.split("\n")) - 1 <= 125
    assert max(n.end_lineno - n.lineno + 1 for n in functions) <= 15
    assert sum(n.end_lineno - n.lineno + 1 for n in lesson) <= 36
