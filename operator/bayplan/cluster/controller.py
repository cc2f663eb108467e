"""`Controller`: workers that reconcile keys of one kind, one at a time per key, with every failure retried."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from bayplan.cluster.clock import Clock, SystemClock
from bayplan.cluster.errors import ApiError, Conflict, Invalid, LeaseLost, NotFound
from bayplan.cluster.queue import Lane, QueueClosed, QueueObserver, WorkQueue
from bayplan.cluster.resources import Key

logger = logging.getLogger(__name__)

WORKERS = 16
HOT_WINDOW_SECONDS = 60.0
HOT_RECONCILES = 60
"""More reconciles of one key in a window than this is a hot loop."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a reconcile wants next: nothing (wait for a change), or to run again after a time."""

    requeue_after: float | None = None
    """Seconds; 0 means at once."""


Reconcile = Callable[[Key], Awaitable[Result]]


class ControllerObserver(Protocol):
    """Receives the controller's measurements."""

    def reconciled(self, result: str, seconds: float) -> None:
        """One reconcile ended with `success`, `requeue_after`, `conflict` or `error`."""

    def hot_keys(self, count: int) -> None:
        """So many keys were reconciled too often in the last window."""


class _Silent:
    def reconciled(self, result: str, seconds: float) -> None: ...
    def hot_keys(self, count: int) -> None: ...


class Controller:
    """Reconciles the keys of `kind`; `keys` lists all there are, `urgent` picks those that a sweep must not delay.

    Before `start`, keys added are dropped: the sweep at the start covers them.
    """

    def __init__(
        self,
        kind: str,
        reconcile: Reconcile,
        *,
        keys: Callable[[], Iterable[Key]] = tuple,
        urgent: Callable[[Key], bool] = lambda _: False,
        workers: int = WORKERS,
        clock: Clock | None = None,
        observer: ControllerObserver | None = None,
        queue_observer: QueueObserver | None = None,
    ) -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        self.kind = kind
        self.queue: WorkQueue[Key] = WorkQueue(clock=clock, observer=queue_observer)
        self._reconcile = reconcile
        self._keys = keys
        self._urgent = urgent
        self._workers = workers
        self._clock = clock or SystemClock()
        self._observer = observer or _Silent()
        self._tasks: list[asyncio.Task[None]] = []
        self._last_error: dict[Key, str] = {}
        self._runs: Counter[Key] = Counter()
        self._window_ends = self._clock.time() + HOT_WINDOW_SECONDS

    @property
    def started(self) -> bool:
        """Return whether workers run."""
        return bool(self._tasks)

    def enqueue(self, key: Key) -> None:
        """Queue a changed key."""
        if self._tasks:
            self.queue.add(key)

    def enqueue_after(self, key: Key, seconds: float) -> None:
        """Queue a key after `seconds`."""
        if self._tasks:
            self.queue.add_after(key, seconds)

    def start(self) -> None:
        """Start the workers and sweep."""
        if self._tasks:
            raise RuntimeError(f"controller {self.kind} runs already")
        self._tasks = [
            asyncio.create_task(self._work(), name=f"{self.kind}-worker-{number}") for number in range(self._workers)
        ]
        self.sweep()

    def sweep(self) -> None:
        """Queue every key there is behind all changes; what changed while nobody led is one of these."""
        for key in self._keys():
            self.queue.add(key, lane=Lane.CHANGE if self._urgent(key) else Lane.SWEEP)

    async def stop(self, *, limit_seconds: float) -> None:
        """Let keys in flight finish for at most `limit_seconds`, then cancel them."""
        self.queue.close()
        if not self._tasks:
            return
        _, running = await asyncio.wait(self._tasks, timeout=limit_seconds)
        for task in running:
            logger.warning("%s: a reconcile was cut off at the stop", self.kind)
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def _work(self) -> None:
        while True:
            try:
                key = await self.queue.get()
            except QueueClosed:
                return
            try:
                await self._run(key)
            finally:
                self.queue.done(key)
            # A reconcile that finds nothing to do never waits: a sweep of thousands would hold the loop for seconds.
            await asyncio.sleep(0)

    async def _run(self, key: Key) -> None:
        started = self._clock.time()
        self._watch_heat(key, started)
        try:
            result = await self._reconcile_once(key)
        except Exception as error:
            delay = self.queue.add_backoff(key, at_least=_wait_asked_for(error))
            self._report(key, error, delay)
            outcome = "conflict" if isinstance(error, Conflict | Invalid | NotFound) else "error"
        else:
            self.queue.forget(key)
            self._last_error.pop(key, None)
            outcome = "success" if result.requeue_after is None else "requeue_after"
            if result.requeue_after is not None:
                self.queue.add_after(key, result.requeue_after)
        self._observer.reconciled(outcome, self._clock.time() - started)

    def _report(self, key: Key, error: Exception, delay: float) -> None:
        """Log a failure once; the same failure of the same key again only at debug level."""
        text = f"{type(error).__name__}: {error}"
        again = self._last_error.get(key) == text
        self._last_error[key] = text
        level = logging.DEBUG if again else logging.INFO if isinstance(error, Conflict) else logging.WARNING
        surprise = None if again or isinstance(error, ApiError | LeaseLost) else error
        message = "%s %s: %s; trying again in %.3g s"
        logger.log(level, message, self.kind, key, text, delay, exc_info=surprise)

    async def _reconcile_once(self, key: Key) -> Result:
        try:
            return await self._reconcile(key)
        except asyncio.CancelledError as error:
            # A cancellation that leaks out of something awaited must not end the worker.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise RuntimeError("something awaited by the reconcile was cancelled") from error

    def _watch_heat(self, key: Key, now: float) -> None:
        if now >= self._window_ends:
            hot = [hot_key for hot_key, runs in self._runs.items() if runs > HOT_RECONCILES]
            self._observer.hot_keys(len(hot))
            for hot_key in hot[:3]:
                logger.warning("%s %s: reconciled %d times in a window", self.kind, hot_key, self._runs[hot_key])
            self._runs.clear()
            self._window_ends = now + HOT_WINDOW_SECONDS
        self._runs[key] += 1


def _wait_asked_for(error: Exception) -> float:
    return error.retry_after or 0.0 if isinstance(error, ApiError) else 0.0
