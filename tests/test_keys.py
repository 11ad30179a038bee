"""API keys: no command, file, result or error shows one."""

from pathlib import Path

import pytest
from builders import call
from stub import reply

import agent as program
from agent import take_turn

pytestmark = pytest.mark.usefixtures("no_hang")


KEY = "sk-ant-test-0123456789abcdef"


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
