"""The kubelets of all hollow nodes in one task: pods run as soon as they are bound and end as soon as they may.

They state a pod's conditions as a kubelet does (Ready waits for every readiness gate) and never touch a pod twice for
the same state, so at rest they write nothing.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any

import aiohttp

from e2e.hollownodes.engines import HollowEngines
from e2e.hollownodes.nodes import NODES, condition_patch
from e2e.localcluster.client import ApiError
from e2e.nodeagent.conditions import covers
from e2e.nodeagent.containerstate import ContainerState
from e2e.nodeagent.kubeapi import STRATEGIC_MERGE, KubeApi, Object, follow
from e2e.nodeagent.podstatus import PodView, build_status
from e2e.nodeagent.services import now_text

PODS = "/api/v1/pods"
SERVED_NAME = "--served-model-name="
RETRY_SECONDS = 0.2
logger = logging.getLogger(__name__)


class HollowKubelets:
    """Runs the bound pods that `label_selector` selects on the given nodes. Run `run()` as a task."""

    def __init__(self, api: KubeApi, engines: HollowEngines, *, label_selector: str) -> None:
        self.lost: set[str] = set()
        """Nodes whose kubelet is silent."""
        self._api = api
        self._engines = engines
        self._label_selector = label_selector
        self._addresses: dict[str, str] = {}
        self._pods: dict[str, Object] = {}
        self._containers: dict[str, list[ContainerState]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def adopt(self, nodes: Iterable[str]) -> None:
        """Give each node one of the engines' addresses; its pods share it."""
        for name in nodes:
            addresses = self._engines.addresses
            self._addresses[name] = addresses[len(self._addresses) % len(addresses)]

    async def run(self) -> None:
        """Follow the bound pods until cancelled."""
        query = {"fieldSelector": "spec.nodeName!=", "labelSelector": self._label_selector}
        try:
            await follow(self._api, PODS, query, replace=self._replace, change=self._change)
        finally:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def running(self) -> int:
        """Pods whose containers run."""
        return len(self._containers)

    # --- faults ------------------------------------------------------------------------------------------------------

    async def lose(self, node: str) -> None:
        """Silence a kubelet, and say of the node what the node controller says when it notices."""
        self.lost.add(node)
        await self._patch_node(node, condition_patch("Ready", "Unknown", "NodeStatusUnknown"))

    async def find(self, node: str) -> None:
        """Let a lost node return; its pods are looked at again."""
        self.lost.discard(node)
        await self._patch_node(node, condition_patch("Ready", "True", "KubeletReady"))
        for uid, pod in self._pods.items():
            if pod["spec"]["nodeName"] == node:
                self._wake(uid)

    async def _patch_node(self, node: str, patch: Object) -> None:
        await self._api.request("PATCH", f"{NODES}/{node}/status", patch, content_type=STRATEGIC_MERGE)

    # --- pods --------------------------------------------------------------------------------------------------------

    def _replace(self, pods: list[Object]) -> None:
        present = {pod["metadata"]["uid"] for pod in pods}
        for uid in [uid for uid in self._pods if uid not in present]:
            self._forget(uid)
        for pod in pods:
            self._change("MODIFIED", pod)

    def _change(self, kind: str, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        if kind == "DELETED":
            self._forget(uid)
        elif pod["spec"].get("nodeName") in self._addresses:
            self._pods[uid] = pod
            self._wake(uid)

    def _forget(self, uid: str) -> None:
        pod = self._pods.pop(uid, None)
        self._containers.pop(uid, None)
        if pod is not None:
            self._engines.end(self._addresses[pod["spec"]["nodeName"]], uid)

    def _wake(self, uid: str) -> None:
        if uid not in self._tasks:
            task = asyncio.create_task(self._settle(uid), name=f"hollow pod {uid}")
            self._tasks[uid] = task
            task.add_done_callback(lambda _: self._tasks.pop(uid, None))

    async def _settle(self, uid: str) -> None:
        """Bring what the API server shows of a pod up to date with its containers, until both agree."""
        while (pod := self._pods.get(uid)) is not None and pod["spec"]["nodeName"] not in self.lost:
            try:
                if not await self._step(uid, pod):
                    return
            except ApiError as error:
                if error.status == 404:
                    self._forget(uid)
                    return
                logger.info("pod %s: %s", pod["metadata"]["name"], error)
                await asyncio.sleep(RETRY_SECONDS)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                logger.info("pod %s: %s", pod["metadata"]["name"], error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _step(self, uid: str, pod: Object) -> bool:
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        if meta.get("deletionTimestamp"):
            options = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
            await self._api.request("DELETE", path, options)
            self._forget(uid)
            return False
        if pod.get("status", {}).get("phase") in ("Failed", "Succeeded"):
            return False
        address = self._addresses[pod["spec"]["nodeName"]]
        status = self._status(uid, pod, address)
        if covers(pod.get("status") or {}, status):
            return False
        body = {"metadata": {"uid": uid}, "status": status}
        stored = await self._api.request("PATCH", f"{path}/status", body, content_type=STRATEGIC_MERGE)
        seen = self._pods.get(uid)
        if seen is not None and int(stored["metadata"]["resourceVersion"]) > int(seen["metadata"]["resourceVersion"]):
            self._pods[uid] = stored
        return True

    def _status(self, uid: str, pod: Object, address: str) -> dict[str, Any]:
        if uid not in self._containers:
            self._containers[uid] = _started(pod)
            for name in _served_names(pod["spec"]):
                self._engines.serve(address, uid, name)
        observed: Mapping[str, Any] = pod.get("status") or {}
        view = PodView(
            spec=pod["spec"],
            containers=self._containers[uid],
            init_containers=(),
            start_time=now_text(),
            host_ip=address,
            pod_ip=address,
            stopped=False,
        )
        return build_status(view, observed, now=now_text())


def _started(pod: Object) -> list[ContainerState]:
    """Containers of a pod, running and ready; those that a former process of ours reported keep their ids."""
    known = {entry["name"]: entry for entry in pod.get("status", {}).get("containerStatuses") or ()}
    containers = []
    for container in pod["spec"]["containers"]:
        state = ContainerState(name=container["name"], image=container["image"])
        if container["name"] in known:
            state.adopt(known[container["name"]])
        if state.running_since is None:
            state.run()
        state.started = state.ready = True
        containers.append(state)
    return containers


def _served_names(spec: Mapping[str, Any]) -> list[str]:
    arguments = [argument for container in spec["containers"] for argument in container.get("args") or ()]
    return [argument.removeprefix(SERVED_NAME) for argument in arguments if argument.startswith(SERVED_NAME)]
