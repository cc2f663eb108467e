"""Operators in the test process: the whole operator on the test's loop, with the identity of the one before it."""

import asyncio
import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from bayplan.cli.configuration import OperatorConfiguration
from bayplan.cli.operator import run_operator
from bayplan.cluster.clock import Clock, SystemClock, sleep
from bayplan.cluster.credentials import Access, Credentials
from e2e.chaos.proxy import Door
from e2e.scenarios.stack import NAMESPACE

SCRAPE_SHARE = 0.1
"""Warm-ups and drains look at their engines ten times as often as in production."""


class JumpClock:
    """The real clock, which a test can set forward: timers that are due by then fire at once."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._ahead = 0.0
        self._timers: dict[_Timer, None] = {}

    def time(self) -> float:
        return self._clock.time() + self._ahead

    def call_later(self, delay: float, callback: Callable[[], object]) -> "_Timer":
        timer = _Timer(self, self.time() + delay, callback)
        timer.handle = asyncio.get_running_loop().call_later(max(0.0, delay), timer.fire)
        self._timers[timer] = None
        return timer

    def jump(self, seconds: float) -> None:
        self._ahead += seconds
        for timer in [timer for timer in self._timers if timer.due <= self.time()]:
            timer.fire()

    def drop(self, timer: "_Timer") -> None:
        self._timers.pop(timer, None)


class _Timer:
    def __init__(self, clock: JumpClock, due: float, callback: Callable[[], object]) -> None:
        self.due = due
        self.handle: asyncio.TimerHandle | None = None
        self._clock = clock
        self._callback = callback

    def cancel(self) -> None:
        self._clock.drop(self)
        if self.handle is not None:
            self.handle.cancel()

    def fire(self) -> None:
        self.cancel()
        self._callback()


class WallClock:
    """Date and time, which a test can set to anything."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.ahead


@dataclass(eq=False)
class Running:
    """One operator as a task. What a killed one leaves is cleared up by the factory at the end."""

    task: asyncio.Task[int]

    async def ended(self) -> None:
        await asyncio.wait({self.task})

    async def kill(self) -> None:
        """Abandon it: its door is severed, so nothing that it still does reaches the server."""
        self.task.cancel()


@dataclass(eq=False)
class InProcess:
    """An `OperatorFactory`. `clock` and `now` may be moved by the test."""

    token: str
    identity: str = "operator"
    clock: Clock = field(default_factory=SystemClock)
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    _tasks: list[asyncio.Task[int]] = field(default_factory=list)

    async def start(self, door: Door, configuration: dict[str, Any]) -> Running:
        access = Access(server=door.url, authorization=f"Bearer {self.token}", tls=None)
        work = run_operator(
            OperatorConfiguration.model_validate(configuration),
            credentials=Credentials(lambda: access),
            namespace=NAMESPACE,
            identity=self.identity,
            now=self.now,
            clock=self.clock,
            sleep=lambda seconds: sleep(self.clock, seconds * SCRAPE_SHARE),
        )
        task = asyncio.create_task(work, name=door.name)
        self._tasks.append(task)
        return Running(task)

    async def close(self) -> None:
        """Wait for the ends of all operators."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        gc.unfreeze()
