"""The files of the demo: a small library's program and its log, all made up.

No file of this repository is among them, so a change to one of ours changes no number
that the demo prints.
"""

from itertools import product

LOAN_DAYS, MAX_LOANS = 28, 12
REQUESTS, FAILED = 2_400, 15  # in the log
PAGES = "books", "loans", "members", "books"
WHICH = [
    ", the newest first",
    " that nobody has asked for this year",
    ", except those that are lost",
    " in the main branch",
    ", or all of them if the night run is late",
]
FIRST = '''

def {verb}_{noun}s_by_{other}({noun}s, {other}, most={most}):
    """{Verb} {noun}s by {other}{which}."""
'''
BODIES = """\
    found = [{noun} for {noun} in {noun}s if {noun}.{other} == {other}]
    return sorted(found, key=by_{other}, reverse=True)[:most]

    for {noun} in {noun}s:
        if {noun}.{other} and not {noun}.is_lost:
            yield {noun}.number, {noun}.{other}

    asked = "select number from {noun}s where {other} = ? limit ?"
    return rows(asked, {other}, most) or last_{noun}s({other})

    numbers = Counter({noun}.{other} for {noun} in {noun}s)
    return numbers.most_common(most) if numbers else []"""
FUNCTIONS = [f"{FIRST}{body}\n" for body in BODIES.split("\n\n")]
TEST = '''

@pytest.mark.parametrize("days, pence", [(0, 0), ({most}, {pence}), (365, 1_500)])
def test_{verb}_{noun}s_by_{other}(days, pence):
    """It must {verb} {noun}s by {other}{which}."""
    made = made_up("{noun}", {other}="{Verb} {most}", days=days)
    assert {verb}_{noun}s_by_{other}([made], made.{other}) == pence
'''
ROWS = "from collections import Counter\n\nfrom store import rows"
LIMITS = f"LOAN_DAYS = {LOAN_DAYS}\nMAX_LOANS = {MAX_LOANS}  # of one member"
SEARCHES = "from catalogue import find_books_by_word, rank_books_by_word"
CODE = {  # what a file is about, its head, and the words that its functions are made of
    "fees.py": (
        "Late fees, in pence.",
        ROWS,
        "charge waive",
        "fee",
        "loan day member branch age card month total due year desk",
    ),
    "loans.py": (
        "Lending and renewing.",
        f"{ROWS}\n\n{LIMITS}",
        "lend renew",
        "loan",
        "member book due shelf phone desk card",
    ),
    "catalogue.py": (
        "The catalogue, and how a search finds a book in it.",
        ROWS,
        "find rank count merge list",
        "book author",
        "title subject word year language",
    ),
    "pages.py": (
        "The pages that members see.",
        SEARCHES,
        "show print send",
        "letter receipt",
        "member loan fee day branch language",
    ),
}
TESTS = (
    "What a loan costs, and when.",
    "import pytest\n\nfrom store import made_up",
    "charge waive lend renew",
    "loan",
    "member book due shelf phone desk",
)


def module(functions, about, head, *words):
    """Return a file with a function for each combination of these words."""
    text = f'"""{about}"""\n\n{head}\n'
    for at, (verb, noun, other) in enumerate(product(*map(str.split, words))):
        given = {"verb": verb, "Verb": verb.capitalize(), "noun": noun, "other": other}
        most, which = 5 + 7 * at % 40, WHICH[at % len(WHICH)]
        template = functions[at % len(functions)]
        text += template.format(most=most, pence=20 * most, which=which, **given)
    return text


def log():
    """Yield the lines of a night's log."""
    for at in range(REQUESTS):
        minute, second = divmod(9 * at, 60)
        time = f"{1 + minute // 60:02}:{minute % 60:02}:{second:02}"
        book, wait = 1_000 + 7_919 * at % 8_999, 4 + at * at % 37
        if (at + 1) % (REQUESTS // FAILED) == 0:
            yield f"{time} ERROR 500 /loans/{book}/renew KeyError: 'due' in fees.py\n"
        else:
            yield f"{time} GET 200 /{PAGES[at % 4]}/{book} {wait} ms\n"
    yield f"{time} {REQUESTS:,} requests, {FAILED} failed\n"


def files():
    """Return the texts of all files, {name: text}."""
    code = {name: module(FUNCTIONS, *words) for name, words in CODE.items()}
    return {"night.log": "".join(log()), **code, "tests.py": module([TEST], *TESTS)}
