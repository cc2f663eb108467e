"""Demand from gateways and engines: which of them counts, what is a lower bound, and what nobody can say."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from bayplan.planning.measurements import Measured, Unknown
from bayplan.planning.scaling.demand import DoorReading, EngineReading, Sources, measure_demand
from bayplan.planning.scaling.seed import Observation

NOW = Fraction(1000)
LEAST = Fraction(7, 10)
LOST = Unknown("lost")


def door(
    at: int, demand: Measured | int, queued: Measured | int = 0, run: str = "a", output: Measured | int = 0
) -> DoorReading:
    return DoorReading(Fraction(at), run, _measured(demand), _measured(output), _measured(queued))


def engine(at: int, served: Measured | int, waiting: Measured | int = 0, run: str = "a") -> EngineReading:
    return EngineReading(Fraction(at), run, _measured(served), _measured(waiting))


def _measured(value: Measured | int) -> Measured:
    return value if isinstance(value, Unknown) else Fraction(value)


def measure(
    *,
    doors: dict[str, Any] | None = None,
    engines: dict[str, Any] | None = None,
    expected_gateways: tuple[str, ...] | None = None,
    expected_engines: tuple[str, ...] | None = None,
) -> Observation:
    doors, engines = doors or {}, engines or {}
    sources = Sources(
        gateways=frozenset(doors if expected_gateways is None else expected_gateways),
        engines=frozenset(engines if expected_engines is None else expected_engines),
    )
    return measure_demand(sources, doors=doors, engines=engines, now_seconds=NOW, least_coverage=LEAST)


def test_what_arrives_at_all_doors_is_demand_and_what_waits_anywhere_is_queued() -> None:
    seen = measure(
        doors={"g1": (door(980, 100), door(990, 1100, 30)), "g2": (door(980, 0), door(990, 500, 10))},
        engines={"e1": (engine(980, 0), engine(990, 200, 7))},
    )

    assert (seen.arrival_tokens_per_second, seen.queued_tokens) == (150, 47)
    assert (seen.at_seconds, seen.coverage) == (990, 1)


@pytest.mark.parametrize(
    ("ended", "promised", "rate", "queued"),
    [(100, 400, 100, 50), (500, 400, 250, 125), (0, 0, 250, 125), (LOST, 400, 250, 125), (100, LOST, 250, 125)],
)
def test_promised_output_counts_by_the_share_that_is_used(
    ended: Measured | int, promised: Measured | int, rate: int, queued: int
) -> None:
    busy = replace(engine(990, 0), ended_tokens=_measured(ended), promised_tokens=_measured(promised))
    seen = measure(
        doors={"g1": (door(980, 0, output=0), door(990, 500, 125, output=2000))}, engines={"e1": (engine(980, 0), busy)}
    )

    assert (seen.arrival_tokens_per_second, seen.queued_tokens) == (rate, queued)


def test_work_that_came_past_the_gateway_counts_too() -> None:
    seen = measure(doors={"g1": (door(980, 0), door(990, 0))}, engines={"e1": (engine(980, 0), engine(990, 3000))})

    assert seen.arrival_tokens_per_second == 300


def test_without_a_gateway_a_growing_queue_is_demand_that_was_not_served() -> None:
    seen = measure(engines={"e1": (engine(980, 0, 0), engine(990, 1000, 2000))})

    assert (seen.arrival_tokens_per_second, seen.queued_tokens) == (300, 2000)


def test_a_queue_that_shrinks_takes_nothing_from_what_is_served() -> None:
    seen = measure(engines={"e1": (engine(980, 0, 2000), engine(990, 1000, 0))})

    assert (seen.arrival_tokens_per_second, seen.queued_tokens) == (100, 0)


def test_nobody_to_ask_is_unknown_and_not_idle() -> None:
    seen = measure()

    assert isinstance(seen.arrival_tokens_per_second, Unknown)
    assert isinstance(seen.queued_tokens, Unknown)
    assert seen.at_seconds == NOW


@pytest.mark.parametrize(("answering", "rate", "coverage"), [(3, 400, 1), (2, 200, Fraction(1, 2))])
def test_enough_answers_stand_for_all_and_too_few_are_a_lower_bound(
    answering: int, rate: int, coverage: Fraction
) -> None:
    every = ("e0", "e1", "e2", "e3")
    engines = {uid: (engine(980, 0), engine(990, 1000)) for uid in every[:answering]}

    seen = measure(engines=engines, expected_engines=every)

    assert (seen.arrival_tokens_per_second, seen.coverage) == (rate, coverage)


def test_a_silent_gateway_makes_the_rest_a_lower_bound() -> None:
    seen = measure(engines={"e1": (engine(980, 0), engine(990, 1000))}, expected_gateways=("g1",))

    assert (seen.arrival_tokens_per_second, seen.coverage) == (100, 0)


def test_a_counter_that_began_anew_is_a_lower_bound() -> None:
    restarted = measure(engines={"e1": (engine(980, 9000, run="a"), engine(990, 50, run="b"))})
    fallen = measure(engines={"e1": (engine(980, 9000), engine(990, 50))})

    for seen in (restarted, fallen):
        assert (seen.arrival_tokens_per_second, seen.coverage) == (5, 0)


def test_a_new_pod_has_no_rate_yet_and_a_vanished_one_no_say() -> None:
    engines = {"gone": (engine(980, 0), engine(990, 9000)), "old": (engine(980, 0), engine(990, 100))}
    engines["new"] = (None, engine(990, 70))  # type: ignore[assignment]

    seen = measure(engines=engines, expected_engines=("old", "new"))

    assert (seen.arrival_tokens_per_second, seen.coverage) == (10, Fraction(1, 2))


def test_a_number_that_is_not_known_is_not_zero() -> None:
    seen = measure(engines={"e1": (engine(980, 0), engine(990, LOST, LOST))})

    assert isinstance(seen.arrival_tokens_per_second, Unknown)
    assert isinstance(seen.queued_tokens, Unknown)
    assert seen.coverage == 0


def test_the_oldest_reading_says_how_old_the_whole_is() -> None:
    seen = measure(
        doors={"g1": (door(970, 0), door(985, 0))},
        engines={"e1": (engine(980, 0), engine(995, 0)), "gone": (None, engine(900, 0))},
        expected_engines=("e1",),
    )

    assert seen.at_seconds == 985


def test_a_reading_that_is_not_later_than_the_one_before_has_no_rate() -> None:
    seen = measure(engines={"e1": (engine(990, 0), engine(990, 500))})

    assert isinstance(seen.arrival_tokens_per_second, Unknown)
