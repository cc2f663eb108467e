"""`ApiClient`: the port spoken to a real API server over aiohttp.

Small on purpose: requests, named errors, two rules about repeating (reads are repeated a few times; a write only when
the server said that it did nothing), and counters. There is no client-side rate limit: the server's fairness decides,
and its 429 is honoured.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Self
from urllib.parse import urlencode

import aiohttp
from yarl import URL

from bayplan.cluster.clock import Clock, SystemClock, sleep
from bayplan.cluster.codec import dumps, loads
from bayplan.cluster.credentials import Access, Credentials
from bayplan.cluster.errors import ApiError, Unauthorized, Unreachable, error_from_status
from bayplan.cluster.port import Json, WatchEvent
from bayplan.cluster.resources import EVENTS, Resource
from bayplan.cluster.streams import decode_event, lines

MAX_TRIES = 5
CONNECT_SECONDS = 10.0
READ_RETRY_SECONDS = 0.1
MAX_RETRY_AFTER_SECONDS = 10.0
"""A longer Retry-After is not slept here but raised, so that a worker is not held for it."""
JSON = "application/json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


@dataclass(frozen=True, slots=True)
class _Request:
    verb: str
    resource: Resource
    method: str
    path: str
    query: Mapping[str, str]
    payload: bytes | None = None
    content_type: str = ""
    subresource: str | None = None

    @property
    def target(self) -> str:
        return f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


RequestHook = Callable[[str, str, int, float], None]
"""Called after each request with verb, resource[/subresource], status (0: no answer) and seconds."""
_TRANSPORT_ERRORS = (aiohttp.ClientError, asyncio.TimeoutError, OSError)


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
    ) -> None:
        self.credentials = credentials
        self.requests: Counter[tuple[str, str, int]] = Counter()
        """Requests made, by (verb, resource or resource/subresource, status); status 0 means no answer."""
        self._clock = clock or SystemClock()
        self._timeout_seconds = timeout_seconds
        self._connections = connections
        self._on_request = on_request
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def open_session(self, *, connections: int) -> aiohttp.ClientSession:
        """Make a session with our user agent. The caller closes it; TLS and credentials go with each request."""
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=connections),
            headers={"User-Agent": f"bayplan/{version('bayplan')}", "Accept-Encoding": "identity"},
            skip_auto_headers={"Content-Type"},
        )

    # --- reads ---------------------------------------------------------------------------------------------------

    async def get(self, resource: Resource, namespace: str, name: str) -> Json:
        """Return the object; raises NotFound."""
        return await self._read(_Request("get", resource, "GET", resource.object_path(namespace, name), {}))

    async def list_pages(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        limit: int = 500,
    ) -> AsyncGenerator[tuple[list[Json], str], None]:
        """Yield (items, resourceVersion of the list); raises Gone when the continue token expired."""
        query = _query(limit=limit, labelSelector=label_selector, fieldSelector=field_selector)
        path = resource.collection_path(namespace)
        token: str | None = None
        while True:
            page = await self._read(_Request("list", resource, "GET", path, query | _query(**{"continue": token})))
            metadata = page.get("metadata") or {}
            items = page.pop("items", None) or []
            token = metadata.get("continue") or None
            yield items, str(metadata.get("resourceVersion") or "")
            if token is None:
                return

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
        request = _Request("watch", resource, "GET", resource.collection_path(namespace), query)
        response = await self._open(request, timeout)
        if on_open is not None:
            on_open()
        try:
            async for line in lines(response.content):
                yield decode_event(line, exact_numbers=resource.exact_numbers)
        except _TRANSPORT_ERRORS as error:
            raise Unreachable(f"watch of {resource} broke off: {_describe(error)}") from error
        finally:
            response.close()

    # --- writes --------------------------------------------------------------------------------------------------

    async def create(self, resource: Resource, namespace: str, body: Mapping[str, Any]) -> Json:
        """POST with strict field validation: a field the server does not know is an error, never dropped."""
        path = resource.collection_path(namespace or None)
        return await self._write(_Request("create", resource, "POST", path, _STRICT, dumps(body), JSON))

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
        return await self._write(_Request("patch", resource, "PATCH", path, {}, dumps(ops), JSON_PATCH, subresource))

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
        request = _Request("patch", resource, "PATCH", path, {}, dumps(body), STRATEGIC_PATCH, subresource)
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
        return await self._write(_Request("patch", resource, "PATCH", path, {}, dumps(body), MERGE_PATCH, subresource))

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
            _Request("apply", resource, "PATCH", path, query, dumps(full), APPLY_PATCH, subresource)
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
        return await self._write(_Request("delete", resource, "DELETE", path, {}, dumps(options), JSON))

    async def create_event(self, namespace: str, body: Mapping[str, Any]) -> Json:
        """Create an events.k8s.io/v1 Event."""
        return await self.create(EVENTS, namespace, body)

    # --- one request ---------------------------------------------------------------------------------------------

    async def _read(self, request: _Request) -> Json:
        deadline = self._clock.time() + self._timeout_seconds
        for attempt in range(1, MAX_TRIES + 1):
            try:
                return await self._answer(request)
            except ApiError as error:
                # 504 names a resourceVersion that the server has not reached: the caller decides, not a loop here.
                repeatable = error.status in (0, 429, 500, 502, 503)
                delay = _retry_delay(error, attempt)
                if not repeatable or attempt == MAX_TRIES or delay is None or self._clock.time() + delay > deadline:
                    raise
            await sleep(self._clock, delay)
        raise AssertionError("unreachable: the last attempt raises")

    async def _write(self, request: _Request) -> Json:
        for attempt in range(1, MAX_TRIES + 1):
            try:
                return await self._answer(request)
            except ApiError as error:
                # Only a 429 with a wait of the server's own says that nothing was done.
                refused = error.status == 429 and error.retry_after is not None
                delay = _retry_delay(error, attempt) if refused else None
                if attempt == MAX_TRIES or delay is None:
                    raise
            await sleep(self._clock, delay)
        raise AssertionError("unreachable: the last attempt raises")

    async def _answer(self, request: _Request) -> Json:
        timeout = aiohttp.ClientTimeout(total=self._timeout_seconds, sock_connect=CONNECT_SECONDS)
        response = await self._open(request, timeout)
        try:
            data = await response.read()
        except _TRANSPORT_ERRORS as error:
            response.close()
            raise Unreachable(f"{request}: the answer broke off: {_describe(error)}") from error
        try:
            answer = loads(data, exact_numbers=request.resource.exact_numbers)
        except ValueError as error:
            raise Unreachable(f"{request}: not the API's JSON: {data[:80]!r}") from error
        if not isinstance(answer, dict):
            raise Unreachable(f"{request}: not an API object: {data[:80]!r}")
        return answer

    async def _open(self, request: _Request, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        """Send once (twice after a 401: it did nothing) and return the response when its status is good, else raise."""
        access = await self.credentials.access()
        for last in (False, True):
            started = self._clock.time()
            status = 0
            try:
                response = await self._send(request, access, timeout)
                status = response.status
                if status < 300:
                    return response
                raise await _refusal(response)
            except Unauthorized:
                renewed = await self.credentials.reload(access)
                if last or renewed is access:
                    raise
                access = renewed
            except _TRANSPORT_ERRORS as error:
                raise Unreachable(f"{request}: {_describe(error)}") from error
            finally:
                self._count(request, status, self._clock.time() - started)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _send(self, request: _Request, access: Access, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        if self._session is None:
            self._session = self.open_session(connections=self._connections)
        headers = {"Accept": "application/json"}
        if access.authorization is not None:
            headers["Authorization"] = access.authorization
        if request.payload is not None:
            headers["Content-Type"] = request.content_type
        query = f"?{urlencode(request.query)}" if request.query else ""
        return await self._session.request(
            request.method,
            URL(f"{access.server}{request.path}{query}", encoded=True),
            data=request.payload,
            headers=headers,
            ssl=access.tls if access.tls is not None else True,
            server_hostname=access.tls_server_name,
            proxy=access.proxy,
            timeout=timeout,
            allow_redirects=False,
        )

    def _count(self, request: _Request, status: int, seconds: float) -> None:
        self.requests[request.verb, request.target, status] += 1
        if self._on_request is not None:
            self._on_request(request.verb, request.target, status, seconds)


_STRICT = {"fieldValidation": "Strict"}


def _query(**parameters: str | int | None) -> dict[str, str]:
    return {name: str(value) for name, value in parameters.items() if value is not None}


async def _refusal(response: aiohttp.ClientResponse) -> ApiError:
    data = await response.read()
    try:
        body = json.loads(data)
    except ValueError:
        body = None
    try:
        retry_after = float(response.headers["Retry-After"])
    except (KeyError, ValueError):
        retry_after = None
    return error_from_status(
        body if isinstance(body, dict) else None,
        status=response.status,
        retry_after=retry_after,
        text=data[:200].decode("utf-8", "replace"),
    )


def _retry_delay(error: ApiError, attempt: int) -> float | None:
    """Return seconds to wait before the next attempt, or None when the server asks for too long."""
    backoff: float = READ_RETRY_SECONDS * 2 ** (attempt - 1)
    delay = max(error.retry_after or 0.0, backoff)
    if delay > MAX_RETRY_AFTER_SECONDS:
        return None
    return delay * random.uniform(1.0, 1.2)


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
