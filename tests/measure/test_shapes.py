"""Shapes of recorded sessions: no word is left, and all figures stay the same."""

import json
import lzma
import re
from itertools import count

import costs
import pytest
import shapes
from builders import did, history, said
from recorded import Session, content_of, parts, read_messages, tokens

SHAPES = sorted(costs.SHAPES.glob("*.xz"))
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


def as_lines(messages):
    """The text of a recording with these messages."""
    return "".join(json.dumps(message) + "\n" for message in messages)


@pytest.fixture
def shape(tmp_path):
    """shape(messages) makes their shape, and returns its text and its messages."""
    numbers = count()

    def make(messages):
        (path := tmp_path / "recording.jsonl").write_text(as_lines(messages))
        made = tmp_path / f"{next(numbers)}.jsonl.xz"
        assert shapes.main([str(path), str(made)]) == 0
        return content_of(made).decode(errors="surrogatepass"), read_messages(made)

    return make


# ---- what a shape hides ----


def test_no_word_of_a_hostile_recording_is_left(shape):
    text, _ = shape(ODD_MESSAGES)
    before = shapes.words_of(
        "".join(json.dumps(m, ensure_ascii=False) for m in ODD_MESSAGES)
    )
    assert before & shapes.words_of(text) <= shapes.kept_words(ODD_MESSAGES)
    assert {"keller", "projects", "hannah", "which", "привет"} <= before
    assert not re.search(r"4930123456|901820|0\.123456|16C7|041f", text)


def test_no_escape_hides_a_word(shape):
    """Read the JSON within texts, and the escapes within code."""
    text, messages = shape(ODD_MESSAGES)
    [inner] = {b["content"] for b in parts(messages[12:13], "tool_result")}
    deep = json.loads([*json.loads(inner).values()][1])
    old = shapes.words_of(
        "Keller and sons Hannah deep ZoëЖук first second third Привет"
    )
    code = re.sub(r"\\u(....)", lambda found: chr(int(found[1], 16)), text)
    assert not shapes.words_of(str(deep)) & old and not shapes.words_of(code) & old


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


def test_there_are_six_shapes_of_each_of_four_projects():
    projects = [costs.project(path.name) for path in SHAPES]
    assert [projects.count(name) for name in sorted({*projects})] == [6] * 4
    assert sum(path.stat().st_size for path in SHAPES) < 2_200_000


@pytest.mark.parametrize("path", SHAPES, ids=lambda path: path.stem)
def test_the_name_of_a_shape_says_where_its_recording_is(path):
    """The tests' page has the project and commit; the rest is the path there."""
    assert re.fullmatch(r"[a-z]+_[0-9a-f]{2}-[0-9a-f]{10}-\d+", path.name[:-9])


# ---- a shape beside its recording ----


@pytest.fixture
def compared(tmp_path, monkeypatch, capsys):
    """compared(recording, shape): the exit status, and what is printed about them."""
    recorded, made = tmp_path / "recorded", tmp_path / "made"
    recorded.mkdir()
    made.mkdir()
    monkeypatch.setattr(shapes, "SHAPES", made)

    def compare(recording, shape):
        (recorded / "one.jsonl").write_text(as_lines(recording))
        data = shape.encode(errors="surrogatepass")
        (made / "one.jsonl.xz").write_bytes(lzma.compress(data))
        capsys.readouterr()
        return shapes.main(["--compare", str(recorded)]), capsys.readouterr().out

    return compare


def test_a_shape_is_the_same_as_its_recording_but_for_the_words(compared, shape):
    text, _ = shape(ODD_MESSAGES)
    assert compared(ODD_MESSAGES, text) == (0, "one.jsonl: the same\n")


def test_a_shape_that_costs_something_else_than_its_recording_is_named(compared, shape):
    text, _ = shape(history(did("A long result. " * 3_000), said("Done.")))
    status, told = compared(ODD_MESSAGES, text)
    assert status == 1 and re.search(r"^one.jsonl: nothing: cost [\d.]+ -> ", told)


def test_words_of_a_recording_that_are_left_in_its_shape_are_named(compared):
    messages = history(did("42"), said("The payroll of Hannah Keller."))
    status, told = compared(messages, as_lines(messages))
    assert (status, told) == (
        1,
        "one.jsonl: 3 words are left, such as hannah keller payroll\n",
    )


def test_a_shape_without_a_recording_is_named(compared, tmp_path, capsys):
    compared(ODD_MESSAGES, as_lines(ODD_MESSAGES))
    capsys.readouterr()
    (tmp_path / "recorded/one.jsonl").unlink()
    assert shapes.main(["--compare", str(tmp_path / "recorded")]) == 0
    assert capsys.readouterr().out == "one.jsonl: no recording\n"
    assert shapes.main(["--compare", str(tmp_path / "gone")]) == 1
    assert capsys.readouterr().err == f"There is no folder {tmp_path / 'gone'}.\n"
