"""The gateway's benchmark: what its parts find when there is something to find."""

from typing import Any

import pytest

from bayplan.planning.admission.ledger import Account, Ledger
from bench.decisions import decision_times, random_holds
from bench.gateway import BARS, missed, value
from bench.overload import goodput


def test_admission_keeps_the_good_throughput_that_the_bare_engine_loses() -> None:
    runs = {
        (load, admission): goodput(load, seeds=[1], seconds=20, warm_up=30, admission=admission)
        for load, admission in ((0.5, True), (0.5, False), (5.0, True), (5.0, False))
    }
    rates = {key: rate for key, (rate, _) in runs.items()}
    assert rates[0.5, True] == pytest.approx(rates[0.5, False], rel=0.05)
    assert rates[5.0, True] > 1.5 * rates[0.5, True]
    assert rates[5.0, False] < 0.05 * rates[0.5, True]
    (with_admission,), (without,) = runs[5.0, True][1], runs[5.0, False][1]
    assert with_admission.sheds > 100
    assert without.timeouts > 100


def test_same_seed_gives_the_same_run() -> None:
    first, second = (goodput(1.3, seeds=[5], seconds=10, warm_up=5, admission=True) for _ in range(2))
    assert first == second


def test_random_life_finds_nothing_in_the_core_as_it_is() -> None:
    found = random_holds(events=3000, seed=3)
    assert (found.leaked, found.double, found.left_over) == (0, 0, 0)
    assert found.admitted > 300


def test_random_life_finds_a_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    give_back = Ledger.give_back

    def forgets_a_block(self: Ledger, hold: Any) -> None:
        give_back(self, hold)
        hold.account.free_blocks -= hold.ticket % 100 == 0

    monkeypatch.setattr(Ledger, "give_back", forgets_a_block)
    assert random_holds(events=3000, seed=3).leaked > 0


def test_random_life_finds_a_double_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Account, "fits", lambda self, footprint: footprint.within(self.limit))
    assert random_holds(events=3000, seed=3).double > 0


def test_decisions_are_timed_with_and_without_pressure() -> None:
    calm, pressed = (decision_times(pressure=pressure, decisions=4000, seed=1) for pressure in (0.5, 5.0))
    assert calm.shed_share == 0
    assert pressed.shed_share > 0.2
    assert 0 < calm.p50 <= calm.p99


def test_report_names_what_was_missed_and_passes_over_what_was_not_measured() -> None:
    report = {"goodput": {"5": 0.79}, "leaked": 0, "cpu_us_per_chunk": 45.1, "shed_contract": 1.0}
    assert [line.partition(":")[0] for line in missed(report)] == ["goodput.5", "cpu_us_per_chunk"]
    assert value(report, "goodput.5") == 0.79
    assert value(report, "double") is None
    assert set(BARS) >= {"decision_p99_us", "cpu_us_per_request", "goodput_without_admission.5"}
