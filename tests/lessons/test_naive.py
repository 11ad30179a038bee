"""The tutorials' mechanisms fail as `naive.py` says, and ours works."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import naive
import pytest
import stub
from played import printed

pytestmark = pytest.mark.slow

SCRIPT = Path(naive.__file__)
FUNCTIONS = {
    node.name: node
    for node in ast.parse(SCRIPT.read_text(encoding="utf-8")).body
    if isinstance(node, ast.FunctionDef)
}
CHAPTERS = [name[8:] for name in FUNCTIONS if name.startswith("chapter_")]


COMMAND = "python3 tests/lessons/naive.py"


@pytest.fixture(scope="module")
def played():
    """The output of each chapter, with wrapped lines joined."""
    parts = re.split(r"(?m)^(\d+)\. .*\n", printed(COMMAND))[1:]
    whole = [re.sub(r"\n {10}", " ", part) for part in parts[1::2]]
    return dict(zip(parts[::2], whole))


def test_the_output_is_narrow_and_the_same_everywhere(tmp_path):
    """Without packages or settings, in any folder."""
    output = printed(COMMAND)
    assert max(map(len, output.split("\n"))) < 80
    (deep := tmp_path / ("long" * 20)).mkdir()
    program = [sys.executable, "-X", "utf8", "-S", str(SCRIPT)]
    env = {"TMPDIR": str(deep), "LC_ALL": "C"}
    elsewhere = subprocess.check_output(program, env=env, cwd=deep).decode()
    assert elsewhere == output


SIGNED = "Invalid `signature` in `thinking` block. The block is bound to a different"
# From each chapter: the API's words, a number for the damage, a number for ours.
SAYS = {
    "3": f"not support assistant message prefill|unexpected `tool_use_id`|{SIGNED}"
    "|as in s08: the API rejects 12 of 12 lists|cut anywhere, thinking dropped: 6 of 12."
    "|cut anywhere, thinking kept: 12 of 12|the API rejects 0 of 12 lists",
    "4": "3,500 Japanese characters are 875 tokens|counts 3,281|187,500|9% off|-7,666"
    "|5,250 tokens|1.6 times|11 of 11 requests are a summary|0 of 11 requests ask",
    "5": f"sees 3 of 6 files.|{SIGNED}|5% from the cache|sees 6 of 6 files; requests rejected: 0",
    "6": f"summarised 5 times, seen 0 times|leaves 51, 51, 51|20 cuts in 44|{SIGNED}",
    "7": "23 of 60 results, the task: True|23 of 60 results, the task: False",
    "8": "0 of the user's 2 requests are left|2 of 2 survive word for word|message 2 is|4 of 6 files",
    "9": "2 of 5 are edited|prompt is too long: |5 of 5 are edited|12 of 12 files",
    "10": "0 of 9 messages of the first are left|it has 4 of 4 results|accepts it: True",
}


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_prints_the_damage_and_then_ours(played, chapter):
    wanted = SAYS[chapter].split("|")
    assert [words for words in wanted if words not in played[chapter]] == []
    who = re.findall(r"(?m)^  (\w+)", played[chapter])
    assert who.index("naive") < who.index("damage") < len(who) - 1
    assert who[-1] == "ours"


@pytest.mark.parametrize("chapter", ["5", "7"])
def test_prices_are_those_of_the_stub_and_are_printed(played, chapter):
    words = f"counts {stub.CACHE_WRITE}, reading one {stub.CACHE_READ},"
    assert words in played[chapter]
    usages = [[500, 20_000, 100_000], [500, 0, 200_000]]
    cached = stub.CACHE_WRITE * 20_000 + stub.CACHE_READ * 300_000
    assert naive.bill(usages) == f"93% from the cache, price {1_000 + cached:,.0f}"


def test_the_printed_errors_are_those_of_the_stub(played):
    printed = re.findall(r"(?m)^  API +(.*)", "".join(played.values()))
    source = Path(stub.__file__).read_text(encoding="utf-8")
    nodes = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant)]
    literals = "".join(str(node.value) for node in nodes)
    assert len(printed) == 8
    for line in printed:
        words = re.sub(r"^messages\S+: |\d+ tokens.*", "", line)
        assert words[:24] in literals


def test_a_tutorials_mechanism_is_short_and_names_its_source():
    tutorials = r"(A cut|s06|s08|v5)\b"
    first = list(FUNCTIONS).index("understood")
    others = ("chapter_", "windows", "main", "edited")
    names = [n for n in list(FUNCTIONS)[first:] if not n.startswith(others)]
    assert len(names) >= 15
    for node in map(FUNCTIONS.get, names):
        assert node.end_lineno - node.lineno < 12
        assert re.match(tutorials, ast.get_docstring(node))
