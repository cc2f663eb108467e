"""Drain: a replica leaves when its engine has shown twice that nothing runs or waits, or when its time is up.

The draining annotation holds the start, so a restarted operator keeps the deadline; the two idle scrapes are counted
anew, because a scrape before the restart proves nothing about requests that came after it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass
from datetime import datetime

from bayplan.planning.members import Group
from bayplan.reconcile.background import TaskTable
from bayplan.telemetry.engine import EngineError, EngineNotListeningError, EnginePort

IDLE_SCRAPES = 2


@dataclass(frozen=True, slots=True)
class DrainResult:
    """Why a draining group may be deleted."""

    reason: str
    idle: bool


class DrainTracker:
    """Watches draining heads and remembers the verdict by head uid."""

    def __init__(
        self,
        engine: EnginePort,
        *,
        now: Callable[[], datetime],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        scrape_seconds: float = 1.0,
    ) -> None:
        self._engine = engine
        self._now = now
        self._sleep = sleep
        self._scrape_seconds = scrape_seconds
        self._tasks = TaskTable()
        self._done: dict[Hashable, DrainResult] = {}

    def result(self, group: Group) -> DrainResult | None:
        """Return the verdict, or None while requests may still run."""
        return self._done.get(group.head.uid)

    def ensure(self, owner: Hashable, group: Group, *, deadline_seconds: int, changed: Callable[[], None]) -> None:
        """Start watching a group that carries the draining annotation; idempotent."""
        head = group.head
        if head.draining_since is None or self._tasks.running(owner, head.uid):
            return
        work = self._run(head.uid, head.pod_ip, head.draining_since, deadline_seconds, changed)
        self._tasks.start(owner, head.uid, work, name=f"drain {head.namespace}/{head.name}")

    def retain(self, owner: Hashable, groups: Iterable[Group]) -> None:
        """Drop what was known of the owner's heads that are in none of `groups`."""
        for uid in self._tasks.retain(owner, [group.head.uid for group in groups]):
            self._done.pop(uid, None)

    async def close(self) -> None:
        """Cancel everything and wait for it."""
        await self._tasks.close()

    async def _run(
        self,
        uid: str,
        address: str | None,
        since: datetime,
        deadline_seconds: int,
        changed: Callable[[], None],
    ) -> None:
        self._done[uid] = await self._wait(address, since, deadline_seconds)
        changed()

    async def _wait(self, address: str | None, since: datetime, deadline_seconds: int) -> DrainResult:
        if address is None:
            return DrainResult("the engine never had an address", idle=True)
        quiet, last = 0, "no scrape yet"
        while True:
            try:
                load = await self._engine.load(address)
                quiet = quiet + 1 if load.idle else 0
                last = f"{load.running} running, {load.waiting} waiting"
            except EngineNotListeningError:
                quiet, last = quiet + 1, "nothing listens any more"
            except EngineError as error:
                # Unknown is not idle: only the deadline ends the wait then.
                quiet, last = 0, str(error)
            if quiet >= IDLE_SCRAPES:
                return DrainResult(f"idle: {last}", idle=True)
            if (self._now() - since).total_seconds() >= deadline_seconds:
                return DrainResult(f"deadline of {deadline_seconds} s passed: {last}", idle=False)
            await self._sleep(self._scrape_seconds)
