"""Shapes of recorded sessions: no word is left, and all figures stay the same."""

import json
import os
import re
from itertools import count
from pathlib import Path

import costs
import pytest
import shapes
from builders import did, history, said
from recorded import Session, content_of, parts, read_messages, tokens

SHAPES = sorted(costs.SHAPES.glob("*.xz"))
# what stays: the names of keys and blocks, of tools, and of their inputs
KEPT_KEYS = "role content type text id name input tool_use_id is_error timestamp"
KEPT_KEYS += " user assistant tool_use tool_result true false null NaN old_string"

INNER = json.dumps({"Hannah": "Keller\nand\tsons", "deep": json.dumps(["Zoë\u0416ук"])})
CODE = r'print("first\nsecond\tthird \u041f\u0440\u0438\u0432\u0435\u0442 C:\new")'
ODD_TEXTS = [
    "Write to maria.keller@payroll.example, Hauptstraße 17, phone 0049 30 901820.",
    "The key is sk-ant-api03-Zq8LmT4wXb and the token ghp_16C7e42F292c6912E7710c838347.",
    "/home/mkeller/projects/acme-payroll/src/SalaryTable_v2.py:128: camelCaseName",
    "Überweisung für Müller, naïve café, ÇELİK, ſtraße, K2 \ud83d",
    "Привет, мир. שלום עולם 東京都港区 こんにちは नमस्ते ٠١٢٣٤ 𝒜𝓁𝓅𝒽𝒶 𐐀𐐨𐐀 ﬁne Ⅷ",
    INNER,
    CODE,
]
QUESTION_CALL = {
    "questions": [{"Which colour": "Blue", "old_string": "aLongLine = of(code)"}]
}
QUESTION_CALL |= {
    "account": 4930123456,
    "share": 0.123456,
    "wrong": float("nan"),
    "all": True,
}
ODD_MESSAGES = history(
    *(did(text, given={"command": text}) for text in ODD_TEXTS),
    did(
        "<persisted-output>\nOutput too large",
        tool="mcp__Acme__ask",
        given=QUESTION_CALL,
    ),
    did("failed", is_error=True),
    said("Done."),
)


def words(text):
    return {word.lower() for word in re.findall(r"[^\W\d_]{3,}", text)}


def kept(messages):
    """The words that stay in the shape of these messages."""
    calls = [*parts([m for m in messages if m["role"] == "assistant"], "tool_use")]
    named = [key for call in calls for key in (call["name"], *call["input"])]
    return words(" ".join([KEPT_KEYS, *named, "persisted-output", "previous used"]))


@pytest.fixture
def shape(tmp_path):
    """shape(messages) makes their shape, and returns its text and its messages."""
    numbers = count()

    def make(messages):
        lines = (json.dumps(m) + "\n" for m in messages)
        (path := tmp_path / "recording.jsonl").write_text("".join(lines))
        made = tmp_path / f"{next(numbers)}.jsonl.xz"
        assert shapes.main([str(path), str(made)]) == 0
        return content_of(made).decode(errors="surrogatepass"), read_messages(made)

    return make


# ---- what a shape hides ----


def test_no_word_of_a_hostile_recording_is_left(shape):
    text, _ = shape(ODD_MESSAGES)
    before = words("".join(json.dumps(m, ensure_ascii=False) for m in ODD_MESSAGES))
    assert before & words(text) <= kept(ODD_MESSAGES)
    assert {"keller", "projects", "hannah", "which", "привет"} <= before
    assert not re.search(r"4930123456|901820|0\.123456|16C7|041f", text)


def test_no_escape_hides_a_word(shape):
    """Read the JSON within texts, and the escapes within code."""
    text, messages = shape(ODD_MESSAGES)
    [inner] = {b["content"] for b in parts(messages[12:13], "tool_result")}
    deep = json.loads([*json.loads(inner).values()][1])
    old = words("Keller and sons Hannah deep ZoëЖук first second third Привет")
    code = re.sub(r"\\u(....)", lambda found: chr(int(found[1], 16)), text)
    assert not words(str(deep)) & old and not words(code) & old


def test_a_new_word_says_nothing_about_the_old_one(shape):
    """It depends only on when the old one appeared, and how long it is."""
    one, two = (shape(history(said(text)))[0] for text in ("pear plum", "kiwi figs"))
    assert one == two


# ---- what it keeps ----


def test_every_text_has_the_same_length_punctuation_and_case(shape):
    _, messages = shape(ODD_MESSAGES)
    old, new = (
        [b["content"] for m in found[2::2] for b in m["content"]]
        for found in (ODD_MESSAGES, messages)
    )
    assert [*map(tokens, old)] == [*map(tokens, new)]
    sizes = [[len(t.encode(errors="surrogatepass")) for t in ts] for ts in (old, new)]
    assert sizes[0] == sizes[1]
    for text in (old, new):
        text[:] = [re.sub(r"(?<=\\u)....|\w", "x", t) for t in text]
    assert old == new


def test_blocks_names_inputs_errors_and_marks_stay(shape):
    _, messages = shape(ODD_MESSAGES)
    old, new = (
        [*parts(found[15::2], "tool_use")] for found in (ODD_MESSAGES, messages)
    )
    for before, after in zip(old, new, strict=True):
        assert before["name"] == after["name"]
        assert [*before["input"]] == [*after["input"]]
    assert "old_string" in new[0]["input"]["questions"][0]
    asked, failed = (message["content"][0] for message in messages[16:19:2])
    assert asked["content"].startswith("<persisted-output>")
    assert failed["is_error"] and new[0]["input"]["all"] is True


def test_the_same_word_always_becomes_the_same_word(shape):
    _, messages = shape(history(said("Total total TOTAL of total_42 and 1234, 1234")))
    first, *others = re.findall(r"[^\W\d_]{5}", messages[1]["content"][0]["text"])
    assert {first.lower()} == {word.lower() for word in others} and len(others) == 3
    assert first.istitle() and others[1].isupper()
    assert len({*re.findall(r"\d{4}", messages[1]["content"][0]["text"])}) == 1


def test_the_shape_of_a_recording_is_always_the_same(shape):
    assert shape(ODD_MESSAGES) == shape(ODD_MESSAGES)


def test_the_seconds_between_requests_stay(tmp_path):
    stamps = [f"2026-11-01T12:0{n}:0{n}.250Z" for n in range(4)]
    lines = [
        {"timestamp": t, **m} for t, m in zip(stamps, history(did("a"), said("b")))
    ]
    (path := tmp_path / "s").write_text("\n".join(map(json.dumps, lines)))
    shapes.main([str(path), str(made := tmp_path / "made.xz")])
    [old, new] = [Session(read_messages(file)).times for file in (path, made)]
    assert [t - new[0] for t in new] == [t - old[0] for t in old] == [0, 0, 0, 122]


@pytest.mark.parametrize(
    "argv, code, told",
    [
        (["no such file", "made.xz"], 1, "no such file"),
        (["only one"], 2, "shapes.py RECORDING SHAPE.jsonl.xz"),
        (["one", "two"], 2, "shapes.py RECORDING SHAPE.jsonl.xz"),
    ],
)
def test_wrong_arguments_are_reported_in_one_line(capsys, argv, code, told):
    assert shapes.main(argv) == code
    err = capsys.readouterr().err
    assert told in err and err.count("\n") == 1


# ---- the shapes in this repository ----


def recording(shape):
    """The recording that a shape was made from, or skip the test."""
    folder = os.environ.get("RECORDINGS") or pytest.skip("set RECORDINGS to a folder")
    found = [*Path(folder).rglob(f"{shape.stem}*")]
    return found[0] if found else pytest.skip(f"{folder} has no {shape.stem}")


def test_there_are_six_shapes_of_each_of_four_projects():
    projects = [costs.project(path.name) for path in SHAPES]
    assert [projects.count(name) for name in sorted({*projects})] == [6] * 4
    assert sum(path.stat().st_size for path in SHAPES) < 2_200_000


@pytest.mark.parametrize("path", SHAPES, ids=lambda path: path.stem)
def test_the_name_of_a_shape_says_where_its_recording_is(path):
    """The tests' page has the project and commit; the rest is the path there."""
    assert re.fullmatch(r"[a-z]+_[0-9a-f]{2}-[0-9a-f]{10}-\d+", path.name[:-9])


@pytest.mark.parametrize("path", SHAPES, ids=lambda path: path.stem)
def test_a_shape_has_no_word_of_its_recording(path):
    old = content_of(recording(path)).decode()
    left = words(old) & words(content_of(path).decode()) - kept(read_messages(path))
    assert not [word for word in left if len(word) > 5]


@pytest.mark.parametrize("path", SHAPES, ids=lambda path: path.stem)
def test_a_shape_costs_and_keeps_as_much_as_its_recording(path):
    rules = costs.runs(False, [])
    old, new = (Session(read_messages(file)) for file in (recording(path), path))
    for name in ("nothing", "s06", "v5", "ours"):
        before, after = (costs.row("", [rules[name](s)], 1e6) for s in (old, new))
        assert after["cost"] == pytest.approx(before["cost"], rel=1e-3)
        assert after["R"] == pytest.approx(before["R"], abs=0.005)
