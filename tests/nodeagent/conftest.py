"""An agent on the shared API server, with nodes of the test's own."""

import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from e2e.localcluster import Cluster
from e2e.nodeagent.agent import NodeAgent
from e2e.nodeagent.inventory import parse_inventory
from tests.nodeagent.bench import FAST, RULES, Bench


@pytest.fixture
async def bench(cluster: Cluster, namespace: str, tmp_path: Path) -> AsyncIterator[Bench]:
    """Two nodes with four GPUs each."""
    prefix = f"n{secrets.token_hex(3)}"
    inventory = parse_inventory(
        {
            "gpuKinds": {"l40s": {"product": "NVIDIA-L40S", "memoryMib": 46068, "computeCapability": "8.9"}},
            "pools": [
                {"nodeNames": f"{prefix}-{{index}}", "count": 2, "gpu": "l40s", "gpusPerNode": 4, "zone": "zone-t"}
            ],
        }
    )
    state_dir = tmp_path / "state"
    state_dir.mkdir()
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(cluster.api())
        agent = NodeAgent(
            kubeconfig=cluster.kubeconfig_path,
            inventory=inventory,
            settings=FAST,
            rules=RULES,
            log_dir=tmp_path / "logs",
        )
        await stack.enter_async_context(agent)
        yield Bench(agent=agent, api=api, namespace=namespace, prefix=prefix, state_dir=state_dir)
