"""One complete LIST into a store: paged, projected item by item, with what vanished reported as deleted."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from typing import Generic

from bayplan.cluster.cache import P, Store, object_key, version_number
from bayplan.cluster.errors import ApiError, Gone
from bayplan.cluster.port import Json, ReadPort

logger = logging.getLogger(__name__)

PAGE_LIMIT = 250
"""Objects per page: large enough for few requests, small enough that parsing one does not hold the loop for long."""
ITEMS_PER_TURN = 50
STALE_LISTS_ACCEPTED = 8
"""Lists in a row (about two minutes) that are older than what was seen, before the older history is believed."""

Project = Callable[[Json], P | None]
"""Turns a raw object into what is kept of it; None leaves it out. It must cope with whatever the server stores."""


class Listing(Generic[P]):
    """Knows how to bring one store up to date by LIST, and how to take in single raw objects."""

    def __init__(
        self,
        api: ReadPort,
        store: Store[P],
        project: Project[P],
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        page_limit: int = PAGE_LIMIT,
        on_page: Callable[[], None] = lambda: None,
    ) -> None:
        self.store = store
        self.projection_errors = 0
        """Objects that `project` failed on; the last good version of each is kept."""
        self._api = api
        self._project = project
        self._label_selector = label_selector
        self._field_selector = field_selector
        self._page_limit = page_limit
        self._on_page = on_page
        self._stale_lists = 0
        self._in_one_piece = False

    async def refresh(self) -> tuple[str, int]:
        """List everything into the store; return the list's resourceVersion and the number of differences found.

        Raises ApiError, also when the server answers from an older state than was seen already.
        """
        seen: set[str] = set()
        version = ""
        changes = 0
        pages = self._api.list_pages(
            self.store.resource,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            limit=0 if self._in_one_piece else self._page_limit,
        )
        try:
            async with aclosing(pages):
                async for items, page_version in pages:
                    version = version or page_version
                    self._refuse_stale(version)
                    changes += await self._take(items, seen)
                    self._on_page()
        except Gone:
            # The continue token outlived its snapshot: a listing this large has to come in one piece.
            self._in_one_piece = True
            raise
        changes += len(self.store.prune(seen, version_number(version)))
        self.store.advance(version_number(version))
        self._stale_lists = 0
        self._in_one_piece = False
        return version, changes

    def put(self, raw: Json) -> bool:
        """Project and take in one raw object; return whether the store changed."""
        metadata = raw["metadata"]
        if not self.store.is_news(object_key(raw), metadata["uid"], version_number(metadata["resourceVersion"])):
            return False
        try:
            projected = self._project(raw)
        except Exception:
            # Keep the last good version: dropping it could free what the object still holds.
            self.projection_errors += 1
            logger.exception("%s %s cannot be read", self.store.resource, object_key(raw))
            return False
        return self.store.put(projected) if projected is not None else self.discard(raw)

    def discard(self, raw: Json) -> bool:
        """Take in the deletion of one raw object (or its leaving the selection); return whether the store changed."""
        metadata = raw["metadata"]
        return self.store.discard(object_key(raw), metadata["uid"], version_number(metadata["resourceVersion"]))

    def _refuse_stale(self, version: str) -> None:
        if version_number(version) >= self.store.stream_version:
            return
        self._stale_lists += 1
        if self._stale_lists < STALE_LISTS_ACCEPTED:
            raise ApiError(f"the list is of version {version}, older than {self.store.stream_version} seen before")
        logger.error("%s: the server insists on an older history (version %s)", self.store.resource, version)
        self.store.restart_history()

    async def _take(self, items: list[Json], seen: set[str]) -> int:
        changes = 0
        items.reverse()
        while items:
            for _ in range(min(ITEMS_PER_TURN, len(items))):
                item = items.pop()
                seen.add(item["metadata"]["uid"])
                changes += self.put(item)
            await asyncio.sleep(0)
        return changes
