"""`bayplan inventory` and `bayplan plan` against a real API server."""

import json
import os
import subprocess
import sys
from pathlib import Path

import yaml

from e2e.localcluster import Cluster, KubeApi
from tests.api.planspecs import MINIMAL_PLAN, plan
from tests.api.specs import MINIMAL_SPEC, model


def bayplan(cluster: Cluster, *arguments: str, kubeconfig: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bayplan", *arguments],
        env={**os.environ, "KUBECONFIG": str(kubeconfig or cluster.kubeconfig_path), "COLUMNS": "200", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def test_a_live_cluster_and_its_saved_inventory_say_the_same(
    cluster: Cluster, api: KubeApi, namespace: str, tmp_path: Path
) -> None:
    await api.apply([model({**MINIMAL_SPEC, "replicas": 2}, "runs")], namespace=namespace)
    await api.create(
        f"/api/v1/namespaces/{namespace}/resourcequotas",
        {"metadata": {"name": "gpus"}, "spec": {"hard": {"requests.nvidia.com/gpu": "8"}}},
    )
    file = tmp_path / "manifests.yaml"
    spec = {**MINIMAL_SPEC, "replicas": 3, "capacityPlanRef": {"name": "peak"}}
    file.write_text(yaml.safe_dump_all([model(spec, "runs"), plan(MINIMAL_PLAN, namespace=namespace)]))
    text = file.read_text().replace("namespace: default", f"namespace: {namespace}")
    file.write_text(text)

    saved = bayplan(cluster, "inventory")
    assert saved.returncode == 0, saved.stderr
    document = json.loads(saved.stdout)
    assert ("runs", namespace) in {(one["name"], one["namespace"]) for one in document["objects"]}
    assert "gpus" in {quota["name"] for quota in document["quotas"]}
    (tmp_path / "nodes.json").write_text(saved.stdout)

    live = bayplan(cluster, "plan", str(file), "-n", namespace, "--json")
    offline = bayplan(cluster, "plan", str(file), "-n", namespace, "--json", "--nodes", str(tmp_path / "nodes.json"))

    assert live.returncode == offline.returncode == 1, live.stderr + offline.stderr
    kinds = {one["kind"] for one in json.loads(live.stdout)["objects"]}
    assert kinds == {"InferenceModel", "CapacityPlan"}
    assert live.stdout == offline.stdout
    # No operator has said yet what it wants of the model.
    assert "replicas: 0 → 3" in live.stdout


def test_a_cluster_that_cannot_be_read_ends_with_2_and_is_named(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "model.yaml"
    file.write_text(yaml.safe_dump(model(MINIMAL_SPEC)))
    missing = tmp_path / "none"

    for command in (("inventory",), ("plan", str(file))):
        answer = bayplan(cluster, *command, "--kubeconfig", str(missing))
        assert answer.returncode == 2, answer.stdout
        assert str(missing) in answer.stderr


def test_both_sources_at_once_are_refused(cluster: Cluster, tmp_path: Path) -> None:
    answer = bayplan(cluster, "plan", "x.yaml", "--nodes", "a", "--kubeconfig", "b")

    assert answer.returncode == 2
    assert "not both" in answer.stderr
