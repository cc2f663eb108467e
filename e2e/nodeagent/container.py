"""One container of a pod: prepare, start, probe, restart by policy, stop within the grace period."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, Protocol

from e2e.nodeagent.containerstate import SIGKILL_EXIT_CODE, ContainerState, log_tail
from e2e.nodeagent.images import sleep_seconds
from e2e.nodeagent.kubeapi import Object
from e2e.nodeagent.preparation import configure, pull
from e2e.nodeagent.probes import ContainerProbes, ProbeKind, container_probes
from e2e.nodeagent.probing import HttpTarget, run_probes
from e2e.nodeagent.processes import ContainerProcess, Launch, start_container
from e2e.nodeagent.services import Services
from e2e.nodeagent.settings import backoff

_BACKOFF_RESET_SECONDS = 600.0
_START_ERROR_CODE = 128
logger = logging.getLogger(__name__)


class PodHost(Protocol):
    """What a container needs of its pod."""

    pod: Object
    ip: str
    directory: Path

    @property
    def host_ip(self) -> str:
        """Address of the node."""

    def changed(self) -> None:
        """Take note that the container's state has changed."""


class GracePeriod:
    """The time a pod has left. It can only get shorter."""

    def __init__(self, seconds: float) -> None:
        self._deadline = asyncio.get_running_loop().time() + seconds
        self._shortened = asyncio.Event()

    @property
    def remaining(self) -> float:
        """Seconds left, not below 0."""
        return max(0.0, self._deadline - asyncio.get_running_loop().time())

    def shorten(self, seconds: float) -> None:
        """Leave at most `seconds` from now."""
        deadline = asyncio.get_running_loop().time() + seconds
        if deadline < self._deadline:
            self._deadline = deadline
            self._shortened.set()
            self._shortened = asyncio.Event()

    async def run_out(self, at_least: float = 0.0) -> None:
        """Return when the time is up, but not before `at_least` seconds from now."""
        floor = asyncio.get_running_loop().time() + at_least
        while (left := max(self._deadline, floor) - asyncio.get_running_loop().time()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._shortened.wait()


async def first_of(*waits: Coroutine[Any, Any, object]) -> None:
    """Return when the first of several waits is over; the others are cancelled, its error is raised."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    for task in done:
        task.result()


def restarts(policy: str, exit_code: int) -> bool:
    """Return whether a container with this exit code is started again."""
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


class ContainerWorker:
    """Runs one container of a pod; `state` is what there is to report."""

    def __init__(self, spec: Mapping[str, Any], host: PodHost, services: Services) -> None:
        self.state = ContainerState(name=spec["name"], image=spec["image"])
        self.process: ContainerProcess | None = None
        self.log = host.directory / f"{spec['name']}.log"
        self._spec = spec
        self._host = host
        self._services = services
        self._stopping = False
        self._killed = False
        self._forced: tuple[int, str | None] | None = None
        self._probes: ContainerProbes | None = None

    @property
    def _policy(self) -> str:
        return str(self._host.pod["spec"].get("restartPolicy") or "Always")

    @property
    def finished(self) -> bool:
        """Whether it has ended and will not be started again."""
        ended = self.state.terminated
        return ended is not None and (self._stopping or not restarts(self._policy, ended["exitCode"]))

    def _waiting(self, reason: str, message: str) -> None:
        self.state.wait(reason, message)
        self._host.changed()

    async def run(self) -> None:
        """Run it until it has ended for good. Cancel only while there is no process."""
        failures = 0
        loop = asyncio.get_running_loop()
        while not self.finished:
            if self.state.terminated is not None:
                settings = self._services.settings
                delay = backoff(settings.restart_backoff_seconds, settings.restart_backoff_cap_seconds, failures)
                failures += 1
                name, pod = self.state.name, self._host.pod["metadata"]["name"]
                self._waiting("CrashLoopBackOff", f"back-off {delay:g}s restarting container={name} pod={pod}")
                await asyncio.sleep(delay)
            await pull(self._spec["image"], self._services, self._waiting)
            launch = await configure(
                self._spec,
                pod=lambda: self._host.pod,
                pod_ip=self._host.ip,
                host_ip=self._host.host_ip,
                directory=self._host.directory,
                services=self._services,
                waiting=self._waiting,
            )
            started = loop.time()
            await self._run_once(launch)
            if loop.time() - started >= _BACKOFF_RESET_SECONDS:
                failures = 0

    async def _run_once(self, launch: Launch) -> None:
        self._killed, self._forced = False, None
        try:
            self.process = start_container(
                launch, directory=self._host.directory, log=self.log, watchdog=self._services.watchdog
            )
        except OSError as error:
            self.state.run()
            self.state.end(_START_ERROR_CODE, reason="StartError", message=str(error))
            self._host.changed()
            return
        self.state.run()
        self._probes = ContainerProbes(container_probes(self._spec), asyncio.get_running_loop().time())
        self._take_probe_results()
        self._host.changed()
        prober = asyncio.create_task(self._probe(self._probes))
        try:
            exit_code = await self.process.wait()
        finally:
            prober.cancel()
        self.process, self._probes = None, None
        self._record_end(exit_code)
        self._host.changed()

    def _record_end(self, exit_code: int) -> None:
        reason = None
        if self._forced is not None:
            exit_code, reason = self._forced
        elif exit_code == SIGKILL_EXIT_CODE and not self._killed:
            # Nobody here sent that signal; on a real node it is the kernel that does.
            reason = "OOMKilled"
        quotes_log = self._spec.get("terminationMessagePolicy") == "FallbackToLogsOnError" and exit_code != 0
        self.state.end(exit_code, reason=reason, message=log_tail(self.log) if quotes_log else "")

    def _take_probe_results(self) -> None:
        if self._probes is None:
            return
        before = (self.state.started, self.state.ready)
        self.state.started, self.state.ready = self._probes.started, self._probes.ready
        if before != (self.state.started, self.state.ready):
            self._host.changed()

    async def _probe(self, probes: ContainerProbes) -> None:
        target = HttpTarget(self._spec, self._host.ip, self._services.session)
        unhealthy = await run_probes(probes, target, self._take_probe_results)
        if unhealthy is not None:
            logger.info("%s: %s probe failed, container is killed", self._host.pod["metadata"]["name"], unhealthy)
            await self._end_process(GracePeriod(self._grace_after(probes, unhealthy)))

    def _grace_after(self, probes: ContainerProbes, kind: ProbeKind) -> float:
        own = probes.specs[kind].grace_seconds
        return float(own if own is not None else self._host.pod["spec"].get("terminationGracePeriodSeconds", 30))

    async def stop(self, grace: GracePeriod) -> None:
        """End it because its pod goes: preStop, SIGTERM, and SIGKILL when the grace period is over."""
        self._stopping = True
        if self._probes is not None:
            self._probes.leave()
        await self._end_process(grace)

    async def _end_process(self, grace: GracePeriod) -> None:
        process = self.process
        if process is None:
            return
        await first_of(process.wait(), self._pre_stop(grace), grace.run_out())
        process.signal(signal.SIGTERM)
        await first_of(process.wait(), grace.run_out(at_least=self._services.settings.minimum_grace_seconds))
        self._killed = True
        process.signal(signal.SIGKILL)
        await process.wait()

    async def _pre_stop(self, grace: GracePeriod) -> None:
        hook = (self._spec.get("lifecycle") or {}).get("preStop") or {}
        if "sleep" in hook:
            await asyncio.sleep(hook["sleep"]["seconds"])
        elif "exec" in hook:
            seconds = sleep_seconds(hook["exec"].get("command") or [])
            if seconds is None:
                logger.warning("preStop of %s: only `sleep N` is supported; skipped", self.state.name)
                return
            await asyncio.sleep(seconds)
        elif (http := hook.get("httpGet")) is not None:
            await HttpTarget(self._spec, self._host.ip, self._services.session).get(
                scheme=(http.get("scheme") or "HTTP").lower(),
                host=http.get("host") or "",
                port=http["port"],
                path="/" + (http.get("path") or "/").lstrip("/"),
                headers=tuple((item["name"], item["value"]) for item in http.get("httpHeaders") or ()),
                timeout=max(grace.remaining, 0.001),
            )

    def kill(self, *, exit_code: int | None = None, reason: str | None = None) -> bool:
        """End it at once, reporting the given exit code and reason; False when there is no process."""
        if self.process is None:
            return False
        self._killed = True
        self._forced = (SIGKILL_EXIT_CODE if exit_code is None else exit_code, reason)
        self.process.signal(signal.SIGKILL)
        return True

    def freeze(self) -> None:
        """Stop its processes where they are, so that connections hang."""
        if self.process is not None:
            self.process.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let frozen processes go on."""
        if self.process is not None:
            self.process.signal(signal.SIGCONT)

    async def destroy(self) -> None:
        """Kill it without any report, as when its node loses power."""
        self._killed = True
        if self.process is not None:
            self.process.signal(signal.SIGKILL)
            await self.process.wait()
