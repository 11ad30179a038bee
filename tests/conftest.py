"""Fixtures for all tests: an empty folder, no key, no real pauses, an agent to drive."""

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

from stub import StubClient

import agent as program

SETTINGS = [
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "ANTHROPIC_BASE_URL",
    "MODEL_ID",
    "CONTEXT_WINDOW",
    "THRESHOLD",
    "KEEP_RECENT",
    "MIN_SAVINGS",
    "MAX_MESSAGES",
    "NO_COLOR",
]


@pytest.fixture(autouse=True)
def workspace(tmp_path, monkeypatch):
    """An empty folder to work in, and none of the person's own settings."""
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "workspace"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
    """The seconds that the program would have slept, instead of sleeping."""
    seconds = []
    monkeypatch.setattr(program.time, "sleep", seconds.append)
    return seconds


@pytest.fixture
def make():
    """make(*replies, **fields of Agent): an agent over a StubClient with these replies.

    What it says is in `agent.events`, a list of (kind, text). Approves every call unless
    told otherwise. At the end, no request may have been refused as invalid.
    """
    clients = []

    def build(*replies, **fields):
        events = []
        fields.setdefault("client", StubClient(*replies))
        clients.append(fields["client"])
        fields.setdefault("approve", lambda name, arguments: True)
        fields.setdefault("emit", lambda kind, text: events.append((kind, text)))
        agent = program.Agent(**fields)
        agent.events = events
        return agent

    yield build
    assert [text for c in clients for text in getattr(c, "refused", [])] == []
