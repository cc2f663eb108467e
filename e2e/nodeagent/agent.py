"""The node agent: all nodes of an inventory in one asyncio process, as their kubelets."""

import asyncio
import logging
import socket
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from ipaddress import IPv4Network
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp

from bayplan.api.names import ENGINE_PORT
from e2e.localcluster.client import ApiError
from e2e.localcluster.kubeconfig import Access, read_kubeconfig
from e2e.nodeagent.container import first_of
from e2e.nodeagent.devices import AddressPool
from e2e.nodeagent.images import ImageRule, default_rules
from e2e.nodeagent.inventory import Inventory
from e2e.nodeagent.kubeapi import KubeApi, Object, follow
from e2e.nodeagent.node import Node
from e2e.nodeagent.nodecondition import NodeCondition
from e2e.nodeagent.podworker import PodWorker
from e2e.nodeagent.processes import Watchdog
from e2e.nodeagent.services import PodDirectory, Pulse, Services
from e2e.nodeagent.settings import AgentSettings
from e2e.nodeagent.state import AgentState, describe

_FIRST_BLOCKS = tuple(IPv4Network(f"127.{second}.0.0/16") for second in range(20, 120))
_T = TypeVar("_T")
logger = logging.getLogger(__name__)


class AgentError(Exception):
    """The agent cannot do what it was asked; the message says why and what would work."""


def claim_network(network: IPv4Network | None) -> tuple[IPv4Network, socket.socket]:
    """Reserve a block of loopback addresses for this process, a free one when none is named.

    The claim is a socket bound to the engine port of the block's first address: it ends with the process, and it
    shows at once when something listens on that port of every address. Raises AgentError.
    """
    for candidate in (network,) if network is not None else _FIRST_BLOCKS:
        if not (candidate.is_loopback and candidate.prefixlen <= 22):
            raise AgentError(f"address base {candidate}: must be a /22 or larger inside 127.0.0.0/8")
        claim = socket.socket()
        address = str(candidate.network_address + 1)
        try:
            claim.bind((address, ENGINE_PORT))
        except OSError as error:
            claim.close()
            problem = f"{address}:{ENGINE_PORT}: {error.strerror}"
            continue
        return candidate, claim
    raise AgentError(
        f"no block of loopback addresses is free ({problem}); another agent has it, or something listens on port "
        f"{ENGINE_PORT} of all addresses"
    )


class NodeAgent:
    """Stands in for the kubelets of an inventory's nodes. Use as an async context manager, or `start` and `stop`."""

    def __init__(
        self,
        *,
        kubeconfig: Path | Access,
        inventory: Inventory,
        settings: AgentSettings | None = None,
        rules: Sequence[ImageRule] | None = None,
        address_base: IPv4Network | None = None,
        log_dir: Path | None = None,
    ) -> None:
        """Without `address_base` a free block is chosen, without `log_dir` logs go to a new temporary folder.

        Raises KubeconfigError.
        """
        self.settings = settings or AgentSettings()
        self.log_dir = log_dir or Path(tempfile.mkdtemp(prefix="nodeagent-"))
        self.nodes: dict[str, Node] = {}
        self.workers: dict[str, PodWorker] = {}
        self._access = read_kubeconfig(kubeconfig) if isinstance(kubeconfig, Path) else kubeconfig
        self._inventory = inventory
        self._rules = tuple(rules) if rules is not None else default_rules()
        self._address_base = address_base
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: asyncio.Future[None] | None = None
        self._listed: asyncio.Event = asyncio.Event()
        self._stopped = True

    # --- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Claim addresses, register all nodes, and take up their pods. Returns when that is done.

        Raises AgentError, ApiError, or aiohttp.ClientError when the API server cannot be reached.
        """
        self.network, self._claim = claim_network(self._address_base)
        self._stopped = False
        self._failure = asyncio.get_running_loop().create_future()
        self.log_dir.mkdir(parents=True, exist_ok=True)
        session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar())
        self.services = Services(
            api=KubeApi(self._access, session),
            session=session,
            settings=self.settings,
            rules=self._rules,
            watchdog=Watchdog(),
            log_dir=self.log_dir,
            pulse=Pulse(),
            directory=PodDirectory(),
        )
        try:
            await self._bring_up()
        except BaseException:
            await self.stop()
            raise

    async def _bring_up(self) -> None:
        specs = self._inventory.nodes()
        try:
            pool = AddressPool(self.network, nodes=len(specs), in_use=self.services.directory.used_addresses)
        except ValueError as error:
            raise AgentError(str(error)) from None
        version = str((await self.services.api.request("GET", "/version"))["gitVersion"])
        for position, spec in enumerate(specs):
            self.nodes[spec.name] = Node(spec, pool.node_address(position), version, pool, self.services)
        await asyncio.gather(*(node.register() for node in self.nodes.values()))
        interval = self.settings.lease_interval_seconds
        for position, node in enumerate(self.nodes.values()):
            # Spread over half an interval, so that renewals of many nodes do not come in one burst.
            self._spawn(node.keep_lease(interval * (0.5 + position / (2 * len(specs)))), f"lease {node.name}")
        self._spawn(
            follow(self.services.api, "/api/v1/nodes", {}, replace=self._nodes_listed, change=self._node_changed),
            "nodes",
        )
        selector = {"fieldSelector": "spec.nodeName!="}
        self._spawn(
            follow(self.services.api, "/api/v1/pods", selector, replace=self._pods_listed, change=self._pod_changed),
            "pods",
        )
        await first_of(self._listed.wait(), self.run())

    async def stop(self) -> None:
        """End every container and every task. With `remove_nodes_on_stop` the nodes and their pods are deleted."""
        if self._stopped:
            return
        self._stopped = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(worker.destroy() for worker in self.workers.values()))
        if self.settings.remove_nodes_on_stop:
            await self._remove_nodes()
        self.services.watchdog.close()
        await self.services.session.close()
        self._claim.close()

    async def _remove_nodes(self) -> None:
        for pod in list(self.services.directory.pods.values()):
            if pod["spec"]["nodeName"] in self.nodes:
                metadata = pod["metadata"]
                body = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
                await self._try_delete(f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}", body)
        for name in self.nodes:
            await self._try_delete(f"/api/v1/nodes/{name}", {})

    async def _try_delete(self, path: str, body: Object) -> None:
        try:
            await self.services.api.request("DELETE", path, body)
        except (ApiError, aiohttp.ClientError, TimeoutError, OSError) as error:
            logger.info("%s: %s", path, error)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def run(self) -> None:
        """Wait until something in the agent fails unexpectedly, and raise that."""
        if self._failure is None:
            raise AgentError("the agent is not started")
        await asyncio.shield(self._failure)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s failed", task.get_name(), exc_info=error)
            if self._failure is not None and not self._failure.done():
                self._failure.set_exception(error)

    # --- what the API server shows ------------------------------------------------------------------------------

    def _nodes_listed(self, items: list[Object]) -> None:
        shown = {item["metadata"]["name"]: item for item in items}
        for name in self.nodes:
            self._observe_node(name, shown.get(name))

    def _node_changed(self, kind: str, item: Object) -> None:
        self._observe_node(item["metadata"]["name"], None if kind == "DELETED" else item)

    def _observe_node(self, name: str, item: Object | None) -> None:
        node = self.nodes.get(name)
        if node is not None and node.condition is NodeCondition.LIVE:
            self._spawn(node.observe(item), f"node {name}")

    def _pods_listed(self, items: list[Object]) -> None:
        shown = {item["metadata"]["uid"]: item for item in items}
        self.services.directory.pods.clear()
        self.services.directory.pods.update(shown)
        for uid in [uid for uid in self.workers if uid not in shown]:
            self._lost_sight(uid)
        # Pods that were admitted before keep their devices against those that were not.
        for item in sorted(items, key=lambda item: (item.get("status") or {}).get("startTime") or "~"):
            self._take_up(item)
        self._listed.set()
        self.services.pulse.beat()

    def _pod_changed(self, kind: str, item: Object) -> None:
        uid = item["metadata"]["uid"]
        if kind == "DELETED":
            self.services.directory.pods.pop(uid, None)
            self._lost_sight(uid)
        else:
            self.services.directory.pods[uid] = item
            self._take_up(item)
        self.services.pulse.beat()

    def _take_up(self, pod: Object) -> None:
        node = self.nodes.get(pod["spec"]["nodeName"])
        if node is None or node.condition is not NodeCondition.LIVE:
            return
        uid = pod["metadata"]["uid"]
        worker = self.workers.get(uid)
        if worker is not None:
            worker.update(pod)
            return
        self.workers[uid] = worker = PodWorker(pod, node, self.services)
        worker.start()

    def _lost_sight(self, uid: str) -> None:
        worker = self.workers.get(uid)
        if worker is not None and self._node_of(worker).condition is NodeCondition.LIVE:
            worker.vanish()
            self._spawn(self._forget(worker), f"forget {uid}")

    async def _forget(self, worker: PodWorker) -> None:
        while not worker.gone:
            await self.services.pulse.after(self.services.pulse.revision)
        await worker.destroy()
        self.workers.pop(worker.uid, None)
        self.services.pulse.beat()

    def _node_of(self, worker: PodWorker) -> Node:
        return self.nodes[worker.pod["spec"]["nodeName"]]

    def _workers_on(self, node: Node) -> list[PodWorker]:
        return [worker for worker in self.workers.values() if self._node_of(worker) is node]

    # --- faults -------------------------------------------------------------------------------------------------

    def node(self, name: str) -> Node:
        """Return a node by name. Raises AgentError."""
        if name not in self.nodes:
            raise AgentError(f"no node {name!r}; there are: {', '.join(self.nodes)}")
        return self.nodes[name]

    def worker(self, namespace: str, name: str) -> PodWorker:
        """Return the pod with containers here, the newest of that name. Raises AgentError."""
        found = [
            worker
            for worker in self.workers.values()
            if (worker.pod["metadata"]["namespace"], worker.pod["metadata"]["name"]) == (namespace, name)
        ]
        if not found:
            raise AgentError(f"no pod {namespace}/{name} on these nodes")
        return found[-1]

    async def lose_node(self, name: str, mode: NodeCondition = NodeCondition.DEAD) -> None:
        """Lose a node: no Lease, no status, and by `mode` its containers are killed, run on, or stand still."""
        node = self.node(name)
        _refused(lambda: node.lose(mode))
        workers = self._workers_on(node)
        if mode is NodeCondition.DEAD:
            await asyncio.gather(*(worker.destroy() for worker in workers))
            for worker in workers:
                self.workers.pop(worker.uid, None)
        elif mode is NodeCondition.FROZEN:
            for worker in workers:
                for container in worker.containers:
                    container.freeze()
        self.services.pulse.beat()

    async def return_node(self, name: str) -> None:
        """Let a lost node report again: it registers if its Node is gone, ends pods that were deleted, reports all."""
        node = self.node(name)
        if node.condition is NodeCondition.FROZEN:
            for worker in self._workers_on(node):
                for container in worker.containers:
                    container.thaw()
        try:
            await node.come_back()
        except ValueError as error:
            raise AgentError(str(error)) from None
        pods = self.services.directory.pods
        for worker in self._workers_on(node):
            if worker.uid not in pods:
                self._lost_sight(worker.uid)
        for pod in list(pods.values()):
            if pod["spec"]["nodeName"] == name:
                self._take_up(pod)
        self.services.pulse.beat()

    async def lose_gpus(self, name: str, count: int = 1, *, crash: bool = False) -> list[str]:
        """Mark GPUs of a node lost and report the lower allocatable; return the pods (namespace/name) that held any.

        Free GPUs go first. With `crash` held ones go first and the containers of the pods that hold them end with 1.
        """
        node = self.node(name)
        uids = _refused(lambda: node.gpus().lose(count, held_first=crash))
        holders = [self.workers[uid] for uid in uids if uid in self.workers]
        if crash:
            for worker in holders:
                for container in worker.containers:
                    container.kill(exit_code=1)
        await node.report_change()
        self.services.pulse.beat()
        return [f"{w.pod['metadata']['namespace']}/{w.pod['metadata']['name']}" for w in holders]

    async def restore_gpus(self, name: str, count: int | None = None) -> None:
        """Bring back lost GPUs of a node, all unless `count` says how many."""
        node = self.node(name)
        _refused(lambda: node.gpus().restore(count))
        await node.report_change()
        self.services.pulse.beat()

    def kill_pod(self, namespace: str, name: str, *, exit_code: int = 137, reason: str | None = None) -> None:
        """Kill a pod's containers; their status shows `exit_code`, and `reason` (such as OOMKilled) if given."""
        worker = self.worker(namespace, name)
        killed = [container.kill(exit_code=exit_code, reason=reason) for container in worker.containers]
        if not any(killed):
            raise AgentError(f"pod {namespace}/{name} has no running container")

    def fail_pulls(self, image: str) -> None:
        """Let pulls of an image fail, from the next container start on."""
        self.services.failing_images.add(image)
        self.services.pulse.beat()

    def heal_pulls(self, image: str) -> None:
        """Let pulls of an image succeed again; waiting containers try at once."""
        self.services.failing_images.discard(image)
        self.services.pulse.beat()

    # --- state --------------------------------------------------------------------------------------------------

    def state(self) -> AgentState:
        """Return everything that there is to know now."""
        return describe(self.services, self.nodes.values(), self.workers.values())

    async def wait_for(self, predicate: Callable[[AgentState], bool], *, timeout_seconds: float = 30.0) -> AgentState:
        """Return the first state that satisfies `predicate`. Raises TimeoutError."""
        async with asyncio.timeout(timeout_seconds):
            while True:
                revision = self.services.pulse.revision
                if predicate(state := self.state()):
                    return state
                await self.services.pulse.after(revision)


def _refused(action: Callable[[], _T]) -> _T:
    """Run an action whose ValueError is the caller's mistake."""
    try:
        return action()
    except ValueError as error:
        raise AgentError(str(error)) from None
