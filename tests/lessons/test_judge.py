"""Agents that are small.py with some texts replaced, and what is said about them.

AGENTS is the one table of verdicts: each row has what is replaced, and the words of the
report, or of the list of faults, that show it. If all of them are `ok`, it's a right agent
of another shape: nothing may be wrong in what it's judged by, which is its work, what the
words name, or without words, all of the report. `- NAME`: that line has no mark.
"""

import re
from pathlib import Path

import checks
import pytest
import report
from plays import work
from readme import ROOT

pytestmark = pytest.mark.slow

SMALL, S06 = ROOT / "tests/lessons/small.py", ROOT / "tests/agents/s06.py"

# --- Parts of small.py, and what replaces them ---

QUESTION = '[*messages, {"role": "user", "content": PROMPT}]'
ASKS = f"    content, stop = ask(client, {QUESTION})\n"
REPLACES = '    messages[:] = [*typed, log("user", [title, *content])]\n'
RESULTS = "    return results\n"
ADDS = '    return [*results, {{"type": "text", "text": {}}}]\n'
APPENDS = """\
    with TRANSCRIPT.open("a", encoding="utf-8") as file:
        file.write(json.dumps(message, ensure_ascii=False, allow_nan=False) + "\\n")
"""
WRITES_AGAIN = """\
    log.all = [*getattr(log, "all", []), message]
    TRANSCRIPT.write_text(json.dumps(log.all))
"""
AT_EXIT = """\
    import atexit
    atexit.register(lambda: TRANSCRIPT.write_text("\\n".join(log.all)))
"""
READ_TEXT = 'read_text(encoding="utf-8", errors="replace")'
SENDS = "create(messages=messages, **fixed, **cache)"
SENDS_MORE = (  # what `ask` is told
    ("def ask(client, messages):", "def ask(client, messages, **more):"),
    (SENDS, "create(messages=messages, **{**fixed, **cache, **more})"),
)
CALLS_FIRST = (
    ('reply = log("assistant", content)', 'messages.append(log("assistant", content))'),
    ("+= [reply, results]", "+= [results]"),
)
KEEPS_THINKING = (  # and never drops it
    "in reply.content:  # skip thinking: a layer would make it invalid\n",
    """in reply.content:
        if block.type == "thinking":
            content.append(block.to_dict())
""",
)
DROPS = (
    "            auto_compact(client, messages)",
    """\
            typed = [m["content"] for m in messages if type(m["content"]) is str]
            messages[:-12] = [{"role": "user", "content": "Go on."}]""",
)
FIRST_CALL = (
    "! stopped Its turn ended after the model's first call, for a file that doesn't exist. "
    "It printed "
)
NEVER = (
    "it never asked for a summary; if it has a layer 2, its threshold is too high or its "
    "count too low (step 4) ... ! stopped prompt is too long (step 4) ... Next: step 4 of "
    "chapter 2; if it has a layer 2, chapter 4"
)
KEEPS_NEWEST = (
    REPLACES,
    f"""\
    tail = messages[-2:] if type(messages[-1]["content"]) is list else []
{REPLACES[:-2]}, *tail]
""",
)
JOINED = """\
    last = messages[-1]["content"]
    last = [{"type": "text", "text": last}] if type(last) is str else last
    asks = [*last, {"type": "text", "text": PROMPT}]
    content, stop = ask(client, [*messages[:-1], {"role": "user", "content": asks}])
"""
RECOVERS = f"""\
    try:
    {ASKS}
    except Exception:
        messages[:] = [m for m in messages if type(m["content"]) is str]
        return
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
    cache, last = {}, messages[-1]["content"]
    last = [{"type": "text", "text": last}] if type(last) is str else last
    last = [*last[:-1], {**last[-1], "cache_control": {"type": "ephemeral"}}]
    messages = [*messages[:-1], {"role": "user", "content": last}]
"""
CLEARS_BOTH = """\
    blocks = [block for message in messages[:-6] for block in message["content"]]
    calls = [b for b in blocks if "input" in b and len(str(b)) > 400]
    if estimate_tokens(calls) >= MIN_SAVINGS:
        for call in calls:
            call["input"] = {"command": call["input"]["command"][:60] + "[cleared]"}
    if estimate_tokens(old) >= MIN_SAVINGS:
"""
IN_FILES = """\
    (folder := Path(__file__).with_name("history")).mkdir(exist_ok=True)
    file = folder / f"{len([*folder.iterdir()])}.json"
    file.write_text(json.dumps(message))
"""
UNTIL_YES_OR_NO = """\
    while (said := input(f"Run {given['command']!r}? [y/n] ")) not in ("y", "n"):
        print("Please type y or n.")
    if said != "y":
"""
CHEAPER = '[{"role": "user", "content": PROMPT + json.dumps(messages)}], model="haiku", tools=[]'
KEEPS_TWO = """\
    last = [m for m in messages if m["content"][0] == title][-1:]
    messages[:] = [*typed, *last, log("user", [title, *content])]
"""
TYPED = '            messages.append(log("user", prompt))'
STARTS = "    client, messages = Anthropic(), []"
EARLIER = "[json.loads(line) for line in TRANSCRIPT.open()]"
RESUMES = (
    STARTS,
    f"""{STARTS[:-2]}{EARLIER} if TRANSCRIPT.exists() else []
    while messages and "tool_use" in str(messages[-1]):
        messages.pop()  # Ctrl-C stopped it
""",
)
CALL = f"    reply = client.messages.{SENDS}"
ERRORS = "(APIConnectionError, InternalServerError)"
RETRIES = f"""\
    from anthropic import {ERRORS[1:-1]}
    for _ in range(3):
        try:
            reply = client.messages.{SENDS}
            break
        except {ERRORS}:
            pass"""
PAUSES = RETRIES.replace("            pass", "            import time; time.sleep({})")
NO_LAYER_1 = ("        micro_compact(messages)  # layer 1\n", "")
NOT_CHAPTER_2 = ('SYSTEM = f"You write', 'SYSTEM = f"Write')
TEXTS = '[title, *(b for b in content if b["type"] == "text")]'
READ_AGAIN = """
    call = {"type": "tool_use", "id": "again_1", "name": "read_file"}
    result = {"type": "tool_result", "tool_use_id": "again_1", "content": "As before."}
    messages.append({"role": "assistant", "content": [{**call, "input": {"path": "x"}}]})
    messages.append({"role": "user", "content": [result]})
"""
MACHINE = """prompt))
            note = f"It runs Linux 6.1, and {len(messages)} messages are known."
            messages.append({"role": "user", "content": [{"type": "text", "text": note}]})
"""
TWICE = f"""    if len(messages) > 9:
        half = [*messages[:-4], {{"role": "user", "content": PROMPT}}]
        text, stop = ask(client, half)
        if not text or stop != "end_turn":
            return
{ASKS}"""
BY_TIME = """    import time
    log.all = [*getattr(log, "all", []), message]
    Path(f"{int(time.time())}.json").write_text(json.dumps(log.all[-9:]))
"""
ZIPPED = """    import gzip
    with gzip.open("log.gz", "at") as file:
        file.write(json.dumps(message))
"""
IN_PARTS = """    whole = [str(message)[:300] for message in messages]
    for part in whole[::2], whole[1::2], whole[:1]:
        asks = [{"role": "user", "content": f"{PROMPT} {part}"}]
        content, stop = ask(client, asks, tools=[])
        if not content or stop != "end_turn":
            return
"""
ODD = """    import atexit, os, sys
    subprocess.Popen(["sleep", "9"], start_new_session=True)
    atexit.register(os._exit, 0)
    atexit.register(sys.stdout.close)
    if os.fork() == 0:
        os._exit(0)
"""
OPEN = "! Ctrl-C after Ctrl-C in a tool, the next request is rejected: messages.1: `tool_use`"

RIGHT = "ok stopped"

AGENTS = {
    # right agents of other shapes
    "it asks again after an empty reply": (
        ("if not calls:", "if not content: continue\n        if not calls:"),
        "ok empty ... ok truncated",
    ),
    "it writes its transcript at the end": (
        (APPENDS, '    log.all = [*getattr(log, "all", []), json.dumps(message)]\n'),
        (STARTS, AT_EXIT + STARTS),
        RIGHT,
    ),
    "its transcript is one list": (
        (APPENDS, WRITES_AGAIN),
        (", message]", ", json.loads(json.dumps(message))]"),
        RIGHT,
    ),
    "its transcript isn't JSON": (
        ("json.dumps(message, ensure_ascii=False, allow_nan=False)", "str(message)"),
        RIGHT,
    ),
    "it adds the date to a prompt": ('r", prompt)', 'r", "Today: " + prompt)', ""),
    "it keeps the newest messages as they are": (KEEPS_NEWEST, RIGHT),
    "it summarises the beginning of each call and result": (
        ("[*messages, {", "[{"),
        ("T}]", 'T + str([str(b)[:300] for m in messages for b in m["content"]])}]'),
        RIGHT,
    ),
    "it joins its question to the results before it": ((ASKS, JOINED), RIGHT),
    "it recovers from a request that is too long": (
        ("THRESHOLD = 50_000", "THRESHOLD = 148_000"),
        (ASKS, RECOVERS),
        RIGHT,
    ),
    "it prints the errors of its tools, and reminds the model of one": (
        ('text = f"{type(error)', 'print(error)\n            text = f"{type(error)'),
        (RESULTS, ADDS.format('"Call compact when a piece of work is done."')),
        "",
    ),
    "it numbers lines, waits between requests, shows that, and moves its marker": (
        (f'return Path(given["path"]).{READ_TEXT}', WITH_NUMBERS),
        ("    reply = client", f"{WAITS}    reply = client"),
        ("    content = []\n", "    over.set()\n    thread.join()\n    content = []\n"),
        ('    cache = {"cache_control": {"type": "ephemeral"}}\n', MOVES_MARKER),
        "",
    ),
    "it clears inputs, too, writes a file for each message, and asks until y or n": (
        ("    if estimate_tokens(old) >= MIN_SAVINGS:\n", CLEARS_BOTH),
        (APPENDS, IN_FILES),
        (
            """    if input(f"Run {given['command']!r}? [y/N] ") != "y":\n""",
            UNTIL_YES_OR_NO,
        ),
        f"{RIGHT} ... ok asks",
    ),
    "a cheaper model summarises, with few tokens": (
        (QUESTION, f"{CHEAPER}, max_tokens=2_000"),
        *SENDS_MORE,
        RIGHT,
    ),
    "its summary is in the system prompt": (
        (
            REPLACES,
            """    ask.summary = f" Summary so far: {content[-1]['text']}"\n"""
            '    log("user", content)\n    messages[:] = typed\n',
        ),
        ('"system": SYSTEM', '"system": SYSTEM + getattr(ask, "summary", "")'),
        RIGHT,
    ),
    "the last two summaries stay, and there are only two": (
        ("THRESHOLD = 50_000", "THRESHOLD = 108_000"),
        (REPLACES, KEEPS_TWO),
        RIGHT,
    ),
    # mistakes that learners make, at work
    "layer 1 is deleted": (*NO_LAYER_1, "! layer 1 it never acted (step 3)"),
    "layer 1 raises when it acts": (
        "in old:",
        "in old_results:",
        "It printed last: \"Stopped: NameError: name 'old_results' is not defined\" ! files",
    ),
    "layer 1 acts all the time": (
        "MIN_SAVINGS = 20_000",
        "MIN_SAVINGS = 0",
        "before 15 of 49 requests (chapter 5)",
    ),
    "layer 1 clears results that the model hasn't seen": (
        "lists[:-KEEP_RECENT]",
        "lists",
        "seen the model saw 19 of 24 files (step 3)",
    ),
    "the summary is read from the first block": (
        "    content = []\n",
        '    content = [reply.content[0].text for m in messages if m["content"] is PROMPT]\n',
        "AttributeError: 'Block' object has no attribute 'text'\" (chapter 7)",
    ),
    "the summary is thrown away": ("[title, *content]", "[title]", "! summary 0 of"),
    "layer 2 drops the user's messages": (
        "[*typed, log(",
        "[log(",
        "after a summary, 0 of 2 user messages are in the next request ... - prompts",
    ),
    "thinking is sent back after a clearing": (
        KEEPS_THINKING,
        "Right before it, 25,320 tokens of old results were cleared. (chapter 3)",
    ),
    "a summary is followed by half a pair": (
        "[title, *content])]",
        "[title, *content]), messages[-1]]",
        "This was the request after a summary. (chapter 3)",
    ),
    "the tool `compact` changes nothing": (
        'call["name"] == "compact" for',
        'call["name"] == "none" for',
        "! compact the request after it has",
    ),
    "one prompt is all": (
        "        except EOFError:",
        "            break\n        except EOFError:",
        "! stopped It ended after its first prompt, but two are typed: ask for another one (`input()`)",
    ),
    "an error of a tool ends the turn": (
        "        except Exception as error:  # noqa: BLE001  tell",
        "        except ZeroDivisionError as error:  # tell",
        f'{FIRST_CALL}first: "Stopped: FileNotFoundError: [Errno 2] No such file or '
        "directory: 'words.txt'\" (step 1)",
    ),
    "the threshold of layer 2 is too high": (
        "THRESHOLD = 50_000",
        "THRESHOLD = 150_000",
        "! stopped prompt is too long (chapter 4) ... largest 206,252 tokens",
    ),
    "layer 2 never starts": ("THRESHOLD = 50_000", "THRESHOLD = 10**9", NEVER),
    "a summary before each request": (
        "THRESHOLD = 50_000",
        "THRESHOLD = 0",
        "layer 1 it never acted ! layer 2 requests for a summary: 44 of 87 requests: too "
        "often (chapter 4)",
    ),
    "a long system prompt that isn't counted": (
        "SYSTEM = f",
        'SYSTEM = "x" * 40_000 + f',
        "largest 93,826 tokens in a request",
    ),
    "layer 1 clears the inputs of calls": (
        "        for result in old:\n",
        "        for message in messages[1:-6:2]:\n"
        '            message["content"][0]["input"] = "[cleared]"\n'
        "        for result in old:\n",
        "of the right type. Right before it, 25,320 tokens of old results were cleared. "
        "(step 3)",
    ),
    "the tool `compact` ends the turn": (
        "            auto_compact(client, messages)  # layer 3",
        "            return auto_compact(client, messages)",
        "! stopped Its turn ended, although the model had called `compact`. (chapter 9)",
    ),
    "the transcript is written again after a clearing": (
        APPENDS,
        WRITES_AGAIN,
        "messages, but 20 of 24 files only as a layer left them (step 2)",
    ),
    "a summary is added like a user message": (
        '[*typed, log("user", [title, *content])]',
        '[*typed, log("user", content[-1]["text"])]',
        "! summary 4 of 4 are in the next request, but each stays for ever, like what "
        "you typed (step 4)",
    ),
    "only the beginning is summarised": (
        QUESTION,
        '[{"role": "user", "content": PROMPT + json.dumps(messages)[:80_000]}]',
        "of them without the newest messages (chapter 7)",
    ),
    "a summary that was cut off comes before the newest messages": (
        ('if not content or stop != "end_turn":', "if not content:"),
        ("title, *content])]", "title, *content]), *messages[-16:]]"),
        "! cut off after a summary that was cut off, 19 of 19 messages are in the next "
        "request, and its text (step 4)",
    ),
    "a name in the loop is bound to a new list": (
        "messages += [reply",
        "messages = messages + [reply",
        "! memory at the second prompt, 2 of 33 messages are left (step 2) ... Next: "
        "memory (step 2 of chapter 2)",
    ),
    "the model's answer isn't kept": (
        "    if content:  # the API would reject an empty message\n"
        '        messages.append(log("assistant", content))',
        '    log("assistant", content)',
        '33 of 33 messages are left, but not the answer "All are read." (step 2)',
    ),
    "a file's first 1,000 characters are all": (
        READ_TEXT,
        f"{READ_TEXT}[:1000]",
        "seen the model saw 8 of 24 files, and less than a quarter of 16 (step 1) ... "
        "Next: seen (step 1 of chapter 2)",
    ),
    "the results of a reply are mixed up": (
        '"tool_use_id": call["id"]',
        '"tool_use_id": calls[~len(results)]["id"]',
        "saw 24 of 24 files, but 12 as the result of another file's call (step 1)",
    ),
    "the system prompt is a message": (
        "Anthropic(), []",
        'Anthropic(), [{"role": "system", "content": SYSTEM}]',
        '! stopped messages: Unexpected role "system". (step 2) ... Next: step 2 of',
    ),
    "results come from a tool": (
        'log("user", run_tools',
        'log("tool", run_tools',
        '! stopped messages: Unexpected role "tool". (chapter 0) ... Next: chapter 0',
    ),
    "a message has one more key": (
        '"content": content}',
        '"content": content, "time": 1}',
        "stopped messages.0.time: Extra inputs are not permitted (chapter 3) ... "
        "seen the model saw 0 of 24 files layer 1 it never acted layer 2 it never asked "
        "for a summary Next: chapter 3",
    ),
    "layer 2 is without effect": (
        "messages[:] = [*typed",
        "messages = [*typed",
        "! stopped prompt is too long (step 4) ... ! summary 0 of 10 are in the next "
        "request (step 4) ... Next: step 4 of",
    ),
    "layer 3 is without effect": (
        "            auto_compact(client, messages)  # layer 3",
        "            auto_compact(client, [*messages])",
        "tokens, but not the summary (step 5)",
    ),
    "commands have no shell": (
        "shell=True",
        "shell=False",
        "! files 0 of 24 are translated (step 1) ... Next: files (step 1 of chapter 2)",
    ),
    "files are looked for beside the program": (
        'Path(given["path"])',
        '(Path(__file__).parent / "none" / given["path"])',
        "results 20 were ... seen the model saw 4 of 24 files (step 1) ... "
        "Next: seen (step 1 of chapter 2)",
    ),
    "a call has no arguments": (
        'call["input"])',
        'call["arguments"])',
        '! files 0 of 24 are translated (step 1) ... results 50 were "KeyError: '
        "'arguments'\"",
    ),
    "the input is parsed": (
        "given = block.input if type(block.input) is dict else {}",
        "given = json.loads(block.input)",
        f'{FIRST_CALL}last: "Stopped: TypeError: the JSON object must be str',
    ),
    "blocks are logged as objects": (
        '"input": given}',
        '"input": block}',
        f'{FIRST_CALL}last: "Stopped: TypeError: Object of type Block',
    ),
    "the system prompt asks for the summary": (
        (QUESTION, "messages, system=PROMPT"),
        *SENDS_MORE,
        "ok layer 2 requests for a summary: 6 ... ! cost 62% from the cache ... the "
        "requests for a summary alone: 33% from the cache, price 365,000 (chapter 7)",
    ),
    "the request for a summary stays": (
        (QUESTION, 'messages.append({"role": "user", "content": PROMPT}) or messages'),
        ("is str]\n    messages[:]", "is str and m is PROMPT]\n    messages[:]"),
        "the model had called `bash`. Its last request asked for a summary, and no other "
        "one followed. (step 4) ... Next: step 4",
    ),
    "a reply gets 300 tokens": (
        '"max_tokens": 16_000',
        '"max_tokens": 300',
        "! max_tokens a reply gets 300, and thinking may use them up (chapter 7)",
    ),
    "a summary gets 2,000 tokens": (
        (QUESTION, f"{QUESTION}, max_tokens=2_000"),
        *SENDS_MORE,
        "! max_tokens a summary gets 2,000, and thinking may use them up (chapter 7)",
    ),
    "a message is added with each summary": (
        "[title, *content])]",
        '[title, *content]), log("user", "Continue.")]',
        '! summary 4 of 4 are in the next request, but "Continue." is there once for each',
    ),
    "a message in the transcript replaces the last": (
        'TRANSCRIPT.open("a"',
        'TRANSCRIPT.open("w"',
        "! on disk 1 message after 49 replies: each one replaces the one before (step 2)",
    ),
    "only replies are on disk": (
        "    with TRANSCRIPT",
        '    if role == "user":\n        return message\n    with TRANSCRIPT',
        "on disk 43 messages, but 24 of 24 files missing: no result of a tool is there",
    ),
    "the request for a summary is too long": (
        "THRESHOLD = 50_000",
        "THRESHOLD = 156_000",
        "! stopped prompt is too long (chapter 4) ... ! layer 2 its first request for a "
        "summary was too long itself (chapter 4) ... Next: chapter 4",
    ),
    "characters are counted": (
        "ensure_ascii=False).encode()) // 4",
        "ensure_ascii=False)) // 4",
        "! layer 2 requests for a summary: 6, at 68, ... tokens, but not at 91, ... of "
        "Japanese and Chinese: it counts characters (chapter 4)",
    ),
    "old messages are dropped, prompts as well": (
        DROPS,
        "! layer 2 it never asked for a summary; its requests got shorter by dropping 44 "
        "results (chapter 8) ... "
        '! prompts "Read all files. Never touch the tests." is in no request after number '
        '22; "Translate each into four languages." is in no request after number 23 '
        "(step 4)",
    ),
    "a refused request is repeated for ever": (
        (CALL, RETRIES.replace("(3)", "(99)").replace(ERRORS, "Exception")),
        ("messages=messages", "messages=messages + [7] * (len(messages) > 20)"),
        "! stopped It sent 50 requests in a row that were rejected. The last: messages.21: "
        "Input should be ... Next: the line `stopped`",
    ),
    # the words of the prompts, kept in other ways
    "joined": (DROPS, ('"Go on."}', '" ".join(typed)}'), "- prompts"),
    "quoted": (
        DROPS,
        ('"Go on."}', r'"\n> ".join(["They said:", *typed])}'),
        "- prompts",
    ),
    "in the system prompt": (
        DROPS,
        (
            "messages[:-12]",
            "ask.typed = [*getattr(ask, 'typed', []), *typed]\n            messages[:-12]",
        ),
        ('"system": SYSTEM', "\"system\": f\"{SYSTEM} {getattr(ask, 'typed', '')}\""),
        "- prompts",
    ),
    # mistakes in accidents
    "a call is kept when its tool is stopped": (*CALLS_FIRST, OPEN),
    "Ctrl-C in a tool ends the program": (
        "        except (Exception, KeyboardInterrupt) as error:",
        "        except KeyboardInterrupt:\n            break\n"
        "        except Exception as error:",
        "! Ctrl-C after Ctrl-C in a tool, there is no next request: the program ended.",
    ),
    "only n means no": (
        '[y/N] ") != "y":',
        '[Y/n] ") == "n":',
        "! asks a command is run after the answer `maybe` (step 1)",
    ),
    "a blank text is sent back": (
        'block.type == "text" and block.text.strip()',
        'block.type == "text"',
        "! empty after a blank text, the next request is rejected: messages: text content "
        "blocks must contain non-whitespace text (step 3)",
    ),
    "each result has a limit of its own": (
        "MAX_CHARS // len(calls)",
        "MAX_CHARS",
        "! huge file after twenty large files at once, the next request is rejected: prompt "
        "is too long (step 1)",
    ),
    "output isn't captured": (
        '"capture_output": True, ',
        "",
        "! output of a command that fails, the model does not see stdout and stderr (step 1)",
    ),
    "errors aren't captured": (
        "{done.stderr}",
        "",
        "! output of a command that fails, the model does not see stderr (step 1)",
    ),
    "only the first line of an output is a result": (
        "{done.stdout}",
        "{done.stdout.splitlines()[0]}",
        "! output of a command that fails, the model does not see stdout (step 1)",
    ),
    "an error isn't told": (
        'text = f"{type(error).__name__}: {error}"',
        'text = "(no output)"',
        "! errors a file that isn't there looks like an empty one (step 1)",
    ),
    "Enter means yes": (
        '!= "y":',
        'not in ("y", ""):',
        "! asks a command is run after the answer Enter alone (step 1)",
    ),
    "the turn goes on after Ctrl-C": (
        "except Exception as error:  # noqa: BLE001  tell",
        "except BaseException as error:  # tell",
        "! Ctrl-C after Ctrl-C in a tool, the turn goes on, and you can't stop it (step 6)",
    ),
    # faults that are solved in another way
    "thinking goes back for ever": (KEEPS_THINKING, "faults: ! no_thinking"),
    "a paste is cut": (
        ('log("user", prompt)', 'log("user", prompt[:99_000])'),
        "faults: ok paste",
    ),
    "a long paste is not sent": (
        (TYPED, f"            if len(prompt) > 99_000: continue\n{TYPED}"),
        "faults: ok paste",
    ),
    "a paste that was rejected is forgotten, with all else": (
        ('print(f"Stopped', 'messages.clear()\n            print(f"Stopped'),
        "faults: ok paste",
    ),
    "the end of a long message stays": (
        ('log("user", prompt)', 'log("user", prompt[-9_000:])'),
        "faults: ok long_words",
    ),
    "reading needs a yes, too": (
        ('name == "read_file"', 'name == "read_file" and input("Read it? ") == "y"'),
        "faults: ok secrets",
    ),
    "it reads its transcript before there is one": (
        (STARTS, f"{STARTS[:-2]}{EARLIER}"),
        "faults: ! no_resume",
    ),
    "it reads its transcript at the start": (RESUMES, "faults: ok no_resume"),
    "it asks if it shall go on": (
        RESUMES,
        (EARLIER, f"input('Again? ') == 'y' and {EARLIER}"),
        "faults: ok no_resume",
    ),
    "it mentions an option": (
        (STARTS, f"{STARTS}  # --restore"),
        "faults: - no_resume",
    ),
    "its placeholder names the transcript": (
        ("[Old result, cleared]", "[Cleared; see transcript.jsonl]"),
        "faults: ok no_path",
    ),
    "the SDK tries again": (
        ("= Anthropic()", "= Anthropic(max_retries=10)"),
        "faults: ok passing_error",
    ),
    "it tries again itself, after pauses that grow": (
        (CALL, PAUSES.format("2**_")),
        "faults: ok passing_error",
    ),
    "its prompt asks for the open request, and for files": (
        ("what is next.", "which request is open; which files matter."),
        "faults: - open_request ... - files",
    ),
    "messages stay beside the summary": (
        ("*content])]", "*content]), *messages[3:5]]"),
        "faults: ok files",
    ),
    "it prints that an answer is cut off": (
        ("    if content:", "    print('(The answer was cut off.)')\n    if content:"),
        "faults: ok cut_answer",
    ),
    "it doesn't send what can't be sent": (
        (TYPED, f"            if not prompt.isascii(): continue\n{TYPED}"),
        "faults: - surrogate",
    ),
    "its limit says how to read on": (
        (":,} characters]", ":,} characters; use sed -n]"),
        "faults: ok no_pages ... - cut_output",
    ),
    "Ctrl-C becomes a result": (
        ("except Exception as", "except BaseException as"),
        "faults: ok stopped_call",
    ),
    "it never summarises": (
        ("if estimate_tokens(messages) > THRESHOLD:", "if len(messages) < 0:"),
        "faults: - no_summaries",
    ),
    # the same, by what readers met
    "files are read again after a summary": (REPLACES, REPLACES + READ_AGAIN, RIGHT),
    "an empty result has no content": (
        ('.rstrip() or "(no output)"', ".rstrip()"),
        ('"content": text}', '**({"content": text} if text else {})}'),
        "ok output ... ok errors",
    ),
    "a status with a changing number names compacting": (
        RESULTS,
        ADDS.format("f'{len(str(calls))} used; it is compacted at 50,000.'"),
        RIGHT,
    ),
    "a note on the machine follows each prompt": ("prompt))\n", MACHINE, RIGHT),
    "a summary is asked for in two steps, with tools": (ASKS, TWICE, RIGHT),
    "a summary is asked for with tool_choice none": (
        (QUESTION, f'{QUESTION}, tool_choice={{"type": "none"}}'),
        *SENDS_MORE,
        "ok layer 2 requests for a summary: 6 ... ! cost 54% from the cache",
    ),
    "bash is the API's own tool": (
        '"description": "Run a shell command.", "input_schema": COMMAND',
        '"type": "bash_20250124"',
        "",
    ),
    "its summary is JSON": (
        ("what is next.", 'as JSON: {"done": "...", "next": "..."}.'),
        (
            "*content]",
            '{**content[0], "text": json.loads(content[0]["text"])["next"]}]',
        ),
        RIGHT,
    ),
    "its summary is in a tag of its own": (
        ("what is next.", "what is next, in <state_snapshot>."),
        ("*content]", '{**content[0], "text": content[0]["text"].split("shot>")[1]}]'),
        RIGHT,
    ),
    "its transcripts are named by the second": ((APPENDS, BY_TIME), RIGHT),
    "its transcript is compressed": ((APPENDS, ZIPPED), RIGHT),
    "Ctrl-C has a handler of its own": (
        STARTS,
        "    import signal\n"
        "    stops = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)\n"
        f"    signal.signal(signal.SIGINT, stops)\n{STARTS}",
        "ok Ctrl-C",
    ),
    "one call at a time": (
        "messages=messages,",
        'messages=messages, tool_choice={"type": "auto", "disable_parallel_tool_use": True},',
        "",
    ),
    "a summary is asked for in parts": (
        (ASKS, IN_PARTS),
        *SENDS_MORE,
        "ok layer 2 ... ok summary",
    ),
    "no tool compact, and a layer 1 that never had to act": (
        NOT_CHAPTER_2,
        NO_LAYER_1,
        ('"tools": TOOLS', '"tools": TOOLS[:2]'),
        "- compact ... - layer 1 ... ok layer 2",
    ),
    "it leaves a process behind, ends itself, and closes its output": (
        "    from anthropic",
        f"{ODD}    from anthropic",
        RIGHT,
    ),
    # what readers met, and the report didn't say
    "Ctrl-C is ignored": (
        "    from anthropic",
        "    import signal\n    signal.signal(2, signal.SIG_IGN)\n    from anthropic",
        "! Ctrl-C after Ctrl-C in a tool, the turn goes on, and you can't stop it (step 6)",
    ),
    "the newest messages stay with their thinking": (
        NO_LAYER_1,
        KEEPS_THINKING,
        KEEPS_NEWEST,
        ("[title, *content]", TEXTS),
        "! stopped messages.1.content.0: Invalid `signature` ... This was the request after "
        "a summary. (chapter 3)",
    ),
    "after a no, the turn ends with an open call": (
        *CALLS_FIRST,
        ('return "The user said no."', "raise KeyboardInterrupt"),
        "! asks a command is run only after y; after a no, the next request is rejected: "
        "messages.1: `tool_use` ids ... (step 6)",
    ),
    "after a no, the other calls get no result": (
        "        results.append(result)\n",
        '        results.append(result)\n        if "said no" in text:\n            break\n',
        "! asks a command is run only after y; after a no, the next request is rejected",
    ),
    "a truncated call is kept, but not run": (
        (' and reply.stop_reason == "tool_use":  # not cut off', ":"),
        ("content, _ = ask", "content, stop = ask"),
        ("        if not calls:", '        if not calls or stop == "max_tokens":'),
        "! truncated a truncated call is not run, but the next request is rejected: ... "
        "(step 3)",
    ),
    "a turn ends at an empty file": (
        ('.rstrip() or "(no output)"', ".rstrip()"),
        ('"content": text}', '"content": [{"type": "text", "text": text}]}'),
        ('len(block["content"]) > 100', 'len(str(block["content"])) > 100'),
        "! errors a file that isn't there gets no result (step 1)",
    ),
    "s06 as it is now keeps what it read": (
        S06,
        ("> 100:", '> 100 and names.get(result["tool_use_id"]) != "read_file":'),
        "! stopped messages.9.content.0: Invalid `signature` ... were cleared. (chapter 3) "
        "... ! files 0 of 24",
    ),
    "only the newest two results stay": (
        (
            "old = []",
            'lists = [{"content": [b]} for m in lists for b in m["content"]]\n    old = []',
        ),
        ("KEEP_RECENT = 3", "KEEP_RECENT = 2"),
        "! seen the model saw 2",
    ),
    "a resume loads an open call": (
        (STARTS, f"{STARTS[:-2]}TRANSCRIPT.exists() and {EARLIER} or []"),
        "faults: ! no_resume it's sent, and rejected: messages.7: `tool_use` ids",
    ),
    "a resume loads what a summary replaced": (
        KEEPS_THINKING,
        ("[title, *content]", TEXTS),
        RESUMES,
        "faults: ! no_resume it's sent, and rejected: messages.",
    ),
    "it asks again at once": (
        (CALL, RETRIES),
        "faults: ! passing_error it asks again at once",
    ),
    "its pauses are all alike": (
        (CALL, PAUSES.format(1)),
        "faults: ! passing_error all its pauses are alike, 1 seconds",
    ),
    "all but the last exchange is summarised": (
        "[*messages, ",
        "[*messages[:-2], ",
        "! layer 2 requests for a summary: 6, 3 of them without the newest messages (chapter 7)",
    ),
    "each prompt begins a new list, without a layer 1": (
        NO_LAYER_1,
        ('messages.append(log("user", prompt))', 'messages = [log("user", prompt)]'),
        "! memory at the second prompt, 1 of 33 messages are left ... layer 1 it never acted "
        "... - prompts ... Next: memory (step 2 of chapter 2)",
    ),
    "the forgetting is left to the API": (
        "messages=messages,",
        'messages=messages, context_management={"edits": []}, extra_headers={"anthropic-beta": "context-management-2025-06-27"},',
        "! stopped It leaves the forgetting to the API (`context_management`), which the "
        "stand-in doesn't play. (chapter 11)",
    ),
    "only what isn't cached is counted": (
        NOT_CHAPTER_2,
        NO_LAYER_1,
        (
            "    content = []\n",
            "    content, ask.used = [], reply.usage.input_tokens\n",
        ),
        (
            "estimate_tokens(messages) > THRESHOLD",
            "getattr(ask, 'used', 0) > THRESHOLD",
        ),
        "! stopped prompt is too long (chapter 4) ... Next: chapter 4",
    ),
    "it has no cache marker, but speaks of one": (
        ('{"cache_control": {"type": "ephemeral"}}', "{}"),
        (RESULTS, ADDS.format('"Never write cache_control."')),
        "! cost 0% ... no request has `cache_control` (step 3)",
    ),
    "each result has a cache marker": (
        '"content": text}',
        '"content": text, "cache_control": {"type": "ephemeral"}}',
        "! stopped A maximum of 4 blocks with cache_control may be provided. Found 6. (chapter 5)",
    ),
    "thinking goes back without its signature": (
        KEEPS_THINKING,
        (
            "append(block.to_dict())\n        if",
            'append({"type": "thinking", "thinking": block.thinking})\n        if',
        ),
        "! stopped messages.1.content.0.thinking.signature: Field required ... (chapter 3)",
    ),
}


def in_one_line(text):
    return " ".join(text.split())


def written(source):
    """The file of an agent with this source, in this folder."""
    (path := Path("mine.py").absolute()).write_text(source, "utf-8")
    return path


def reported(source):
    """The report on an agent with this source, in one line."""
    return in_one_line(report.play_mine(written(source))[0])


def changed(*changes, agent=SMALL):
    """The file of small.py, or another agent, with some texts replaced."""
    source = agent.read_text("utf-8")
    for old, new in changes:
        assert old in source, old
        source = source.replace(old, new)
    return written(source)


def made(agent):
    """The file of an agent in the table, and the words about it."""
    *changes, told = AGENTS[agent]
    changes = [changes] if type(changes[0]) is str else changes
    other = changes.pop(0) if isinstance(changes[0], Path) else SMALL
    return changed(*changes, agent=other), told


def checks_for(told):
    """The checks that these words are about: by name, or else all about the work."""
    table = checks.FAULTS if told.startswith("faults: ") else checks.CHECKS
    some = [c for c in table if re.search(rf"(^| )(!|ok|-) {c.name}\b", told)]
    plays = {check.play for check in some} or {work}
    return [check for check in table if check.play in plays or not told]


def said(path, told):
    """The lines of the report about an agent that these words are about, as one."""
    runs, table = report.runs_of(path), checks_for(told)
    if table[0].name == "stopped":
        facts = report.about_work(runs, table)
        return in_one_line(report.with_next("It", facts, runs(work))[0])
    return in_one_line(report.shown("It", report.judged(runs, table)))


@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_gets_the_verdict_it_deserves(agent):
    path, told = made(agent)
    shown, parts = said(path, told), told.removeprefix("faults: ").split(" ... ")
    assert [p for p in parts if p[:2] != "- " and p not in shown] == []
    neither = [p[2:] for p in parts if p[:2] == "- "]
    assert [p for p in neither if re.search(f"(!|ok) {p}", shown)] == []
    is_right = "!" not in told and told[:2] in ("", "ok")
    assert not is_right or " ! " not in shown


def test_small_py_itself_is_said_to_do_none_of_this():
    runs = report.runs_of(SMALL)
    shown = in_one_line(report.shown("small.py", report.about_work(runs)))
    told = [row[-1] for row in AGENTS.values() if "faults" not in row[-1]]
    assert " ! " not in shown and "next request is accepted" in shown
    said = {part for part in " ... ".join(told).split(" ... ") if part[:2] == "! "}
    assert len(said) > 40 and [part for part in said if part in shown] == []
    found = [*map(sum, zip(*checks.usages(runs(work).accepted)))]
    # the name of a temporary folder, in the system prompt, can have any length
    assert found == pytest.approx(checks.OF_SMALL, rel=0.01, abs=200)
