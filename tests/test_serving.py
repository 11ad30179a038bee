"""--serve gives an agent in any language the stand-in over HTTP, and reports on it."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from http.client import HTTPConnection

import naive
import pytest
import serving
import steps
from builders import typed
from own_report import TYPED
from readme import ROOT

NODE = shutil.which("node")
AGENT = ROOT / "tests/agents/node.mjs"
ARGV = [sys.executable, "-S", steps.__file__, "small", "--serve"]


def serve(*more):
    """Start `--serve`; returns the process, and the folder and address that it names."""
    process = subprocess.Popen([*ARGV, *more], stdout=subprocess.PIPE, text=True)
    last = serving.HOW_TO.split("\n")[-1]
    told = "".join(iter(process.stdout.readline, f"{last}\n"))
    return process, re.search("cd (.*)", told)[1], re.search(r"_URL=(\S+)", told)[1]


@pytest.mark.skipif(not NODE, reason="there is no node")
@pytest.mark.parametrize("stream", "01")
def test_an_agent_in_javascript_gets_the_same_report(stream):
    process, folder, url = serve("--tools", "run", "view", "sum_up")
    env = {**os.environ, "ANTHROPIC_BASE_URL": url, "STREAM": stream}
    lines = "\n".join([*TYPED, *"y" * 24])
    subprocess.run(
        [NODE, AGENT], input=lines, text=True, env=env, cwd=folder, check=True
    )
    report, _ = process.communicate()
    assert "ok files      24 of 24 are translated" in report and "\n  !" not in report
    assert "ok layer 2    requests for a summary: 7\n" in report
    assert "accidents  none was tried" in report and process.returncode == 0


def test_ctrl_c_ends_it_with_a_report():
    process, _, _ = serve()
    process.send_signal(signal.SIGINT)
    report, _ = process.communicate()
    assert "problem    There was no request." in report and process.returncode == 1


FIXED = {"model": "m", "max_tokens": 9, "messages": [typed(TYPED[0])]}
NAMED = [{"name": "cat", "input_schema": {}}]
BOTH = [{"name": name, "input_schema": {}} for name in serving.TOOLS]
ANSWERS = {  # a path and a body: the status, and part of the answer
    "another first prompt": (
        ("/v1/messages", json.dumps({**FIXED, "messages": [typed("Hi")]})),
        (400, "type this first:"),
    ),
    "a tool that isn't there": (
        ("/v1/messages?beta=true", json.dumps({**FIXED, "tools": NAMED})),
        (400, "Its request doesn't offer the tool `read_file`."),
    ),
    "a wrong request": (
        ("/v1/messages", json.dumps({**FIXED, "tools": BOTH, "top_k": 3})),
        (400, "top_k: Extra inputs are not permitted"),
    ),
    "a count": (
        ("/v1/messages/count_tokens", json.dumps(FIXED)),
        (200, "input_tokens"),
    ),
    "no JSON": (("/v1/messages", "{"), (400, "JSONDecodeError")),
    "no object": (("/v1/messages", "[]"), (400, "invalid_request_error")),
    "another path": (("/v1/complete", "{}"), (404, "Not found: /v1/complete")),
}


@pytest.mark.parametrize("what", ANSWERS)
def test_a_request_that_is_no_work_gets_an_answer(what):
    (path, body), (status, words) = ANSWERS[what]
    with naive.from_scratch(), serving.served(serving.Model()) as url:
        connection = HTTPConnection(url.removeprefix("http://"))
        connection.request("POST", path, body)
        answer = connection.getresponse()
        assert (answer.status, words in answer.read().decode()) == (status, True)


def test_an_agent_whose_tools_have_other_names_is_told_and_reported():
    with naive.from_scratch(), serving.served(model := serving.Model()):
        with pytest.raises(serving.Refused):
            model.answer({**FIXED, "tools": NAMED})
        assert model.done.is_set() and "`read_file`" in str(serving.about(model))


@pytest.mark.parametrize("argv", [["layer1"], ["small", "3"], []])
def test_serve_works_only_with_small(argv, capsys):
    with pytest.raises(SystemExit):
        steps.main([*argv, "--serve"])
    assert "--serve needs small and no step" in capsys.readouterr().err
