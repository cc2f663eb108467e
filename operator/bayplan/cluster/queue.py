"""`WorkQueue`: what to reconcile next. Keys, not events: a key is queued once however often it changed.

FIFO with two lanes (changes before the start-up sweep), one worker in flight per key, a key added while in flight runs
once more afterwards, delayed re-adds, and exponential backoff per key.
"""

import asyncio
import heapq
from collections import OrderedDict
from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, Protocol, TypeVar

from bayplan.cluster.clock import Clock, SystemClock, Timer

K = TypeVar("K")

MIN_BACKOFF_SECONDS = 0.005
MAX_BACKOFF_SECONDS = 300.0
SWEEP_TURN = 16
"""While both lanes have work, every so many-th key comes from the sweep, so that steady change cannot starve it."""


class Lane(IntEnum):
    """Where a key waits."""

    CHANGE = 0
    SWEEP = 1


class QueueClosed(Exception):  # noqa: N818 - an end, not an error
    """The queue was closed and gives out no more keys."""


class QueueObserver(Protocol):
    """Receives the queue's measurements."""

    def added(self) -> None:
        """A key was queued."""

    def retried(self) -> None:
        """A key was queued again with backoff."""

    def started(self, waited_seconds: float) -> None:
        """A worker took a key that had waited so long."""

    def finished(self, worked_seconds: float) -> None:
        """A worker gave a key back after working on it for so long."""


class _Silent:
    def added(self) -> None: ...
    def retried(self) -> None: ...
    def started(self, waited_seconds: float) -> None: ...
    def finished(self, worked_seconds: float) -> None: ...


@dataclass(order=True)
class _Delayed(Generic[K]):
    due: float
    number: int
    key: K


class WorkQueue(Generic[K]):
    """A queue of keys for one controller. All methods but `get` are synchronous; one event loop owns it."""

    def __init__(self, *, clock: Clock | None = None, observer: QueueObserver | None = None) -> None:
        self._clock = clock or SystemClock()
        self._observer = observer or _Silent()
        self._lanes: tuple[OrderedDict[K, float], OrderedDict[K, float]] = (OrderedDict(), OrderedDict())
        self._in_flight: dict[K, float] = {}
        self._again: dict[K, Lane] = {}
        self._failures: dict[K, int] = {}
        self._delayed: list[_Delayed[K]] = []
        self._due: dict[K, float] = {}
        self._count = 0
        self._changes_in_row = 0
        self._timer: Timer | None = None
        self._timer_due = 0.0
        self._waiters: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        self._closed = False

    # --- adding --------------------------------------------------------------------------------------------------

    def add(self, key: K, *, lane: Lane = Lane.CHANGE) -> None:
        """Queue `key` unless it waits already; if it is in flight it runs again afterwards."""
        if self._closed:
            return
        self._observer.added()
        if key in self._in_flight:
            self._again[key] = min(lane, self._again.get(key, Lane.SWEEP))
            return
        if key in self._lanes[Lane.CHANGE]:
            return
        since = self._lanes[Lane.SWEEP].get(key)
        if since is not None:
            if lane is Lane.SWEEP:
                return
            del self._lanes[Lane.SWEEP][key]
        self._lanes[lane][key] = self._clock.time() if since is None else since
        self._wake_one()

    def add_after(self, key: K, seconds: float) -> None:
        """Queue `key` after `seconds`; of several delays for one key the earliest holds."""
        if self._closed:
            return
        if seconds <= 0:
            self.add(key)
            return
        due = self._clock.time() + seconds
        if key in self._due and self._due[key] <= due:
            return
        self._due[key] = due
        self._count += 1
        heapq.heappush(self._delayed, _Delayed(due, self._count, key))
        self._arm()

    def add_backoff(self, key: K, *, at_least: float = 0.0) -> float:
        """Queue `key` after its backoff, which doubles at each call until `forget`; return the delay in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay: float = min(MAX_BACKOFF_SECONDS, MIN_BACKOFF_SECONDS * 2.0 ** min(failures, 32))
        delay = max(delay, at_least)
        self._observer.retried()
        self.add_after(key, delay)
        return delay

    def forget(self, key: K) -> None:
        """Reset the backoff of `key`: it succeeded."""
        self._failures.pop(key, None)

    # --- working -------------------------------------------------------------------------------------------------

    async def get(self) -> K:
        """Return the next key, which is in flight until `done`. Raises QueueClosed."""
        while True:
            if self._closed:
                raise QueueClosed
            if (taken := self._take()) is not None:
                return taken[0]
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters[waiter] = None
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake_one()  # the wake-up was meant for whoever still waits
                raise
            finally:
                self._waiters.pop(waiter, None)

    def done(self, key: K) -> None:
        """Give `key` back; if it was added meanwhile it waits again."""
        started = self._in_flight.pop(key)
        self._observer.finished(self._clock.time() - started)
        lane = self._again.pop(key, None)
        if lane is not None:
            self.add(key, lane=lane)

    def close(self) -> None:
        """Give out no more keys and take none; keys in flight may finish."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        while self._waiters:
            self._wake_one()

    # --- measuring -----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._lanes[Lane.CHANGE]) + len(self._lanes[Lane.SWEEP])

    @property
    def in_flight(self) -> int:
        """Return how many keys are being worked on."""
        return len(self._in_flight)

    @property
    def delayed(self) -> int:
        """Return how many keys wait for a time."""
        return len(self._due)

    def failures(self, key: K) -> int:
        """Return how often in a row `key` was queued with backoff."""
        return self._failures.get(key, 0)

    def oldest_seconds(self) -> float:
        """Return how long the key that waits longest has waited; 0 when none waits."""
        since = [next(iter(lane.values())) for lane in self._lanes if lane]
        return self._clock.time() - min(since) if since else 0.0

    def longest_running_seconds(self) -> float:
        """Return how long the longest work in flight has been going on; 0 when there is none."""
        return self._clock.time() - min(self._in_flight.values()) if self._in_flight else 0.0

    # --- inside --------------------------------------------------------------------------------------------------

    def _take(self) -> tuple[K] | None:
        changes, sweep = self._lanes
        if changes and not (sweep and self._changes_in_row >= SWEEP_TURN):
            lane = changes
            self._changes_in_row += 1
        elif sweep:
            lane = sweep
            self._changes_in_row = 0
        else:
            return None
        key, since = lane.popitem(last=False)
        now = self._clock.time()
        self._in_flight[key] = now
        self._observer.started(now - since)
        return (key,)

    def _wake_one(self) -> None:
        while self._waiters:
            waiter, _ = self._waiters.popitem(last=False)
            if not waiter.done():
                waiter.set_result(None)
                return

    def _arm(self) -> None:
        while self._delayed and self._due.get(self._delayed[0].key) != self._delayed[0].due:
            heapq.heappop(self._delayed)
        if not self._delayed:
            return
        due = self._delayed[0].due
        if self._timer is not None:
            if self._timer_due <= due:
                return
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._clock.call_later(max(0.0, due - self._clock.time()), self._release)

    def _release(self) -> None:
        self._timer = None
        now = self._clock.time()
        while self._delayed and self._delayed[0].due <= now:
            entry = heapq.heappop(self._delayed)
            if self._due.get(entry.key) == entry.due:
                del self._due[entry.key]
                self.add(entry.key)
        self._arm()
