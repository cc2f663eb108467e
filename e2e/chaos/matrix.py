"""The crash matrix: the operator dies before and after each write of a story, and every life must end alike.

Knows no controller. The undisturbed life tells which writes there are; a write is named by step, verb, resource and
its number among its kind in that step, because writes of different kinds go on side by side and their order is not
fixed. A life has one crash per step, or one in `spread` writes of a kind-by-kind list where that would take too long:
after a crash the next operator goes on from there, and has to reach the next one.

Compared after each step: the objects, and per object how often it was created and deleted. Not compared: the number
of status writes (a restarted operator may merge two into one) and Events (written in the background, and repeated by
an operator that does not know that it has said it).
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from e2e.chaos.apirequest import UNCOUNTED, ApiRequest
from e2e.chaos.faults import FaultClass
from e2e.chaos.life import Patience, Reference, StepRecord, play
from e2e.chaos.operators import OperatorFactory
from e2e.chaos.world import Ground, World

BEFORE, AFTER = FaultClass.CRASH_BEFORE_WRITE, FaultClass.CRASH_AFTER_WRITE


@dataclass(frozen=True, slots=True)
class Point:
    """One crash: before or after the `number`-th (from 1) accepted write of a kind in a step."""

    step: str
    kind: str
    number: int
    when: FaultClass

    def __str__(self) -> str:
        word = "before" if self.when is BEFORE else "after"
        return f"{self.step}: {word} {self.kind} #{self.number}"


Round = frozenset[Point]
"""The crashes of one life."""


def points_of(reference: Reference) -> list[Point]:
    """Return every crash point of a story: each counted write, and the first write of each kind that is not counted."""
    found: list[Point] = []
    background: set[str] = set()
    for step in reference.steps:
        counts = Counter(step.writes)
        for kind in dict.fromkeys(step.writes):
            if kind.split(" ")[1] in UNCOUNTED:
                if kind in background:
                    continue
                background.add(kind)
                counts[kind] = 1
            numbers = range(1, counts[kind] + 1)
            found += [Point(step.name, kind, number, when) for number in numbers for when in (BEFORE, AFTER)]
    return found


def one_per_kind(points: Iterable[Point]) -> list[Point]:
    """Return the first point of each kind of write and each side."""
    first: dict[tuple[str, FaultClass], Point] = {}
    for point in points:
        first.setdefault((point.kind, point.when), point)
    return list(first.values())


def rounds_of(points: Sequence[Point], *, spread: int | None = None) -> list[Round]:
    """Deal points to lives: one per step and life, or with `spread` every `spread`-th of a step into one life."""
    steps = list(dict.fromkeys(point.step for point in points))
    rounds: list[set[Point]] = []
    for when in (BEFORE, AFTER):
        by_step = [[p for p in points if p.step == step and p.when is when] for step in steps]
        count = spread or max((len(found) for found in by_step), default=0)
        rounds += [{p for found in by_step for p in found[offset::count]} for offset in range(count)]
    return [frozenset(found) for found in rounds if found]


@dataclass(slots=True)
class CrashAt:
    """A `Tamper` that crashes at the points of one life, each once."""

    world: World
    points: Round
    hit: set[Point] = field(default_factory=set)
    _step: str = ""
    _since: int = 0

    @property
    def current(self) -> str:
        """Return the step that goes on."""
        return self._step

    def begin(self, step: StepRecord) -> None:
        """Count anew: a step begins."""
        self._step, self._since = step.name, len(self.world.proxy.writes)

    def on_request(self, request: ApiRequest) -> FaultClass | None:
        """Crash when the request is the write of a point that was not hit yet."""
        if not request.is_write:
            return None
        kind = request.kind_of_write
        proxy = self.world.proxy
        accepted = sum(w.request.kind_of_write == kind and w.status < 300 for w in proxy.writes[self._since :])
        number = accepted + proxy.in_flight[kind] + 1
        for when in (BEFORE, AFTER):
            point = Point(self._step, kind, number, when)
            if point in self.points and point not in self.hit:
                self.hit.add(point)
                return when
        return None

    def on_event(self, _watch: ApiRequest, _event_type: str) -> FaultClass | None:
        """Leave streams alone."""
        return None

    def extent(self, _: FaultClass) -> float:
        """Return 0: a crash has no extent."""
        return 0.0


@dataclass(slots=True)
class MatrixReport:
    """What came of a matrix."""

    story: str
    points: int
    lives: int = 0
    crashes: int = 0
    hit: set[Point] = field(default_factory=set)
    missed: set[Point] = field(default_factory=set)
    """Writes that did not come again: two status writes merged into one, say."""
    divergences: list[str] = field(default_factory=list)
    states_checked: int = 0

    @property
    def kinds(self) -> dict[str, int]:
        """Return the crashes by kind of write."""
        return dict(sorted(Counter(point.kind for point in self.hit).items()))

    def unhit_kinds(self) -> set[str]:
        """Return kinds of writes at which no crash happened on one of the two sides."""
        hit = {(point.kind, point.when) for point in self.hit}
        return {f"{point.when}: {point.kind}" for point in self.missed if (point.kind, point.when) not in hit}


async def run_matrix(
    ground: Ground,
    reference: Reference,
    rounds: Sequence[Round],
    *,
    factory: Callable[[int], OperatorFactory],
    patience: Patience,
    advance: Callable[[MatrixReport], None] = lambda _: None,
) -> MatrixReport:
    """Play a life per round, as many side by side as the ground has worlds. `factory` gets the world's number."""
    report = MatrixReport(reference.story.name, points=len({point for found in rounds for point in found}))
    waiting = list(reversed(rounds))

    async def work(number: int) -> None:
        while waiting:
            found = waiting.pop()
            async with ground.world(number, factory(number)) as world:
                await _life(world, reference, found, patience, report)
            advance(report)

    async with asyncio.TaskGroup() as group:
        for number in range(len(ground.nodes)):
            group.create_task(work(number))
    return report


async def _life(world: World, reference: Reference, points: Round, patience: Patience, report: MatrixReport) -> None:
    tamper = CrashAt(world, points)
    world.proxy.tamper = tamper
    played = await play(world, reference, patience=patience, exact=True, on_step=tamper.begin)
    report.lives += 1
    report.crashes += sum(keeper.crashes for keeper in world.keepers)
    report.states_checked += world.observer.states
    report.hit |= tamper.hit
    report.missed |= points - tamper.hit
    where = ", ".join(sorted(str(point) for point in tamper.hit if point.step == tamper.current))
    report.divergences += [f"{text} [crashed {where or 'nowhere in this step'}]" for text in played.divergences]
