"""Start a program as a fork of a process that has loaded the SDK already.

Loading the SDK takes 1.5 seconds of CPU time, and the tests start 80 programs.
"""

import fcntl
import multiprocessing
import os
import runpy
import signal
import sys
import termios
from multiprocessing.reduction import DupFd

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["anthropic", "dotenv"])


class Program(SERVER.Process):
    """A running program, to be used like a `subprocess.Popen`.

    `argv` is `python script ...` or `python -c ...`, and `files` are its three standard
    streams. It leads a session of its own. If one is a terminal, that becomes the
    session's terminal. With `forked=False` a new Python is started instead. With
    `shell=True` typing "fg" continues the program after Ctrl-Z.
    """

    def __init__(self, argv, *files, env, cwd, forked=True, shell=False):
        super().__init__()
        self.argv, self.env, self.cwd = [*map(str, argv)], env, cwd
        self.files = [*map(DupFd, files)]
        self.forked, self.shell = forked, shell
        self.start()

    def wait(self, timeout=None):
        """Return the exit status, or minus the signal that ended the program."""
        self.join(timeout)
        assert self.exitcode is not None, f"still running: {self.argv}"
        return self.exitcode

    def send_signal(self, number):
        if self.is_alive():
            os.kill(self.pid, number)

    def run(self):
        """Become the program, in the new process."""
        os.setsid()
        for number, file in enumerate(self.files):
            os.dup2(file.detach(), number)
        for number in filter(os.isatty, [2, 1, 0]):
            fcntl.ioctl(number, termios.TIOCSCTTY, 0)
        os.chdir(self.cwd)
        if self.shell:
            fork_as_shell()
        if not self.forked:
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            os.execve(self.argv[0], self.argv, self.env)
        os.environ.clear()
        os.environ.update(self.env)
        open_streams()
        run_python(self.argv[1:])


def fork_as_shell():
    """Return in a new process, and be its shell in this one."""
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    if (child := os.fork()) == 0:
        os.setpgid(0, 0)
        os.tcsetpgrp(0, os.getpid())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        return
    while os.WIFSTOPPED(status := os.waitpid(child, os.WUNTRACED)[1]):
        os.tcsetpgrp(0, os.getpgrp())
        os.write(1, b"stopped\n")
        assert os.read(0, 100) == b"fg\n"
        os.tcsetpgrp(0, child)
        os.killpg(child, signal.SIGCONT)
    os.tcsetpgrp(0, os.getpgrp())
    os._exit(os.waitstatus_to_exitcode(status) % 256)


def open_streams():
    """Open the standard streams again, now that their files are others."""
    sys.stdin = os.fdopen(0, encoding="utf-8")
    sys.stdout = os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace")


def run_python(argv):
    """Run a script, or the code after -c."""
    if argv[0] == "-c":
        _, code, *rest = argv
        sys.argv = ["-c", *rest]
        exec(code, {"__name__": "__main__"})
    else:
        sys.argv = argv
        runpy.run_path(argv[0], run_name="__main__")
