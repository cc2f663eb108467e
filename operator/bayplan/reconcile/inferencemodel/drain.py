"""Drain in two phases: every live gateway says that it sends nothing new, then the engine shows twice that nothing
runs or waits. Or its time is up.

A scrape before the last acknowledgement proves nothing: a request may have been on its way. The draining annotation
holds the start, so a restarted operator keeps the deadline and counts the scrapes anew.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass
from datetime import datetime

from bayplan.planning.groups.members import Group, Member
from bayplan.reconcile.background import TaskTable
from bayplan.telemetry.engine import EngineError, EngineNotListeningError, EnginePort

IDLE_SCRAPES = 2


@dataclass(frozen=True, slots=True)
class DrainResult:
    """Why a draining group may be deleted."""

    reason: str
    idle: bool


class DrainTracker:
    """Watches draining heads and remembers the verdict by head and start of the drain.

    `acknowledged` says of a head's namespace and uid whether every live gateway has acknowledged that it leaves.
    """

    def __init__(
        self,
        engine: EnginePort,
        *,
        acknowledged: Callable[[str, str], bool],
        now: Callable[[], datetime],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        scrape_seconds: float = 1.0,
    ) -> None:
        self._engine = engine
        self._acknowledged = acknowledged
        self._now = now
        self._sleep = sleep
        self._scrape_seconds = scrape_seconds
        self._tasks = TaskTable()
        self._done: dict[Hashable, DrainResult] = {}

    def result(self, group: Group) -> DrainResult | None:
        """Return the verdict, or None while requests may still run."""
        return self._done.get(_drain(group))

    def ensure(self, owner: Hashable, group: Group, *, deadline_seconds: int, changed: Callable[[], None]) -> None:
        """Start watching a group that carries the draining annotation; idempotent."""
        head = group.head
        if head.draining_since is None or self._tasks.running(owner, _drain(group)):
            return
        work = self._run(group, head.draining_since, deadline_seconds, changed)
        self._tasks.start(owner, _drain(group), work, name=f"drain {head.namespace}/{head.name}")

    def retain(self, owner: Hashable, groups: Iterable[Group]) -> None:
        """Drop what was known of the owner's drains that none of `groups` is in."""
        for drain in self._tasks.retain(owner, [_drain(group) for group in groups]):
            self._done.pop(drain, None)

    async def close(self) -> None:
        """Cancel everything and wait for it."""
        await self._tasks.close()

    async def _run(self, group: Group, since: datetime, deadline_seconds: int, changed: Callable[[], None]) -> None:
        self._done[_drain(group)] = await self._wait(group.head, since, deadline_seconds)
        changed()

    async def _wait(self, head: Member, since: datetime, deadline_seconds: int) -> DrainResult:
        if head.pod_ip is None:
            return DrainResult("the engine never had an address", idle=True)
        quiet, last = 0, "no scrape yet"
        while True:
            acknowledged = self._acknowledged(head.namespace, head.uid)
            try:
                load = await self._engine.load(head.pod_ip)
                quiet = quiet + 1 if load.idle and acknowledged else 0
                last = f"{load.running} running, {load.waiting} waiting"
            except EngineNotListeningError:
                quiet, last = quiet + 1, "nothing listens any more"
            except EngineError as error:
                # Unknown is not idle: only the deadline ends the wait then.
                quiet, last = 0, str(error)
            if quiet >= IDLE_SCRAPES:
                return DrainResult(f"idle: {last}", idle=True)
            if (self._now() - since).total_seconds() >= deadline_seconds:
                why = "" if acknowledged else ", not acknowledged by every gateway"
                return DrainResult(f"deadline of {deadline_seconds} s passed: {last}{why}", idle=False)
            await self._sleep(self._scrape_seconds)


def _drain(group: Group) -> Hashable:
    return group.head.uid, group.head.draining_since
