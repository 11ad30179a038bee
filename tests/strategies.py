"""Strategies of Hypothesis: texts, replies, turns and work for random conversations."""

from operator import mul

from builders import LONG_TESTS, TOO_LONG, did, read, said, typed
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from stub import api_error

import agent as program

# Every run uses the same examples, without a time limit, because machines can be slow.
# Shrinking a failing example takes minutes, so only the long tests do it.
SAME_EXAMPLES = settings(
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[*Phase] if LONG_TESTS else [Phase.generate],
    report_multiple_bugs=False,
)


def examples(number):
    """Run a test with this many examples."""
    return settings(SAME_EXAMPLES, max_examples=number)


EXAMPLES = examples(650 if LONG_TESTS else 16)  # of whole conversations

# --- Replies, and whole turns ---

THINKING = ("thinking", "redacted_thinking")
SAMPLES = ["yes", "", " \n", "日本語で話す", "🙂👍🏽", "\ud800", "a\u2028b\r\n\x00c"]
SAMPLES += ["</summary>", "line\n" * 40, "word " * 300, "要約" * 250, "🙂" * 150]
ANY_CHARACTER = st.characters(exclude_categories=[])  # lone surrogates included
TEXT = st.one_of(st.sampled_from(SAMPLES), st.text(ANY_CHARACTER, max_size=6))
TOOL_ERRORS = [program.ToolError, ValueError, KeyboardInterrupt]
LARGE_OUTPUTS = ["word " * 400, "要約" * 400, "🙂\n" * 400, "x" * 700]
OUTPUT = st.sampled_from([*LARGE_OUTPUTS * 3, *TOOL_ERRORS, *SAMPLES])
OUTPUTS = st.lists(OUTPUT, min_size=1, max_size=3)
WRONG_CALLS = [
    ("read_file", {"limit": "many"}),
    ("read_file", {"path": "gone.txt"}),
    ("todo_write", {"items": ["no box"]}),
    ("no_such_tool", {}),
]
CALLS = [
    ("bash", {"command": "make"}),
    ("grep", {"pattern": "図"}),
    ("read_file", {"path": "notes.txt"}),
    ("read_file", {"path": "./notes.txt", "offset": 3}),
    ("read_file", {"path": "short.txt"}),
    ("load_skill", {"name": "birds"}),
    ("todo_write", {"items": ["[ ] 次の仕事", "[x] done"]}),
    ("todo_write", {"items": []}),
    ("compact", {"focus": "names"}),
    ("task", {"description": "look", "prompt": "Look around."}),
    *WRONG_CALLS,
]
SENDABLE = [text for text in SAMPLES if text != "\ud800"]  # as the API sends a text
TEXT_BLOCKS = [(kind, text) for kind in ("text", *THINKING) for text in SENDABLE]
PART = st.sampled_from([*TEXT_BLOCKS, *[("call", call) for call in CALLS] * 6])
NO_KEY = api_error(401, "invalid x-api-key")
STOP_REASON = st.sampled_from([*[None] * 9, "max_tokens", "refusal"])
NORMAL_REPLY = st.tuples(st.lists(PART, min_size=2, max_size=4), STOP_REASON)
ODD_REPLY = st.sampled_from(
    [([], None), TOO_LONG, NO_KEY, ([("call", CALLS[0])], None)]
)
REPLY = st.one_of(*[NORMAL_REPLY] * 4, ODD_REPLY)
GOOD = [("thinking", "hm"), ("text", "<analysis>a</analysis><summary>短い</summary>")]
SUMMARY_REPLY = st.sampled_from(
    [
        (GOOD, None),
        ([("text", f"<summary>{'long ' * 600}</summary>")], None),
        ([("text", "<summary>cut off</summary>")], "max_tokens"),
        ([*GOOD, ("call", CALLS[0])], None),
        ([], "refusal"),
        NO_KEY,
        TOO_LONG,
    ]
)
REPLIES = st.lists(REPLY, min_size=2, max_size=4)
TURN = st.tuples(TEXT, REPLIES, OUTPUTS, st.lists(SUMMARY_REPLY, max_size=2))

# --- Texts that the user typed, to be cut ---

FEW_LETTERS = st.text(st.sampled_from('ab \n"\x01日🙂'), max_size=40)
USER_TEXT = st.builds(mul, FEW_LETTERS, st.sampled_from([1, 1, 7, 90, 2_000]))
USER_TEXTS = st.lists(USER_TEXT, max_size=30)

# --- Texts with names, for the index ---

NAME_LETTERS = st.text(alphabet="ab_/.A1 \n:日", max_size=90)
RESULTS_WITH_NAMES = st.lists(NAME_LETTERS, max_size=6)
SOME_NAMES = "one_name TwoNames src/three.py ./a/four.go /etc/five_5 größe_ändern "
SOME_NAMES += (
    r"六个名字的加载器_表 C:\six\seven.txt eight_8_names word words: \n\tnineNames"
)
NAMES_IN_TEXT = st.lists(st.sampled_from(SOME_NAMES.split()), max_size=6).map(" ".join)
WORK = st.one_of(
    st.builds(
        read, st.sampled_from(["a_file.py", "b_file.py", "gone.py"]), NAMES_IN_TEXT
    ),
    st.builds(
        lambda text: did(text, given={"command": f"make {text[:40]}"}), NAMES_IN_TEXT
    ),
    st.builds(lambda text: [said(text or "-")], NAMES_IN_TEXT),
    st.builds(lambda text: [typed(text)], NAMES_IN_TEXT),
)
