"""The operator dies before and after every write of a model's life, and the life ends as if it had not."""

import pytest

from e2e.chaos.matrix import one_per_kind, points_of, rounds_of, run_matrix
from e2e.chaos.world import Ground
from tests.chaos.conftest import PATIENCE, References, operators, reference_of

SPREAD = 7
"""A life has a crash at every seventh write of a step: the whole matrix in 14 lives instead of 50."""
LEAST_HIT = 0.75
"""Of the status writes some are merged into one after a crash, and then one point is not there to be hit."""

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(900)]


async def test_every_crash_ends_in_the_undisturbed_state(ground: Ground, references: References) -> None:
    reference = await reference_of("replicas", ground, references)
    points = points_of(reference)
    assert len(points) >= 60, "the story writes enough to crash at"
    async with operators(ground) as factories:
        report = await run_matrix(
            ground,
            reference,
            rounds_of(points, spread=SPREAD),
            factory=lambda world: factories[world],
            patience=PATIENCE,
        )

    assert report.divergences == []
    assert report.unhit_kinds() == set()
    assert len(report.hit) >= LEAST_HIT * report.points, sorted(str(point) for point in report.missed)
    assert report.crashes == len(report.hit)
    assert report.states_checked > report.lives


@pytest.mark.parametrize(
    ("story", "statuses"),
    [
        ("scaling", {"inferencemodels"}),
        ("rollout", {"inferencemodels", "rollouts"}),
        ("plan", {"inferencemodels", "capacityplans"}),
    ],
)
async def test_a_crash_at_each_kind_of_write_loses_no_decision(
    story: str, statuses: set[str], ground: Ground, references: References
) -> None:
    reference = await reference_of(story, ground, references)
    points = one_per_kind(points_of(reference))
    kinds = {point.kind for point in points}
    wanted = {"create pods", "patch pods", "delete pods"} | {f"apply {plural}/status" for plural in statuses}
    assert wanted <= kinds
    async with operators(ground) as factories:
        report = await run_matrix(
            ground,
            reference,
            rounds_of(points, spread=2),
            factory=lambda world: factories[world],
            patience=PATIENCE,
        )

    assert report.divergences == []
    # A renewal comes with the clock, not with the story; the matrix above crashes at one.
    assert {kind for kind in report.unhit_kinds() if not kind.endswith(" leases")} == set()
    # Two points that are met by writes side by side are one crash.
    assert LEAST_HIT * len(report.hit) <= report.crashes <= len(report.hit)
