"""Fault campaigns: one story under each class of faults, with several seeds.

Every life must converge, step by step, to where the undisturbed one did, with no GPU given twice in any state, and be
quiet at its end. A row in which its own fault never happened has proven nothing, and fails.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from e2e.chaos.faults import FaultClass, FaultPlan, SeededFaults
from e2e.chaos.life import Patience, Reference, play, rest
from e2e.chaos.operators import CONFIGURATION, IMPATIENT, OperatorFactory
from e2e.chaos.world import Ground, World

SINGLE: Mapping[FaultClass, float] = {
    FaultClass.CRASH_BEFORE_WRITE: 0.15,
    FaultClass.CRASH_AFTER_WRITE: 0.15,
    FaultClass.CONFLICT: 0.25,
    FaultClass.INVALID: 0.25,
    FaultClass.THROTTLED: 0.25,
    FaultClass.ERROR_AFTER_SUCCESS: 0.25,
    FaultClass.SILENCE_AFTER_SUCCESS: 0.15,
    FaultClass.HTML: 0.15,
    FaultClass.STALE_LIST: 0.5,
    FaultClass.STALE_GET: 0.8,
    FaultClass.FROZEN_KIND: 0.08,
    FaultClass.WATCH_DROPPED: 0.15,
    FaultClass.WATCH_DELAYED: 0.2,
    FaultClass.WATCH_DUPLICATED: 0.3,
    FaultClass.WATCH_CUT: 0.15,
    FaultClass.WATCH_SILENT: 0.1,
    FaultClass.WATCH_EXPIRED: 0.5,
    FaultClass.WATCH_ERROR: 0.08,
}
"""Chance at each opportunity."""
MIXED = "mixed"
ROWS: Mapping[str, Mapping[FaultClass, float]] = {
    **{fault.value: {fault: chance} for fault, chance in SINGLE.items()},
    # A restarted operator remembers nothing; what it is told first is old.
    "time-travel": {FaultClass.STALE_LIST: 0.5, FaultClass.CRASH_AFTER_WRITE: 0.12},
    MIXED: {fault: chance / 6 for fault, chance in SINGLE.items()},
}
SILENCE = frozenset({FaultClass.SILENCE_AFTER_SUCCESS, FaultClass.WATCH_SILENT})
WRITES_FACTOR = 2
WRITES_PER_FAULT = 12
"""More writes than these times the undisturbed life's, plus these per injected fault, are a fight."""


@dataclass(slots=True)
class LifeReport:
    """One life of a row."""

    row: str
    seed: int
    story: str
    injected: Counter[FaultClass]
    steps: int
    divergences: list[str]
    violations: list[str]
    unrest: list[str]
    """What happened when all was over and nothing should."""
    writes: int
    fight: bool
    crashes: int
    ended_by_themselves: int
    states_checked: int
    seconds: float

    @property
    def problems(self) -> list[str]:
        """Return what went wrong; empty for a good life."""
        found = [*self.divergences, *self.violations, *self.unrest[:5]]
        if self.fight:
            found.append(f"{self.writes} writes are a fight")
        return found

    @property
    def command(self) -> str:
        """Return what plays the same life again."""
        return f"python -m e2e.chaos --only {self.row} --seed {self.seed} --story {self.story}"


@dataclass(slots=True)
class CampaignReport:
    """All lives of a campaign."""

    lives: list[LifeReport] = field(default_factory=list)

    def injected(self, row: str) -> Counter[FaultClass]:
        """Return what was injected in a row, all seeds together."""
        return sum((life.injected for life in self.lives if life.row == row), Counter())

    def idle_rows(self) -> list[str]:
        """Return rows in which one of their faults never happened; of all at once, some are enough."""
        rows = dict.fromkeys(life.row for life in self.lives)
        needed = {row: any if row == MIXED else all for row in rows}
        return [row for row in rows if not needed[row](self.injected(row)[fault] > 0 for fault in ROWS[row])]

    def failed(self) -> bool:
        """Whether something diverged, was written at rest, or was not tried at all."""
        return bool(self.idle_rows()) or any(life.problems for life in self.lives)


async def run_campaign(
    ground: Ground,
    reference: Reference,
    *,
    rows: Iterable[str],
    seeds: Sequence[int],
    factory: Callable[[int], OperatorFactory],
    patience: Patience,
    rest_seconds: float,
    limit: int = 8,
    advance: Callable[[LifeReport], None] = lambda _: None,
) -> CampaignReport:
    """Play a life per row and seed, as many side by side as the ground has worlds."""
    report = CampaignReport()
    waiting = [(row, seed) for row in rows for seed in seeds]
    waiting.reverse()

    async def work(number: int) -> None:
        while waiting:
            row, seed = waiting.pop()
            plan = FaultPlan(seed=seed, chances=ROWS[row], limit=limit)
            async with ground.world(number) as world:
                life = await _life(
                    world,
                    reference,
                    row=row,
                    plan=plan,
                    factory=factory(number),
                    patience=patience,
                    rest_seconds=rest_seconds,
                )
            report.lives.append(life)
            advance(life)

    async with asyncio.TaskGroup() as group:
        for number in range(len(ground.nodes)):
            group.create_task(work(number))
    return report


async def _life(
    world: World,
    reference: Reference,
    *,
    row: str,
    plan: FaultPlan,
    factory: OperatorFactory,
    patience: Patience,
    rest_seconds: float,
) -> LifeReport:
    started = time.monotonic()
    faults = SeededFaults(plan)
    world.proxy.tamper = faults
    silent = not SILENCE.isdisjoint(plan.chances)
    keeper = await world.keep(factory, configuration=CONFIGURATION | (IMPATIENT if silent else {}))
    played = await play(world, reference, patience=patience, exact=False)
    faults.stop()
    unrest = [] if played.divergences else await rest(world, reference, rest_seconds, patience=patience)
    writes = len(world.proxy.counted_writes())
    injected = world.proxy.injected
    limit = WRITES_FACTOR * reference.counted_writes + WRITES_PER_FAULT * injected.total()
    return LifeReport(
        row=row,
        seed=plan.seed,
        story=reference.story.name,
        injected=Counter(injected),
        steps=played.steps,
        divergences=played.divergences,
        violations=list(world.observer.violations),
        unrest=unrest,
        writes=writes,
        fight=writes > limit,
        crashes=keeper.crashes,
        ended_by_themselves=keeper.ends,
        states_checked=world.observer.states,
        seconds=time.monotonic() - started,
    )
