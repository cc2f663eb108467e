"""The life of one gateway process: watch first, then listen, serve, and leave without cutting anybody.

It needs the API server to begin with, not to go on: while that is away, requests go on to the pods that were seen
last, and engines that do not answer are passed over.
"""

import asyncio
import gc
import logging
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from bayplan.api.names import GATEWAY_CLIENT_PORT, GATEWAY_PORT
from bayplan.cluster.apitimes import ApiTimes
from bayplan.cluster.clock import Clock, SystemClock, sleep
from bayplan.cluster.lifecycle import cancel_all, progress_check, stopped_by_signals, sync_check, until_stopped
from bayplan.cluster.port import Port
from bayplan.cluster.reflector import Reflector
from bayplan.cluster.servertime import ServerTime
from bayplan.gateway.acknowledgements import Announcement, GatewayPod
from bayplan.gateway.assembly import Gateway
from bayplan.gateway.directory import head_store, model_store
from bayplan.gateway.endpoints import HEADS_SELECTOR, HeadView, ModelView, view_head, view_model
from bayplan.gateway.exposition import Identity
from bayplan.gateway.listener import Listener
from bayplan.gateway.promptsize import TextCounter
from bayplan.gateway.rollouts import IfServed, RolloutView, rollout_store, view_rollout
from bayplan.gateway.settings import GatewaySettings
from bayplan.gateway.tenants import Tenants, TenantsError, TenantsFile

logger = logging.getLogger(__name__)

EXIT_CLEAN = 0
EXIT_FAILED = 1
SERVING = "clients on "
TENANTS_SECONDS = 5.0
FOLD_SECONDS = 60.0
PROGRESS_SECONDS = 600.0
"""A kind of which nothing was heard for longer makes the process count as dead."""
DRAIN_LOOK_SECONDS = 0.05
GC_THRESHOLDS = (10_000, 10, 10)
"""A request leaves next to no cycles behind: looking for them after every 700 objects cost a tenth of its time."""
MOST_OF_THE_CLUSTER = 256
"""Connections of probes, operators and collectors at the same time."""


@dataclass(frozen=True, slots=True)
class Sockets:
    """Where it listens; port 0 takes a free one."""

    address: str = "0.0.0.0"
    port: int = GATEWAY_CLIENT_PORT
    admin_port: int = GATEWAY_PORT


class GatewayRuntime:
    """One gateway. `run()` returns the exit code; `serving` is set while clients are answered."""

    def __init__(
        self,
        api: Port,
        pod: GatewayPod,
        settings: GatewaySettings,
        *,
        tenants: Tenants,
        tenants_file: TenantsFile | None,
        secret: bytes,
        counters: Mapping[str, TextCounter],
        sockets: Sockets,
        server_time: ServerTime,
        times: ApiTimes | None = None,
        clock: Clock | None = None,
    ) -> None:
        times = times or ApiTimes()
        self.serving = asyncio.Event()
        self.client_port = sockets.port
        self.admin_port = sockets.admin_port
        """Ports; the real ones once `serving` is set."""
        self._settings = settings
        self._clock = clock or SystemClock()
        self._tenants_file = tenants_file
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        models, heads, rollouts = model_store(), head_store(), rollout_store()
        self._models: Reflector[ModelView] = Reflector(
            api, models, view_model, clock=self._clock, watch_seconds=times.watch, idle_seconds=times.idle
        )
        self._heads: Reflector[HeadView] = Reflector(
            api,
            heads,
            view_head,
            label_selector=HEADS_SELECTOR,
            clock=self._clock,
            watch_seconds=times.watch,
            idle_seconds=times.idle,
        )
        self._rollouts: Reflector[RolloutView] = Reflector(
            IfServed(api), rollouts, view_rollout, clock=self._clock, watch_seconds=times.watch, idle_seconds=times.idle
        )
        self.gateway = Gateway(
            models,
            heads,
            rollouts,
            settings,
            tenants=tenants,
            secret=secret,
            counters=counters,
            identity=Identity(pod.uid, server_time.now()),
            now=server_time.now,
        )
        self.announcement = Announcement(
            api,
            pod,
            draining=self.gateway.directory.draining,
            epochs=self.gateway.directory.epochs,
            lease_seconds=settings.lease_seconds,
            clock=self._clock,
            now=server_time.now,
        )
        self.gateway.on_change = self.announcement.changed
        self.gateway.has_lapsed = lambda: self.announcement.lapsed
        checks: dict[str, Reflector[Any]] = {"models": self._models, "pods": self._heads, "rollouts": self._rollouts}
        self._clients = Listener(
            self.gateway.application(),
            host=sockets.address,
            port=sockets.port,
            most_connections=settings.max_connections,
            idle_connection_seconds=settings.idle_connection_seconds,
            work=self.gateway.routes.work,
            on_turned_away=self.gateway.turned_away,
        )
        self._administration = Listener(
            self.gateway.administration(
                liveness={name: progress_check(source, PROGRESS_SECONDS) for name, source in checks.items()},
                readiness={
                    **{name: sync_check(source) for name, source in checks.items()},
                    "serving": self._serving_check,
                },
            ),
            host=sockets.address,
            port=sockets.admin_port,
            most_connections=MOST_OF_THE_CLUSTER,
        )
        self._address = sockets.address

    def stop(self) -> None:
        """Ask for a clean stop, as SIGTERM does."""
        self._stop.set()

    async def run(self) -> int:
        """Run until stopped or failed; return the exit code."""
        with stopped_by_signals(self._stop):
            try:
                return await self._work()
            finally:
                await cancel_all(self._tasks)
                await self._clients.close()
                await self._administration.close()
                await self.gateway.close()

    # -- inside

    async def _work(self) -> int:
        self.admin_port = await self._administration.start()
        logger.info("the cluster on http://%s:%d", self._address, self.admin_port)
        self._start("models", self._models.run())
        self._start("pods", self._heads.run())
        self._start("rollouts", self._rollouts.run())
        self._start("serve", self._serve())
        self._start("tenants", self._follow_tenants())
        self._start("fold", self._fold())
        failed = await until_stopped(self._stop, self._tasks)
        for task in failed:
            error = None if task.cancelled() else task.exception()
            logger.error("the process ends: task %s ended", task.get_name(), exc_info=error)
        await self._leave()
        return EXIT_FAILED if failed else EXIT_CLEAN

    async def _serve(self) -> None:
        """Answer clients from the first complete picture on, not before: half of it would refuse known models, and
        route what is on trial as if nothing were.
        """
        for source in (self._models, self._heads, self._rollouts):
            await source.synced.wait()
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        self.client_port = await self._clients.start()
        logger.info("%shttp://%s:%d", SERVING, self._address, self.client_port)
        self.serving.set()
        await self.announcement.run()

    async def _follow_tenants(self) -> None:
        while True:
            await sleep(self._clock, TENANTS_SECONDS)
            if self._tenants_file is None:
                continue
            try:
                changed = await asyncio.to_thread(self._tenants_file.load)
            except TenantsError as error:
                logger.warning("the key file is not usable, the last good one stays: %s", error)
                continue
            if changed is not None:
                self.gateway.set_tenants(changed)
                logger.info("%d tenants now", len(changed.policies))

    async def _fold(self) -> None:
        while True:
            await sleep(self._clock, FOLD_SECONDS)
            self.gateway.fold_evidence()

    async def _leave(self) -> None:
        """Not ready any more, nothing new, and every stream to its end within the limit; then nobody waits for us."""
        self.serving.clear()
        self.gateway.refuse_new()
        deadline = self._clock.time() + self._settings.drain_seconds
        logger.info("draining: %d requests", self.gateway.held)
        while self.gateway.held and self._clock.time() < deadline:
            await sleep(self._clock, DRAIN_LOOK_SECONDS)
        if self.gateway.held:
            logger.warning("%d requests are cut after %g s", self.gateway.held, self._settings.drain_seconds)
        await cancel_all(self._tasks)
        await self.announcement.withdraw()

    def _start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    def _serving_check(self) -> str | None:
        return None if self.serving.is_set() else "draining" if self._stop.is_set() else "not listening yet"
