"""Sockets: the clients' port and the cluster's, how many connections they carry, and who may sit on one in silence."""

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from aiohttp import web

from bayplan.gateway.refusals import RefusalCode, Refused, raw_answer

LONGEST_LINE_BYTES = 8190
LONGEST_FIELD_BYTES = 16_380
BACKLOG = 1024
CUT_SECONDS = 0.5
"""At the end, how long handlers may take before they are cancelled; their drain was before."""
LINGERING_SECONDS = 1.0
"""How long an unread body is read on, so that its sender gets to see the refusal."""
CROWDED_SHARE = 0.75
"""From this part of the most connections on, silent ones are closed after `CROWDED_SECONDS`: they hold a place that
somebody else needs."""
CROWDED_SECONDS = 5.0
MOST_TURNED_AWAY = 256
"""Connections beyond the bound that are told so at the same time; whoever comes beyond these is cut without a word."""
_SILENT = logging.getLogger("bayplan.gateway.http")
"""aiohttp quotes what it could not parse, and that may be somebody's prompt."""
_SILENT.setLevel(logging.CRITICAL)
_SILENT.propagate = False


class Work:
    """On which connections a request is being served, and on which one was lately."""

    def __init__(self) -> None:
        self._now: set[asyncio.BaseTransport | None] = set()
        self._lately: set[asyncio.BaseTransport | None] = set()

    def begin(self, connection: asyncio.BaseTransport | None) -> None:
        """A request begins."""
        self._now.add(connection)

    def end(self, connection: asyncio.BaseTransport | None) -> None:
        """It is over."""
        self._now.discard(connection)
        self._lately.add(connection)

    def take(self) -> frozenset[asyncio.BaseTransport | None]:
        """Return the connections on which anything was served since the last time of asking."""
        found = frozenset(self._now | self._lately)
        self._lately.clear()
        return found


class Listener:
    """One application on one port."""

    def __init__(
        self,
        application: web.Application,
        *,
        host: str,
        port: int,
        most_connections: int,
        idle_connection_seconds: float = 75.0,
        work: Work | None = None,
        on_turned_away: Callable[[], None] = lambda: None,
    ) -> None:
        """`work` is what the application tells of its connections; without it all count as silent between looks.

        `on_turned_away` is called for each connection beyond `most_connections`.
        """
        self._host = host
        self._port = port
        self._most = most_connections
        self._work = work or Work()
        self._on_turned_away = on_turned_away
        self._idle_seconds = idle_connection_seconds
        self._runner = web.AppRunner(
            application,
            access_log=None,
            logger=_SILENT,
            handler_cancellation=True,
            keepalive_timeout=idle_connection_seconds,
            lingering_time=LINGERING_SECONDS,
            shutdown_timeout=CUT_SECONDS,
            max_line_size=LONGEST_LINE_BYTES,
            max_field_size=LONGEST_FIELD_BYTES,
        )
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._quiet_since: dict[asyncio.BaseTransport, float] = {}
        self._turned_away: set[_TurnedAway] = set()
        self._arriving = 0

    async def start(self) -> int:
        """Listen; return the port. Raises OSError."""
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self._protocol, self._host, self._port, backlog=BACKLOG, reuse_address=True
        )
        self._sweeper = asyncio.create_task(self._sweep(), name="idle connections")
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        """Stop listening and cut what is still open."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        if self._server is not None:
            self._server.close()
        for connection in list(self._turned_away):
            connection.cut()
        await self._runner.cleanup()

    @property
    def connections(self) -> int:
        """Connections that are open, those turned away left out."""
        server = self._runner.server
        return 0 if server is None else len(server.connections)

    def _protocol(self) -> asyncio.Protocol:
        """Return who speaks on a new connection."""
        server = self._runner.server
        assert server is not None, "listening begins after the set-up"
        if self.connections + self._arriving >= self._most:
            self._on_turned_away()
            return _TurnedAway(self._turned_away)
        # The server counts it from the loop's next turn on, and many arrive in one.
        self._arriving += 1
        asyncio.get_running_loop().call_soon(self._arrived)
        return server()

    def _arrived(self) -> None:
        self._arriving -= 1

    async def _sweep(self) -> None:
        """Close connections on which no request is being served for too long.

        aiohttp times the pause between two requests, but not a first header that never ends.
        """
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(CROWDED_SECONDS, self._idle_seconds) / 2)
            server = self._runner.server
            now = loop.time()
            patience = self._idle_seconds
            if self.connections >= CROWDED_SHARE * self._most:
                patience = min(patience, CROWDED_SECONDS)
            at_work = self._work.take()
            quiet: dict[asyncio.BaseTransport, float] = {}
            for connection in server.connections if server is not None else ():
                transport = connection.transport
                if transport is None or transport in at_work:
                    continue
                since = quiet[transport] = self._quiet_since.get(transport, now)
                if now - since >= patience:
                    transport.close()
            self._quiet_since = quiet


class _TurnedAway(asyncio.Protocol):
    """A connection beyond the bound: it gets its refusal at once, and a moment to read it."""

    def __init__(self, others: set["_TurnedAway"]) -> None:
        self._others = others
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)
        if len(self._others) >= MOST_TURNED_AWAY:
            self._transport.abort()
            return
        self._others.add(self)
        self._timer = asyncio.get_running_loop().call_later(LINGERING_SECONDS, self.cut)
        self._transport.write(_TOO_MANY)
        # What it sends is read and dropped: closing on unread bytes would tear the refusal from its hands.
        self._transport.write_eof()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the signature is asyncio's
        """See `asyncio.Protocol`."""
        self._others.discard(self)
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()

    def cut(self) -> None:
        """End it."""
        if self._transport is not None:
            self._transport.abort()


_TOO_MANY = raw_answer(Refused(RefusalCode.GATEWAY_BUSY, "too many connections are open"))
