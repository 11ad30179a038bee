"""Right agents of many shapes, which neither program may blame, and what they solve.

Most are small.py with some texts replaced.
"""

from functools import partial
from pathlib import Path

import own_faults
import pytest
import stage
import steps
from readme import ROOT

LESSONS, AGENTS = ROOT / "tests/lessons", ROOT / "tests/agents"
SMALL = LESSONS / "small.py"


def in_one_line(text):
    return " ".join(text.split())


def changed(*changes):
    """small.py with some texts replaced, in a file of this folder."""
    source = SMALL.read_text("utf-8")
    for old, new in changes:
        assert old in source, old
        source = source.replace(old, new)
    (path := Path("agent.py").absolute()).write_text(source, "utf-8")
    return path


def report_with(*changes):
    """The whole report on small.py with some texts replaced, without line breaks."""
    with stage.from_scratch():
        return in_one_line(steps.play_mine(changed(*changes))[0])


# --- The report ---

QUESTION = '[*messages, {"role": "user", "content": PROMPT}]'
APPENDS = """\
    with TRANSCRIPT.open("a", encoding="utf-8") as file:
        file.write(json.dumps(message, ensure_ascii=False, allow_nan=False) + "\\n")
"""
WRITES_AGAIN = """\
    log.all = [*getattr(log, "all", []), message]
    TRANSCRIPT.write_text(json.dumps(log.all))
"""
READ_TEXT = 'read_text(encoding="utf-8", errors="replace")'
ASKS_WITH = "def ask(client, messages, **more):"
SENDS = "create(messages=messages, **fixed, **cache)"
SENDS_MORE = "create(messages=messages, **{**fixed, **cache, **more})"
NEEDS_TAGS = """\
    text = "".join(block["text"] for block in content)
    if "<summary>" not in text:
        return
    content = [{"type": "text", "text": text[9:-10]}]
"""
ASKS_AGAIN = "        if not content:\n            continue\n"
AT_EXIT = """\
    if not hasattr(log, "all"):
        import atexit

        log.all = []
        atexit.register(lambda: TRANSCRIPT.write_text("\\n".join(log.all)))
    log.all.append(json.dumps(message))
"""
IN_MARKDOWN = """\
    with TRANSCRIPT.open("a", encoding="utf-8") as file:
        file.write(f"## {role}\\n{content}\\n")
"""
TAIL = """\
    tail = messages[-2:] if type(messages[-1]["content"]) is list else []
"""
IN_SHORT = """\
def in_short(message):
    content = message["content"]
    blocks = [content] if type(content) is str else content
    return [str(block)[:300] for block in blocks]
"""
JOINED = """\
def joined(messages):
    last = messages[-1]["content"]
    blocks = [{"type": "text", "text": last}] if type(last) is str else last
    asks = [*blocks, {"type": "text", "text": PROMPT}]
    return [*messages[:-1], {"role": "user", "content": asks}]
"""
RECOVERS = """\
    typed = [message for message in messages if type(message["content"]) is str]
    try:
        content, stop = ask(client, [*messages, {"role": "user", "content": PROMPT}])
    except Exception:
        messages[:] = typed
        return
"""
RESULTS = "        results.append(result)\n    return results\n"
REMINDS = """\
        results.append(result)
    text = "Call compact when a piece of work is done."
    return [*results, {"type": "text", "text": text}]
"""
WITH_NUMBERS = 'return "".join(f"{n:6} {line}" for n, line in enumerate(Path(given["path"]).open()))'
WAITS = """\
    import threading, time
    over = threading.Event()

    def spin():
        while not over.is_set():
            print(end=".", flush=True)
            time.sleep(1)

    (thread := threading.Thread(target=spin)).start()
    time.sleep(1)
"""
MOVES_MARKER = """\
    cache, messages = {}, json.loads(json.dumps(messages))
    last = messages[-1]
    if type(last["content"]) is str:
        last["content"] = [{"type": "text", "text": last["content"]}]
    last["content"][-1]["cache_control"] = {"type": "ephemeral"}
"""
CLEARS_BOTH = """\
    replies = [m for m in messages if m["role"] == "assistant"]
    blocks = [block for message in replies[:-3] for block in message["content"]]
    calls = [b for b in blocks if b["type"] == "tool_use" and len(str(b)) > 400]
    if estimate_tokens(calls) >= MIN_SAVINGS:
        for call in calls:
            call["input"] = {"command": call["input"]["command"][:60] + "[cleared]"}
    if estimate_tokens(old) >= MIN_SAVINGS:
"""
IN_FILES = """\
    folder = Path(__file__).with_name("history")
    folder.mkdir(exist_ok=True)
    file = folder / f"{len([*folder.iterdir()])}.json"
    file.write_text(json.dumps(message))
"""
UNTIL_YES_OR_NO = """\
    while (said := input(f"Run {given['command']!r}? [y/n] ")) not in ("y", "n"):
        print("Please type y or n.")
    if said != "y":
"""
CHEAPER = '[{"role": "user", "content": PROMPT + json.dumps(messages)}], model="haiku", tools=[]'
IN_SYSTEM = """\
    ask.summary = f" Summary so far: {content[-1]['text']}"
"""
KEEPS_TWO = """\
    blocks = [message["content"] for message in messages if message not in typed]
    last = [{"role": "user", "content": b} for b in blocks if b[0] == title][-1:]
    messages[:] = [*typed, *last, log("user", [title, *content])]
"""
RIGHT = {  # changes that leave small.py right
    "it takes only what is in the tags it asks for": (
        ("what is next.", "what is next, in <summary> tags."),
        ('    title = {"type"', f'{NEEDS_TAGS}    title = {{"type"'),
    ),
    "it asks again after an empty reply": (
        ("        if not calls:", f"{ASKS_AGAIN}        if not calls:"),
    ),
    "it writes its transcript at the end": ((APPENDS, AT_EXIT),),
    "its transcript is one list": (
        (APPENDS, WRITES_AGAIN),
        (", message]", ", json.loads(json.dumps(message))]"),
    ),
    "its transcript isn't JSON": ((APPENDS, IN_MARKDOWN),),
    "it adds the date to a prompt": (
        (
            'messages.append(log("user", prompt',
            'messages.append(log("user", "Today: " + prompt',
        ),
    ),
    "it keeps the newest messages as they are": (
        ("    messages[:] = [*typed, log(", f"{TAIL}    messages[:] = [*typed, log("),
        ("[title, *content])]", "[title, *content]), *tail]"),
    ),
    "it summarises the beginning of each call and result": (
        ("[*messages, {", "[{"),
        ('"content": PROMPT}', '"content": f"{PROMPT} {[*map(in_short, messages)]}"}'),
        ("def auto_compact", f"{IN_SHORT}\n\ndef auto_compact"),
    ),
    "it joins its question to the results before it": (
        (QUESTION, "joined(messages)"),
        ("def auto_compact", f"{JOINED}\n\ndef auto_compact"),
    ),
    "it recovers from a request that is too long": (
        ("THRESHOLD = 50_000", "THRESHOLD = 148_000"),
        (f"    content, stop = ask(client, {QUESTION})\n", RECOVERS),
    ),
    "it prints the errors of its tools, and reminds the model of one": (
        ('text = f"{type(error)', 'print(error)\n            text = f"{type(error)'),
        (RESULTS, REMINDS),
    ),
    "it numbers lines, waits between requests, shows that, and moves its marker": (
        (f'return Path(given["path"]).{READ_TEXT}', WITH_NUMBERS),
        ("    reply = client", f"{WAITS}    reply = client"),
        ("    content = []\n", "    over.set()\n    thread.join()\n    content = []\n"),
        ('    cache = {"cache_control": {"type": "ephemeral"}}\n', MOVES_MARKER),
    ),
    "it clears inputs, too, writes a file for each message, and asks until y or n": (
        ("    if estimate_tokens(old) >= MIN_SAVINGS:\n", CLEARS_BOTH),
        (APPENDS, IN_FILES),
        (
            """    if input(f"Run {given['command']!r}? [y/N] ") != "y":\n""",
            UNTIL_YES_OR_NO,
        ),
    ),
    "a cheaper model summarises, with few tokens": (
        (QUESTION, f"{CHEAPER}, max_tokens=2_000"),
        ("def ask(client, messages):", ASKS_WITH),
        (SENDS, SENDS_MORE),
    ),
    "its summary is in the system prompt": (
        ('[*typed, log("user", [title, *content])]', "typed"),
        ("    messages[:] =", '    log("user", content)\n    messages[:] ='),
        ("    typed = [", f"{IN_SYSTEM}    typed = ["),
        ('"system": SYSTEM', '"system": SYSTEM + getattr(ask, "summary", "")'),
    ),
    "the last two summaries stay, and there are only two": (
        ("THRESHOLD = 50_000", "THRESHOLD = 108_000"),
        ('    messages[:] = [*typed, log("user", [title, *content])]\n', KEEPS_TWO),
    ),
}


@pytest.mark.parametrize("how", RIGHT)
def test_a_right_agent_of_another_shape_is_not_blamed(how):
    assert " ! " not in report_with(*RIGHT[how])


def test_a_right_agent_with_a_design_of_its_own_is_not_blamed():
    shown, _ = steps.play_mine(AGENTS / "views.py")
    assert "\n  !" not in shown and "ok" in shown


# --- The faults: changes of small.py that solve one in another way, and the verdict ---

TYPED = '            messages.append(log("user", prompt))'
READ = '        return Path(given["path"]).read_text('
STARTS = "client, messages = Anthropic(), []"
EARLIER = "[json.loads(line) for line in TRANSCRIPT.open()]"
PRINTS = '            print(f"Stopped'
CALL = "    reply = client.messages.create(messages=messages, **fixed, **cache)"
RETRIES = """\
    from anthropic import APIConnectionError, InternalServerError
    for _ in range(3):
        try:
            reply = client.messages.create(messages=messages, **fixed, **cache)
            break
        except (APIConnectionError, InternalServerError):
            pass"""
KEEPS_THINKING = {  # and never drops it
    '        if block.type == "text" and': """\
        if block.type == "thinking":
            content.append(block.to_dict())
        if block.type == "text" and"""
}
OTHERS = [
    ("no_thinking", KEEPS_THINKING, False),
    ("paste", {'log("user", prompt)': 'log("user", prompt[:99_000])'}, True),
    ("paste", {TYPED: f"            if len(prompt) > 99_000: continue\n{TYPED}"}, True),
    ("paste", {PRINTS: f"            messages.clear()\n{PRINTS}"}, True),
    ("long_words", {'log("user", prompt)': 'log("user", prompt[-9_000:])'}, True),
    ("long_words", {'log("user", prompt)': 'log("user", "(long)")'}, True),
    (
        "secrets",
        {READ: f'        if input("Read it? ") != "y": return ""\n{READ}'},
        True,
    ),
    ("no_resume", {STARTS: f"client, messages = Anthropic(), {EARLIER}"}, False),
    (
        "no_resume",
        {
            STARTS: f"client, messages = Anthropic(), TRANSCRIPT.exists() and {EARLIER} or []"
        },
        True,
    ),
    (
        "no_resume",
        {
            STARTS: "client, messages = Anthropic(), TRANSCRIPT.exists() and "
            f"input('Again? ') == 'y' and {EARLIER} or []"
        },
        True,
    ),
    ("no_resume", {STARTS: f"{STARTS}  # --restore"}, None),
    ("no_path", {"[Old result, cleared]": "[Cleared; see transcript.jsonl]"}, True),
    ("passing_error", {"= Anthropic()": "= Anthropic(max_retries=10)"}, True),
    ("passing_error", {CALL: RETRIES}, True),
    ("open_request", {"what is next.": "which request is open."}, None),
    ("files", {"what is next.": "which files matter."}, None),
    ("files", {"*content])]": "*content]), *messages[3:5]]"}, True),
    ("cut_answer", {"content, _ = ask(": "content, _ = cut_off = ask("}, False),
    (
        "cut_answer",
        {"    if content:": "    print('(The answer was cut off.)')\n    if content:"},
        True,
    ),
    (
        "surrogate",
        {TYPED: f"            if not prompt.isascii(): continue\n{TYPED}"},
        None,
    ),
    ("no_pages", {":,} characters]": ":,} characters; use sed -n]"}, True),
    ("cut_output", {":,} characters]": ":,} characters; use sed -n]"}, None),
    ("stopped_call", {"except Exception as": "except BaseException as"}, True),
    (
        "no_summaries",
        {"if estimate_tokens(messages) > THRESHOLD:": "if len(messages) < 0:"},
        None,
    ),
]


@pytest.mark.parametrize("fault, changes, is_right", OTHERS)
def test_an_agent_may_solve_it_in_another_way(fault, changes, is_right):
    path = changed(*changes.items())
    _, life = own_faults.PLAYS[fault]
    with stage.from_scratch():
        found = life(partial(own_faults.run, path, ()))
    found = own_faults.by_fault(life, found if isinstance(found, list) else [found])
    assert found[fault].is_right is is_right, found[fault].text
