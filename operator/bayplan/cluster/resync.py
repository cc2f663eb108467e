"""The second source of our own kinds: a complete LIST at the start and every few minutes.

Kopf streams them, but it says nothing about objects that vanished while it had to list again. The first list is the
start barrier; each later one prunes what vanished and completes what is missing.
"""

import asyncio
import logging
import random
from typing import Generic

from bayplan.cluster.apitimes import ApiTimes
from bayplan.cluster.cache import P, Store
from bayplan.cluster.clock import Clock, SystemClock, sleep
from bayplan.cluster.errors import ApiError, NotFound
from bayplan.cluster.listing import Listing, Project
from bayplan.cluster.port import ReadPort

logger = logging.getLogger(__name__)

TIMES = ApiTimes()
BACKOFF_SECONDS = 0.25
MAX_BACKOFF_SECONDS = 30.0
LOUD_FAILURES = 3


class Resync(Generic[P]):
    """Lists one of our kinds into its store again and again. Run `run()` as a task."""

    def __init__(
        self,
        api: ReadPort,
        store: Store[P],
        project: Project[P],
        *,
        clock: Clock | None = None,
        period_seconds: float = TIMES.resync,
    ) -> None:
        self.store = store
        self.synced = asyncio.Event()
        """Set after the first complete list."""
        self.repairs = 0
        """Differences that a later list found: what the stream had not delivered (yet)."""
        self.failures = 0
        """Failures in a row."""
        self.listing = Listing(api, store, project, on_page=self.heard)
        self._clock = clock or SystemClock()
        self._period_seconds = period_seconds
        self._wanted = asyncio.Event()
        self._last_progress = self._clock.time()

    @property
    def name(self) -> str:
        """Return the resource's plural name, for logs and metrics."""
        return self.store.resource.plural

    @property
    def projection_errors(self) -> int:
        """Return how many objects could not be read."""
        return self.listing.projection_errors

    def heard(self) -> None:
        """Note that the server was heard of for this resource, also by the stream."""
        self._last_progress = self._clock.time()

    def progress_age(self) -> float:
        """Return seconds since the server was last heard of for this resource."""
        return self._clock.time() - self._last_progress

    def request(self) -> None:
        """List again soon: the stream lost its place."""
        self._wanted.set()

    async def run(self) -> None:
        """List, wait for the period or a request, and so on until cancelled."""
        while True:
            self._wanted.clear()
            try:
                _, changes = await self.listing.refresh()
            except ApiError as error:
                await self._failed(error)
                continue
            self.failures = 0
            if self.synced.is_set() and changes:
                self.repairs += changes
                logger.info("%s: the resync found %d differences", self.name, changes)
            self.synced.set()
            timer = self._clock.call_later(self._period_seconds * random.uniform(0.9, 1.1), self._wanted.set)
            try:
                await self._wanted.wait()
            finally:
                timer.cancel()

    async def _failed(self, error: ApiError) -> None:
        hint = "; is the CustomResourceDefinition installed?" if isinstance(error, NotFound) else ""
        level = logging.WARNING if self.failures < LOUD_FAILURES else logging.INFO
        logger.log(level, "%s: %s%s", self.store.resource, error, hint)
        delay = min(MAX_BACKOFF_SECONDS, BACKOFF_SECONDS * 2.0**self.failures)
        self.failures = min(self.failures + 1, 30)
        await sleep(self._clock, delay * random.uniform(0.8, 1.2))
