"""Two operators at once: a stolen Lease, a leader that was paused and wakes up, two that both believe they lead.

Each plays a story and is disturbed in every step that writes. What must hold is what holds for one: the same end of
every step, no GPU twice in any state, no end of writes (a fight), and silence in the end.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from e2e.chaos.campaign import WRITES_FACTOR, WRITES_PER_FAULT
from e2e.chaos.life import Patience, Reference, StepRecord, play, rest
from e2e.chaos.operators import Keeper
from e2e.chaos.world import World
from e2e.localcluster.client import ApiError

LEASE = "/apis/coordination.k8s.io/v1/namespaces/{}/leases/bayplan-operator"
POLL_SECONDS = 0.02
THIEF = "thief"


@dataclass(slots=True)
class PairReport:
    """What came of one story with two operators."""

    name: str
    disturbances: int = 0
    steps: int = 0
    writes: dict[str, int] = field(default_factory=dict)
    """Accepted writes by operator."""
    writes_of_former_leaders: int = 0
    """Writes that a paused leader still did after it woke up: what it had asked for before, at most."""
    ended_by_themselves: int = 0
    states_checked: int = 0
    problems: list[str] = field(default_factory=list)


class Disturbance:
    """What is done to two operators in each step. The base does nothing: two of them are disturbance enough."""

    def __init__(self, world: World, keepers: tuple[Keeper, Keeper]) -> None:
        self.world = world
        self.keepers = keepers
        self.count = 0
        self.late_writes = 0

    async def during(self, mark: int) -> None:
        """Act while the step goes on; it begins with write number `mark`."""

    async def after(self) -> None:
        """Act once the step has converged."""

    async def first_writer(self, mark: int) -> Keeper:
        """Return whose operator does the first write of the step."""
        while True:
            writes = self.world.proxy.counted_writes(since=mark)
            if writes:
                return next(k for k in self.keepers if writes[0].door.startswith(f"{k.name}-"))
            await asyncio.sleep(POLL_SECONDS)


class StolenLease(Disturbance):
    """Somebody else writes its name into the Lease, and is never heard of again."""

    async def during(self, mark: int) -> None:
        """Steal once the leader is at work."""
        await self.first_writer(mark)
        await steal(self.world)
        self.count += 1


class PausedLeader(Disturbance):
    """The leader is stopped in the middle of its work, replaced, and wakes up when the step is done."""

    def __init__(
        self,
        world: World,
        keepers: tuple[Keeper, Keeper],
        *,
        pause: Callable[[Keeper], Callable[[], None]],
        wake_seconds: float = 3.0,
    ) -> None:
        super().__init__(world, keepers)
        self._pause = pause
        self._wake_seconds = wake_seconds
        self._paused: tuple[str, Callable[[], None]] | None = None

    async def during(self, mark: int) -> None:
        """Stop whoever writes."""
        keeper = await self.first_writer(mark)
        assert keeper.door is not None
        self._paused = (keeper.door.name, self._pause(keeper))
        self.count += 1

    async def after(self) -> None:
        """Let it wake up, and count what it still writes as the leader that it was."""
        if self._paused is None:
            return
        door, resume = self._paused
        self._paused = None
        mark = len(self.world.proxy.writes)
        resume()
        await asyncio.sleep(self._wake_seconds)
        self.late_writes += sum(write.door == door for write in self.world.proxy.counted_writes(since=mark))


async def steal(world: World, *, holder: str = THIEF) -> None:
    """Write another holder into the Lease."""
    path = LEASE.format(world.scope.lease_namespace)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())
    try:
        await world.ground.api.patch(path, {"spec": {"holderIdentity": holder, "renewTime": stamp}})
    except ApiError as error:
        if error.status != 404:
            raise


async def play_pair(
    name: str,
    world: World,
    reference: Reference,
    disturbance: Disturbance,
    *,
    patience: Patience,
    rest_seconds: float,
) -> PairReport:
    """Play the story of a reference while the disturbance acts in each of its steps that writes."""
    report = PairReport(name)
    acts: list[asyncio.Task[None]] = []

    async def end_act() -> None:
        while acts:
            act = acts.pop()
            if not act.done():
                act.cancel()
            await asyncio.gather(act, return_exceptions=True)
        await disturbance.after()

    def begin(step: StepRecord) -> None:
        if any(not kind.endswith(("leases", "events")) for kind in step.writes):
            acts.append(asyncio.create_task(disturbance.during(len(world.proxy.writes))))

    played = await play(world, reference, patience=patience, exact=False, on_step=begin, after_step=end_act)
    await end_act()
    report.steps = played.steps
    report.problems += played.divergences
    report.problems += world.observer.violations
    if not played.divergences:
        report.problems += (await rest(world, reference, rest_seconds, patience=patience))[:5]
    writes = world.proxy.counted_writes()
    for keeper in disturbance.keepers:
        report.writes[keeper.name] = sum(write.door.startswith(f"{keeper.name}-") for write in writes)
    report.disturbances = disturbance.count
    limit = 2 * WRITES_FACTOR * reference.counted_writes + 2 * WRITES_PER_FAULT * disturbance.count
    if len(writes) > limit:
        report.problems.append(f"{len(writes)} writes are a fight (limit {limit})")
    report.writes_of_former_leaders = disturbance.late_writes
    report.ended_by_themselves = sum(keeper.ends for keeper in disturbance.keepers)
    report.states_checked = world.observer.states
    return report
