"""`bayplan rollout … --apply` against a real API server: the change that was printed is taken, and nothing else."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from bayplan.api import names
from e2e.localcluster import Cluster, KubeApi

EXAMPLE = Path(__file__).parents[2] / "examples/llama-8b-rollout.yaml"
ROLLOUTS = f"/apis/{names.API_VERSION}/namespaces/{{}}/{names.ROLLOUT_PLURAL}"
REVISION = "0123456789"


def bayplan(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bayplan", "rollout", *arguments],
        env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig_path), "COLUMNS": "160", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def test_every_change_is_taken_by_the_server_and_changes_no_other_field(
    cluster: Cluster, api: KubeApi, namespace: str
) -> None:
    manifest: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    await api.apply([manifest], namespace=namespace)
    path = f"{ROLLOUTS.format(namespace)}/{manifest['metadata']['name']}"
    before = (await api.get(path))["spec"]

    def run(*arguments: str) -> str:
        answer = bayplan(cluster, *arguments, "-n", namespace, "--apply")
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    name = manifest["metadata"]["name"]
    run("pause", name)
    run("approve", name, "--stage", "promote", "--revision", REVISION)
    run("abort", name, "--revision", REVISION)
    said = (await api.get(path))["spec"]
    approvals = [{"revision": REVISION, "stage": "promote"}]
    assert said == before | {"paused": True, "approvals": approvals, "abort": REVISION}
    run("pause", name, "--resume")
    run("retry", name, "--token", "again")
    said = (await api.get(path))["spec"]
    assert said == before | {"paused": False, "approvals": approvals, "retry": "again"}


async def test_what_the_server_refuses_is_told_and_changes_nothing(
    cluster: Cluster, api: KubeApi, namespace: str
) -> None:
    manifest: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    await api.apply([manifest], namespace=namespace)
    name = manifest["metadata"]["name"]
    answer = bayplan(cluster, "abort", name, "--revision", "No Revision", "-n", namespace, "--apply")
    assert answer.returncode == 1
    assert "abort" in answer.stderr
    assert "abort" not in (await api.get(f"{ROLLOUTS.format(namespace)}/{name}"))["spec"]
    nothing = bayplan(cluster, "approve", name, "-n", namespace, "--apply")
    assert (nothing.returncode, "nothing is on trial" in nothing.stderr) == (1, True)
