"""`Reflector`: keeps a `Store` equal to one resource of the API server, for ever.

LIST page by page, then WATCH from there; each object is projected as it is parsed and dropped. Every way in which
streams fail (cut, silence, 410, errors in the stream, a middle box's HTML) ends in a new watch or a new list. What
vanished while nobody looked is found by the list and reported as a deletion.
"""

import asyncio
import logging
import random
from contextlib import aclosing
from typing import Generic

from bayplan.cluster.apitimes import ApiTimes
from bayplan.cluster.cache import P, Store, version_number
from bayplan.cluster.clock import Clock, SystemClock, sleep
from bayplan.cluster.errors import ApiError, Gone
from bayplan.cluster.listing import PAGE_LIMIT, Listing, Project
from bayplan.cluster.port import ReadPort, WatchEvent

logger = logging.getLogger(__name__)

TIMES = ApiTimes()
BACKOFF_SECONDS = 0.25
MAX_BACKOFF_SECONDS = 30.0
RELIST_AFTER_FAILURES = 3
"""A watch that fails this often in a row is started from a new list."""
SHORT_WATCH_SECONDS = 1.0


class Reflector(Generic[P]):
    """Feeds one store. Run `run()` as a task; it returns only by cancellation."""

    def __init__(
        self,
        api: ReadPort,
        store: Store[P],
        project: Project[P],
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        clock: Clock | None = None,
        page_limit: int = PAGE_LIMIT,
        watch_seconds: float = TIMES.watch,
        idle_seconds: float = TIMES.idle,
    ) -> None:
        self.store = store
        self.synced = asyncio.Event()
        """Set after the first complete list."""
        self.failures = 0
        """Failures in a row; 0 while all is well."""
        self.lists = 0
        """Complete lists made."""
        self._api = api
        self._label_selector = label_selector
        self._field_selector = field_selector
        self._clock = clock or SystemClock()
        self._watch_seconds = watch_seconds
        self._idle_seconds = idle_seconds
        self._version: str | None = None
        self._listing = Listing(
            api,
            store,
            project,
            label_selector=label_selector,
            field_selector=field_selector,
            page_limit=page_limit,
            on_page=self._heard,
        )
        self._last_progress = self._clock.time()

    @property
    def name(self) -> str:
        """Return the resource's plural name, for logs and metrics."""
        return self.store.resource.plural

    def progress_age(self) -> float:
        """Return seconds since the server was last heard of for this resource."""
        return self._clock.time() - self._last_progress

    @property
    def projection_errors(self) -> int:
        """Return how many objects could not be read."""
        return self._listing.projection_errors

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            try:
                if self._version is None:
                    await self._list()
                await self._watch()
            except Gone as gone:
                logger.info("%s: history expired (%s); listing again", self.name, gone.message)
                self._version = None
                await self._back_off()
            except ApiError as error:
                await self._failed(str(error))
            except Exception as error:
                logger.exception("%s: unexpected failure of the reflector", self.name)
                await self._failed(repr(error))

    async def _failed(self, why: str) -> None:
        level = logging.WARNING if self.failures < RELIST_AFTER_FAILURES else logging.INFO
        logger.log(level, "%s: %s; trying again", self.name, why)
        if self.failures + 1 >= RELIST_AFTER_FAILURES:
            self._version = None
        await self._back_off()

    async def _back_off(self) -> None:
        delay = min(MAX_BACKOFF_SECONDS, BACKOFF_SECONDS * 2.0**self.failures)
        self.failures = min(self.failures + 1, 30)
        await sleep(self._clock, delay * random.uniform(0.8, 1.2))

    def _heard(self) -> None:
        self._last_progress = self._clock.time()

    async def _list(self) -> None:
        self._version, _ = await self._listing.refresh()
        self.lists += 1
        self.synced.set()

    async def _watch(self) -> None:
        started = self._clock.time()
        events = self._api.watch(
            self.store.resource,
            resource_version=self._version or "",
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            timeout_seconds=self._watch_seconds * random.uniform(0.9, 1.1),
            idle_seconds=self._idle_seconds,
            on_open=self._heard,
        )
        async with aclosing(events):
            async for event in events:
                self._heard()
                self.failures = 0
                self._handle(event)
        self._heard()
        if self._clock.time() - started < SHORT_WATCH_SECONDS:
            # Streams that end at once, again and again, are a failure although each of them ended well.
            await self._failed("the watch ended at once")
        else:
            self.failures = 0

    def _handle(self, event: WatchEvent) -> None:
        version = event.object["metadata"]["resourceVersion"]
        if event.type == "DELETED":
            self._listing.discard(event.object)
        elif event.type != "BOOKMARK":
            self._listing.put(event.object)
        self.store.advance(version_number(version))
        self._version = version
