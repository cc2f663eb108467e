"""One pod on one node: admission, containers, termination, and everything that is written about it."""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from e2e.localcluster.client import ApiError
from e2e.nodeagent.conditions import covers
from e2e.nodeagent.container import ContainerWorker, GracePeriod
from e2e.nodeagent.containerstate import ContainerState
from e2e.nodeagent.devices import AdmissionError
from e2e.nodeagent.kubeapi import STRATEGIC_MERGE, Object
from e2e.nodeagent.podstatus import PodView, build_status
from e2e.nodeagent.services import Services, now_text

_RETRY_CAP_SECONDS = 5.0
_MERGED_LISTS = ("podIPs", "hostIPs")
logger = logging.getLogger(__name__)


class PodNode(Protocol):
    """What a pod needs of its node."""

    address: str
    online: asyncio.Event
    """Set while the node can reach the API server."""

    def admit(self, pod: Object) -> str:
        """Reserve devices and an address, and return the address. Raises AdmissionError."""

    def release(self, uid: str, address: str | None) -> None:
        """Take devices and address back."""


def resource_version(pod: Mapping[str, Any]) -> int:
    """Return the resourceVersion as a number; the API server's are comparable."""
    return int(pod["metadata"]["resourceVersion"])


class PodWorker:
    """Runs one pod (one uid) from binding to deletion. All writes to the API server come from one task."""

    def __init__(self, pod: Object, node: PodNode, services: Services) -> None:
        self.pod = pod
        self.uid: str = pod["metadata"]["uid"]
        self.ip = ""
        self.directory: Path = services.log_dir / pod["metadata"]["namespace"] / pod["metadata"]["name"]
        self.containers: list[ContainerWorker] = []
        self.gone = False
        """Nothing is left to do: its containers have ended and it is in the API server no more."""
        self._node = node
        self._services = services
        self._start_time = now_text()
        self._init = [ContainerState(item["name"], item["image"]) for item in pod["spec"].get("initContainers") or ()]
        self._rejection: tuple[str, str] | None = None
        self._stopped = False
        self._deleted = False
        self._grace: GracePeriod | None = None
        self._dirty = asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._container_tasks: list[asyncio.Task[None]] = []

    @property
    def host_ip(self) -> str:
        """Address of the node."""
        return self._node.address

    @property
    def terminating(self) -> bool:
        """Whether its containers are being ended because the pod was deleted."""
        return self._grace is not None

    def changed(self) -> None:
        """Take note that something reportable has changed."""
        self._dirty.set()
        self._services.pulse.beat()

    def _spawn(self, name: str, work: Any) -> None:
        self._tasks[name] = task = asyncio.create_task(work, name=f"{name} {self.directory.name}")
        task.add_done_callback(_log_failure)

    def start(self) -> None:
        """Begin: what the API server shows of an earlier run of its containers is taken over as lost."""
        self._spawn("report", self._report())
        if self._admitted():
            self.directory.mkdir(parents=True, exist_ok=True)
            self.containers = [ContainerWorker(item, self, self._services) for item in self.pod["spec"]["containers"]]
            self._adopt()
            self._spawn("run", self._run())
        self.changed()
        self.update(self.pod)

    def _admitted(self) -> bool:
        status = self.pod.get("status") or {}
        if status.get("phase") in {"Succeeded", "Failed"}:
            # Ended before we knew it: nothing to run, and its last report stands.
            self._stopped = True
            return False
        try:
            self.ip = self._node.admit(self.pod)
        except AdmissionError as error:
            self._rejection = ("UnexpectedAdmissionError", str(error))
            self._stopped = True
            return False
        return True

    def _adopt(self) -> None:
        shown = {item["name"]: item for item in (self.pod.get("status") or {}).get("containerStatuses") or ()}
        for container in self.containers:
            status = shown.get(container.state.name)
            if status is None or not status.get("containerID"):
                continue
            container.state.adopt(status)
            if container.state.running_since is not None:
                container.state.lose()

    async def _run(self) -> None:
        for state in self._init:
            state.wait("PodInitializing")
        for container in self.containers if self._init else ():
            if container.state.waiting is not None:
                container.state.wait("PodInitializing")
        for state in self._init:
            state.run()
            self.changed()
            await asyncio.sleep(self._services.settings.init_container_seconds)
            state.end(0)
            self.changed()
        self._container_tasks = [asyncio.create_task(container.run()) for container in self.containers]
        for task in self._container_tasks:
            task.add_done_callback(_log_failure)
        await asyncio.wait(self._container_tasks)
        self._finish()

    def _finish(self) -> None:
        if not self._stopped:
            self._stopped = True
            self._node.release(self.uid, self.ip or None)
            self.changed()

    def update(self, pod: Object) -> None:
        """Take the newest object from the API server; a deletion begins or hastens the termination."""
        if resource_version(pod) >= resource_version(self.pod):
            self.pod = pod
        seconds = self.pod["metadata"].get("deletionGracePeriodSeconds")
        if self.pod["metadata"].get("deletionTimestamp") and seconds is not None:
            self._terminate(float(seconds))
        self._dirty.set()

    def vanish(self) -> None:
        """The pod is in the API server no more: end what still runs, at once, and report nothing."""
        self._deleted = True
        self._terminate(1.0)
        self._dirty.set()

    def _terminate(self, seconds: float) -> None:
        if self._grace is not None:
            self._grace.shorten(max(seconds, 1.0))
        else:
            self._grace = GracePeriod(max(seconds, 1.0))
            self._spawn("stop", self._stop(self._grace))

    async def _stop(self, grace: GracePeriod) -> None:
        if not self._stopped:
            if not self._container_tasks and (run := self._tasks.get("run")) is not None:
                run.cancel()
            await asyncio.gather(*(self._stop_container(position, grace) for position in range(len(self.containers))))
        self._finish()
        self.changed()

    async def _stop_container(self, position: int, grace: GracePeriod) -> None:
        container = self.containers[position]
        task = self._container_tasks[position] if self._container_tasks else None
        if container.process is not None:
            await container.stop(grace)
        elif task is not None:
            task.cancel()
        if task is not None:
            await asyncio.wait([task])
        container.state.settle()

    def view(self) -> PodView:
        """Return what there is to report."""
        return PodView(
            spec=self.pod["spec"],
            containers=[container.state for container in self.containers],
            init_containers=self._init,
            start_time=self._start_time,
            host_ip=self._node.address,
            pod_ip=self.ip or None,
            stopped=self._stopped or (bool(self.containers) and all(item.finished for item in self.containers)),
            rejection=self._rejection,
        )

    @property
    def _path(self) -> str:
        metadata = self.pod["metadata"]
        return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"

    async def _report(self) -> None:
        delay = 0.1
        while not self.gone:
            await self._dirty.wait()
            await self._node.online.wait()
            self._dirty.clear()
            try:
                await self._write()
                delay = 0.1
            except (ApiError, aiohttp.ClientError, TimeoutError, OSError) as error:
                self._dirty.set()
                if not await self._is_replaced(error):
                    logger.warning("%s: %s", self._path, error)
                    await asyncio.sleep(delay)
                    delay = min(delay * 2, _RETRY_CAP_SECONDS)

    async def _is_replaced(self, error: Exception) -> bool:
        """Ask again when a write says that the pod is gone or another: then the end begins here and now."""
        if not isinstance(error, ApiError) or error.status not in {404, 409}:
            return False
        try:
            pod = await self._services.api.request("GET", self._path)
        except ApiError as problem:
            if problem.status != 404:
                return False
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False
        else:
            if pod["metadata"]["uid"] == self.uid:
                self.update(pod)
                return False
        self.vanish()
        return True

    async def _write(self) -> None:
        """Write the status if it differs, then complete a deletion once nothing runs any more."""
        ended_before = not self.containers and self._rejection is None and self._stopped
        if not self._deleted and not ended_before:
            observed = self.pod.get("status") or {}
            status = build_status(self.view(), observed, now=now_text())
            if not covers(observed, status):
                # These lists merge by address, and a new address must not be added to the old one.
                replaced = {key: [*status[key], {"$patch": "replace"}] for key in _MERGED_LISTS if key in status}
                body = {"metadata": {"uid": self.uid}, "status": status | replaced}
                answer = await self._services.api.request(
                    "PATCH", f"{self._path}/status", body, content_type=STRATEGIC_MERGE
                )
                self.update(answer)
        if self._stopped and self.terminating:
            if not self._deleted:
                options = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}}
                await self._services.api.request("DELETE", self._path, options)
                self._deleted = True
            self.gone = True
            self._services.pulse.beat()

    async def destroy(self) -> None:
        """Forget the pod without a report: its node has lost power, or the agent ends."""
        for task in [*self._tasks.values(), *self._container_tasks]:
            task.cancel()
        await asyncio.gather(*(container.destroy() for container in self.containers))
        if not self._stopped:
            self._node.release(self.uid, self.ip or None)
            self._stopped = True
        self.gone = True
        self._services.pulse.beat()


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("%s failed", task.get_name(), exc_info=error)
