"""/healthz, /readyz and /metrics.

Liveness proves progress: of the event loop, by answering at all, and of every kind that is watched.
"""

import logging
from collections.abc import Callable, Mapping

from aiohttp import web

from bayplan.cluster.metrics import Metrics

logger = logging.getLogger(__name__)

Check = Callable[[], str | None]
"""Returns None when all is well, else what is wrong."""


class ProbeServer:
    """Answers probes and scrapes on one address."""

    def __init__(
        self,
        *,
        host: str,
        port: int,
        metrics: Metrics,
        liveness: Mapping[str, Check],
        readiness: Mapping[str, Check],
    ) -> None:
        self._host = host
        self._port = port
        self._metrics = metrics
        self._liveness = liveness
        self._readiness = readiness
        self._runner: web.AppRunner | None = None

    async def start(self) -> int:
        """Listen and return the port, which matters when 0 (any) was asked for. Raises OSError."""
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._scrape)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port, reuse_address=True).start()
        port: int = self._runner.addresses[0][1]
        logger.info("probes and metrics on http://%s:%d", self._host, port)
        return port

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _healthz(self, _: web.Request) -> web.Response:
        return verdict(self._liveness)

    async def _readyz(self, _: web.Request) -> web.Response:
        return verdict(self._readiness)

    async def _scrape(self, _: web.Request) -> web.Response:
        content = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=self._metrics.render(), headers=content)


def verdict(checks: Mapping[str, Check]) -> web.Response:
    """Answer a probe: a line per check, 503 if any complains."""
    found = {name: check() for name, check in checks.items()}
    lines = [f"[{'-' if wrong else '+'}] {name} {wrong or 'ok'}" for name, wrong in found.items()]
    return web.Response(text="\n".join(lines) + "\n", status=503 if any(found.values()) else 200)
