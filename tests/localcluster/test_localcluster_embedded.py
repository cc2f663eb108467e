"""The embedded provider on real processes."""

import pytest

from e2e.localcluster import Cluster, KubeApi

pytestmark = pytest.mark.apiserver


async def test_a_pod_can_be_created_at_once_in_a_fresh_namespace(api: KubeApi, namespace: str) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "first"},
        "spec": {"containers": [{"name": "engine", "image": "engine"}]},
    }
    created = await api.create(f"/api/v1/namespaces/{namespace}/pods", pod)
    assert created["status"]["phase"] == "Pending"


async def test_the_scheduler_says_why_a_pod_is_pending(api: KubeApi, cluster: Cluster, namespace: str) -> None:
    manifest = """
apiVersion: v1
kind: Pod
metadata: {name: pending}
spec:
  nodeSelector: {no-such: label}
  containers: [{name: engine, image: engine}]
"""
    await cluster.apply(manifest, namespace=namespace)

    async def explained() -> bool:
        pod = await api.get(f"/api/v1/namespaces/{namespace}/pods/pending")
        return any(entry["reason"] == "Unschedulable" for entry in pod["status"].get("conditions", ()))

    await api.wait_until(explained, what="the pod to be called Unschedulable")
