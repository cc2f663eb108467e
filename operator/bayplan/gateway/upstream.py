"""Bytes to and from engines, behind an interface as narrow as the relay needs.

Only the transport is here: no routing, no retry. An engine is addressed by the IP address of a watched pod, on the one
engine port; redirects are not followed and nothing is decompressed. HTTP is parsed by llhttp (httptools); a client
library around it would cost as much again as everything else that the gateway does for a request.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, cast

import httptools

from bayplan.api.names import ENGINE_PORT

KEEP_ALIVE_SECONDS = 3.0
"""vLLM's server closes a quiet connection after 5 s; a request on it just then would be lost."""
MOST_PENDING_BYTES = 256 * 1024
"""More of a body than this is not taken from the engine before the client has taken what there is."""
MOST_HEADER_BYTES = 64 * 1024
_JSON = "application/json"


class EngineError(Exception):
    """The engine gave no complete answer. The message names the kind of failure, never what was sent."""


class EngineUnreachableError(EngineError):
    """No connection came about: the engine has seen nothing of the request."""


class EngineBrokeOffError(EngineError):
    """The connection ended before the answer did, or what came was no HTTP."""


Sink = Callable[[bytes], bool]
"""Takes bytes of a body in the very call that brings them, or says False and leaves them to the reader."""


class Answer(Protocol):
    """An engine's answer, once its head has come."""

    @property
    def status(self) -> int:
        """HTTP status."""

    @property
    def content_type(self) -> str:
        """Content type as the engine stated it."""

    async def read(self) -> bytes:
        """Return the next bytes of the body, empty at its end. Raises EngineBrokeOffError."""

    def pass_to(self, sink: Sink) -> None:
        """Hand what comes from now on to `sink`, in order; `read` returns what that does not take."""

    def close(self) -> None:
        """Cut the connection unless the body has ended: the engine learns at once that nobody listens."""


class Upstream(Protocol):
    """Sends one request to one engine."""

    async def send(self, address: str, path: str, payload: bytes, request_id: str) -> Answer:
        """Return the answer. `address` is a URL's host. Raises EngineError; cancelling it cuts the connection."""


class HttpAnswer:
    """See `Answer`. Filled by its connection."""

    __slots__ = (
        "_connection",
        "_error",
        "_pending",
        "_sink",
        "_waiter",
        "content_type",
        "ended",
        "pending_bytes",
        "status",
    )

    def __init__(self, connection: "Connection") -> None:
        self.status = 0
        self.content_type = _JSON
        self.ended = False
        self.pending_bytes = 0
        self._connection = connection
        self._pending: list[bytes] = []
        self._sink: Sink | None = None
        self._error: str | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def head(self) -> None:
        """Wait for status and headers. Raises EngineBrokeOffError."""
        while not self.status:
            await self._news()

    async def read(self) -> bytes:
        """See `Answer`."""
        while not self._pending:
            if self.ended:
                return b""
            await self._news()
        data = self._come()
        self._pending.clear()
        if self.pending_bytes > MOST_PENDING_BYTES:
            self._connection.go_on()
        self.pending_bytes = 0
        return data

    def pass_to(self, sink: Sink) -> None:
        """See `Answer`."""
        self._sink = sink

    def close(self) -> None:
        """See `Answer`."""
        if not self.ended:
            self.fail("the answer was given up")
            self._connection.abort()

    # -- from the connection

    def feed(self, data: bytes) -> None:
        """A piece of the body has come."""
        self._pending.append(data)
        self.pending_bytes += len(data)

    def arrived(self) -> None:
        """All of one delivery was fed: pass it on, else wake who waits for it."""
        if self._sink is not None and self._pending and self._sink(self._come()):
            self._pending.clear()
            self.pending_bytes = 0
            if not self.ended:
                return  # nobody need be woken: that costs more than all the rest
        self.wake()

    def _come(self) -> bytes:
        pending = self._pending
        return pending[0] if len(pending) == 1 else b"".join(pending)

    def fail(self, error: str) -> None:
        """Nothing more will come."""
        self._error = error
        self.wake()

    def wake(self) -> None:
        """There is news."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _news(self) -> None:
        if self._error is not None:
            raise EngineBrokeOffError(self._error)
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


class Connection(asyncio.Protocol):
    """One kept connection to one engine; carries one exchange at a time."""

    def __init__(self, owner: "HttpUpstream", address: str) -> None:
        self.address = address
        self.idle_since = 0.0
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._parser: Any = httptools.HttpResponseParser(self)
        self._answer: HttpAnswer | None = None
        self._content_type = _JSON
        self._header_bytes = 0
        self._keep = False

    @property
    def usable(self) -> bool:
        """Whether another request may be sent on it."""
        return self._transport is not None and not self._transport.is_closing()

    def begin(self, request: bytes) -> HttpAnswer:
        """Send a request; the answer is filled as it comes."""
        answer = self._answer = HttpAnswer(self)
        self._content_type, self._header_bytes, self._keep = _JSON, 0, False
        if self._transport is None:
            answer.fail("the connection was closed")
        else:
            self._transport.write(request)
        return answer

    def abort(self) -> None:
        """Cut it."""
        self._answer = None
        if self._transport is not None:
            self._transport.abort()

    def go_on(self) -> None:
        """Take more of the body again."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # -- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._transport = None
        self._owner.lost(self)
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.fail("the connection ended" if exc is None else type(exc).__name__)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        answer = self._answer
        if answer is None:
            self.abort()  # nothing was asked: whatever this is, it answers nothing
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.abort()
            answer.fail(type(error).__name__)
            return
        answer.arrived()
        if answer.ended:
            self._finish()
        elif answer.pending_bytes > MOST_PENDING_BYTES and self._transport is not None:
            self._transport.pause_reading()

    def _finish(self) -> None:
        if self._keep:
            self._owner.keep(self)
        else:
            self.abort()

    # -- llhttp

    def on_message_begin(self) -> None:
        """A message begins; behind the end of the answer it is one that nobody asked for."""
        if self._answer is None:
            self._keep = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header line."""
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > MOST_HEADER_BYTES:
            raise ValueError("headers")  # reaches data_received as a parser error
        if name.lower() == b"content-type":
            self._content_type = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """The head has come; one of 1xx announces another."""
        status = self._parser.get_status_code()
        if self._answer is not None and status >= 200:
            self._answer.content_type = self._content_type
            self._answer.status = status

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        if self._answer is not None:
            self._answer.feed(body)

    def on_message_complete(self) -> None:
        """The body has ended."""
        answer = self._answer
        if answer is None or not answer.status:
            return
        answer.ended = True
        self._answer = None
        self._keep = self._parser.should_keep_alive()  # later it would say no


class HttpUpstream:
    """`Upstream` over kept connections. Close it at the end."""

    def __init__(self, *, connect_seconds: float, port: int = ENGINE_PORT) -> None:
        self._connect_seconds = connect_seconds
        self._port = port
        self._idle: dict[str, deque[Connection]] = {}
        self._open: set[Connection] = set()
        self._sweep: asyncio.TimerHandle | None = None

    @property
    def open_connections(self) -> int:
        """Connections that are open, kept ones included."""
        return len(self._open)

    async def send(self, address: str, path: str, payload: bytes, request_id: str) -> Answer:
        """See `Upstream`."""
        connection = self._take(address) or await self._connect(address)
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {address}:{self._port}\r\nContent-Type: {_JSON}\r\n"
            f"Content-Length: {len(payload)}\r\nX-Request-Id: {request_id}\r\n\r\n"
        )
        answer = connection.begin(head.encode("ascii") + payload)
        try:
            await answer.head()
        except BaseException:
            answer.close()
            raise
        return answer

    async def close(self) -> None:
        """Cut all connections."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for connection in list(self._open):
            connection.abort()
        await asyncio.sleep(0)

    # -- connections

    def keep(self, connection: Connection) -> None:
        """Keep a connection whose exchange has ended."""
        connection.idle_since = asyncio.get_running_loop().time()
        self._idle.setdefault(connection.address, deque()).append(connection)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(KEEP_ALIVE_SECONDS, self._close_idle)

    def lost(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        self._open.discard(connection)

    def _take(self, address: str) -> Connection | None:
        idle = self._idle.get(address)
        oldest = asyncio.get_running_loop().time() - KEEP_ALIVE_SECONDS
        while idle:
            connection = idle.pop()
            if connection.usable and connection.idle_since > oldest:
                return connection
            connection.abort()
        return None

    async def _connect(self, address: str) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_seconds):
                _, connection = await loop.create_connection(
                    lambda: Connection(self, address), address.strip("[]"), self._port
                )
        except (OSError, TimeoutError) as error:
            raise EngineUnreachableError(type(error).__name__) from None
        self._open.add(connection)
        return connection

    def _close_idle(self) -> None:
        self._sweep = None
        loop = asyncio.get_running_loop()
        oldest = loop.time() - KEEP_ALIVE_SECONDS
        for address, idle in list(self._idle.items()):
            while idle and (not idle[0].usable or idle[0].idle_since <= oldest):
                idle.popleft().abort()
            if not idle:
                del self._idle[address]
        if self._idle:
            self._sweep = loop.call_later(KEEP_ALIVE_SECONDS, self._close_idle)
