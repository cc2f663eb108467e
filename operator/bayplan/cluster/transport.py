"""HTTP to the API server: credentials, named errors, what may be repeated, and counters.

Reads are repeated a few times. A write is sent again only after a 429, by which the server says that it did nothing;
after a cut, a time-out or a 5xx nobody knows, and only the caller can look. There is no client-side rate limit: the
server's own fairness decides.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Protocol
from urllib.parse import urlencode

import aiohttp
from yarl import URL

from bayplan.cluster.clock import Clock, SystemClock, sleep
from bayplan.cluster.codec import loads
from bayplan.cluster.credentials import Access, Credentials
from bayplan.cluster.errors import ApiError, LeaseLost, Unauthorized, Unreachable, error_from_status
from bayplan.cluster.port import Json
from bayplan.cluster.resources import Resource

MAX_TRIES = 5
CONNECT_SECONDS = 10.0
READ_RETRY_SECONDS = 0.1
MAX_RETRY_AFTER_SECONDS = 10.0
"""A longer Retry-After is not slept here but raised, so that a worker is not held for it."""
DEFAULT_HEADERS = {"User-Agent": f"bayplan/{version('bayplan')}", "Accept-Encoding": "identity"}
"""Uncompressed: inside a cluster, compressing large lists costs both sides more time than it saves."""

MayWrite = Callable[[], bool]
RequestHook = Callable[[str, str, int, float], None]
"""Called after each request with verb, resource[/subresource], status (0: no answer) and seconds."""


class DateHook(Protocol):
    """Receives the Date of each answer."""

    def __call__(self, date: str | None, *, took_seconds: float) -> None:
        """Take in the header, and how long the answer took."""


TRANSPORT_ERRORS = (aiohttp.ClientError, asyncio.TimeoutError, OSError)


@dataclass(frozen=True, slots=True)
class Request:
    """One request, ready to be sent."""

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
        """Return resource[/subresource], for counters."""
        return f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Transport:
    """Sends requests over one pool of connections."""

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
        self.credentials = credentials
        self.requests: Counter[tuple[str, str, int]] = Counter()
        """Requests made, by (verb, resource or resource/subresource, status); status 0 means no answer."""
        self._clock = clock or SystemClock()
        self._timeout_seconds = timeout_seconds
        self._connections = connections
        self._on_request = on_request
        self._on_date = on_date
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def read(self, request: Request) -> Json:
        """Send a GET; repeat it a few times, within the time limit, when no good answer comes."""
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

    async def write(self, request: Request, may_write: MayWrite | None) -> Json:
        """Send a write once, and again only after a 429; raises LeaseLost when `may_write` says no just before."""
        for attempt in range(1, MAX_TRIES + 1):
            if may_write is not None and not may_write():
                raise LeaseLost(f"not the leader (any more): {request} was not sent")
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

    async def _answer(self, request: Request) -> Json:
        timeout = aiohttp.ClientTimeout(total=self._timeout_seconds, sock_connect=CONNECT_SECONDS)
        response = await self.open(request, timeout)
        try:
            data = await response.read()
        except TRANSPORT_ERRORS as error:
            response.close()
            raise Unreachable(f"{request}: the answer broke off: {describe(error)}") from error
        try:
            answer = loads(data, exact_numbers=request.resource.exact_numbers)
        except ValueError as error:
            raise Unreachable(f"{request}: not the API's JSON: {data[:80]!r}") from error
        if not isinstance(answer, dict):
            raise Unreachable(f"{request}: not an API object: {data[:80]!r}")
        return answer

    async def open(self, request: Request, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        """Send once (twice after a 401: it did nothing) and return the response when its status is good, else raise."""
        access = await self.credentials.access()
        for last in (False, True):
            started = self._clock.time()
            status = 0
            try:
                response = await self._send(request, access, timeout)
                status = response.status
                if self._on_date is not None:
                    self._on_date(response.headers.get("Date"), took_seconds=self._clock.time() - started)
                if status < 300:
                    return response
                raise await _refusal(response)
            except Unauthorized:
                renewed = await self.credentials.reload(access)
                if last or renewed is access:
                    raise
                access = renewed
            except TRANSPORT_ERRORS as error:
                raise Unreachable(f"{request}: {describe(error)}") from error
            finally:
                self._count(request, status, self._clock.time() - started)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _send(self, request: Request, access: Access, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._connections), headers=DEFAULT_HEADERS
            )
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

    def _count(self, request: Request, status: int, seconds: float) -> None:
        self.requests[request.verb, request.target, status] += 1
        if self._on_request is not None:
            self._on_request(request.verb, request.target, status, seconds)


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


def describe(error: BaseException) -> str:
    """Name an exception that may have no text of its own."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
