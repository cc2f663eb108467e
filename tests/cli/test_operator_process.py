"""The assembled operator on a real API server: what it says when something around it is not as it should be."""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator

import aiohttp
import pytest

from bayplan.cli.configuration import OperatorConfiguration
from bayplan.cli.operator import run_operator
from bayplan.cluster.credentials import Credentials, load_kubeconfig
from e2e.localcluster import Cluster, KubeApi
from e2e.localcluster.ports import free_ports


@pytest.fixture
async def nonsense_node(api: KubeApi) -> AsyncIterator[str]:
    """A node whose labels and amounts nobody can read."""
    name = f"nonsense-{secrets.token_hex(4)}"
    labels = {"nvidia.com/gpu.memory": "lots", "nvidia.com/gpu.count": "eight", "nvidia.com/gpu.product": "NVIDIA-L4"}
    await api.create(
        "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
    )
    yield name
    await api.delete(f"/api/v1/nodes/{name}")


async def test_a_missing_namespace_and_a_nonsense_node_are_reported(
    cluster: Cluster, api: KubeApi, nonsense_node: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    namespace, port = f"late-{secrets.token_hex(4)}", free_ports(1)[0]
    configuration = OperatorConfiguration.model_validate({"listen": {"address": "127.0.0.1", "port": port}})
    work = run_operator(
        configuration,
        credentials=Credentials(lambda: load_kubeconfig(str(cluster.kubeconfig_path))),
        namespace=namespace,
        identity="late",
    )
    operator = asyncio.create_task(work)
    try:
        async with aiohttp.ClientSession() as session:

            async def readiness() -> tuple[int, str]:
                try:
                    async with session.get(f"http://127.0.0.1:{port}/readyz") as answer:
                        return answer.status, await answer.text()
                except aiohttp.ClientConnectionError:
                    return 0, ""

            async def says_what_to_create() -> bool:
                return f"kubectl create namespace {namespace}" in (await readiness())[1]

            await api.wait_until(says_what_to_create, what="a readiness that names the namespace")
            assert (await readiness())[0] == 503
            (warning,) = {record.getMessage() for record in caplog.records if namespace in record.getMessage()}
            assert "does not exist" in warning
            assert "--namespace" in warning

            await api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})

            async def is_ready() -> bool:
                return (await readiness())[0] == 200

            await api.wait_until(is_ready, what="an operator that leads")

            async def facts() -> set[tuple[str, str, str]]:
                found = await api.get("/apis/events.k8s.io/v1/namespaces/default/events")
                return {
                    (event["type"], event["reason"], event["note"])
                    for event in found["items"]
                    if event["regarding"]["name"] == nonsense_node
                }

            wanted = {
                ("Warning", "NodeValueIgnored", "label nvidia.com/gpu.memory is 'lots': ignored"),
                ("Warning", "NodeValueIgnored", "label nvidia.com/gpu.count is 'eight': ignored"),
            }

            async def are_told() -> bool:
                return wanted <= await facts()

            await api.wait_until(are_told, what="one event for each nonsense label")
        assert not operator.done()
    finally:
        operator.cancel()
        await asyncio.gather(operator, return_exceptions=True)
        await api.delete(f"/api/v1/namespaces/{namespace}")
