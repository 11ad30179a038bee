"""Fixtures for all tests: an empty folder, no API key, no pauses, and an agent."""

import gc
import os
import re
import shutil
import signal
import sys
import time
from collections import Counter
from functools import cached_property
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

# A file in the root can have any name, so look there last; `-m pytest` puts it first.
ROOT = Path(__file__).resolve().parents[1]
sys.path[:] = [p for p in sys.path if Path(p).resolve() != ROOT] + [str(ROOT)]

import pytest
from stub import StubClient

import agent as program

EXAMPLE = Path(program.__file__).with_name(".env.example").read_text("utf-8")
LIMITS = {*vars(program.Limits())}  # the names of its fields
# all variables that the program, the SDK or readline reads
SETTINGS = {*re.findall(r"(?m)^#?([A-Z_]+)=", EXAMPLE), "COLUMNS", "LINES"}
SETTINGS |= {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE"}
SETTINGS |= {name.lower() for name in SETTINGS}

# Some fixtures import what loads the SDK: the process that only starts the workers would
# take 1.5 seconds for it.

gc.disable()  # until all tests are loaded, which takes twice as long otherwise


FEW = 5  # files


def pytest_xdist_auto_num_workers(config):
    """Run a selection of tests in this process: starting workers takes longer."""
    given, paths = config.option, config.option.file_or_dir
    are_few = 0 < len(paths) < FEW and all(".py" in path for path in paths)
    return 0 if are_few or given.keyword or given.markexpr == "not slow" else None


def pytest_collection_modifyitems(items):
    """Mark what serves the API as slow, and let all quick tests run first."""
    for item in items:
        if "api" in item.fixturenames:  # mostly for a program on a terminal
            item.add_marker("slow")
    slow = [item for item in items if item.get_closest_marker("slow")]
    quick = [item for item in items if not item.get_closest_marker("slow")]
    numbers = Counter(item.path for item in slow)
    items[:] = quick + sorted(slow, key=lambda item: -numbers[item.path])


def pytest_xdist_make_scheduler(config, log):
    """Give the slow tests of a file to a worker once no quick ones are left."""
    if config.option.dist != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class QuickFirst(LoadFileScheduling):
        @cached_property
        def units(self):
            """The unit of each test: neighbours from one file."""
            files = groupby(self.collection, key=super()._split_scope)
            return {test: n for n, (_, tests) in enumerate(files) for test in tests}

        def _split_scope(self, nodeid):
            return self.units[nodeid]

    config.option.loadscopereorder = False  # keep the order of the tests
    return QuickFirst(config, log)


def pytest_collection_finish():
    gc.freeze()  # loaded modules stay, so the collector can skip them
    gc.enable()


@pytest.fixture(autouse=True)
def workspace(tmp_path, monkeypatch):
    """An empty working folder, and none of the user's own settings."""
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SSL_CERT_DIR", os.devnull)  # reading certificates takes 0.1 s
    # another test may have replaced them; under nohup or in the background, they're ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    (folder := tmp_path / "workspace").mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
    """Collect the seconds that the program would have slept, instead of sleeping."""
    seconds, sleep = [], time.sleep

    def shortly(given):
        if given >= 0.1:
            seconds.append(given)
        else:
            sleep(given)

    monkeypatch.setattr(program.time, "sleep", shortly)
    return seconds


@pytest.fixture
def no_layer_2(monkeypatch):
    """Summarise nothing before the API rejects a request."""
    monkeypatch.setattr(program, "should_compact", lambda agent: False)


@pytest.fixture
def notes(workspace):
    """A file for the model to read, notes.txt."""
    (workspace / "notes.txt").write_text("these are the notes\n" * 200)


@pytest.fixture
def make():
    """make(*replies, **fields of Agent and Limits): an agent whose API is a StubClient.

    `agent.events` has its output, a list of (style, text), without the clock. It
    approves every call unless told otherwise. When the test ends, no request may have
    been rejected as invalid and no reply may be left. If the number of requests does
    not matter, `client=StubClient(always=...)` answers all of them.
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
        assert (fake.refused, [*fake.queue]) == ([], []), (
            "rejected requests, replies left"
        )


# --- Tools, one call at a time ---


@pytest.fixture
def answer(make):
    """answer(tool, **input): the text of its result, and whether that is an error."""
    from builders import call

    agent = make()

    def answer(name, /, **given):
        block = program.run_tool(agent, call(name, **given))
        return block["content"], block.get("is_error", False)

    return answer


@pytest.fixture
def use(answer):
    """use(tool, **input): the text of its result, which must not be an error."""

    def use(name, /, **given):
        content, is_error = answer(name, **given)
        assert not is_error, content
        return content

    return use


@pytest.fixture
def error_of(answer):
    """error_of(tool, **input): the text of its result, which must be an error."""

    def error_of(name, /, **given):
        content, is_error = answer(name, **given)
        assert is_error and content.strip()
        return content

    return error_of


@pytest.fixture
def broken_glob(monkeypatch):
    """broken_glob(error): makes the tool `glob` raise this from now on."""

    def break_it(error):
        monkeypatch.setattr(program, "files_in", Mock(side_effect=error))

    return break_it


@pytest.fixture
def no_hang():
    """Fail a test after a minute, in a way that no `except Exception` swallows."""

    def fail(*_):
        pytest.fail("it hangs")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def tight_limits(monkeypatch):
    """Less time for background processes, and a tenth of the output limits."""
    monkeypatch.setattr(program, "SETTLE_SECONDS", 0.1)
    monkeypatch.setattr(program, "MAX_BYTES", 1_000_000)
    monkeypatch.setattr(program, "MAX_KEPT", 25_000)


# --- The program in this process, over a server ---


@pytest.fixture
def api():
    """An API server for one test, which must use all replies and break no rule."""
    from wire import serve

    stub = StubClient()
    with serve(stub) as stub.url:
        yield stub
    assert (stub.refused, [*stub.queue]) == ([], [])


def settings_for(api):
    """The settings that connect the program to this API."""
    key = "test-key-0123456789"
    return {"ANTHROPIC_API_KEY": key, "ANTHROPIC_BASE_URL": api.url}


@pytest.fixture
def run(api, capsys, monkeypatch, tmp_path):
    """run(*argv, stdin="", **settings): the program's (exit status, stdout, stderr)."""
    monkeypatch.setattr(
        program, "__file__", str(tmp_path / "agent.py")
    )  # finds no .env there
    monkeypatch.setattr(program.signal, "signal", lambda *_: None)

    def go(*argv, stdin="", **settings):
        for name, value in (settings_for(api) | settings).items():
            monkeypatch.setenv(name, value)
        (tmp_path / "stdin").write_text(stdin, errors="surrogateescape")
        with (tmp_path / "stdin").open() as file:
            monkeypatch.setattr(sys, "stdin", file)
            return program.main([*argv]), *capsys.readouterr()

    return go


# --- The program in its own process, on a pseudo-terminal ---


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """A copy of the program, away from the developer's .env."""
    return shutil.copy(program.__file__, tmp_path_factory.mktemp("installed"))


@pytest.fixture
def desk(installed, workspace, api):
    """The command, settings, folder and API for a program on a terminal."""
    settings = {"PATH": os.environ["PATH"], "TERM": "xterm", "NO_PROXY": "*"}
    settings |= {"SSL_CERT_DIR": os.devnull} | settings_for(api)
    argv = [sys.executable, str(installed)]
    return SimpleNamespace(argv=argv, settings=settings, folder=workspace, stub=api)


@pytest.fixture
def user(fresh):
    """A user at an empty prompt."""
    return fresh()


@pytest.fixture
def fresh(desk):
    """fresh(*replies, constants, argv, folder, **options of User): a new User.

    `constants` replace those of the program.
    """
    from pseudo import PROMPT, User, with_constants

    users = []

    def start(*replies, constants=None, argv=desk.argv, folder=desk.folder, **given):
        desk.stub.enqueue(*replies)
        own = SimpleNamespace(**vars(desk) | {"argv": argv, "folder": folder})
        users.append(User(with_constants(own, **constants or {}), **given))
        if "-p" not in argv:
            plain = given.keys() & {"NO_COLOR", "TERM"}
            users[-1].see("\n> " if plain else PROMPT)
        return users[-1]

    yield start
    for user in users:
        user.close()
