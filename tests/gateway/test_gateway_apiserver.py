"""`bayplan gateway` as a process on a real API server, under the very rights that the chart gives it."""

import asyncio
import json
import os
import re
import secrets
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from bayplan.api import names
from e2e.localcluster import ApiError, Cluster, KubeApi
from e2e.scenarios.heads import LONG_AGO, MODELS, create_ready_head, create_serving_model
from tests.gateway.conftest import MakeEngine

CHART = Path(__file__).parents[2] / "charts/bayplan"
RBAC = "rbac.authorization.k8s.io"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"


@pytest.fixture
async def kubeconfig(cluster: Cluster, api: KubeApi, namespace: str) -> AsyncIterator[Path]:
    """The gateway's account with the chart's rules and no others."""
    name = f"gateway-{secrets.token_hex(3)}"
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    manifests: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}}
    ]
    for kind, file, inside in (
        ("ClusterRole", "gateway-rules.yaml", {}),
        ("Role", "gateway-lease-rules.yaml", {"namespace": namespace}),
    ):
        rules = yaml.safe_load((CHART / "files" / file).read_text())
        metadata = {"name": name, **inside}
        manifests.append({"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": metadata, "rules": rules})
        reference = {"apiGroup": RBAC, "kind": kind, "name": name}
        manifests.append(
            {
                "apiVersion": f"{RBAC}/v1",
                "kind": f"{kind}Binding",
                "metadata": metadata,
                "roleRef": reference,
                "subjects": [subject],
            }
        )
    await api.apply(manifests)
    yield await cluster.service_account_kubeconfig(namespace, name)
    for kind in ("clusterroles", "clusterrolebindings"):
        await api.delete(f"/apis/{RBAC}/v1/{kind}/{name}")


class GatewayProcess:
    """A running `bayplan gateway`."""

    def __init__(self, process: Process, log: list[str]) -> None:
        self.process = process
        self.log = log

    def url(self, mark: str) -> str:
        for line in self.log:
            if match := re.search(rf"{mark} on (http://\S+)", line):
                return match[1]
        return ""


@pytest.fixture
async def gateway(kubeconfig: Path, namespace: str, tmp_path: Path) -> AsyncIterator[GatewayProcess]:
    """The process, once clients are answered."""
    config = tmp_path / "bayplan.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "gateway": {"listen": {"address": "127.0.0.1", "port": 0, "adminPort": 0}},
                "logging": {"format": "console"},
            }
        )
    )
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("BAYPLAN_")},
        "KUBECONFIG": str(kubeconfig),
        "POD_NAME": "gateway-1",
        "POD_NAMESPACE": namespace,
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bayplan", "gateway", "--config", str(config)), env=environment, stderr=PIPE
    )
    log: list[str] = []

    async def follow() -> None:
        assert process.stderr is not None
        async for line in process.stderr:
            log.append(line.decode(errors="replace"))

    following = asyncio.create_task(follow())
    running = GatewayProcess(process, log)
    async with asyncio.timeout(60):
        while not running.url("clients"):
            assert process.returncode is None, "".join(log)
            await asyncio.sleep(0.05)
    yield running
    if process.returncode is None:
        process.kill()
        await process.wait()
    await following


async def test_gateway_serves_acknowledges_and_leaves_on_a_real_api_server(
    api: KubeApi, namespace: str, gateway: GatewayProcess, make_engine: MakeEngine
) -> None:
    url, admin = gateway.url("clients"), gateway.url("the cluster")
    path = f"{url}/models/{namespace}/tiny/v1/completions"
    body = {"prompt": "hello", "max_tokens": 8}
    async with aiohttp.ClientSession() as session:

        async def status() -> int:
            async with session.post(path, json=body) as response:
                await response.read()
                return response.status

        async def answered(expected: int) -> None:
            async def as_expected() -> bool:
                return await status() == expected

            await api.wait_until(as_expected, what=f"an answer {expected}")

        assert await status() == 404
        model = await create_serving_model(api, namespace, "tiny")
        await answered(503)
        pod = await create_ready_head(api, namespace, model, await make_engine(), name="tiny-0")
        await answered(200)

        # the Lease, as the operator reads it
        selector = {"labelSelector": names.LABEL_GATEWAY}
        (lease,) = (await api.get(LEASES.format(namespace), **selector))["items"]
        assert lease["spec"]["holderIdentity"] == "gateway-1"
        assert json.loads(lease["metadata"]["annotations"][names.ANNOTATION_DRAINING_PODS]) == []

        pods = f"/api/v1/namespaces/{namespace}/pods"
        await api.patch(f"{pods}/tiny-0", {"metadata": {"annotations": {names.ANNOTATION_DRAINING: LONG_AGO}}})

        async def acknowledged() -> bool:
            (lease,) = (await api.get(LEASES.format(namespace), **selector))["items"]
            return json.loads(lease["metadata"]["annotations"][names.ANNOTATION_DRAINING_PODS]) == [
                pod["metadata"]["uid"]
            ]

        await api.wait_until(acknowledged, what="the acknowledgement")
        assert await status() == 503
        async with session.get(f"{admin}/evidence") as response:
            evidence = await response.json()
        assert [row["pod"] for row in evidence["rows"]] == [pod["metadata"]["uid"]]
        await api.delete(f"{pods}/tiny-0", gracePeriodSeconds="0")
        await api.delete(f"{MODELS.format(namespace)}/tiny")
        await answered(404)

    gateway.process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(gateway.process.wait(), 20) == 0, "".join(gateway.log)
    assert (await api.get(LEASES.format(namespace), **selector))["items"] == []
    assert "prompt" not in "".join(gateway.log)


FORBIDDEN = [
    ("GET", "/api/v1/secrets"),
    ("GET", "/api/v1/configmaps"),
    ("GET", "/api/v1/nodes"),
    ("GET", "/apis/coordination.k8s.io/v1/leases"),
    ("DELETE", "/api/v1/namespaces/default/pods/a"),
    ("DELETE", f"/apis/{names.API_VERSION}/namespaces/default/inferencemodels/a"),
    ("DELETE", "/apis/coordination.k8s.io/v1/namespaces/default/leases/a"),
]


async def test_account_of_the_gateway_may_do_nothing_else(cluster: Cluster, kubeconfig: Path) -> None:
    async with cluster.api(kubeconfig) as account:
        for method, path in FORBIDDEN:
            with pytest.raises(ApiError) as refused:
                await account.request(method, path)
            assert refused.value.status == 403, (method, path)
