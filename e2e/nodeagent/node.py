"""One node: its registration, its Lease, its devices, and the ways in which it can be lost."""

import asyncio
import logging
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import aiohttp

from e2e.localcluster.client import ApiError
from e2e.nodeagent.conditions import covers, node_conditions, stamp
from e2e.nodeagent.devices import AddressPool, AdmissionError, DeviceLedger, requested_devices
from e2e.nodeagent.inventory import GPU_RESOURCES, NodeSpec
from e2e.nodeagent.kubeapi import MERGE, STRATEGIC_MERGE, Object
from e2e.nodeagent.nodecondition import NodeCondition
from e2e.nodeagent.services import Services, now_text

_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_RETRY_SECONDS = 0.5
logger = logging.getLogger(__name__)


class Node:
    """The kubelet's side of one Node object."""

    def __init__(self, spec: NodeSpec, address: str, version: str, addresses: AddressPool, services: Services) -> None:
        """`version` is the kubelet version to report."""
        self.spec = spec
        self.address = address
        self.condition = NodeCondition.LIVE
        self.online = asyncio.Event()
        self.online.set()
        self.devices = {resource: DeviceLedger(resource, total) for resource, total in spec.devices.items()}
        self.lease_renewed_at: str | None = None
        self._version = version
        self._addresses = addresses
        self._services = services
        self._uid: str | None = None
        self._boot_id = secrets.token_hex(16)
        self._writing = asyncio.Lock()

    @property
    def name(self) -> str:
        """The node's name."""
        return self.spec.name

    # --- pods ---------------------------------------------------------------------------------------------------

    def admit(self, pod: Object) -> str:
        """Reserve the devices that a pod asks for, and an address. Raises AdmissionError and reserves nothing."""
        uid = pod["metadata"]["uid"]
        wanted = requested_devices(pod["spec"])
        try:
            for resource, count in wanted.items():
                self.devices.get(resource, DeviceLedger(resource, 0)).take(uid, count)
            return self._addresses.take()
        except AdmissionError:
            self.release(uid, None)
            raise

    def release(self, uid: str, address: str | None) -> None:
        """Take devices and address of a pod back."""
        for ledger in self.devices.values():
            ledger.release(uid)
        if address is not None:
            self._addresses.release(address)

    def gpus(self) -> DeviceLedger:
        """Return the ledger of the node's GPUs. Raises ValueError when it has none."""
        for resource in GPU_RESOURCES:
            if resource in self.devices:
                return self.devices[resource]
        raise ValueError(f"node {self.name} has no GPUs")

    # --- API object ---------------------------------------------------------------------------------------------

    async def register(self) -> None:
        """Create the Node or bring an existing one's labels up to date, then report ready."""
        labels = dict(self.spec.labels)
        body: Object = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.name, "labels": labels},
            "spec": {"taints": [taint.model_dump() for taint in self.spec.taints]},
        }
        api = self._services.api
        try:
            node = await api.request("POST", "/api/v1/nodes", body)
        except ApiError as error:
            if error.status != 409:
                raise
            patch = {"metadata": {"labels": labels}}
            node = await api.request("PATCH", f"/api/v1/nodes/{self.name}", patch, content_type=MERGE)
        self._uid = node["metadata"]["uid"]
        await self.report(node)
        await self.renew_lease()

    def _status(self, observed: Mapping[str, Any]) -> dict[str, Any]:
        now = now_text()
        conditions = stamp(observed.get("conditions") or [], node_conditions(), now=now)
        counted = {resource: str(ledger.allocatable) for resource, ledger in self.devices.items()}
        return {
            "addresses": [
                {"type": "InternalIP", "address": self.address},
                {"type": "Hostname", "address": self.spec.labels.get("kubernetes.io/hostname", self.name)},
            ],
            # As with a device plugin: a lost device leaves allocatable, capacity stays.
            "capacity": dict(self.spec.allocatable),
            "allocatable": dict(self.spec.allocatable) | counted,
            "conditions": [condition | {"lastHeartbeatTime": now} for condition in conditions],
            "nodeInfo": {
                "architecture": "amd64",
                "bootID": self._boot_id,
                "containerRuntimeVersion": "nodeagent://1",
                "kernelVersion": "simulated",
                "kubeProxyVersion": "",
                "kubeletVersion": self._version,
                "machineID": self.name,
                "operatingSystem": "linux",
                "osImage": "simulated",
                "systemUUID": self.name,
            },
        }

    def _telling(self, status: Mapping[str, Any]) -> dict[str, Any]:
        """Return the part of a status whose difference is worth a write.

        Not heartbeat times, and no quantities but counted ones: the API server may write 1024Gi as 1Ti.
        """
        return {
            "addresses": status["addresses"],
            "allocatable": {resource: status["allocatable"][resource] for resource in self.devices},
            "conditions": [{k: v for k, v in c.items() if k != "lastHeartbeatTime"} for c in status["conditions"]],
            "nodeInfo": {"bootID": self._boot_id},
        }

    async def report(self, observed: Object | None = None) -> None:
        """Write the node's status if the API server shows another one. Waits its turn; raises like a request."""
        async with self._writing:
            if self.condition is not NodeCondition.LIVE:
                return
            path = f"/api/v1/nodes/{self.name}"
            if observed is None:
                observed = await self._services.api.request("GET", path)
            status = self._status(observed.get("status") or {})
            if not covers(observed.get("status") or {}, self._telling(status)):
                await self._services.api.request(
                    "PATCH", f"{path}/status", {"status": status}, content_type=STRATEGIC_MERGE
                )

    async def observe(self, observed: Object | None) -> None:
        """React to the Node as the watch shows it: register again when it was deleted, correct what is not ours to be.

        An API server that does not answer is asked again; the node may be lost meanwhile, which ends this.
        """
        while self.condition is NodeCondition.LIVE:
            try:
                if observed is None:
                    await self.register()
                else:
                    await self.report(observed)
            except (ApiError, aiohttp.ClientError, TimeoutError, OSError) as error:
                logger.warning("node %s: %s", self.name, error)
                if isinstance(error, ApiError) and error.status == 404:
                    observed = None
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return

    async def report_change(self) -> None:
        """Write what has changed on the node itself, such as a lost device, as soon as the API server takes it."""
        while self.condition is NodeCondition.LIVE:
            try:
                await self.report()
            except (ApiError, aiohttp.ClientError, TimeoutError, OSError) as error:
                logger.warning("node %s: %s", self.name, error)
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return

    async def renew_lease(self) -> None:
        """Renew the node's Lease, creating it when it is missing. Raises like a request."""
        renewed = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        seconds = self._services.settings.lease_duration_seconds
        spec = {"holderIdentity": self.name, "leaseDurationSeconds": seconds, "renewTime": renewed}
        api = self._services.api
        try:
            await api.request("PATCH", f"{_LEASES}/{self.name}", {"spec": spec}, content_type=MERGE)
        except ApiError as error:
            if error.status != 404 or self._uid is None:
                raise
            owner = {"apiVersion": "v1", "kind": "Node", "name": self.name, "uid": self._uid}
            metadata = {"name": self.name, "namespace": "kube-node-lease", "ownerReferences": [owner]}
            body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
            await api.request("POST", _LEASES, body)
        self.lease_renewed_at = renewed

    async def keep_lease(self, first_delay: float) -> None:
        """Renew the Lease for ever, while the node is live."""
        await asyncio.sleep(first_delay)
        while True:
            await self.online.wait()
            try:
                await self.renew_lease()
            except (ApiError, aiohttp.ClientError, TimeoutError, OSError) as error:
                logger.warning("lease of %s: %s", self.name, error)
            await asyncio.sleep(self._services.settings.lease_interval_seconds)

    # --- faults -------------------------------------------------------------------------------------------------

    def lose(self, condition: NodeCondition) -> None:
        """Stop reporting. Raises ValueError when the node is lost already or the condition is no loss."""
        if condition is NodeCondition.LIVE:
            raise ValueError("a node is lost as dead, partitioned or frozen")
        if self.condition is not NodeCondition.LIVE:
            raise ValueError(f"node {self.name} is already {self.condition}")
        self.condition = condition
        self.online.clear()

    async def come_back(self) -> None:
        """Report again. Raises ValueError when the node is not lost."""
        if self.condition is NodeCondition.LIVE:
            raise ValueError(f"node {self.name} is not lost")
        if self.condition is NodeCondition.DEAD:
            self._boot_id = secrets.token_hex(16)
        self.condition = NodeCondition.LIVE
        await self.observe(None)
        self.online.set()
