"""Playing a story in a world until each step has come to rest, and comparing it with the undisturbed life."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from e2e.chaos.apirequest import UNCOUNTED
from e2e.chaos.normalise import difference
from e2e.chaos.story import Step, Story
from e2e.chaos.world import World

Counts = Counter[tuple[str, str]]
"""By kind and normalised name."""
POLL_SECONDS = 0.02


class DivergedError(Exception):
    """A step did not end as the undisturbed life did."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds."""

    converge: float = 90.0
    """How long a step may take."""
    rest: float = 1.0
    """How long nothing must change until the undisturbed life counts as at rest."""
    quiet: float = 0.3
    """How long a disturbed life must stay, without a write, where the undisturbed one ended."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """How one step ended, and what was done in it."""

    name: str
    state: tuple[str, ...]
    loose_state: tuple[str, ...]
    """The same with attempt numbers blanked: under faults a reservation may be given back and made anew."""
    created: Counts
    deleted: Counts
    writes: tuple[str, ...]
    """Verb and target of each accepted write, Leases and Events too, in the order of arrival."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The undisturbed life."""

    story: Story
    steps: tuple[StepRecord, ...]

    @property
    def counted_writes(self) -> int:
        """Return how many writes it took, Leases and Events left out."""
        return sum(kind.split(" ")[1] not in UNCOUNTED for step in self.steps for kind in step.writes)


@dataclass(slots=True)
class Played:
    """What came of a disturbed life."""

    divergences: list[str] = field(default_factory=list)
    steps: int = 0
    """Steps that converged."""


async def play_undisturbed(world: World, story: Story, *, patience: Patience) -> Reference:
    """Play the story; raises DivergedError when a step does not come to rest, or breaks an invariant."""
    records = []
    for step in story.steps:
        mark = _Mark(world)
        await step.act(world.ground.api, world.namespace)
        await _come_to_rest(world, step, patience)
        records.append(mark.record(step.name))
    if world.observer.violations:
        raise DivergedError("; ".join(world.observer.violations))
    return Reference(story, tuple(records))


async def play(
    world: World,
    reference: Reference,
    *,
    patience: Patience,
    exact: bool,
    on_step: Callable[[StepRecord], None] = lambda _: None,
    after_step: Callable[[], Awaitable[None]] | None = None,
) -> Played:
    """Play the story of a reference.

    `on_step` is called before each step with what the undisturbed life did in it, `after_step` once it has converged.

    `exact` compares attempt numbers, and how often each object was created and deleted, too. The first step that
    diverges ends the life: what follows would stand on another state.
    """
    played = Played()
    for step, expected in zip(reference.story.steps, reference.steps, strict=True):
        mark = _Mark(world)
        on_step(expected)
        await step.act(world.ground.api, world.namespace)
        try:
            await _converge(world, expected, patience, exact=exact)
            if exact:
                mark.compare(expected)
        except DivergedError as error:
            played.divergences.append(str(error))
            return played
        played.steps += 1
        if after_step is not None:
            await after_step()
    return played


async def rest(world: World, reference: Reference, seconds: float, *, patience: Patience) -> list[str]:
    """Return what is wrong during `seconds` of rest: a write, Leases and Events left out.

    Rest begins when no fault lasts any more and the world is (again) where the last step ended: a client that is kept
    from knowing of a deletion may still make what the garbage collector then removes.
    """
    try:
        async with asyncio.timeout(patience.converge):
            await world.proxy.all_over()
        await _converge(world, reference.steps[-1], patience, exact=False)
    except TimeoutError:
        return [f"faults last after {patience.converge:g} s: {dict(world.proxy.lasting)}"]
    except DivergedError as error:
        return [str(error)]
    before = len(world.proxy.writes)
    await asyncio.sleep(seconds)
    return [f"written at rest: {write.request}" for write in world.proxy.counted_writes(since=before)]


class _Mark:
    """The counters at the beginning of a step."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._created, self._deleted = Counter(world.observer.created), Counter(world.observer.deleted)
        self._writes = len(world.proxy.writes)

    def record(self, name: str) -> StepRecord:
        """Return what happened since."""
        world = self._world
        writes = [write.request.kind_of_write for write in world.proxy.writes[self._writes :] if write.status < 300]
        return StepRecord(
            name=name,
            state=tuple(world.state(exact=True)),
            loose_state=tuple(world.state(exact=False)),
            created=self._since(world.observer.created, self._created),
            deleted=self._since(world.observer.deleted, self._deleted),
            writes=tuple(writes),
        )

    def compare(self, expected: StepRecord) -> None:
        """Raise DivergedError when other objects were created or deleted, or more often."""
        found = self.record(expected.name)
        for word, counts, wanted in (
            ("created", found.created, expected.created),
            ("deleted", found.deleted, expected.deleted),
        ):
            for kind, name in sorted({*counts, *wanted}):
                if counts[kind, name] != wanted[kind, name]:
                    text = f"{word} {counts[kind, name]} times instead of {wanted[kind, name]}"
                    raise DivergedError(f"{expected.name}: {kind} {name} {text}")

    def _since(self, now: Counts, before: Counts) -> Counts:
        found: Counts = Counter()
        for (kind, name), count in (now - before).items():
            found[kind, self._world.normaliser.name(name)] += count
        return found


async def _come_to_rest(world: World, step: Step, patience: Patience) -> None:
    deadline = time.monotonic() + patience.converge
    busy_at, revision, writes = time.monotonic(), -1, -1
    why = "nothing has happened yet"
    while time.monotonic() - busy_at < patience.rest:
        if time.monotonic() > deadline:
            raise DivergedError(f"{step.name}: not at rest within {patience.converge:g} s: {why}")
        await asyncio.sleep(POLL_SECONDS)
        world.check_keepers()
        count = len(world.proxy.counted_writes())
        unsettled = world.observer.unsettled()
        if unsettled or (revision, writes) != (world.observer.revision, count):
            revision, writes = world.observer.revision, count
            busy_at, why = time.monotonic(), unsettled or "objects change"


async def _converge(world: World, expected: StepRecord, patience: Patience, *, exact: bool) -> None:
    deadline = time.monotonic() + patience.converge
    wanted = list(expected.state if exact else expected.loose_state)
    seen, state = -1, [""]
    since: tuple[float, int] | None = None
    while True:
        world.check_keepers()
        if world.observer.violations:
            raise DivergedError(f"{expected.name}: {'; '.join(world.observer.violations[:3])}")
        if world.observer.revision != seen:
            seen, state = world.observer.revision, world.state(exact=exact)
        count = len(world.proxy.counted_writes())
        now = time.monotonic()
        if state != wanted or (since is not None and since[1] != count):
            since = None
        if state == wanted:
            since = since or (now, count)
            if now - since[0] >= patience.quiet:
                return
        if now > deadline:
            what = difference(wanted, state) or "it does not stay: something is written again and again"
            raise DivergedError(f"{expected.name}: after {patience.converge:g} s: {what}")
        await asyncio.sleep(POLL_SECONDS)
