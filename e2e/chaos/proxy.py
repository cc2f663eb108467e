"""`ChaosProxy`: a reverse proxy before the API server that does to requests and streams what a `Tamper` says.

Each client has a door, a port of its own. A door can be severed: from that moment nothing of that client reaches the
server any more, as after SIGKILL, while what the server had already been given goes on. Writes and injections are
counted when they have really happened.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web
from yarl import URL

from e2e.chaos import replies
from e2e.chaos.apirequest import ApiRequest, parse_request
from e2e.chaos.faults import FaultClass, Tamper, Untouched
from e2e.chaos.scope import Scope
from e2e.chaos.snapshots import History, as_of, single_object
from e2e.chaos.streams import Freezer, Ways, relay
from e2e.localcluster.kubeconfig import Access

LARGEST_BODY = 64 * 2**20
HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "content-encoding", "accept-encoding"}
)
FROZEN_SECONDS = (1.0, 3.0)
POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Write:
    """One write that reached the server, and what the server said."""

    door: str
    request: ApiRequest
    status: int
    at: float
    """Seconds on the monotonic clock."""


@dataclass(eq=False)
class Door:
    """One client's way in. `on_crash` is called once when a fault severs it."""

    name: str
    scope: Scope | None
    on_crash: Callable[["Door"], None]
    url: str = ""
    severed: bool = False
    runner: web.AppRunner | None = None

    def sever(self) -> None:
        """Cut every connection and let nothing through any more."""
        self.severed = True
        if self.runner is not None and self.runner.server is not None:
            for connection in list(self.runner.server.connections):
                if connection.transport is not None:
                    connection.transport.abort()

    def crash(self) -> None:
        """Sever, and say so."""
        if not self.severed:
            self.sever()
            self.on_crash(self)


@dataclass(slots=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    data: bytes

    def response(self) -> web.Response:
        return web.Response(status=self.status, headers=self.headers, body=self.data)


@dataclass(eq=False)
class ChaosProxy:
    """Use as an async context manager. `tamper` may be replaced at any time."""

    upstream: Access
    tamper: Tamper = field(default_factory=Untouched)
    injected: Counter[FaultClass] = field(default_factory=Counter)
    """Faults that a client really met."""
    requests: Counter[str] = field(default_factory=Counter)
    """Requests by verb and target."""
    writes: list[Write] = field(default_factory=list)
    in_flight: Counter[str] = field(default_factory=Counter)
    """Writes that were passed on and not answered yet, by kind."""
    lasting: Counter[FaultClass] = field(default_factory=Counter)
    """Late events, withheld answers and silent streams that a client still waits for."""
    history: History = field(default_factory=History)

    def __post_init__(self) -> None:
        self._doors: list[Door] = []
        self._gaps: set[tuple[Door, str]] = set()
        self._freezer = Freezer()
        self._exchanges: set[asyncio.Task[_Answer]] = set()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "ChaosProxy":
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self.upstream.tls or True),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10.0),
            auto_decompress=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        for door in self._doors:
            door.sever()
        await asyncio.gather(*self._exchanges, return_exceptions=True)
        for door in self._doors:
            if door.runner is not None:
                await door.runner.cleanup()
        if self._session is not None:
            await self._session.close()

    async def open_door(
        self, name: str, *, scope: Scope | None = None, on_crash: Callable[[Door], None] = lambda _: None
    ) -> Door:
        """Listen at a port of its own for one client."""
        door = Door(name, scope, on_crash)
        app = web.Application(client_max_size=LARGEST_BODY)

        async def handle(request: web.Request) -> web.StreamResponse:
            return await self._handle(door, request)

        app.router.add_route("*", "/{path:.*}", handle)
        # A watch ends with its client; what was sent to the server goes on without anybody waiting for it.
        door.runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.01)
        await door.runner.setup()
        await web.TCPSite(door.runner, "127.0.0.1", 0).start()
        door.url = f"http://127.0.0.1:{door.runner.addresses[0][1]}"
        self._doors.append(door)
        return door

    def counted_writes(self, *, since: int = 0) -> list[Write]:
        """Return writes from the `since`-th on that must not happen at rest, and that the server accepted."""
        return [write for write in self.writes[since:] if write.request.is_counted and write.status < 300]

    async def all_over(self) -> None:
        """Return once no fault lasts any more; before that a client may know less than the server, and act on it."""
        while True:
            if not self._freezer.standing and not self.lasting.total():
                return
            await asyncio.sleep(POLL_SECONDS)

    @contextmanager
    def _lasts(self, fault: FaultClass) -> Iterator[None]:
        self.lasting[fault] += 1
        try:
            yield
        finally:
            self.lasting[fault] -= 1

    # --- requests ----------------------------------------------------------------------------------------------------

    async def _handle(self, door: Door, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        api = parse_request(
            request.method,
            request.path,
            query=request.query,
            content_type=request.headers.get("Content-Type", ""),
            body=body,
        )
        if door.severed:
            return _hang_up(request)
        self.requests[api.kind_of_write] += 1
        if api.verb == "watch":
            return await self._watch(door, request, api)
        fault = self.tamper.on_request(api)
        instead = await self._instead(door, request, api, fault)
        if instead is not None:
            return instead
        self.in_flight[api.kind_of_write] += 1
        exchange = asyncio.create_task(self._exchange(door, request, api, body, dict(request.query)))
        self._exchanges.add(exchange)
        exchange.add_done_callback(self._exchanges.discard)
        answer = await asyncio.shield(exchange)
        return await self._after(door, request, fault, answer)

    async def _instead(
        self, door: Door, request: web.Request, api: ApiRequest, fault: FaultClass | None
    ) -> web.StreamResponse | None:
        """Return the answer to a request that is not passed on, None for one that is."""
        if fault is FaultClass.CRASH_BEFORE_WRITE:
            self.injected[fault] += 1
            door.crash()
            return _hang_up(request)
        if fault in (FaultClass.CONFLICT, FaultClass.INVALID, FaultClass.THROTTLED):
            self.injected[fault] += 1
            return replies.refusal(fault)
        if fault is FaultClass.HTML:
            self.injected[fault] += 1
            return replies.page(status=502)
        if fault in (FaultClass.STALE_LIST, FaultClass.STALE_GET) or self._freezer.version(api.resource):
            return await self._from_the_past(door, request, api, fault)
        return None

    async def _after(
        self, door: Door, request: web.Request, fault: FaultClass | None, answer: _Answer
    ) -> web.StreamResponse:
        if door.severed:
            return _hang_up(request)
        if fault is None or answer.status >= 300:
            return answer.response()
        if fault is FaultClass.CRASH_AFTER_WRITE:
            self.injected[fault] += 1
            door.crash()
            return _hang_up(request)
        if fault is FaultClass.ERROR_AFTER_SUCCESS:
            self.injected[fault] += 1
            return replies.refusal(fault)
        if fault is FaultClass.SILENCE_AFTER_SUCCESS:
            self.injected[fault] += 1
            with self._lasts(fault):
                await asyncio.Event().wait()  # until the client gives up, which cancels this
        return answer.response()

    async def _exchange(
        self, door: Door, request: web.Request, api: ApiRequest, body: bytes, query: dict[str, str]
    ) -> _Answer:
        assert self._session is not None
        try:
            async with self._session.request(
                request.method,
                self._url(door, request, api, query),
                headers=_end_to_end(request.headers),
                data=body or None,
            ) as upstream:
                answer = _Answer(upstream.status, _end_to_end(upstream.headers), await upstream.read())
        finally:
            self.in_flight[api.kind_of_write] -= 1
        if api.is_write:
            self.writes.append(Write(door.name, api, answer.status, time.monotonic()))
            self.history.note_body(answer.data)
        return answer

    def _url(self, door: Door, request: web.Request, api: ApiRequest, query: dict[str, str]) -> URL:
        plain = URL(request.path).with_query(query) if query else URL(request.path)
        where = door.scope.rewrite(api, request.path, query) if door.scope is not None else str(plain)
        return URL(self.upstream.server + where, encoded=True)

    # --- the past ----------------------------------------------------------------------------------------------------

    async def _from_the_past(
        self, door: Door, request: web.Request, api: ApiRequest, fault: FaultClass | None
    ) -> web.Response | None:
        """Answer a read as of an older version; None when there is none, or for what is no read of resources."""
        frozen = self._freezer.version(api.resource)
        if api.verb not in ("list", "get") or api.subresource or "continue" in request.query:
            return None
        version = frozen or self.history.older(self.tamper.extent(fault or FaultClass.FROZEN_KIND))
        if version is None:
            return None
        listed = api
        query = as_of(dict(request.query), version)
        path = request.path
        if api.verb == "get":
            path = path.rsplit("/", 1)[0]
            listed = ApiRequest("list", api.resource, "", api.namespace)
            query["fieldSelector"] = f"metadata.name={api.name}"
        where = door.scope.rewrite(listed, path, query) if door.scope is not None else str(URL(path).with_query(query))
        assert self._session is not None
        url = URL(self.upstream.server + where, encoded=True)
        async with self._session.get(url, headers=_end_to_end(request.headers)) as upstream:
            answer = _Answer(upstream.status, _end_to_end(upstream.headers), await upstream.read())
        if answer.status != 200:
            return None  # that version is compacted, or the client may not list
        if fault is not None:
            self.injected[fault] += 1
        if api.verb == "list":
            return answer.response()
        found = single_object(answer.data)
        return replies.not_found(api.resource, api.name) if found is None else web.json_response(found)

    # --- watches -----------------------------------------------------------------------------------------------------

    async def _watch(self, door: Door, request: web.Request, api: ApiRequest) -> web.StreamResponse:
        if (door, api.resource) in self._gaps:
            self._gaps.discard((door, api.resource))
            if self.tamper.extent(FaultClass.WATCH_EXPIRED) < 0.5:
                return web.json_response(replies.status_object(410, "Expired", "injected"), status=410)
            return web.Response(body=replies.error_event(410, "Expired"), content_type="application/json")
        if self.tamper.on_request(api) is FaultClass.HTML:
            self.injected[FaultClass.HTML] += 1
            return replies.page(status=502 if self.tamper.extent(FaultClass.HTML) < 0.5 else 200)
        await self._freezer.thawed(api.resource)
        assert self._session is not None
        url = self._url(door, request, api, dict(request.query))
        async with self._session.get(url, headers=_end_to_end(request.headers)) as upstream:
            response = web.StreamResponse(status=upstream.status, headers=_end_to_end(upstream.headers))
            if door.severed:
                return _hang_up(request)
            await response.prepare(request)
            ways = Ways(
                tamper=self.tamper,
                history=self.history,
                count=self._count,
                freeze=lambda version: self._freeze(api.resource, version),
                thawed=lambda: self._freezer.thawed(api.resource),
                gap=lambda: self._gaps.add((door, api.resource)),
                lasting=self._lasts,
            )
            with suppress(ConnectionResetError, aiohttp.ClientConnectionError):
                whole = await relay(upstream.content, response, watch=api, ways=ways)
                if not whole and request.transport is not None:
                    request.transport.abort()
        return response

    def _count(self, fault: FaultClass) -> None:
        self.injected[fault] += 1

    def _freeze(self, resource: str, version: int) -> None:
        low, high = FROZEN_SECONDS
        self._freezer.freeze(resource, version, low + (high - low) * self.tamper.extent(FaultClass.FROZEN_KIND))


def _end_to_end(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in HOP_BY_HOP}


def _hang_up(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=502)
