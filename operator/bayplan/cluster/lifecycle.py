"""How our processes live: signals that ask for a stop, tasks of which none may end by itself, and checks of sources."""

import asyncio
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bayplan.cluster.probes import Check
from bayplan.cluster.reflector import Reflector
from bayplan.cluster.resync import Resync

Source = Reflector[Any] | Resync[Any]


@contextmanager
def stopped_by_signals(stop: asyncio.Event) -> Iterator[None]:
    """Set `stop` on SIGTERM and SIGINT inside the block."""
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


async def until_stopped(stop: asyncio.Event, tasks: Sequence[asyncio.Task[None]]) -> list[asyncio.Task[None]]:
    """Wait until `stop` is set or a task has ended; return the tasks that have: each of them is a failure."""
    stopped = asyncio.create_task(stop.wait(), name="stop")
    try:
        await asyncio.wait({stopped, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
    return [task for task in tasks if task.done()]


async def cancel_all(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def sync_check(source: Source) -> Check:
    """Complain until the source has listed once."""
    return lambda: None if source.synced.is_set() else "not listed yet"


def progress_check(source: Source, limit_seconds: float) -> Check:
    """Complain when nothing, not even a bookmark, was heard for longer than the limit."""

    def check() -> str | None:
        age = source.progress_age()
        return f"not heard of for {age:.0f} s, limit {limit_seconds:.0f} s" if age > limit_seconds else None

    return check
