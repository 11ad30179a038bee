"""Fixtures for all tests: an empty folder, no key, no real pauses, an agent to drive."""

import gc
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from stub import StubClient

import agent as program

EXAMPLE = Path(program.__file__).with_name(".env.example").read_text("utf-8")
LIMITS = {*vars(program.Limits())}  # names of its fields
# whatever can be set, and what readline and the screen go by
SETTINGS = {*re.findall(r"(?m)^#?([A-Z_]+)=", EXAMPLE), *map(str.upper, LIMITS)}
SETTINGS |= {"COLUMNS", "LINES"}
PROXIES = {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"}

# what takes longest begins first, and what waits stands beside what computes
FIRST = ["asked", "steps", "readme", "hostile_tools", "stops", "costs", "terminal"]
FIRST += ["wire", "small"]

gc.disable()  # until all tests are loaded: it would go through them again and again

# Under nohup, or in the background, they may be ignored, by all children as well.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    """The whole suite runs on all cores, but what is chosen runs in one process.

    There is one process more than cores, for in a third of the time tests only wait.
    """
    options = config.option
    chosen = "file_or_dir", "keyword", "markexpr", "lf", "usepdb"
    one = any(getattr(options, name, None) for name in chosen)
    one = one or "PYTEST_XDIST_WORKER" in os.environ
    if getattr(options, "numprocesses", 0) is None and not one:
        options.numprocesses = min(8, 1 + (os.cpu_count() or 1))
        options.dist = "loadfile"  # which sets up what its tests share only once
        options.loadscopereorder = False
        options.maxworkerrestart = 0  # a test that hangs ends its worker, and is named


def pytest_collection_modifyitems(items):
    """Long files come first, so that no process ends much later than the others."""
    places = {f"test_{name}.py": place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


def pytest_collection_finish():
    gc.freeze()  # what is loaded by now stays
    gc.enable()


@pytest.fixture(scope="session")
def empty(tmp_path_factory):
    """empty(): a folder in a folder, which may be the last one if both are as they were.

    Most tests leave nothing there, and to make folders for each takes a second or two.
    """
    root, found = tmp_path_factory.mktemp("empty"), []

    def find():
        last = found[-1] if found else None
        if not last or os.listdir(last) or len(os.listdir(last.parent)) > 1:
            found.append(root / str(len(found)) / "workspace")
            found[-1].mkdir(parents=True)
        return found[-1]

    return find


@pytest.fixture(autouse=True)
def workspace(empty, monkeypatch):
    """An empty folder to work in, and none of the person's own settings."""
    for name in SETTINGS | PROXIES | {name.lower() for name in PROXIES}:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SSL_CERT_DIR", os.devnull)  # to read them would take 0.1 s
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever changed it
    monkeypatch.chdir(folder := empty())
    return folder


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
    """The seconds that the program would have slept, instead of sleeping."""
    seconds, sleep = [], time.sleep

    def shortly(given):
        seconds.append(given) if given >= 0.1 else sleep(given)

    monkeypatch.setattr(program.time, "sleep", shortly)
    return seconds


@pytest.fixture
def no_layer_2(monkeypatch):
    """No threshold: nothing is summarised before the API refuses a request."""
    monkeypatch.setattr(program, "should_compact", lambda agent: False)


@pytest.fixture
def notes(workspace):
    """A file for the model to read, notes.txt."""
    (workspace / "notes.txt").write_text("these are the notes\n" * 200)


@pytest.fixture
def make():
    """make(*replies, **fields of Agent and Limits): an agent whose API is a StubClient.

    What it says is in `agent.events`, a list of (style, text), without the clock.
    Approves every call unless told otherwise. At the end no request may have been
    refused as invalid, and no reply may be left over. Where it does not matter how many
    requests there are, `client=StubClient(always=...)` answers each of them.
    """
    clients = []

    def build(*replies, **fields):
        events = []
        fields.setdefault("client", StubClient(*replies))
        clients.append(fields["client"])
        fields.setdefault("approve", lambda *question: None)

        def emit(style, text):
            events.extend([(style, text)] if style != "wait" else [])

        fields.setdefault("emit", emit)
        messages = fields.pop("messages", [])
        own = {name: fields.pop(name) for name in LIMITS & fields.keys()}
        fields.setdefault("limits", program.Limits(**own))
        agent = program.Agent(**fields)
        if not agent.system:
            program.make_ready(agent)
        agent.messages, agent.events = messages, events
        return agent

    yield build
    fakes = [getattr(client, "stub", client) for client in clients]
    for fake in filter(None, fakes):
        assert (fake.refused, [*fake.queue]) == ([], []), "refused, or left over"


# --- Tools, one call at a time ---


@pytest.fixture
def answer(make):
    """answer(tool, **input): (what it says, whether that is an error)."""
    from builders import call  # which loads the SDK

    agent = make()

    def answer(name, /, **given):
        block = program.run_tool(agent, call(name, **given))
        return block["content"], block.get("is_error", False)

    return answer


@pytest.fixture
def use(answer):
    """use(tool, **input): what the tool answers, which must not be an error."""

    def use(name, /, **given):
        content, is_error = answer(name, **given)
        assert not is_error, content
        return content

    return use


@pytest.fixture
def error_of(answer):
    """error_of(tool, **input): what the tool answers, which must be an error."""

    def error_of(name, /, **given):
        content, is_error = answer(name, **given)
        assert is_error and content.strip()
        return content

    return error_of


@pytest.fixture
def broken_glob(monkeypatch):
    """broken_glob(error): from now on the tool `glob` raises it."""

    def break_it(error):
        monkeypatch.setattr(program, "files_in", Mock(side_effect=error))

    return break_it


# --- The program in this process, over a server ---


@pytest.fixture
def api():
    """An API for one test; in the end nothing may be left in it or have been refused."""
    from wire import serve  # which loads the SDK

    stub = StubClient()
    with serve(stub) as stub.url:
        yield stub
    assert (stub.refused, [*stub.queue]) == ([], [])


@pytest.fixture
def run(api, capsys, monkeypatch, tmp_path):
    """run(*argv, stdin="", **settings): (exit status, stdout, stderr) of the program."""
    monkeypatch.setattr(program, "__file__", str(tmp_path / "agent.py"))  # and no .env
    monkeypatch.setattr(program.signal, "signal", lambda *_: None)
    usual = {"ANTHROPIC_API_KEY": "test-key-0123456789", "ANTHROPIC_BASE_URL": api.url}

    def go(*argv, stdin="", **settings):
        for name, value in (usual | settings).items():
            monkeypatch.setenv(name, value)
        (tmp_path / "stdin").write_text(stdin, errors="surrogateescape")
        with (tmp_path / "stdin").open() as file:
            monkeypatch.setattr(sys, "stdin", file)
            return program.main([*argv]), *capsys.readouterr()

    return go


# --- The program in a process of its own, on a pseudo-terminal ---


@pytest.fixture(scope="session")
def desk(tmp_path_factory):
    """A fresh install of the program, a workspace, and an API, for all tests."""
    from wire import serve  # which loads the SDK

    root, stub = tmp_path_factory.mktemp("desk"), StubClient()
    shutil.copy(program.__file__, root / "agent.py")
    (folder := root / "workspace").mkdir()
    with serve(stub) as url:
        usual = {"PATH": os.environ["PATH"], "TERM": "xterm", "NO_PROXY": "*"}
        usual["SSL_CERT_DIR"] = os.devnull
        own = {"ANTHROPIC_API_KEY": "test-key-0123456789", "ANTHROPIC_BASE_URL": url}
        desk = SimpleNamespace(stub=stub, folder=folder, settings=usual | own)
        desk.argv, desk.idle = [sys.executable, str(root / "agent.py")], None
        yield desk
        if desk.idle:
            desk.idle.close()


@pytest.fixture
def person(desk):
    """Somebody before an empty prompt, in a new conversation and an empty folder.

    All use the same program, which says sooner what it waits for. The API must have
    been asked for all of its replies, and have refused nothing.
    """
    from pseudo import PROMPT, Person, changed

    person, desk.idle = desk.idle, None
    if person is None:
        person = Person(changed(desk, WAIT_SHOWN=0.2))
        person.see(PROMPT)
    person.raw, person.seen = b"\r\n", 0  # of the test before
    person.say("/clear")
    yield person
    for path in desk.folder.glob("[!.]*"):
        path.rmdir() if path.is_dir() else path.unlink()
    desk.idle = person if person.screen.endswith(PROMPT) else person.close()
    refused, left = [*desk.stub.refused], [*desk.stub.queue]
    for kept in desk.stub.requests, desk.stub.refused, desk.stub.queue:
        kept.clear()
    assert (refused, left) == ([], [])


@pytest.fixture
def fresh(desk):
    """fresh(*replies, constants, argv, folder, **of Person): in a program of their own.

    `constants` stand in the place of those of the program.
    """
    from pseudo import PROMPT, Person, changed

    people = []

    def start(*replies, constants=None, argv=desk.argv, folder=desk.folder, **given):
        desk.stub.enqueue(*replies)
        own = SimpleNamespace(**vars(desk) | {"argv": argv, "folder": folder})
        people.append(Person(changed(own, **constants or {}), **given))
        if "-p" not in argv:
            plain = given.keys() & {"NO_COLOR", "TERM"}
            people[-1].see("\n> " if plain else PROMPT)
        return people[-1]

    yield start
    for person in people:
        person.close()
    refused, left = [*desk.stub.refused], [*desk.stub.queue]
    for kept in desk.stub.requests, desk.stub.refused, desk.stub.queue:
        kept.clear()
    assert (refused, left) == ([], [])
