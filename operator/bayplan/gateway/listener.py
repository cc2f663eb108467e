"""Sockets: the clients' port and the cluster's, and who sits on a connection without asking anything."""

import asyncio
import logging
from collections.abc import Container

from aiohttp import web

LONGEST_LINE_BYTES = 8190
LONGEST_FIELD_BYTES = 16_380
BACKLOG = 1024
CUT_SECONDS = 0.5
"""At the end, how long handlers may take before they are cancelled; their drain was before."""
LINGERING_SECONDS = 1.0
"""How long an unread body is read on, so that its sender gets to see the refusal."""
_SILENT = logging.getLogger("bayplan.gateway.http")
"""aiohttp quotes what it could not parse, and that may be somebody's prompt."""
_SILENT.setLevel(logging.CRITICAL)
_SILENT.propagate = False


class Listener:
    """One application on one port."""

    def __init__(
        self,
        application: web.Application,
        *,
        host: str,
        port: int,
        idle_connection_seconds: float = 75.0,
        busy: Container[asyncio.BaseTransport | None] = frozenset(),
    ) -> None:
        """`busy` holds the connections on which a request is being served."""
        self._host = host
        self._port = port
        self._busy = busy
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
        self._site: web.TCPSite | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._quiet_since: dict[asyncio.BaseTransport, float] = {}

    async def start(self) -> int:
        """Listen; return the port. Raises OSError."""
        await self._runner.setup()
        self._site = web.TCPSite(self._runner, self._host, self._port, backlog=BACKLOG, reuse_address=True)
        await self._site.start()
        self._sweeper = asyncio.create_task(self._sweep(), name="idle connections")
        port: int = self._runner.addresses[0][1]
        return port

    async def close(self) -> None:
        """Stop listening and cut what is still open."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        await self._runner.cleanup()

    async def _sweep(self) -> None:
        """Close connections on which no request is being served for too long.

        aiohttp times the pause between two requests, but not a first header that never ends.
        """
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(5.0, self._idle_seconds / 2))
            server = self._runner.server
            now = loop.time()
            quiet: dict[asyncio.BaseTransport, float] = {}
            for connection in server.connections if server is not None else ():
                transport = connection.transport
                if transport is None or transport in self._busy:
                    continue
                since = quiet[transport] = self._quiet_since.get(transport, now)
                if now - since >= self._idle_seconds:
                    transport.close()
            self._quiet_since = quiet
