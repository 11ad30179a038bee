"""Run a policy of your own on a recorded session.

Your file has one function, `forget(messages)`. It gets the conversation before each
request, as a list of messages in the API's form, and returns the list to send. The next
list begins with what it returned. It must not change the list that it gets.

A message that the user typed is a text. Tools have agent.py's names, even in Claude
Code's sessions: `read_file` with path, `bash` with command, `edit_file` with path,
old_string and new_string (or old_text and new_text); other tools keep their names. A result's content is a text. Thinking is left out when a recording is read, so a
policy needn't drop any; an agent must.
"""

import io
import marshal
import re
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, NoReturn

from moment import moment, points
from policies import WINDOW
from prices import Meter
from recorded import Measured, Session, Unusable
from stub import CACHE_READ, problems

SECONDS = 5  # for one request
ANY_TOOL = [{"name": "any", "input_schema": {}}]  # without tools, calls are rejected


class TooSlow(BaseException):
    """It takes too long; no `except Exception` of the policy stops this."""


def load(path: Path) -> Callable[[list[dict]], Any]:
    """Return the function in a file; raise Unusable, with one line, if there is none."""
    outside = redirect_stdout(sys.stderr)  # the tables, or the JSON, aren't there
    with reported(f"{path} can't be loaded", path), time_limit(), outside:
        found = runpy.run_path(str(path)).get("forget")
    if not callable(found):
        raise Unusable(f"{path} has no function forget(messages).")
    return found


@contextmanager
def reported(what: str, path: Path) -> Iterator[None]:
    """Turn any error into one line that says where in this file it happened."""
    try:
        yield
    except Unusable:
        raise
    except TooSlow:
        raise Unusable(f"{what}: it took more than {SECONDS} s.") from None
    except OSError as error:
        raise Unusable(f"{what}: {error.strerror or error}.") from None
    except (Exception, SystemExit) as error:  # noqa: BLE001  it's not our code
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(path)]
        at = f" (line {lines[-1]})" if lines else ""
        about = " ".join(f"{type(error).__name__}: {error}".split())
        raise Unusable(f"{what}: {about}{at}") from None


@contextmanager
def time_limit() -> Iterator[None]:
    """Raise TooSlow after SECONDS."""

    def stop(*_: Any) -> NoReturn:
        raise TooSlow

    handler = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


def run(session: Session, path: Path, read: float = CACHE_READ) -> Meter:
    """Run the policy in a file on a session, and return the meter."""
    forget, meter, measured = load(path), Meter(session, read=read), Measured()
    history: list[dict] = []
    compared = points(session)
    recorded = [{"role": m["role"], "content": m["content"]} for m in session.messages]
    for message in session.messages:  # a policy may drop a call, but leave its result
        measured.message(message)
    wrong = {unplaced(why) for why in faults(recorded[: max(session.needs)])}
    for at, message in enumerate(session.messages):
        if message["role"] == "assistant":
            where = f"forget, before message {at} of {session.name}"
            start = time.perf_counter()
            with redirect_stdout(io.StringIO()) as out:
                before, history = history, sent_by(forget, history, where, path)
            meter.printed += [line[:80] for line in out.getvalue().splitlines()]
            meter.slowest = max(meter.slowest, time.perf_counter() - start)
            meter.clearings += history != before
            new, left = new_results(before), new_results(history)
            meter.unseen += sum(left.get(call) != new[call] for call in new)
            with reported(f"{where}, returned what can't be sent", path):
                sent = measured.history(history)
            meter.wait(at)
            size = meter.reply(sent, at)
            why = refusal(history, size, wrong)
            meter.refusals += [why] if why else []
            meter.dropped += meter.gone
            if at in compared:
                meter.moments.append(moment(session, at, sent))
        history = [*history, recorded[at]]
    asked = [m["content"] for m in recorded if type(m["content"]) is str]
    left = [block.text for m in measured.history(history) for block in m.blocks]
    gone = [text for text in asked if not any(text in block for block in left)]
    meter.typed = len(gone), len(asked)
    meter.lost = len(meter.dropped)
    return meter


def new_results(messages: list[dict]) -> dict[str, Any]:
    """Return the results after the model's last reply, which it hasn't seen, by id."""
    found: dict[str, Any] = {}
    for message in reversed(messages):
        if message["role"] == "assistant":
            break
        blocks = message["content"] if type(message["content"]) is list else []
        found |= {b["tool_use_id"]: b["content"] for b in blocks if "tool_use_id" in b}
    return found


def sent_by(
    forget: Callable, history: list[dict], where: str, path: Path
) -> list[dict]:
    """Return what the policy makes of the history, if it is a list of messages."""
    before = marshal.dumps(history, 2)  # as fast as a copy, and can be compared
    with reported(where, path), time_limit():
        sent = forget(history)
    if marshal.dumps(history, 2) != before:
        raise Unusable(f"{where}, changed the list that it got; return a new one.")
    if type(sent) is not list or not sent:
        kind = "an empty list" if sent == [] else type(sent).__name__
        raise Unusable(f"{where}, returned {kind}, not a list of messages.")
    for index, message in enumerate(sent):
        if type(message) is not dict or not {"role", "content"} <= {*message}:
            raise Unusable(f"{where}, returned no message at index {index}.")
    return sent


def refusal(messages: list[dict], size: float, wrong: set[str]) -> str:
    """Return why the API would reject this request, or an empty text.

    What the recording itself has wrong isn't the policy's fault.
    """
    if size > WINDOW:
        return f"prompt is too long: {size:.0f} tokens > {WINDOW} maximum"
    return next((why for why in faults(messages) if unplaced(why) not in wrong), "")


def faults(messages: list[dict]) -> Iterator[str]:
    """Yield all that the API would say against these messages."""
    body = {"model": "any", "max_tokens": 1, "messages": messages, "tools": ANY_TOOL}
    return map(str, problems(body, None, True))


def unplaced(why: str) -> str:
    """Return what is wrong, without its place in the list."""
    return re.sub(r"^messages\.\d+(\.content\.\d+)?", "", why)
