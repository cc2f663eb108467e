"""Worlds to play stories in: a namespace with nodes of its own, observed, behind a proxy.

One control plane carries several worlds side by side; the proxy shows each operator its own.
"""

import asyncio
import secrets
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import aiohttp

from bayplan.api import names
from e2e.chaos.normalise import Normaliser
from e2e.chaos.observer import Observer
from e2e.chaos.operators import CONFIGURATION, Keeper, OperatorFactory
from e2e.chaos.proxy import ChaosProxy
from e2e.chaos.scope import Scope
from e2e.hollownodes import NodeShape, hollow_nodes, node_manifest
from e2e.hollownodes.gateway import HollowGateway
from e2e.localcluster import Cluster
from e2e.localcluster.client import KubeApi
from e2e.localcluster.kubeconfig import Access, read_kubeconfig
from e2e.nodeagent.kubeapi import KubeApi as WatchApi
from e2e.scenarios.stack import ACCOUNT, NAMESPACE, REPOSITORY, roles

Json = dict[str, Any]
NODES_PER_WORLD = 4
SHAPE = NodeShape(gpus=2, zones=2, racks=2)
WORLD_LABEL = "chaos.bayplan.dev/world"
GROUND_LABEL = "chaos.bayplan.dev/ground"
OURS = "app.kubernetes.io/managed-by=bayplan"


@dataclass(eq=False)
class Ground:
    """What all worlds of one control plane share. Use `Ground.on(cluster, worlds=N)`."""

    cluster: Cluster
    api: KubeApi
    watch_api: WatchApi
    server: Access
    """The API server for the proxies, without an identity: each client brings its own."""
    token: str
    """A token of the operator's ServiceAccount."""
    prefix: str
    nodes: Sequence[dict[str, Json]]
    """Per world: its nodes by name."""

    @classmethod
    @asynccontextmanager
    async def on(cls, cluster: Cluster, *, worlds: int) -> AsyncIterator["Ground"]:
        """Install definitions and rights, and run the nodes of `worlds` worlds, for the length of the block.

        Nobody renews the nodes' Leases: give the cluster a long `node_monitor_grace_seconds`.
        """
        await cluster.apply(REPOSITORY / "crds")
        await cluster.apply(roles())
        token = read_kubeconfig(await cluster.service_account_kubeconfig(NAMESPACE, ACCOUNT)).token
        assert token is not None
        admin = read_kubeconfig(cluster.kubeconfig_path)
        prefix = f"chaos-{secrets.token_hex(2)}"
        nodes = [_nodes_of(prefix, number) for number in range(worlds)]
        async with AsyncExitStack() as stack:
            session = await stack.enter_async_context(aiohttp.ClientSession())
            api = await stack.enter_async_context(cluster.api())
            await stack.enter_async_context(
                hollow_nodes(
                    cluster.kubeconfig_path,
                    [node for found in nodes for node in found.values()],
                    label_selector=OURS,
                )
            )
            tls = ssl.create_default_context(cadata=admin.ca.decode())
            try:
                yield cls(
                    cluster=cluster,
                    api=api,
                    watch_api=WatchApi(admin, session),
                    server=Access(server=admin.server, ca=admin.ca, tls=tls, token=None),
                    token=token,
                    prefix=prefix,
                    nodes=nodes,
                )
            finally:
                await api.delete("/api/v1/nodes", labelSelector=f"{GROUND_LABEL}={prefix}")

    @asynccontextmanager
    async def world(self, number: int, factory: OperatorFactory | None = None) -> AsyncIterator["World"]:
        """Open world `number` with an empty namespace, and an operator if there is a factory for it."""
        namespace = f"{self.prefix}-{number}-{secrets.token_hex(3)}"
        await self._namespace(namespace)
        nodes = self.nodes[number]
        scope = Scope(namespace, f"{WORLD_LABEL}={self.prefix}-{number}", lease_namespace=namespace)
        async with (
            HollowGateway.on(self.api, namespace),
            Observer.on(self.watch_api, namespace=namespace, nodes=nodes) as observer,
            ChaosProxy(self.server) as proxy,
        ):
            world = World(
                ground=self,
                namespace=namespace,
                scope=scope,
                observer=observer,
                proxy=proxy,
                normaliser=Normaliser(namespace, frozenset(nodes)),
            )
            try:
                if factory is not None:
                    await world.keep(factory)
                yield world
            finally:
                await world.end()
                await self._empty(namespace)

    async def _namespace(self, name: str) -> None:
        """Create a namespace in which pods can be created and the operator may hold a Lease."""
        found = roles()
        rights = [dict(entry, metadata=entry["metadata"] | {"namespace": name}) for entry in found if _is_local(entry)]
        await self.api.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}, *rights])

        async def has_account() -> bool:
            accounts = await self.api.get(f"/api/v1/namespaces/{name}/serviceaccounts")
            return any(item["metadata"]["name"] == "default" for item in accounts["items"])

        await self.api.wait_until(has_account, what=f"the default ServiceAccount of {name}")

    async def _empty(self, name: str) -> None:
        for plural in (names.ROLLOUT_PLURAL, names.CAPACITYPLAN_PLURAL, names.INFERENCEMODEL_PLURAL):
            await self.api.delete(f"/apis/{names.API_VERSION}/namespaces/{name}/{plural}")
        await self.api.delete(f"/api/v1/namespaces/{name}/pods", gracePeriodSeconds="0")
        await self.api.delete(f"/api/v1/namespaces/{name}")


@dataclass(eq=False)
class World:
    """One open world."""

    ground: Ground
    namespace: str
    scope: Scope
    observer: Observer
    proxy: ChaosProxy
    normaliser: Normaliser

    def __post_init__(self) -> None:
        self.keepers: list[Keeper] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def keep(
        self,
        factory: OperatorFactory,
        *,
        name: str = "operator",
        scope: Scope | None = None,
        configuration: Json = CONFIGURATION,
    ) -> Keeper:
        """Have an operator run from now on."""
        keeper = Keeper(self.proxy, factory, scope or self.scope, name, configuration)
        self.keepers.append(keeper)
        self._tasks.append(asyncio.create_task(keeper.run(), name=f"keep {name}"))
        return keeper

    def check_keepers(self) -> None:
        """Raise what ended a keeper: without one there is nothing to observe."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def end(self) -> None:
        """End the operators."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def state(self, *, exact: bool) -> list[str]:
        """Return the world's objects as they are to be compared, with attempt numbers only if `exact`."""
        return replace(self.normaliser, attempts=not exact).state(self.observer.objects.values())


def _nodes_of(prefix: str, world: int) -> dict[str, Json]:
    found = {}
    for number in range(NODES_PER_WORLD):
        name = f"{prefix}-w{world}-n{number}"
        node = node_manifest(name, number, SHAPE)
        node["metadata"]["labels"] |= {WORLD_LABEL: f"{prefix}-{world}", GROUND_LABEL: prefix}
        found[name] = node
    return found


def _is_local(entry: Json) -> bool:
    return entry["kind"] in ("Role", "RoleBinding")
