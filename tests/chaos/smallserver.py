"""A very small API server: pods with versions, old states on request, and one watch that the test feeds."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from e2e.localcluster.kubeconfig import Access

Json = dict[str, Any]


class SmallServer:
    def __init__(self) -> None:
        self.writes: list[str] = []
        self.queries: list[dict[str, str]] = []
        self.version = 100
        self.slow = asyncio.Event()
        """Writes are answered once it is set."""
        self.slow.set()
        self._past: dict[int, list[Json]] = {100: []}
        self._events: asyncio.Queue[bytes | None] = asyncio.Queue()

    @classmethod
    @asynccontextmanager
    async def on(cls) -> AsyncIterator[tuple["SmallServer", Access]]:
        server = cls()
        app = web.Application()
        for path in ("/api/v1/pods", "/api/v1/nodes", "/api/v1/namespaces/{namespace}/pods"):
            app.router.add_get(path, server._list)
        app.router.add_get("/api/v1/namespaces/{namespace}/pods/{name}", server._get)
        app.router.add_post("/api/v1/namespaces/{namespace}/pods", server._create)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield server, Access(server=url, ca=b"", tls=None, token=None)
        finally:
            server.end_watch()
            await runner.cleanup()

    def begin_watch(self) -> None:
        """Forget events that nobody read."""
        self._events = asyncio.Queue()

    def send(self, kind: str, name: str) -> bytes:
        """Send an event of a new version; return its line."""
        self.version += 1
        line = json.dumps({"type": kind, "object": pod(name, self.version)}).encode() + b"\n"
        self._events.put_nowait(line)
        return line

    def end_watch(self) -> None:
        self._events.put_nowait(None)

    async def _list(self, request: web.Request) -> web.StreamResponse:
        self.queries.append(dict(request.query))
        if "watch" in request.query:
            response = web.StreamResponse()
            await response.prepare(request)
            while (line := await self._events.get()) is not None:
                await response.write(line)
            return response
        version = int(request.query.get("resourceVersion", self.version))
        items = self._past[max(known for known in self._past if known <= version)]
        if "fieldSelector" in request.query:
            name = request.query["fieldSelector"].removeprefix("metadata.name=")
            items = [item for item in items if item["metadata"]["name"] == name]
        metadata = {"resourceVersion": str(version)}
        return web.json_response({"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items})

    async def _get(self, request: web.Request) -> web.Response:
        return web.json_response({"kind": "Pod", **pod(request.match_info["name"], self.version)})

    async def _create(self, request: web.Request) -> web.Response:
        name = (await request.json())["metadata"]["name"]
        self.writes.append(name)
        await self.slow.wait()
        self.version += 1
        created = pod(name, self.version)
        self._past[self.version] = [*self._past[max(self._past)], created]
        return web.json_response(created, status=201)


def pod(name: str, version: int) -> Json:
    return {"metadata": {"name": name, "resourceVersion": str(version)}}
