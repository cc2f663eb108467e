"""The verbs that reconcilers use, as a protocol: `ApiClient` speaks them to a server, a fake speaks them in memory."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from bayplan.cluster.resources import Resource

EventType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
Json = dict[str, Any]


class WatchEvent(NamedTuple):
    """One line of a watch. `object` of a BOOKMARK has only `metadata.resourceVersion`."""

    type: EventType
    object: Json


class ReadPort(Protocol):
    """What only reads."""

    async def get(self, resource: Resource, namespace: str, name: str) -> Json:
        """Return the object; raises NotFound."""

    def list_pages(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        limit: int = 500,
    ) -> AsyncGenerator[tuple[list[Json], str], None]:
        """Yield (items, resourceVersion of the list) page by page; raises Gone when the listing must start again."""

    def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        resource_version: str,
        label_selector: str | None = None,
        field_selector: str | None = None,
        timeout_seconds: float = 300.0,
        idle_seconds: float = 70.0,
        on_open: Callable[[], None] | None = None,
    ) -> AsyncGenerator[WatchEvent, None]:
        """Yield changes after `resource_version` until the server ends the stream (normal return).

        `on_open` is called once the server has accepted the watch. Raises Gone (list again), Unreachable (cut, silent
        for `idle_seconds`, or not the API's bytes) and other ApiErrors that the server sent in the stream.
        """


class Port(ReadPort, Protocol):
    """Reads and writes. No write is ever repeated by the port once it may have reached the server."""

    async def create(self, resource: Resource, namespace: str, body: Mapping[str, Any]) -> Json:
        """POST; raises AlreadyExists, Forbidden (look at `quota_exceeded`), Invalid, Conflict."""

    async def patch_json(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        ops: Sequence[Mapping[str, Any]],
        *,
        subresource: str | None = None,
    ) -> Json:
        """RFC 6902 patch. A `test` that does not hold raises Invalid: the world changed, read again."""

    async def patch_strategic(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        body: Mapping[str, Any],
        *,
        subresource: str | None = None,
    ) -> Json:
        """Strategic merge patch; built-in kinds only."""

    async def patch_merge(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        body: Mapping[str, Any],
        *,
        subresource: str | None = None,
    ) -> Json:
        """RFC 7386 patch; with `metadata.resourceVersion` in the body a stale one raises Conflict."""

    async def apply(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        body: Mapping[str, Any],
        *,
        manager: str,
        subresource: str | None = None,
        force: bool = True,
    ) -> Json:
        """Server-side apply of `body` (apiVersion, kind and metadata.name are filled in) as field manager `manager`."""

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_seconds: int | None = None,
    ) -> Json:
        """DELETE with preconditions; raises Conflict when one does not hold, NotFound when it is gone already."""

    async def create_event(self, namespace: str, body: Mapping[str, Any]) -> Json:
        """Create an events.k8s.io/v1 Event."""
