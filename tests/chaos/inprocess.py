"""Operators in the test process: the whole operator on the test's loop, with the identity of the one before it."""

import asyncio
import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from bayplan.cli.configuration import OperatorConfiguration
from bayplan.cli.operator import run_operator
from bayplan.cluster.clock import Clock, SystemClock, sleep
from bayplan.cluster.credentials import Access, Credentials
from e2e.chaos.proxy import Door
from e2e.scenarios.stack import NAMESPACE

SCRAPE_SHARE = 0.1
"""Warm-ups and drains look at their engines ten times as often as in production."""


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
