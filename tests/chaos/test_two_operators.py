"""Two operators at once: neither a stolen Lease, nor a clock that jumps, nor two leaders give a GPU away twice."""

from datetime import timedelta

import pytest

from e2e.chaos.operators import CONFIGURATION, SHORT_LEASE, Keeper
from e2e.chaos.pairs import Disturbance, PairReport, StolenLease, play_pair
from e2e.chaos.scope import Scope
from e2e.chaos.world import Ground, World
from e2e.scenarios.stack import NAMESPACE
from tests.chaos.conftest import PATIENCE, References, reference_of
from tests.chaos.inprocess import InProcess, JumpClock, WallClock

REST_SECONDS = 2.0

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(600)]


class Pair:
    """Two in-process operators with identities and clocks of their own."""

    def __init__(self, ground: Ground) -> None:
        self.clocks = [JumpClock(), JumpClock()]
        self.dates = [WallClock(), WallClock()]
        self.factories = [
            InProcess(ground.token, identity=name, clock=clock, now=date)
            for name, clock, date in zip(("first", "second"), self.clocks, self.dates, strict=True)
        ]

    async def keep(self, world: World, *, both_lead: bool = False) -> tuple[Keeper, Keeper]:
        own = Scope(world.namespace, world.scope.node_selector, lease_namespace=NAMESPACE)
        times = CONFIGURATION if both_lead else CONFIGURATION | SHORT_LEASE
        first = await world.keep(self.factories[0], name="first", configuration=times)
        second = await world.keep(
            self.factories[1], name="second", configuration=times, scope=own if both_lead else None
        )
        return first, second

    def of(self, keeper: Keeper) -> int:
        return 0 if keeper.name == "first" else 1

    async def close(self) -> None:
        for factory in self.factories:
            await factory.close()


class JumpingLeader(Disturbance):
    """The leader's monotonic clock jumps, as after a suspension that its timers slept through."""

    def __init__(self, world: World, keepers: tuple[Keeper, Keeper], pair: Pair) -> None:
        super().__init__(world, keepers)
        self._pair = pair

    async def during(self, mark: int) -> None:
        self._pair.clocks[self._pair.of(await self.first_writer(mark))].jump(600)
        self.count += 1


class JumpingStandby(JumpingLeader):
    """The standby's clock jumps: it takes the leader for dead and takes its Lease."""

    async def during(self, mark: int) -> None:
        self._pair.clocks[1 - self._pair.of(await self.first_writer(mark))].jump(600)
        self.count += 1


class WrongDate(JumpingLeader):
    """The leader's wall clock is set, by an hour forward in one step and back again in the next."""

    async def during(self, mark: int) -> None:
        date = self._pair.dates[self._pair.of(await self.first_writer(mark))]
        date.ahead += timedelta(hours=1) if self.count % 2 == 0 else timedelta(hours=-2)
        self.count += 1


async def played(disturb: type[JumpingLeader] | None, story: str, ground: Ground, references: References) -> PairReport:
    reference = await reference_of(story, ground, references)
    pair = Pair(ground)
    try:
        async with ground.world(0) as world:
            keepers = await pair.keep(world, both_lead=disturb is None)
            disturbance = disturb(world, keepers, pair) if disturb is not None else Disturbance(world, keepers)
            return await play_pair(story, world, reference, disturbance, patience=PATIENCE, rest_seconds=REST_SECONDS)
    finally:
        await pair.close()


@pytest.mark.parametrize("story", ["replicas", "groups"])
async def test_two_leaders_end_where_one_does_and_rest(story: str, ground: Ground, references: References) -> None:
    report = await played(None, story, ground, references)

    assert report.problems == []
    assert min(report.writes.values()) > 0, "both led"
    assert report.ended_by_themselves == 0


async def test_a_stolen_lease_stops_its_holder_and_another_goes_on(ground: Ground, references: References) -> None:
    reference = await reference_of("replicas", ground, references)
    pair = Pair(ground)
    try:
        async with ground.world(0) as world:
            disturbance = StolenLease(world, await pair.keep(world))
            report = await play_pair(
                "stolen", world, reference, disturbance, patience=PATIENCE, rest_seconds=REST_SECONDS
            )
    finally:
        await pair.close()

    assert report.problems == []
    assert report.disturbances >= 2
    assert report.ended_by_themselves >= 1, "who lost the Lease ended"


@pytest.mark.parametrize("disturb", [JumpingLeader, JumpingStandby])
async def test_a_monotonic_clock_that_jumps_starts_no_fight(
    disturb: type[JumpingLeader], ground: Ground, references: References
) -> None:
    report = await played(disturb, "replicas", ground, references)

    assert report.problems == []
    assert report.disturbances >= 2


@pytest.mark.parametrize("story", ["replicas", "groups"])
async def test_a_wall_clock_that_is_set_loses_no_group(story: str, ground: Ground, references: References) -> None:
    report = await played(WrongDate, story, ground, references)

    assert report.problems == []
    assert report.disturbances >= 2
