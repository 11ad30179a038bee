"""Programs as processes of their own, which need not load the SDK each time.

To load it takes two seconds of the processor, and dozens of programs use it. So one
process loads it, waits, and for each program makes a child that becomes this program:
with its own session and terminal, arguments, settings and signals, as a shell starts
it. `LONG_TESTS=1` or `anew` starts a new Python in the child instead.
"""

import atexit
import gc
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
from contextlib import closing, suppress
from fcntl import ioctl
from pathlib import Path
from types import ModuleType

LONG_TESTS = os.environ.get("LONG_TESTS") == "1"
AT = "AGENT_TESTS_FORK_AT"


class Program:
    """A program that was started, with what is used of `subprocess.Popen`."""

    def __init__(self, pid, told):
        self.pid, self.told, self.returncode = pid, told, None

    def wait(self, timeout=None):
        """The exit status, or minus the signal that ended it."""
        if self.returncode is None:
            if not select.select([self.told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            self.returncode = int(self.told.readline())
            self.told.close()
        return self.returncode

    def send_signal(self, number):
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)


def start(argv, *ends, env, cwd, anew=LONG_TESTS, shell=False):
    """Start `python script ...` or `python -c ...`, with these three files as its ends.

    It leads a session, and if the first of them is a terminal that is its own. `shell`:
    it is started by one, which goes on with a stopped program when "fg" is typed.
    """
    told, tells = os.pipe()
    wish = {"argv": [*map(str, argv)], "env": env, "cwd": str(cwd)}
    data = json.dumps(wish | {"anew": anew, "shell": shell}).encode() + b"\n"
    with closing(socket.socket(socket.AF_UNIX)) as link:
        link.connect(ready())
        socket.send_fds(link, [data], [*ends, tells])
    os.close(tells)
    told = os.fdopen(told, "rb", 0)
    pid = told.readline()
    assert pid, "the process that starts programs has ended"
    return Program(int(pid), told)


def ready():
    """The address of the process that has loaded the SDK, which is started if need be.

    It is in the environment, so whatever the process that started it starts shares it.
    """
    if AT not in os.environ:
        folder = tempfile.TemporaryDirectory()
        os.environ[AT] = os.path.join(folder.name, "forks")
        ours, theirs = socket.socketpair()
        door = socket.socket(socket.AF_UNIX)
        door.bind(os.environ[AT])
        door.listen()  # who comes early waits
        given = theirs.fileno(), door.fileno()
        argv = [sys.executable, __file__, *map(str, given)]
        options = {"pass_fds": given, "env": {}}
        process = subprocess.Popen(argv, start_new_session=True, **options)
        theirs.close()
        door.close()
        atexit.register(lambda: (ours.close(), process.wait(), folder.cleanup()))
    return os.environ[AT]


# --- The process that waits ---


def main(parent, door):
    """Start what is asked for, until the process that began this one has ended."""
    if not LONG_TESTS:
        load()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.collect()
    gc.freeze()  # what is there already is not looked through in each child
    codes = {}
    while parent not in select.select([parent, door], [], [])[0]:
        link, _ = door.accept()
        with link:
            data, ends, _, _ = socket.recv_fds(link, 65_536, 4)
            while more := link.recv(65_536):
                data += more
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass  # one that has ended is no zombie
        wish = json.loads(data)
        code = None if wish["anew"] else compiled(wish["argv"], codes)
        assert threading.active_count() == 1
        if os.fork() == 0:
            parent.close()
            door.close()
            return keep(wish, code, *ends)
        for number in ends:
            os.close(number)


def load():
    """Load what the program would, and what the SDK loads only when it is used."""
    import anthropic
    import dotenv  # noqa: F401
    import httpx2

    http = httpx2.Client(transport=httpx2.MockTransport(lambda _: httpx2.Response(404)))
    with anthropic.Anthropic(api_key="test", max_retries=0, http_client=http) as client:
        try:
            client.messages.create(model="none", max_tokens=1, messages=[])
        except anthropic.NotFoundError:
            return


def compiled(argv, codes):
    """The code of a program, which is compiled once."""
    _, script, *_ = argv
    text = argv[2] if script == "-c" else Path(script).read_text("utf-8")
    name = "<string>" if script == "-c" else script
    if (name, text) not in codes:
        codes[name, text] = compile(text, name, "exec", dont_inherit=True)
    return codes[name, text]


def keep(wish, code, *ends):
    """Make the program's process, and tell by the last of these files how it ends."""
    *ends, tells = ends
    if (pid := os.fork()) == 0:
        os.close(tells)
        return become(wish, code, ends)
    for number in ends:
        os.close(number)
    os.write(tells, b"%d\n" % pid)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.write(tells, b"%d\n" % status)
    os._exit(0)


# --- The process of a program ---


def become(wish, code, ends):
    """Be the program, in this process."""
    os.setsid()
    for number, end in enumerate(ends):
        os.dup2(end, number)
        os.close(end)
    if os.isatty(0):
        ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(wish["cwd"])
    if wish["shell"]:
        be_a_shell()
    argv = wish["argv"]
    if wish["anew"]:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.execve(argv[0], argv, wish["env"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    utf_8 = {"LC_CTYPE": os.environ.get("LC_CTYPE", "C.UTF-8")}  # as Python sets it
    os.environ.clear()
    os.environ.update(utf_8 | wish["env"])
    open_streams()
    script = argv[1]
    sys.argv = ["-c", *argv[3:]] if script == "-c" else argv[1:]
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    here = "" if script == "-c" else os.path.dirname(os.path.realpath(script))
    sys.path[:1] = [here, *filter(None, before)]
    sys.modules["__main__"] = main = ModuleType("__main__")
    if script != "-c":
        main.__file__ = script
    statuses = []
    atexit.register(leave, statuses)  # first, so it is called last
    try:
        exec(code, vars(main))
    except SystemExit as left:
        statuses += [left.code] if isinstance(left.code, int) else []
        raise
    statuses.append(0)


def leave(statuses):
    """End with this status; to take the SDK apart would take longer than most programs."""
    for status in statuses:
        sys.stdout.flush()
        os._exit(status & 255)


def open_streams():
    """Open the standard streams anew, for Python looks once whether they are a terminal."""
    kinds = {"stdin": "strict", "stdout": "strict", "stderr": "backslashreplace"}
    for number, (name, errors) in enumerate(kinds.items()):
        raw = io.FileIO(number, "w" if number else "r", closefd=False)
        buffer = io.BufferedWriter(raw) if number else io.BufferedReader(raw)
        options = {"encoding": "utf-8", "errors": errors, "newline": "\n"}
        options["line_buffering"] = os.isatty(number) or name == "stderr"
        stream = io.TextIOWrapper(buffer, **options)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def be_a_shell():
    """Return in a child, and in its parent go on with it when "fg" is typed."""
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    if not (child := os.fork()):
        os.setpgid(0, 0)
        os.tcsetpgrp(0, os.getpid())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        return
    while True:
        _, status = os.waitpid(child, os.WUNTRACED)
        os.tcsetpgrp(0, os.getpgrp())
        if not os.WIFSTOPPED(status):
            os._exit(os.waitstatus_to_exitcode(status) % 256)
        os.write(1, b"stopped\n")
        assert os.read(0, 100) == b"fg\n"
        os.tcsetpgrp(0, child)
        os.killpg(child, signal.SIGCONT)


if __name__ == "__main__":
    main(*[socket.socket(fileno=int(number)) for number in sys.argv[1:]])
