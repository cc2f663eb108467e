"""A reverse proxy before a real API server that a test can make misbehave in the ways that streams do."""

import asyncio
from collections import Counter

import aiohttp
from aiohttp import web
from yarl import URL

from bayplan.cluster.credentials import Access, Credentials

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "content-encoding"}


class CuttingProxy:
    """Forwards everything; can cut open watches, hold new ones, and put lines into them."""

    def __init__(self, upstream: Access) -> None:
        self._upstream = upstream
        self.methods: Counter[str] = Counter()
        self.lists = 0
        self.watches_open = 0
        self.gate = asyncio.Event()
        """New watches wait for it."""
        self.gate.set()
        self.inject: list[bytes] = []
        """Lines that the next watches begin with, one each."""
        self._cuts: set[asyncio.Task[object]] = set()
        self._session: aiohttp.ClientSession | None = None
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def start(self) -> None:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False)
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_route("*", "/{tail:.*}", self._forward)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        self.cut_watches()
        if self._runner is not None:
            await self._runner.cleanup()
        if self._session is not None:
            await self._session.close()

    def access(self) -> Access:
        return Access(server=self.url, authorization=None, tls=None)

    def credentials(self) -> Credentials:
        return Credentials(self.access)

    def cut_watches(self) -> None:
        for task in self._cuts:
            task.cancel()

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        self.methods[request.method] += 1
        is_watch = "watch" in request.query
        query = dict(request.query)
        if is_watch:
            await self.gate.wait()
        elif "limit" in request.query and "continue" not in request.query:
            self.lists += 1
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP}
        if self._upstream.authorization:
            headers["Authorization"] = self._upstream.authorization
        assert self._session is not None
        async with self._session.request(
            request.method,
            URL(self._upstream.server + request.path).with_query(query),
            headers=headers,
            data=await request.read() or None,
            ssl=self._upstream.tls or True,
            timeout=aiohttp.ClientTimeout(total=None),
        ) as upstream:
            found = {name: value for name, value in upstream.headers.items() if name.lower() not in HOP_BY_HOP}
            response = web.StreamResponse(status=upstream.status, headers=found)
            await response.prepare(request)
            if is_watch and self.inject:
                await response.write(self.inject.pop(0))
            copying = asyncio.ensure_future(self._copy(upstream, response))
            if is_watch:
                self._cuts.add(copying)
                self.watches_open += 1
            try:
                await copying
            except ConnectionResetError:
                pass  # the client went away
            except asyncio.CancelledError:
                if not copying.cancelled():
                    raise
                if request.transport is not None:
                    request.transport.abort()
            finally:
                if is_watch:
                    self._cuts.discard(copying)
                    self.watches_open -= 1
        return response

    async def _copy(self, upstream: aiohttp.ClientResponse, response: web.StreamResponse) -> None:
        async for chunk in upstream.content.iter_any():
            await response.write(chunk)
