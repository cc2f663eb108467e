"""`ApiClient`: the port spoken to a real API server."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Self

import aiohttp

from bayplan.cluster.clock import Clock
from bayplan.cluster.codec import dumps
from bayplan.cluster.credentials import Credentials
from bayplan.cluster.errors import Unreachable
from bayplan.cluster.port import Json, WatchEvent
from bayplan.cluster.resources import EVENTS, Resource
from bayplan.cluster.streams import decode_event, lines
from bayplan.cluster.transport import (
    CONNECT_SECONDS,
    TRANSPORT_ERRORS,
    DateHook,
    MayWrite,
    Request,
    RequestHook,
    Transport,
    describe,
)

JSON = "application/json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
_STRICT = {"fieldValidation": "Strict"}


class ApiClient:
    """A `Port` on one API server. Use as an async context manager, or call `close`."""

    def __init__(
        self,
        credentials: Credentials,
        *,
        clock: Clock | None = None,
        timeout_seconds: float = 30.0,
        connections: int = 64,
        on_request: RequestHook | None = None,
        on_date: DateHook | None = None,
    ) -> None:
        self._transport = Transport(
            credentials,
            clock=clock,
            timeout_seconds=timeout_seconds,
            connections=connections,
            on_request=on_request,
            on_date=on_date,
        )
        self._may_write: MayWrite | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections, those of fenced views too."""
        await self._transport.close()

    @property
    def credentials(self) -> Credentials:
        """Return how the server is reached."""
        return self._transport.credentials

    @property
    def requests(self) -> Counter[tuple[str, str, int]]:
        """Return requests made, by (verb, resource or resource/subresource, status); status 0: no answer came."""
        return self._transport.requests

    def fenced(self, may_write: MayWrite) -> "ApiClient":
        """Return a view on the same connections that raises LeaseLost instead of writing when `may_write()` is false.

        A process that was paused and replaced wakes up here. Between question and server lies one request, which
        preconditions and deterministic names cover.
        """
        view = ApiClient.__new__(ApiClient)
        view._transport = self._transport
        view._may_write = may_write
        return view

    # --- reads ---------------------------------------------------------------------------------------------------

    async def get(self, resource: Resource, namespace: str, name: str) -> Json:
        """Return the object; raises NotFound."""
        return await self._transport.read(Request("get", resource, "GET", resource.object_path(namespace, name), {}))

    async def list_pages(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        limit: int = 500,
    ) -> AsyncGenerator[tuple[list[Json], str], None]:
        """Yield (items, resourceVersion of the list); raises Gone when the continue token expired.

        The next page is on its way while the caller works on one: the server's part and ours overlap.
        """
        query = _query(limit=limit, labelSelector=label_selector, fieldSelector=field_selector)
        path = resource.collection_path(namespace)

        def fetch(token: str | None) -> asyncio.Task[Json]:
            request = Request("list", resource, "GET", path, query | _query(**{"continue": token}))
            return asyncio.create_task(self._transport.read(request))

        coming: asyncio.Task[Json] | None = fetch(None)
        try:
            while coming is not None:
                page = await coming
                metadata = page.get("metadata") or {}
                token = metadata.get("continue") or None
                coming = fetch(token) if token else None
                yield page.pop("items", None) or [], str(metadata.get("resourceVersion") or "")
        finally:
            if coming is not None:
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)

    async def watch(
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
        """Yield changes after `resource_version`; see `ReadPort.watch`."""
        query = _query(
            watch="true",
            allowWatchBookmarks="true",
            resourceVersion=resource_version,
            timeoutSeconds=int(timeout_seconds),
            labelSelector=label_selector,
            fieldSelector=field_selector,
        )
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=idle_seconds)
        request = Request("watch", resource, "GET", resource.collection_path(namespace), query)
        response = await self._transport.open(request, timeout)
        if on_open is not None:
            on_open()
        try:
            async for line in lines(response.content):
                yield decode_event(line, exact_numbers=resource.exact_numbers)
        except TRANSPORT_ERRORS as error:
            raise Unreachable(f"watch of {resource} broke off: {describe(error)}") from error
        finally:
            response.close()

    # --- writes --------------------------------------------------------------------------------------------------

    async def create(self, resource: Resource, namespace: str, body: Mapping[str, Any]) -> Json:
        """POST with strict field validation: a field the server does not know is an error, never dropped."""
        path = resource.collection_path(namespace or None)
        return await self._write(Request("create", resource, "POST", path, _STRICT, dumps(body), JSON))

    async def patch_json(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        ops: Sequence[Mapping[str, Any]],
        *,
        subresource: str | None = None,
    ) -> Json:
        """RFC 6902 patch; a `test` that does not hold raises Invalid."""
        path = resource.object_path(namespace, name, subresource)
        return await self._write(Request("patch", resource, "PATCH", path, {}, dumps(ops), JSON_PATCH, subresource))

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
        path = resource.object_path(namespace, name, subresource)
        request = Request("patch", resource, "PATCH", path, {}, dumps(body), STRATEGIC_PATCH, subresource)
        return await self._write(request)

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
        path = resource.object_path(namespace, name, subresource)
        return await self._write(Request("patch", resource, "PATCH", path, {}, dumps(body), MERGE_PATCH, subresource))

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
        """Server-side apply as field manager `manager`."""
        metadata = {**(body.get("metadata") or {}), "name": name}
        full = {**body, "apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
        query = _STRICT | {"fieldManager": manager, "force": "true" if force else "false"}
        path = resource.object_path(namespace, name, subresource)
        return await self._write(
            Request("apply", resource, "PATCH", path, query, dumps(full), APPLY_PATCH, subresource)
        )

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
        """DELETE with preconditions; returns the object, or a Status when it is gone already."""
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        if held := {name: value for name, value in preconditions.items() if value is not None}:
            options["preconditions"] = held
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        path = resource.object_path(namespace, name)
        return await self._write(Request("delete", resource, "DELETE", path, {}, dumps(options), JSON))

    async def create_event(self, namespace: str, body: Mapping[str, Any]) -> Json:
        """Create an events.k8s.io/v1 Event."""
        return await self.create(EVENTS, namespace, body)

    async def _write(self, request: Request) -> Json:
        return await self._transport.write(request, self._may_write)


def _query(**parameters: str | int | None) -> dict[str, str]:
    return {name: str(value) for name, value in parameters.items() if value is not None}
