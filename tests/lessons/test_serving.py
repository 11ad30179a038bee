"""--serve gives an agent in any language the stand-in over HTTP, and reports on it."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import nullcontext
from http.client import HTTPConnection
from unittest.mock import Mock, call

import pytest
import runner
import serving
import stage
import steps
import stub
from builders import typed
from plays import TYPED
from readme import ROOT

pytestmark = pytest.mark.slow

TOOLS = [{"name": name, "input_schema": {}} for name in runner.TOOLS]
NODE = shutil.which("node")
AGENTS = ROOT / "tests/agents"
ARGV = [sys.executable, "-S", steps.__file__, "small", "--serve"]


def serve(*more):
    """Start `--serve`; returns the process, and the folder and address that it names."""
    process = subprocess.Popen([*ARGV, *more], stdout=subprocess.PIPE, text=True)
    last = serving.HOW_TO.split("\n")[-1]
    told = "".join(iter(process.stdout.readline, f"{last}\n"))
    return process, re.search("cd (.*)", told)[1], re.search(r"_URL=(\S+)", told)[1]


# The types in agent.ts, which a Node before 22.18 doesn't understand.
TYPE = (
    r"(?:Promise<[\w\[\]]+>|Record<string, string>|Block|Message|string|unknown|number)"
)
TYPES = (
    rf"(?ms)^type .*?;$(?=\n\n|\ntype)|: {TYPE}(?: \| \w+)?(?:\[\])?(?=[,)=]| [={{])"
)
TYPES += r"| as Block\[\]|(?<=\w)!(?=[.,)])"


def runnable(source, folder):
    """agent.ts for this machine's Node: as it is, or without types for an older one."""
    version = subprocess.check_output([NODE, "--version"], text=True)
    if [*map(int, version[1:].split("."))] >= [22, 18]:
        return source
    text = re.sub(TYPES, "", source.read_text("utf-8"))
    (path := folder / "agent.mjs").write_text(text, "utf-8")
    return path


@pytest.mark.skipif(not NODE, reason="there is no node")
@pytest.mark.parametrize(
    "name, stream", [("node.mjs", "0"), ("node.mjs", "1"), ("agent.ts", "")]
)
def test_an_agent_in_another_language_gets_the_same_report(name, stream, tmp_path):
    tools = () if name == "agent.ts" else ("--tools", "run", "view", "sum_up")
    process, folder, url = serve(*tools)
    env = {**os.environ, "ANTHROPIC_BASE_URL": url, "STREAM": stream}
    lines = "\n".join([TYPED[0], *"yyyy", TYPED[1], *"y" * 24])
    options = {"input": lines, "text": True, "env": env, "cwd": folder, "check": True}
    subprocess.run([NODE, runnable(AGENTS / name, tmp_path)], **options)
    report = " ".join(process.communicate()[0].split())
    assert "ok files 24 of 24 are translated" in report and " ! " not in report
    assert "ok layer 2 requests for a summary: 6 " in report
    assert "cost 76% from the cache, price 560,000" in report or tools
    assert "accidents none was tried" in report and process.returncode == 0


FIXED = {"model": "m", "max_tokens": 9, "messages": [typed(TYPED[0])]}


def request_of(**more):
    """The body of a request with the first prompt, and the tools that the work needs."""
    return json.dumps({**FIXED, "tools": TOOLS, **more})


START = request_of()


def post(url, body, path="/v1/messages", **more):
    """Send a request; returns the status and the text of the answer."""
    connection = HTTPConnection(url.removeprefix("http://"))
    connection.request("POST", path, body, **more)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


@pytest.fixture
def model():
    """The stand-in that is served, in a folder with the work's files."""
    with stage.from_scratch():
        yield serving.Served()


def test_a_beta_is_known_by_the_requests_header(model):
    thinking = {"type": "adaptive", "block_binding": stub.DROPS}
    body = request_of(thinking=thinking)
    with serving.served(model) as url:
        assert post(url, body)[0] == 400
        assert post(url, body, headers={"anthropic-beta": stub.BINDING})[0] == 200


def test_an_agent_that_stops_after_a_rejection_gets_its_report_soon(model, monkeypatch):
    monkeypatch.setattr(serving, "RECOVERY", 0.1)
    with serving.served(model) as url:
        assert post(url, request_of(top_k=1))[0] == 400
        assert model.done.wait(60)
        status, text = post(url, START)
    assert status == 400 and serving.IS_OVER in text and not model.run.accepted


def test_an_agent_that_recovers_from_a_rejection_goes_on(model):
    with serving.served(model) as url:
        assert post(url, request_of(top_k=1))[0] == 400
        assert model.patience.is_alive() and post(url, START)[0] == 200
    assert model.patience is None and not model.done.is_set()


def test_what_the_stand_in_cannot_play_is_not_called_a_rejection(model, capsys):
    body = request_of(thread={"type": "create"})
    with serving.served(model) as url:
        beta = {"anthropic-beta": "message-threads-2026-08-12"}
        status, text = post(url, body, headers=beta)
        assert post(url, START)[0] == 200
    code = json.loads(text)["error"]["details"]["error_code"]
    assert (status, code) == (400, "thread_unsupported_request")
    assert capsys.readouterr().out.startswith("The stand-in keeps no threads")


def test_the_report_waits_for_what_an_agent_writes_after_the_last_reply(monkeypatch):
    event = Mock()  # the end of the work, and the pause after it
    monkeypatch.setattr(serving.threading, "Event", lambda: event)
    monkeypatch.setattr(serving, "served", lambda client: nullcontext("url"))
    monkeypatch.setattr(serving, "about", event.report)
    with stage.from_scratch():
        serving.report_on([])
    done, pause, (report, *_) = event.mock_calls
    assert (done, pause, report) == (call.wait(), call.wait(1), "report")


def test_a_body_in_chunks_can_have_extensions(model):
    half = len(START) // 2
    parts = [f"{len(t):x};name=value\r\n{t}\r\n" for t in (START[:half], START[half:])]
    with serving.served(model) as url:
        sent = "".join([*parts, "0\r\n\r\n"])
        status, _ = post(url, sent, headers={"transfer-encoding": "chunked"})
    assert status == 200 and len(model.run.exchanges) == 1


def test_ctrl_c_ends_it_with_a_report():
    process, _, _ = serve()
    process.send_signal(signal.SIGINT)
    report, _ = process.communicate()
    assert "problem    There was no request." in report and process.returncode == 1


NAMED = [{"name": "cat", "input_schema": {}}]
ANSWERS = {  # a path and a body: the status, and part of the answer
    "another first prompt": (
        ("/v1/messages", request_of(messages=[typed("Hi")])),
        (400, "type this first:"),
    ),
    "a tool that isn't there": (
        ("/v1/messages?beta=true", request_of(tools=NAMED)),
        (400, "Its request doesn't offer the tool `read_file`, but cat."),
    ),
    "a wrong request": (
        ("/v1/messages", request_of(top_k=3)),
        (400, "top_k: Extra inputs are not permitted"),
    ),
    "a count": (("/v1/messages/count_tokens", START), (200, "input_tokens")),
    "no JSON": (("/v1/messages", "{"), (400, "JSONDecodeError")),
    "no object": (("/v1/messages", "[]"), (400, "invalid_request_error")),
    "another path": (("/v1/complete", "{}"), (404, "Not found: /v1/complete")),
}


@pytest.mark.parametrize("what", ANSWERS)
def test_a_request_that_is_no_work_gets_an_answer(what):
    (path, body), (status, words) = ANSWERS[what]
    with stage.from_scratch(), serving.served(serving.Served()) as url:
        got, text = post(url, body, path)
        assert (got, words in text) == (status, True)


def test_an_agent_whose_tools_have_other_names_is_told_and_reported():
    with stage.from_scratch(), serving.served(model := serving.Served()):
        with pytest.raises(serving.Refused):
            model.answer({**FIXED, "tools": NAMED})
        assert model.done.is_set() and "`read_file`" in str(serving.about(model))
