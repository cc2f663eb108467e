"""`Reflector`: keeps a `Store` equal to one resource of the API server, for ever.

LIST page by page, then WATCH from there; each object is projected as it is parsed and dropped. Every way in which
streams fail (cut, silence, 410, errors in the stream, a middle box's HTML) ends in a new watch or a new list. What
vanished while nobody looked is found by the list and reported as a deletion.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import aclosing
from typing import Generic

from bayplan.cluster.cache import P, Store, object_key, version_number
from bayplan.cluster.clock import Clock, SystemClock, sleep
from bayplan.cluster.errors import ApiError, Gone
from bayplan.cluster.port import Json, ReadPort, WatchEvent

logger = logging.getLogger(__name__)

PAGE_LIMIT = 250
"""Objects per page: large enough for few requests, small enough that parsing one does not hold the loop for long."""
ITEMS_PER_TURN = 50
WATCH_SECONDS = 300.0
IDLE_SECONDS = 70.0
"""The server sends a bookmark about every minute; a stream without a byte for longer is dead."""
BACKOFF_SECONDS = 0.25
MAX_BACKOFF_SECONDS = 30.0
RELIST_AFTER_FAILURES = 3
"""A watch that fails this often in a row is started from a new list."""
STALE_LISTS_ACCEPTED = 8
"""Lists in a row (about two minutes) that are older than what was seen, before the older history is believed."""

Project = Callable[[Json], P | None]
"""Turns a raw object into what is kept of it; None leaves it out."""


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
        watch_seconds: float = WATCH_SECONDS,
        idle_seconds: float = IDLE_SECONDS,
        backoff_seconds: float = BACKOFF_SECONDS,
    ) -> None:
        self.store = store
        self.synced = asyncio.Event()
        """Set after the first complete list."""
        self.failures = 0
        """Failures in a row; 0 while all is well."""
        self.lists = 0
        """Complete lists made."""
        self.projection_errors = 0
        self._api = api
        self._project = project
        self._label_selector = label_selector
        self._field_selector = field_selector
        self._clock = clock or SystemClock()
        self._page_limit = page_limit
        self._watch_seconds = watch_seconds
        self._idle_seconds = idle_seconds
        self._backoff_seconds = backoff_seconds
        self._version: str | None = None
        self._stale_lists = 0
        self.last_progress = self._clock.time()
        """Clock time of the last page, stream start, event or bookmark."""

    @property
    def name(self) -> str:
        """Return the resource's plural name, for logs and metrics."""
        return self.store.resource.plural

    def progress_age(self) -> float:
        """Return seconds since the server was last heard of for this resource."""
        return self._clock.time() - self.last_progress

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
        delay = min(MAX_BACKOFF_SECONDS, self._backoff_seconds * 2.0**self.failures)
        self.failures = min(self.failures + 1, 30)
        await sleep(self._clock, delay * random.uniform(0.8, 1.2))

    def _heard(self) -> None:
        self.last_progress = self._clock.time()

    # --- list ----------------------------------------------------------------------------------------------------

    async def _list(self) -> None:
        seen: set[str] = set()
        version = ""
        pages = self._api.list_pages(
            self.store.resource,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            limit=self._page_limit,
        )
        async with aclosing(pages) as stream:
            async for items, page_version in stream:
                version = version or page_version
                if self._is_stale(version):
                    raise ApiError(
                        f"the list of version {version} is older than {self.store.stream_version}, seen before"
                    )
                await self._take(items, seen)
                self._heard()
        self.store.prune(seen, version_number(version))
        self.store.advance(version_number(version))
        self._stale_lists = 0
        self._version = version
        self.lists += 1
        self.synced.set()

    def _is_stale(self, version: str) -> bool:
        if version_number(version) >= self.store.stream_version:
            return False
        self._stale_lists += 1
        if self._stale_lists < STALE_LISTS_ACCEPTED:
            return True
        logger.error("%s: the server insists on an older history (version %s); accepting it", self.name, version)
        self.store.restart_history()
        return False

    async def _take(self, items: list[Json], seen: set[str]) -> None:
        items.reverse()
        while items:
            for _ in range(min(ITEMS_PER_TURN, len(items))):
                item = items.pop()
                seen.add(item["metadata"]["uid"])
                self._put(item)
            await asyncio.sleep(0)

    # --- watch ---------------------------------------------------------------------------------------------------

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
        async with aclosing(events) as stream:
            async for event in stream:
                self._heard()
                self.failures = 0
                self._handle(event)
        self._heard()
        if self._clock.time() - started < 1.0:
            # Streams that end at once, again and again, are a failure although each of them ended well.
            await self._failed("the watch ended at once")
        else:
            self.failures = 0

    def _handle(self, event: WatchEvent) -> None:
        version = event.object["metadata"]["resourceVersion"]
        if event.type == "DELETED":
            key, uid = object_key(event.object), event.object["metadata"]["uid"]
            self.store.discard(key, uid, version_number(version))
        elif event.type != "BOOKMARK":
            self._put(event.object)
        self.store.advance(version_number(version))
        self._version = version

    def _put(self, raw: Json) -> None:
        try:
            projected = self._project(raw)
        except Exception:
            # Keep the last good version: dropping it could free what the object still holds.
            self.projection_errors += 1
            logger.exception("%s: %s cannot be read", self.name, object_key(raw))
            return
        if projected is not None:
            self.store.put(projected)
        else:
            metadata = raw["metadata"]
            self.store.discard(object_key(raw), metadata["uid"], version_number(metadata["resourceVersion"]))
