"""Time that moves only when a test says so."""

import asyncio
import heapq
from collections.abc import Callable


class _Timer:
    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class FakeClock:
    """A `Clock` at a time of its own; starts far from zero so that nothing can rely on the origin."""

    def __init__(self, start: float = 7_654_321.0) -> None:
        self._now = start
        self._timers: list[tuple[float, int, _Timer]] = []
        self._count = 0

    def time(self) -> float:
        return self._now

    def call_later(self, delay: float, callback: Callable[[], object]) -> _Timer:
        self._count += 1
        timer = _Timer(callback)
        heapq.heappush(self._timers, (self._now + max(0.0, delay), self._count, timer))
        return timer

    @property
    def sleepers(self) -> int:
        """How many timers are armed."""
        return sum(timer.callback is not None for _, _, timer in self._timers)

    @property
    def next_due(self) -> float | None:
        """When the next armed timer fires."""
        return min((due for due, _, timer in self._timers if timer.callback is not None), default=None)

    async def advance(self, seconds: float) -> None:
        """Move on by `seconds`, firing timers in order and letting tasks run after each."""
        until = self._now + seconds
        await settle()
        while self._timers and self._timers[0][0] <= until:
            due, _, timer = heapq.heappop(self._timers)
            self._now = max(self._now, due)
            if timer.callback is not None:
                timer.callback()
                await settle()
        self._now = until
        await settle()

    def jump(self, seconds: float) -> None:
        """Move on without letting anything run: a process that was paused."""
        self._now += seconds


async def settle(turns: int = 50) -> None:
    """Let every task that can run do so."""
    for _ in range(turns):
        await asyncio.sleep(0)


class HurriedClock:
    """A clock for code that only sleeps: every sleep ends at once, moves the time on, and is remembered."""

    def __init__(self, start: float = 7_654_321.0) -> None:
        self._now = start
        self.slept: list[float] = []

    def time(self) -> float:
        return self._now

    def call_later(self, delay: float, callback: Callable[[], object]) -> _Timer:
        self._now += delay
        self.slept.append(delay)
        timer = _Timer(callback)
        asyncio.get_running_loop().call_soon(lambda: timer.callback and timer.callback())
        return timer


async def until(condition: Callable[[], object], *, seconds: float = 20.0, what: str = "the condition") -> None:
    """Wait in real time for something that another task or process brings about."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"{what} did not come about within {seconds:g} s")
        await asyncio.sleep(0.005)
