"""Time for the engine: one narrow clock, so that tests move it by hand and nothing waits for real seconds.

A running asyncio loop already has both methods; `SystemClock` adds a time that goes on while the machine is suspended,
which is what a Lease holder must compare against when it wakes up.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


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


async def wait_until(clock: Clock, event: asyncio.Event, seconds: float) -> bool:
    """Wait for `event` for at most `seconds` on `clock`; return whether it is set."""
    if event.is_set() or seconds <= 0:
        return event.is_set()
    waiter = asyncio.ensure_future(event.wait())
    expired = asyncio.Event()
    timer = clock.call_later(seconds, expired.set)
    alarm = asyncio.ensure_future(expired.wait())
    try:
        await asyncio.wait({waiter, alarm}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        timer.cancel()
        for task in (waiter, alarm):
            task.cancel()
        await asyncio.gather(waiter, alarm, return_exceptions=True)
    return event.is_set()
