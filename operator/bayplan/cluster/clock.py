"""Time for the engine: one narrow clock, so that tests move it by hand and nothing waits for real seconds.

A running asyncio loop already has both methods; `SystemClock` adds a time that goes on while the machine is suspended,
which is what a Lease holder must compare against when it wakes up.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Timer(Protocol):
    """A scheduled callback that can be cancelled."""

    def cancel(self) -> None:
        """Drop the callback if it has not run yet."""


class Clock(Protocol):
    """Monotonic seconds and timers."""

    def time(self) -> float:
        """Return monotonic seconds; only differences mean anything."""

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        """Run `callback` once after `delay` seconds."""


class SystemClock:
    """The real clock. Read at every call (the loop's own time is cached per turn) and running during suspension."""

    def __init__(self) -> None:
        self._source = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def time(self) -> float:
        """Return seconds since boot, suspension included where the system knows it."""
        return time.clock_gettime(self._source)

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        """Schedule on the running loop."""
        return asyncio.get_running_loop().call_later(delay, callback)


async def sleep(clock: Clock, seconds: float) -> None:
    """Wait on `clock` for `seconds`; at once for zero or less, but always one turn of the loop."""
    if seconds <= 0:
        await asyncio.sleep(0)
        return
    done = asyncio.Event()
    timer = clock.call_later(seconds, done.set)
    try:
        await done.wait()
    finally:
        timer.cancel()


async def within(clock: Clock, seconds: float, work: Awaitable[T]) -> T:
    """Await `work` for at most `seconds` on `clock`; then cancel it and raise TimeoutError."""
    task = asyncio.ensure_future(work)
    expired = False

    def expire() -> None:
        nonlocal expired
        expired = task.cancel()

    timer = clock.call_later(seconds, expire)
    try:
        return await task
    except asyncio.CancelledError:
        if expired and task.cancelled():
            raise TimeoutError(f"no result within {seconds:g} s") from None
        raise
    finally:
        timer.cancel()
