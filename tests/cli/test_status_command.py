"""`bayplan status` against a real API server."""

import json
import os
import subprocess
import sys

from e2e.localcluster import Cluster, KubeApi
from tests.api.specs import MINIMAL_SPEC


def bayplan(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bayplan", "status", *arguments],
        env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig_path), "COLUMNS": "160", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def test_models_are_listed_shown_and_printed_as_json(cluster: Cluster, api: KubeApi, namespace: str) -> None:
    model = {"apiVersion": "bayplan.dev/v1alpha1", "kind": "InferenceModel", "metadata": {"name": "seen"}}
    await api.apply([{**model, "spec": MINIMAL_SPEC}], namespace=namespace)

    listed = bayplan(cluster, "-n", namespace)
    screen = bayplan(cluster, "seen", "-n", namespace)
    printed = bayplan(cluster, "seen", "-n", namespace, "--json")

    assert (listed.returncode, screen.returncode, printed.returncode) == (0, 0, 0)
    assert "seen" in listed.stdout
    assert f"{namespace}/seen serves" in screen.stdout
    (entry,) = json.loads(printed.stdout)
    assert (entry["namespace"], entry["name"], entry["generation"]) == (namespace, "seen", 1)


async def test_a_model_that_is_not_there_is_named(cluster: Cluster, namespace: str) -> None:
    answer = bayplan(cluster, "absent", "-n", namespace)

    assert answer.returncode == 1
    assert f"no InferenceModel absent in namespace {namespace}" in answer.stderr


def test_a_cluster_that_does_not_answer_is_named(cluster: Cluster) -> None:
    answer = bayplan(cluster, "--kubeconfig", "/nonexistent/kubeconfig")

    assert answer.returncode == 1
    assert "/nonexistent/kubeconfig" in answer.stderr


def test_contradicting_options_are_refused(cluster: Cluster) -> None:
    for arguments in (("x", "-A"), ("--json", "--watch")):
        assert bayplan(cluster, *arguments).returncode == 2
