"""The cluster's port: is it alive, may it have traffic, and what it has seen. Never for clients."""

from collections.abc import Callable, Mapping

from aiohttp import web

from bayplan.gateway.exposition import Exposition

Check = Callable[[], str | None]
"""Returns None when all is well, else what is wrong."""


def administration(
    exposition: Exposition, *, liveness: Mapping[str, Check], readiness: Mapping[str, Check]
) -> web.Application:
    """Build the application."""

    async def healthz(_: web.Request) -> web.Response:
        return _verdict(liveness)

    async def readyz(_: web.Request) -> web.Response:
        return _verdict(readiness)

    async def metrics(_: web.Request) -> web.Response:
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=exposition.metrics(), headers=headers)

    async def evidence(_: web.Request) -> web.Response:
        return web.Response(body=exposition.evidence(), content_type="application/json")

    app = web.Application()
    for path, handler in (
        ("/healthz", healthz),
        ("/readyz", readyz),
        ("/metrics", metrics),
        ("/evidence", evidence),
    ):
        app.router.add_get(path, handler)
    return app


def _verdict(checks: Mapping[str, Check]) -> web.Response:
    found = {name: check() for name, check in checks.items()}
    lines = [f"[{'-' if wrong else '+'}] {name} {wrong or 'ok'}" for name, wrong in found.items()]
    return web.Response(text="\n".join(lines) + "\n", status=503 if any(found.values()) else 200)
