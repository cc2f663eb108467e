"""The same life under each class of faults, by seed: `make chaos` plays more of them, with real processes."""

import pytest

from e2e.chaos.campaign import ROWS, run_campaign
from e2e.chaos.world import Ground
from tests.chaos.conftest import PATIENCE, References, operators, reference_of

SEED = 1
GROUPS = {
    "writes": ["conflict", "throttled", "error-after-success", "silence-after-success", "html"],
    "reads": ["stale-list", "stale-get", "frozen-kind", "time-travel"],
    "watches": [row for row in ROWS if row.startswith("watch-")],
    "all at once": ["mixed"],
}
"""`invalid` waits for half a minute after each refused creation, and the crashes have a matrix of their own."""

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(600)]


@pytest.mark.parametrize("rows", GROUPS.values(), ids=GROUPS)
async def test_a_disturbed_life_ends_as_an_undisturbed_one(
    rows: list[str], ground: Ground, references: References
) -> None:
    await play_disturbed("replicas", rows, ground, references)


async def test_a_disturbed_life_that_scales_ends_as_an_undisturbed_one(ground: Ground, references: References) -> None:
    await play_disturbed("scaling", ["frozen-kind", "watch-cut", "time-travel", "mixed"], ground, references)


@pytest.mark.parametrize("story", ["rollout", "plan"])
async def test_a_disturbed_decision_ends_as_an_undisturbed_one(
    story: str, ground: Ground, references: References
) -> None:
    await play_disturbed(story, ["frozen-kind", "time-travel"], ground, references)


async def play_disturbed(story: str, rows: list[str], ground: Ground, references: References) -> None:
    reference = await reference_of(story, ground, references)
    async with operators(ground) as factories:
        report = await run_campaign(
            ground,
            reference,
            rows=rows,
            seeds=[SEED],
            factory=lambda world: factories[world],
            patience=PATIENCE,
            rest_seconds=1.5,
        )

    assert {life.command: life.problems for life in report.lives if life.problems} == {}
    assert report.idle_rows() == []
