"""`Runtime`: the life of one operator process, from cold caches to a clean handover.

Standbys keep their caches warm. Controllers start when every kind was listed once (the start barrier) and the Lease is
held. The process ends, non-zero, when the Lease is lost, when Kopf cannot stay up, or when a task that should run for
ever ends; on SIGTERM it finishes what is in flight, releases the Lease and ends with 0.
"""

import asyncio
import gc
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from bayplan.cluster.apitimes import ApiTimes
from bayplan.cluster.client import ApiClient
from bayplan.cluster.clock import Clock, SystemClock, sleep, within
from bayplan.cluster.controller import Controller
from bayplan.cluster.errors import LeaseLost
from bayplan.cluster.events import EventRecorder
from bayplan.cluster.kopf_host import HostDied, KopfHost
from bayplan.cluster.lease import Elector
from bayplan.cluster.lifecycle import cancel_all, progress_check, stopped_by_signals, sync_check, until_stopped
from bayplan.cluster.metrics import EngineCollector, Metrics
from bayplan.cluster.probes import ProbeServer
from bayplan.cluster.reflector import Reflector
from bayplan.cluster.resync import Resync

logger = logging.getLogger(__name__)

EXIT_CLEAN = 0
EXIT_FAILED = 1
LAG_PERIOD_SECONDS = 0.25
RESWEEP_SECONDS = 600.0
"""Every key is looked at this often, whatever was or was not heard of it."""


@dataclass(frozen=True, slots=True)
class RuntimeLimits:
    """Seconds."""

    finish: float = 3.0
    """How long reconciles in flight may go on at a clean stop; the Lease is released after that."""
    progress_age: float = 600.0
    """A kind of which nothing was heard for longer makes the process count as dead."""


class Runtime:
    """Runs reflectors, resyncs, Kopf, controllers and the Lease as one process. `run()` returns the exit code."""

    def __init__(
        self,
        client: ApiClient,
        *,
        elector: Elector,
        resyncs: Sequence[Resync[Any]],
        reflectors: Sequence[Reflector[Any]],
        controllers: Sequence[Controller],
        recorder: EventRecorder,
        metrics: Metrics,
        host: str = "127.0.0.1",
        port: int = 0,
        limits: RuntimeLimits | None = None,
        times: ApiTimes | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.port = port
        """Port of the probes; the real one once `serving` is set."""
        self.serving = asyncio.Event()
        self.leading = asyncio.Event()
        """Set while the controllers run."""
        self._elector = elector
        self._sources: list[Reflector[Any] | Resync[Any]] = [*resyncs, *reflectors]
        self._resyncs = resyncs
        self._controllers = controllers
        self._recorder = recorder
        self._metrics = metrics
        self._limits = limits or RuntimeLimits()
        self._clock = clock or SystemClock()
        self._host = KopfHost(client.credentials, resyncs, clock=self._clock, times=times)
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._probes = ProbeServer(
            host=host,
            port=port,
            metrics=metrics,
            liveness={source.name: progress_check(source, self._limits.progress_age) for source in self._sources},
            readiness={source.name: sync_check(source) for source in self._sources} | {"lease": self._lease_check},
        )
        metrics.collect_from(EngineCollector(list(self._sources), list(controllers)))

    def stop(self) -> None:
        """Ask for a clean stop, as SIGTERM does."""
        self._stop.set()

    async def run(self) -> int:
        """Run until stopped or failed; return the exit code."""
        self._metrics.leading(str(self._elector), leads=False)
        code = EXIT_FAILED
        with stopped_by_signals(self._stop):
            try:
                self.port = await self._probes.start()
                self.serving.set()
                code = await self._work()
            finally:
                await self._shut_down(clean=code == EXIT_CLEAN)
        return code

    # --- working -------------------------------------------------------------------------------------------------

    async def _work(self) -> int:
        for source in self._sources:
            self._start(f"source-{source.name}", source.run())
        self._start("kopf", self._stream())
        self._start("events", self._recorder.run())
        self._start("loop-lag", self._measure_lag())
        self._start("leader", self._lead())
        self._start("resweep", self._resweep())
        failed = await until_stopped(self._stop, self._tasks)
        for task in failed:
            _explain(task)
        return EXIT_FAILED if failed else EXIT_CLEAN

    def _start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    async def _synced(self) -> None:
        for source in self._sources:
            await source.synced.wait()

    async def _stream(self) -> None:
        # Kopf looks once which kinds the server knows; a list that succeeded proves that ours are there.
        for resync in self._resyncs:
            await resync.synced.wait()
        await self._host.run()

    async def _lead(self) -> None:
        started = self._clock.time()
        await self._synced()
        objects = ", ".join(f"{len(source.store)} {source.name}" for source in self._sources)
        logger.info("caches complete after %.2f s: %s", self._clock.time() - started, objects)
        # What is cached now mostly stays: keep the collector from walking it again and again.
        gc.collect()
        gc.freeze()
        await self._elector.acquire()
        logger.info("%s leads by lease %s", self._elector.identity, self._elector)
        self._metrics.leading(str(self._elector), leads=True)
        for controller in self._controllers:
            controller.start()
        self.leading.set()
        await self._elector.hold()

    async def _resweep(self) -> None:
        await self.leading.wait()
        while True:
            await sleep(self._clock, RESWEEP_SECONDS)
            for controller in self._controllers:
                controller.sweep()

    async def _measure_lag(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LAG_PERIOD_SECONDS
            await asyncio.sleep(LAG_PERIOD_SECONDS)
            self._metrics.loop_lag.observe(max(0.0, loop.time() - due))

    def _lease_check(self) -> str | None:
        """A standby is ready; one that cannot even see the Lease would never take over."""
        return self._elector.problem

    # --- ending --------------------------------------------------------------------------------------------------

    async def _shut_down(self, *, clean: bool) -> None:
        """End in the order that makes a handover quick: work, Lease, then everything that only reads."""
        self.leading.clear()
        limit = self._limits.finish if clean else 0.0
        await asyncio.gather(*(controller.stop(limit_seconds=limit) for controller in self._controllers))
        leader = [task for task in self._tasks if task.get_name() == "leader"]
        await cancel_all(leader)
        if clean:
            await self._hand_over()
        self._metrics.leading(str(self._elector), leads=False)
        await cancel_all(self._tasks)
        await self._probes.stop()

    async def _hand_over(self) -> None:
        try:
            await within(self._clock, self._limits.finish, self._elector.release())
        except TimeoutError:
            logger.warning("the lease was not released in time; the next leader has to wait for it")
        try:
            await within(self._clock, self._limits.finish, self._recorder.flush())
        except TimeoutError:
            logger.info("some events were not written before the end")


def _explain(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if isinstance(error, LeaseLost | HostDied):
        logger.error("the process ends: %s", error)
    else:
        logger.error("the process ends: task %s ended", task.get_name(), exc_info=error)
