"""Start the programs that are measured, type into them, and end them.

Each has a home of its own and settings that switch off telemetry and updates. Its
environment has nothing of the user's but the path. The stand-in is its proxy, too: it
notes which other addresses the program asks for, and refuses to connect.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scripted import ANSWERS, MAX_OUTPUT, PROMPTS, Worker, is_edited

ROOT = Path(__file__).resolve().parents[2]
QUIET = 60  # seconds without a request, after which none is expected
FAREWELL = 10  # seconds that a program may take to end by itself

# --- The programs ---


@dataclass(frozen=True)
class Place:
    """The home of a program, and the API and window it's to use."""

    home: Path
    url: str
    window: int

    def write(self, path: str, value: dict) -> None:
        """Write a file of settings into the program's home."""
        file = self.home / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(value))


@dataclass(frozen=True)
class Program:
    """The ways to find a program, to start it, and to type into it."""

    binary: str
    tried: tuple[str, ...]  # npm's name and version, newest first
    argv: Callable[[str, int], Sequence[str]]  # for a prompt, and its number
    prepare: Callable[[Place], dict[str, str]]  # its settings; returns its environment
    # the line that types a prompt; without it, each prompt is a process of its own
    line: Callable[[str], str] | None = None
    over: str = ""  # in its output once a turn is over
    least_window: int = 0  # the smallest that it lets one set


def for_agent(place: Place) -> dict[str, str]:
    return {"CONTEXT_WINDOW": str(place.window), "MAX_REQUESTS": "0"}


def for_pi(place: Place) -> dict[str, str]:
    limits = {"contextWindow": place.window, "maxTokens": MAX_OUTPUT}
    model = {"id": "model", "name": "model", "reasoning": False, "input": ["text"]}
    api = {"baseUrl": place.url, "api": "anthropic-messages", "apiKey": "none"}
    provider = api | {"models": [model | limits]}
    place.write(".pi/agent/models.json", {"providers": {"here": provider}})
    return {"PI_OFFLINE": "1", "PI_TELEMETRY": "0"}


def for_opencode(place: Place) -> dict[str, str]:
    limit = {"context": place.window, "output": MAX_OUTPUT}
    provider = {
        "npm": "@ai-sdk/anthropic",
        "options": {"baseURL": f"{place.url}/v1", "apiKey": "none"},
        "models": {"model": {"name": "model", "limit": limit}},
    }
    settings = {
        "autoupdate": False,
        "share": "disabled",
        "permission": {"edit": "allow", "bash": "allow", "external_directory": "allow"},
        "provider": {"here": provider},
        "small_model": "here/model",
    }
    names = "MODELS_FETCH", "AUTOUPDATE", "LSP_DOWNLOAD", "DEFAULT_PLUGINS", "SHARE"
    off = {f"OPENCODE_DISABLE_{name}": "1" for name in names}
    return off | {"OPENCODE_CONFIG_CONTENT": json.dumps(settings)}


def for_claude(place: Place) -> dict[str, str]:
    off = "DISABLE_TELEMETRY", "DISABLE_AUTOUPDATER", "DISABLE_ERROR_REPORTING"
    settings = dict.fromkeys([*off, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"], "1")
    if place.window != CLAUDE_WINDOW:  # with that, it behaves as it does by itself
        settings["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] = str(place.window)
    return settings


def pi_line(prompt: str) -> str:
    return json.dumps({"type": "prompt", "message": prompt})


def claude_line(prompt: str) -> str:
    return json.dumps({"type": "user", "message": {"role": "user", "content": prompt}})


CLAUDE_WINDOW = 200_000  # of the model that it's told to use
PI = "--offline --provider here --model here/model --mode rpc"
CLAUDE = "-p --verbose --model claude-sonnet-4-5 --allowedTools Read,Edit,Bash"
CLAUDE += " --input-format stream-json --output-format stream-json"
OPENCODE = "run --model here/model"
PROGRAMS = {
    "agent.py": Program(
        binary=str(ROOT / "agent.py"),
        tried=(),
        argv=lambda prompt, number: ["--yes", "--model", "model"],
        prepare=for_agent,
        line=str,
    ),
    "pi": Program(
        binary="pi",
        tried=(
            "@earendil-works/pi-coding-agent@1.6.0",
            "@mariozechner/pi-coding-agent@0.73.1",
        ),
        argv=lambda prompt, number: PI.split(),
        prepare=for_pi,
        line=pi_line,
        over='"type":"agent_end"',
    ),
    "opencode": Program(
        binary="opencode",
        tried=("opencode-ai@1.18.33",),
        argv=lambda prompt, number: [*OPENCODE.split(), *["-c"] * number, prompt],
        prepare=for_opencode,
    ),
    "claude": Program(
        binary="claude",
        tried=(
            "@anthropic-ai/claude-code@2.1.332",
            "@anthropic-ai/claude-code@2.1.197",
        ),
        argv=lambda prompt, number: CLAUDE.split(),
        prepare=for_claude,
        line=claude_line,
        over='"type":"result"',
        least_window=100_000,
    ),
}


def command_of(program: Program, path: str) -> list[str]:
    """The command that starts a program, or nothing if it isn't there."""
    if program.binary.endswith(".py"):
        own = ROOT / ".venv/bin/python"
        python = sys.executable if find_spec("anthropic") or not own.exists() else own
        return [str(python), program.binary]
    found = shutil.which(program.binary, path=path)
    return [found] if found else []


def environment(place: Place, program: Program, path: str) -> dict[str, str]:
    """Nothing of ours but the path; all other addresses lead to the stand-in."""
    proxies = "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"
    return {
        "PATH": path,
        "HOME": str(place.home),
        "TMPDIR": str(place.home),
        "TERM": "dumb",
        "LANG": "C.UTF-8",
        "ANTHROPIC_BASE_URL": place.url,
        "ANTHROPIC_API_KEY": "none",
        "NO_PROXY": "127.0.0.1",
        **dict.fromkeys(proxies, place.url),
        **program.prepare(place),
    }


def version(command: list[str], env: dict[str, str]) -> str:
    """The version that a program names, if it does."""
    if len(command) > 1:  # a script of ours
        return ""
    asked = [*command, "--version"]
    options: Any = {"stdin": subprocess.DEVNULL, "timeout": QUIET, "text": True}
    options |= {"env": env, "cwd": env["HOME"], "capture_output": True}
    with suppress(OSError, subprocess.TimeoutExpired):
        told = subprocess.run(asked, check=False, **options)
        if found := re.search(r"\d+(\.\d+)+", told.stdout + told.stderr):
            return found[0]
    return "?"


# --- A run ---


class Failed(Exception):
    """The work wasn't done; the text says why."""


class Run:
    """One program doing one job."""

    def __init__(
        self,
        command: list[str],
        program: Program,
        env: dict[str, str],
        model: Worker,
        limit: float,
    ) -> None:
        self.command, self.program, self.model = command, program, model
        self.env, self.limit, self.begun = env, limit, time.monotonic()
        self.process: Any = None
        self.output: list[str] = []
        self.ready = threading.Event()  # the program says that its turn is over

    def play(self) -> None:
        """Type both prompts and see that all was done; raise Failed if it wasn't."""
        try:
            for number, prompt in enumerate(PROMPTS):
                self.model.over.clear()
                self.ready.clear()
                self.type(prompt, number)
                self.wait(self.model.over.is_set, "the model's last answer")
                self.wait(self.is_ready, "the end of its turn")
            self.leave()
        finally:
            self.end()
        steps = [step for step in self.model.steps if step.kind == "edit"]
        if missing := [s.what for s in steps if not is_edited(s, self.model.folder)]:
            raise Failed(f"not edited: {', '.join(missing)}")
        if ANSWERS[1] not in "".join(self.output):
            raise Failed(f"its output lacks the answer {ANSWERS[1]!r}")

    def type(self, prompt: str, number: int) -> None:
        """Type a prompt into the program, or start it with the prompt."""
        typed = self.program.line
        if not typed or not self.process:
            self.start([*self.command, *self.program.argv(prompt, number)])
        if typed:
            with suppress(BrokenPipeError):  # it has ended, which `wait` reports
                self.process.stdin.write(f"{typed(prompt)}\n")
                self.process.stdin.flush()

    def start(self, argv: list[str]) -> None:
        self.process = subprocess.Popen(
            argv,
            cwd=self.model.folder,
            env=self.env,
            stdin=subprocess.PIPE if self.program.line else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        args = [self.process]
        self.listener = threading.Thread(target=self.listen, args=args, daemon=True)
        self.listener.start()

    def listen(self, process: Any) -> None:
        for line in process.stdout:
            self.output.append(line)
            if self.program.over in line and self.model.over.is_set():
                self.ready.set()

    def is_ready(self) -> bool:
        """Return True if the next prompt can be typed."""
        if not self.program.line:
            return self.process.poll() is not None
        return self.ready.is_set() or not self.program.over

    def wait(self, done: Callable[[], bool], what: str) -> None:
        """Wait for something, and raise Failed if it can't come any more."""
        while not done():
            now = time.monotonic()
            status = self.process.poll()
            if self.model.failed:
                raise Failed(f"{self.model.failed}{self.said()}")
            if status is not None and not done():
                raise Failed(f"ended with status {status} before {what}{self.said()}")
            if now - self.begun > self.limit:
                raise Failed(f"{self.limit:g} s passed before {what}{self.said()}")
            if now - max(self.begun, self.model.asked_at) > QUIET:
                raise Failed(f"no request for {QUIET} s before {what}{self.said()}")
            progress(f"{self.model.at} of {len(self.model.steps)} steps")
            time.sleep(0.05)

    def said(self) -> str:
        """The last thing that it said, in short."""
        lines = [line.strip() for line in self.output if line.strip()]
        return f"; it said: {in_words(lines[-1])[:300]}" if lines else ""

    def leave(self) -> None:
        """Let the program end by itself, because its answer may still be on its way."""
        if self.process.stdin:
            with suppress(BrokenPipeError):
                self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(FAREWELL)

    def end(self) -> None:
        """End the program with everything that it started."""
        if not self.process:
            return
        groups = {self.process.pid}
        for pid in descendants(self.process.pid):
            with suppress(OSError):  # it has ended meanwhile
                groups.add(os.getpgid(pid))
        for group in groups:
            with suppress(OSError):
                os.killpg(group, signal.SIGKILL)
        self.process.wait()
        self.listener.join(FAREWELL)


def in_words(line: str) -> str:
    """A line of output, or the message in it if it's JSON."""
    with suppress(ValueError):
        told = json.loads(line)
        if isinstance(told, dict):
            return str(told.get("result") or told.get("error") or line)
    return line


def descendants(pid: int) -> list[int]:
    """The processes that this one has started, and those that they have."""
    argv, listed = ["ps", "-A", "-o", "pid=,ppid="], b""
    with suppress(OSError):  # there's no ps
        listed = subprocess.run(argv, capture_output=True, check=False).stdout
    pairs = [(*map(int, line.split()),) for line in listed.splitlines()]
    found = [pid]
    for parent in found:  # it grows meanwhile
        found += [child for child, of in pairs if of == parent]
    return found[1:]


def progress(text: str) -> None:
    """Show how far a run is, where that can be overwritten."""
    if sys.stderr.isatty():
        print(f"\r    {text} ", end="", file=sys.stderr, flush=True)
