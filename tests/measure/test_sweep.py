"""Other numbers than agent.py's own: that they're in force, and that the tables have them."""

import json
import re

import costs
import moment
import pytest
import sweep
from builders import history, read, said
from prices import Meter
from recorded import Session
from stub import CACHE_READ, CACHE_WRITE

T = costs.limits({}).threshold


def reading(count, chars=6_000):
    """A conversation that reads files of this length one by one, then answers."""
    return history(*(read(f"{n}.py", "y" * chars) for n in range(count)), said("Done."))


@pytest.fixture
def limits(monkeypatch):
    """limits(numbers) returns the limits that agent.py gets."""
    monkeypatch.setattr(costs, "drive", lambda session, own, search: own)
    return lambda **numbers: sweep.clearing(Session([]), **numbers)


def test_a_third_of_t_and_seven_tenths_are_the_programs_own_numbers(limits):
    assert limits() == limits(savings=33, above=70) == costs.limits({})


@pytest.mark.parametrize(
    "numbers, least, above",
    [
        ({"savings": 8}, T // 12, 0.7 * T),
        ({"savings": 67}, 2 * T // 3, 0.7 * T),  # more than a setting can say
        ({"above": 50}, T // 3, T / 2),
        ({"above": 90}, T // 3, 0.9 * T),
    ],
)
def test_each_number_is_varied_alone(limits, numbers, least, above):
    found = limits(**numbers)
    assert (found.min_savings, found.clear_above) == (least, round(above))
    assert found.threshold == T


def test_alone_is_a_number_whose_cache_never_goes_cold(monkeypatch):
    seen = []
    monkeypatch.setattr(costs, "drive", lambda *given, search: seen.append(given))
    session = Session(reading(3))
    session.times = [400.0 * n for n in range(len(session.messages))]
    sweep.alone(session, 50)
    [(warm, own)] = seen
    assert (
        {*warm.times} == {0} and session.times[-1] > 0 and warm.needs == session.needs
    )
    assert (own.min_savings, own.clear_above) == (T // 2, 0)


@pytest.mark.slow
def test_the_best_size_of_a_clearing_is_where_both_of_its_costs_are_equal():
    """Of 40 requests, each brings 500 tokens that are cleared later."""
    meter = Meter(Session([]))
    meter.contexts, meter.rewritten = [0] * 40, [(30_000, 10_000)] * 2
    size = sweep.best([meter])
    written = (CACHE_WRITE - CACHE_READ) * 30_000 * 500 / size  # per request
    assert written == pytest.approx(CACHE_READ * size / 2)
    assert sweep.best([Meter(Session([]))]) == 0


@pytest.mark.slow
def test_without_failures_no_model_is_asked_for_a_summary():
    session = Session(reading(60, 9_000))
    own = [sweep.in_window(32_000, most) for most in sweep.FAILURES]
    asked, never = (costs.drive(session, one, search=False) for one in own)
    assert asked.summaries > never.summaries == 0
    assert max(never.contexts) < 32_000 and never.cost < asked.cost


@pytest.mark.slow
def test_the_moment_without_a_summary_has_a_note_in_its_place():
    session = Session(reading(70))
    own = [sweep.in_window(200_000, most) for most in sweep.FAILURES]
    asked, never = (moment.measure(session, own=one) for one in own)
    assert 2_400 < asked[0].tokens - never[0].tokens < 2_500


@pytest.mark.slow
def test_the_tables_have_a_column_for_each_number_and_a_row_for_each_window(
    tmp_path, capsys
):
    (path := tmp_path / "s").write_text("\n".join(map(json.dumps, reading(70))))
    assert sweep.main([str(path)]) == 0
    lines = " ".join(capsys.readouterr().out.split())
    assert re.search(r"SAVINGS, % of T 8 17 33 50 67 cost( [01]\.\d+){5} R", lines)
    assert re.search(r"ABOVE, % of T 50 60 70 80 90 cost( [01]\.\d+){5} R", lines)
    assert re.search(r"ALWAYS_WARM.* cost( [01]\.\d+){5} R( [01]\.\d+){5} best", lines)
    assert "MAX_FAILURES window cost R names lines commands typed tokens" in lines
    assert len(re.findall(r"[30] (?:200000|60000|32000)(?: [\d.,]+){7}", lines)) == 6


def test_a_file_without_a_session_is_reported_in_one_line(tmp_path, capsys):
    assert sweep.main([str(tmp_path / "none")]) == 1
    assert "No sessions to measure." in capsys.readouterr().err
