"""A real operator process, stopped in the middle of its work; `make chaos` also kills some at each kind of write."""

import pytest

from e2e.chaos.pairs import PausedLeader, play_pair
from e2e.chaos.suite import PATIENCE, REST_SECONDS, pause, processes
from e2e.chaos.world import Ground
from tests.chaos.conftest import References, reference_of

IN_FLIGHT = 2
"""Writes that a process may have asked leave for, and not sent, at the moment at which it was stopped."""

pytestmark = [pytest.mark.apiserver, pytest.mark.scenario, pytest.mark.timeout(900)]


async def test_a_stopped_leader_that_wakes_up_writes_nothing_more(ground: Ground, references: References) -> None:
    reference = await reference_of("replicas", ground, references)
    async with ground.world(0) as world:
        keepers = (
            await world.keep(processes(ground), name="first"),
            await world.keep(processes(ground), name="second"),
        )
        disturbance = PausedLeader(world, keepers, pause=pause)
        report = await play_pair("paused", world, reference, disturbance, patience=PATIENCE, rest_seconds=REST_SECONDS)

    assert report.problems == []
    assert report.disturbances >= 2
    assert min(report.writes.values()) > 0, "the other one took over"
    assert report.writes_of_former_leaders <= IN_FLIGHT
    assert report.ended_by_themselves >= 1, "who was replaced ended"
