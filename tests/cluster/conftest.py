"""What the tests of the engine against a real API server share."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bayplan.cluster.client import ApiClient
from bayplan.cluster.credentials import Credentials, load_kubeconfig
from e2e.localcluster import Cluster
from tests.fakes.proxy import CuttingProxy

Manifest = dict[str, Any]


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[ApiClient]:
    """Our client as the cluster's administrator."""
    async with ApiClient(Credentials(lambda: load_kubeconfig(str(cluster.kubeconfig_path)))) as client:
        yield client


@pytest.fixture
async def proxy(cluster: Cluster) -> AsyncIterator[CuttingProxy]:
    """A misbehaving way to the API server, as administrator."""
    proxy = CuttingProxy(await asyncio.to_thread(load_kubeconfig, str(cluster.kubeconfig_path)))
    await proxy.start()
    yield proxy
    await proxy.stop()


def make_pod(name: str, *, labels: dict[str, str] | None = None, size_bytes: int = 0) -> Manifest:
    """A pod that no scheduler touches."""
    annotations = {"padding": "x" * size_bytes} if size_bytes else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}, "annotations": annotations},
        "spec": {
            "schedulingGates": [{"name": "bayplan.dev/placement"}],
            "containers": [{"name": "engine", "image": "engine"}],
        },
    }


def make_model(name: str) -> Manifest:
    """A small valid InferenceModel."""
    return {
        "apiVersion": "bayplan.dev/v1alpha1",
        "kind": "InferenceModel",
        "metadata": {"name": name},
        "spec": {
            "model": {
                "name": f"served-{name}",
                "uri": "hf://example/model",
                "revision": "0123456789abcdef0123456789abcdef01234567",
                "architecture": {
                    "parameters": 8_000_000_000,
                    "layers": 32,
                    "attentionHeads": 32,
                    "kvHeads": 8,
                    "headDim": 128,
                },
            },
            "engine": {"image": "engine:v1", "maxModelLen": 8192, "gpuMemoryUtilization": 0.9},
            "replicas": 0,
        },
    }
