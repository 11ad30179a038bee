"""Serve the stand-in for the API on this machine, for an agent in any language.

    python3 tests/lessons/steps.py small --serve
    python3 tests/lessons/steps.py small --serve --tools run view summarise

It says where to start the agent and what to type. When the agent is done, when it sends
nothing more after a rejection, or at Ctrl-C, it reports what can be told from the
requests and the files.
"""

import json
import threading
from contextlib import suppress
from pathlib import Path

import checks
import report
import runner
import stage
from checks import Finding
from plays import TYPED, work

# isort: split
from door import served
from stub import Refused, Unplayed

LAST_WRITES = 1  # seconds between the last reply and the report
RECOVERY = 10  # seconds between a rejection and the report, if no request is accepted
WOULD_REJECT = "The API would reject this request: "
REJECTED = """\
{}{}
If no other one is accepted, the report comes in {} seconds."""
NAME = "Your agent"
UNTRIED = "none was tried over HTTP; --mine tries them, if it's in Python"
NO_REQUEST = "There was no request. Does your agent use ANTHROPIC_BASE_URL?"
IS_OVER = "The work is over, and its report begins."
HOW_TO = """\
The stand-in for the API is at {url}
Your agent's tools must be {tools} (other names: --tools).
Start your agent in this folder, from another terminal:
    cd {folder}
    export ANTHROPIC_BASE_URL={url} ANTHROPIC_API_KEY=none
Type this prompt:
    {}
Allow all commands. Wait for the answer "All are read." Then type this one:
    {}
The report comes when all is translated, or when you press Ctrl-C here."""


def report_on(names):
    """Serve the stand-in until an agent with these tools is done; returns the report."""
    with stage.from_scratch(), served(client := Served(names)) as url:
        tools = ", ".join([*names, *runner.TOOLS[len(names) :]])
        told = HOW_TO.format(*TYPED, url=url, folder=Path.cwd(), tools=tools)
        with suppress(KeyboardInterrupt):
            print(told, flush=True)
            client.done.wait()
            threading.Event().wait(LAST_WRITES)
        return about(client)


def about(client):
    """The report on an agent that has run elsewhere, and if nothing is wrong."""
    run = runner.run_of(json.loads(client.record()), client.folder)
    if not run.exchanges:
        problem = Finding(run.ended or NO_REQUEST, False)
        return report.with_next(NAME, {"problem": problem})
    table = [check for check in checks.CHECKS if check.play is work]
    facts = report.about_work({work: run}.__getitem__, table)
    return report.with_next(NAME, {**facts, "accidents": Finding(UNTRIED)}, run)


class Served(runner.Player):
    """The stand-in for the API; it learns from the requests what the user typed."""

    def __init__(self, names=()):
        super().__init__(work, names)
        self.done, self.one_by_one = threading.Event(), threading.Lock()
        self.patience: threading.Timer | None = None  # since a rejection

    def answer(self, request):
        """Answer a request, and note when the work is done or can't go on."""
        with self.one_by_one:
            if self.done.is_set():
                raise Refused(IS_OVER)
            self.note_prompt(request)
            try:
                message = super().answer(request)
            except Refused as error:
                self.wait_for_another(error)
                raise
            if self.patience:
                self.patience.cancel()
                self.patience = None
            if not self.queue:
                self.done.set()
            return message

    def give_up(self, why):
        self.done.set()
        super().give_up(why)

    def wait_for_another(self, error):
        """Report soon, unless the agent recovers from this rejection."""
        if not (self.patience or self.done.is_set()):
            why = "" if isinstance(error, Unplayed) else WOULD_REJECT
            print(REJECTED.format(why, error, RECOVERY), flush=True)
            self.patience = threading.Timer(RECOVERY, self.done.set)
            self.patience.daemon = True
            self.patience.start()

    def note_prompt(self, request):
        """Move the next prompt to those that were typed, once a request ends with it."""
        last = [*request.get("messages", [])][-1:]
        if self.run.prompts and self.run.prompts[0] in json.dumps(last):
            self.run.typed.append(self.run.prompts.pop(0))
        if not self.run.typed:
            raise Refused(f'Start your agent again, and type this first: "{TYPED[0]}"')
