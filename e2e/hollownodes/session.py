"""Hollow nodes for the length of a block."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from e2e.hollownodes.engines import HollowEngines
from e2e.hollownodes.kubelets import HollowKubelets
from e2e.hollownodes.nodes import create_nodes
from e2e.localcluster.kubeconfig import read_kubeconfig
from e2e.nodeagent.kubeapi import KubeApi, Object

ADDRESSES = 64
"""Engine addresses; more nodes than that share them."""


@asynccontextmanager
async def hollow_nodes(
    kubeconfig: Path,
    nodes: Sequence[Object],
    *,
    label_selector: str,
    advance: Callable[[], object] = lambda: None,
) -> AsyncIterator[HollowKubelets]:
    """Create the nodes and run the pods on them that `label_selector` selects. The Node objects are left behind.

    Nobody renews their Leases: give the cluster a long `node_monitor_grace_seconds`.
    """
    access = read_kubeconfig(kubeconfig)
    engines = HollowEngines()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=32)) as session:
        api = KubeApi(access, session)
        await engines.start(max(1, min(ADDRESSES, len(nodes))))
        kubelets = HollowKubelets(api, engines, label_selector=label_selector)
        kubelets.adopt(node["metadata"]["name"] for node in nodes)
        try:
            await create_nodes(api, nodes, advance=advance)
            task = asyncio.create_task(kubelets.run(), name="hollow kubelets")
            try:
                yield kubelets
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        finally:
            await engines.close()
