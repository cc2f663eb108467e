"""Which crashes a matrix makes, how they are dealt to lives, and what its report accepts."""

from collections import Counter

import pytest

from e2e.chaos.campaign import ROWS, CampaignReport, LifeReport
from e2e.chaos.faults import FaultClass
from e2e.chaos.life import Reference, StepRecord
from e2e.chaos.matrix import AFTER, BEFORE, MatrixReport, Point, one_per_kind, points_of, rounds_of
from e2e.chaos.story import Story


def step(name: str, *writes: str) -> StepRecord:
    return StepRecord(name, (), (), Counter(), Counter(), writes)


REFERENCE = Reference(
    Story("small", ()),
    (
        step("create", "create leases", "create pods", "patch leases", "create pods", "apply models/status"),
        step("delete", "patch leases", "delete pods"),
    ),
)


def test_every_write_is_crashed_before_and_after_and_the_background_once_per_kind() -> None:
    points = points_of(REFERENCE)
    expected = [
        ("create", "create leases", 1),
        ("create", "create pods", 1),
        ("create", "create pods", 2),
        ("create", "patch leases", 1),
        ("create", "apply models/status", 1),
        ("delete", "delete pods", 1),
    ]

    assert points == [Point(*found, when) for found in expected for when in (BEFORE, AFTER)]
    assert REFERENCE.counted_writes == 4


def test_one_per_kind_keeps_both_sides() -> None:
    found = one_per_kind(points_of(REFERENCE))

    assert len(found) == len(set(found)) == 10
    assert all(point.number == 1 for point in found)


@pytest.mark.parametrize("spread", [None, 1, 2, 3])
def test_each_point_is_dealt_to_exactly_one_life(spread: int | None) -> None:
    points = points_of(REFERENCE)
    rounds = rounds_of(points, spread=spread)

    assert sorted((p for found in rounds for p in found), key=str) == sorted(points, key=str)
    for found in rounds:
        assert len({point.when for point in found}) == 1
        if spread is None:
            assert max(Counter(point.step for point in found).values()) == 1


def test_a_kind_that_was_never_hit_is_named() -> None:
    first, second = Point("create", "create pods", 1, BEFORE), Point("create", "create pods", 2, BEFORE)
    other = Point("create", "create pods", 1, AFTER)
    report = MatrixReport("small", points=3, hit={first}, missed={second})
    assert report.unhit_kinds() == set()

    report.missed.add(other)
    assert report.unhit_kinds() == {"crash-after-write: create pods"}


def life(row: str, **changes: object) -> LifeReport:
    values: dict[str, object] = {
        "row": row,
        "seed": 3,
        "story": "small",
        "injected": Counter(dict.fromkeys(ROWS[row], 1)),
        "steps": 4,
        "divergences": [],
        "violations": [],
        "unrest": [],
        "writes": 9,
        "fight": False,
        "crashes": 0,
        "ended_by_themselves": 0,
        "states_checked": 10,
        "seconds": 1.0,
    }
    return LifeReport(**(values | changes))  # type: ignore[arg-type]


def test_a_good_campaign_passes() -> None:
    assert not CampaignReport([life("conflict"), life("mixed")]).failed()


@pytest.mark.parametrize(
    "bad",
    [
        {"divergences": ["create: missing Pod"]},
        {"violations": ["n1: 3 of 2 GPUs"]},
        {"unrest": ["written at rest: patch pods a"]},
        {"fight": True},
        {"injected": Counter()},
    ],
)
def test_a_bad_life_fails_the_campaign(bad: dict[str, object]) -> None:
    report = CampaignReport([life("conflict"), life("watch-cut", **bad)])

    assert report.failed()
    assert report.idle_rows() == (["watch-cut"] if "injected" in bad else [])


def test_a_row_is_idle_only_when_no_seed_met_its_fault() -> None:
    idle = life("conflict", injected=Counter())
    assert CampaignReport([idle]).idle_rows() == ["conflict"]
    assert CampaignReport([idle, life("conflict")]).idle_rows() == []

    partly = life("time-travel", injected=Counter({FaultClass.STALE_LIST: 2}))
    assert CampaignReport([partly]).idle_rows() == ["time-travel"]


def test_of_all_faults_at_once_some_must_have_happened() -> None:
    some = life("mixed", injected=Counter({FaultClass.CONFLICT: 1}))
    assert CampaignReport([some]).idle_rows() == []
    assert CampaignReport([life("mixed", injected=Counter())]).idle_rows() == ["mixed"]


def test_every_class_has_a_row_and_a_command_that_plays_it_again() -> None:
    assert {fault for chances in ROWS.values() for fault in chances} == set(FaultClass)
    assert {fault.value for fault in FaultClass} <= set(ROWS)
    assert life("conflict").command == "python -m e2e.chaos --only conflict --seed 3 --story small"
