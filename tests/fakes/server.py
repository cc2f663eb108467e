"""A scripted API server over real HTTP, for what only bytes on a socket can show: cuts, silence, garbage, refusals."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from bayplan.cluster.credentials import Access, Credentials

Step = Callable[[web.Request], Awaitable[web.StreamResponse]]


def reply(body: object, *, status: int = 200, headers: dict[str, str] | None = None) -> Step:
    """Answer with JSON, or with the text itself if it is one."""

    async def step(_: web.Request) -> web.StreamResponse:
        if isinstance(body, str):
            return web.Response(text=body, status=status, headers=headers, content_type="text/html")
        return web.json_response(body, status=status, headers=headers)

    return step


def refuse(code: int, reason: str, message: str = "no", *, headers: dict[str, str] | None = None) -> Step:
    """Answer with a Status."""
    return reply(status_object(code, reason, message), status=code, headers=headers)


def status_object(code: int, reason: str, message: str = "no") -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
    }


def hang_up() -> Step:
    """Cut the connection without an answer, after the request was received."""

    async def step(request: web.Request) -> web.StreamResponse:
        await request.read()
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    return step


def silence() -> Step:
    """Never answer."""

    async def step(_: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        return web.Response()

    return step


def stream(*parts: object, end: str = "close", opened: asyncio.Event | None = None) -> Step:
    """A watch that sends `parts` (bytes as they are, anything else as a line of JSON), then ends.

    `end`: "close" ends well, "cut" aborts the connection, "hold" stays silent for ever.
    """

    async def step(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        if opened is not None:
            opened.set()
        for part in parts:
            await response.write(part if isinstance(part, bytes) else json.dumps(part).encode() + b"\n")
        if end == "hold":
            await asyncio.Event().wait()
        if end == "cut":
            assert request.transport is not None
            request.transport.abort()
        return response

    return step


def event(kind: str, obj: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "object": obj}


def page(items: list[dict[str, Any]], version: int, token: str = "") -> dict[str, Any]:
    metadata = {"resourceVersion": str(version), "continue": token}
    return {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items}


class ScriptedServer:
    """Plays `lists`, `watches` and `others` in order; the last of each repeats. Keeps every request."""

    def __init__(self) -> None:
        self.lists: list[Step] = []
        self.watches: list[Step] = []
        self.others: list[Step] = []
        self.seen: list[tuple[str, str, dict[str, str], dict[str, str], bytes]] = []
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_route("*", "/{tail:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def access(self, authorization: str | None = "Bearer first") -> Access:
        return Access(server=self.url, authorization=authorization, tls=None)

    def credentials(self) -> Credentials:
        return Credentials(self.access)

    def count(self, kind: str) -> int:
        """How many requests of a kind came: list, watch or other."""
        return sum(_kind(method, path, query) == kind for method, path, query, _, _ in self.seen)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        query = dict(request.query)
        self.seen.append((request.method, request.path, query, dict(request.headers), body))
        kind = _kind(request.method, request.path, query)
        script = {"list": self.lists, "watch": self.watches, "other": self.others}[kind]
        step = script.pop(0) if len(script) > 1 else script[0]
        return await step(request)


def _kind(method: str, path: str, query: dict[str, str]) -> str:
    if "watch" in query:
        return "watch"
    return "list" if method == "GET" and "limit" in query else "other"
