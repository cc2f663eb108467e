"""The cluster's port: is it alive, may it have traffic, and what it has seen. Never for clients."""

from collections.abc import Mapping

from aiohttp import web

from bayplan.cluster.probes import Check, verdict
from bayplan.gateway.exposition import Exposition


def administration(
    exposition: Exposition, *, liveness: Mapping[str, Check], readiness: Mapping[str, Check]
) -> web.Application:
    """Build the application."""

    async def healthz(_: web.Request) -> web.Response:
        return verdict(liveness)

    async def readyz(_: web.Request) -> web.Response:
        return verdict(readiness)

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
