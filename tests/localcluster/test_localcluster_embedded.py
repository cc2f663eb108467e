"""The embedded provider on real processes."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from localcluster_support import child_pids, runs, wait_for

from e2e.localcluster import ApiError, Cluster, ClusterError, KubeApi
from e2e.localcluster.build import BINARIES, ensure_binaries
from e2e.localcluster.embedded import EmbeddedCluster
from e2e.localcluster.ports import ADDRESS, free_ports
from e2e.localcluster.session import remove_abandoned

REPOSITORY = Path(__file__).parents[2]
POD = """
apiVersion: v1
kind: Pod
metadata: {name: one}
spec:
  nodeSelector: {no-such: label}
  containers: [{name: engine, image: engine}]
"""


async def who_am_i(cluster: Cluster, kubeconfig: Path) -> tuple[str, set[str]]:
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    async with cluster.api(kubeconfig) as api:
        answer = await api.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
    info = answer["status"]["userInfo"]
    return info["username"], set(info["groups"])


async def test_a_pod_can_be_created_at_once_and_the_scheduler_says_why_it_is_pending(
    api: KubeApi, cluster: Cluster, namespace: str
) -> None:
    await cluster.apply(POD, namespace=namespace)

    async def explained() -> bool:
        pod = await api.get(f"/api/v1/namespaces/{namespace}/pods/one")
        return any(entry.get("reason") == "Unschedulable" for entry in pod["status"].get("conditions", ()))

    await api.wait_until(explained, what="the pod to be called Unschedulable")


async def test_a_quota_refuses_the_pod_that_exceeds_it(api: KubeApi, cluster: Cluster, namespace: str) -> None:
    quota = "{apiVersion: v1, kind: ResourceQuota, metadata: {name: none}, spec: {hard: {pods: '0'}}}"
    await cluster.apply(quota, namespace=namespace)

    async def counted() -> bool:
        found = await api.get(f"/api/v1/namespaces/{namespace}/resourcequotas/none")
        return "pods" in found.get("status", {}).get("used", {})

    await api.wait_until(counted, what="the quota to be counted")
    with pytest.raises(ApiError, match="exceeded quota") as refusal:
        await cluster.apply(POD, namespace=namespace)
    assert refusal.value.status == 403


async def test_a_silent_node_is_lost_after_the_chosen_grace(api: KubeApi) -> None:
    name = "localcluster-silent-node"
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    await api.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    try:
        ready = {"type": "Ready", "status": "True", "reason": "Test", "lastHeartbeatTime": now}
        await api.patch(f"/api/v1/nodes/{name}/status", {"status": {"conditions": [ready]}})

        async def condition() -> str:
            node = await api.get(f"/api/v1/nodes/{name}")
            return str(next(entry["status"] for entry in node["status"]["conditions"] if entry["type"] == "Ready"))

        assert await condition() == "True"

        async def lost() -> bool:
            return await condition() == "Unknown"

        # Far below the 50 s of an unchanged cluster, so the choice of the fixture had its effect.
        await api.wait_until(lost, what="the node to be lost", timeout_seconds=35)
    finally:
        await api.delete(f"/api/v1/nodes/{name}")


async def test_a_client_certificate_is_the_identity_that_was_asked_for(cluster: Cluster) -> None:
    kubeconfig = cluster.kubeconfig_for("jane", ("release-managers",))
    assert await who_am_i(cluster, kubeconfig) == ("jane", {"release-managers", "system:authenticated"})
    assert cluster.kubeconfig_for("jane") != kubeconfig
    async with cluster.api(kubeconfig) as jane:
        with pytest.raises(ApiError) as refusal:
            await jane.get("/api/v1/nodes")
    assert refusal.value.status == 403


async def test_a_service_account_holds_a_token_as_its_pods_would(
    api: KubeApi, cluster: Cluster, namespace: str
) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "operator"}}
    await api.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", account)
    user, groups = await who_am_i(cluster, await cluster.service_account_kubeconfig(namespace, "operator"))
    assert user == f"system:serviceaccount:{namespace}:operator"
    assert f"system:serviceaccounts:{namespace}" in groups


async def test_the_audit_log_says_who_did_what_and_shows_no_secret(
    api: KubeApi, cluster: Cluster, namespace: str
) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"}, "stringData": {"key": "hidden-value"}}
    await api.create(f"/api/v1/namespaces/{namespace}/secrets", secret)
    await cluster.apply(POD, namespace=namespace)
    await api.get(f"/api/v1/namespaces/{namespace}/pods/one")
    assert cluster.audit_log_path is not None
    text = cluster.audit_log_path.read_text()
    entries = [
        entry
        for entry in map(json.loads, text.splitlines())
        if entry.get("objectRef", {}).get("namespace") == namespace and entry["user"]["username"] == "kubernetes-admin"
    ]
    by_verb = {(entry["verb"], entry["objectRef"]["resource"]): entry for entry in entries}
    assert by_verb["create", "secrets"]["objectRef"]["name"] == "key"
    assert "hidden-value" not in text
    written = by_verb["patch", "pods"]
    assert written["requestURI"].startswith(f"/api/v1/namespaces/{namespace}/pods/one?")
    assert written["requestObject"]["spec"]["nodeSelector"] == {"no-such": "label"}
    assert written["responseObject"]["metadata"]["uid"]
    assert "requestObject" not in by_verb["get", "pods"]


@pytest.fixture(scope="module")
def binaries() -> Path:
    return asyncio.run(ensure_binaries())


@pytest.fixture
async def second(cluster: Cluster, binaries: Path, tmp_path: Path) -> AsyncIterator[EmbeddedCluster]:
    """A second cluster, whose first choice of ports holds one that is in use."""
    with socket.socket() as listener:
        listener.bind((ADDRESS, 0))
        listener.listen()
        taken = listener.getsockname()[1]
        choices = 0

        def choose(count: int) -> Sequence[int]:
            nonlocal choices
            choices += 1
            found = list(free_ports(count))
            return [*found[:2], taken, *found[3:]] if choices == 1 else found

        started = await EmbeddedCluster.start(
            name="second", folder=tmp_path / "second", binaries=binaries, choose_ports=choose
        )
        assert choices == 2
        assert started.ports is not None
        assert taken not in vars(started.ports).values()
        yield started
        await started.stop()


async def test_two_clusters_side_by_side_share_nothing_and_a_taken_port_is_replaced(
    api: KubeApi, second: EmbeddedCluster, namespace: str
) -> None:
    async with second.api() as other:
        assert (await other.get("/version"))["gitVersion"] == (await api.get("/version"))["gitVersion"]
        with pytest.raises(ApiError) as missing:
            await other.get(f"/api/v1/namespaces/{namespace}")
    assert missing.value.status == 404
    supervisors = [process.identity.pid for process in second.processes]
    programs = [pid for supervisor in supervisors for pid in child_pids(supervisor)]
    assert len(programs) == len(BINARIES)
    await second.stop()
    assert not any(map(runs, [*supervisors, *programs]))


def test_a_killed_caller_leaves_no_process_and_its_data_is_cleared_away(cluster: Cluster, own_state: Path) -> None:
    code = (
        "import asyncio\n"
        "from e2e.localcluster import local_cluster\n"
        "async def main():\n"
        "    async with local_cluster(provider='embedded', name='killed') as cluster:\n"
        "        print(*(process.identity.pid for process in cluster.processes), flush=True)\n"
        "        await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    caller = subprocess.Popen([sys.executable, "-c", code], cwd=REPOSITORY, stdout=subprocess.PIPE)
    assert caller.stdout is not None
    supervisors = [int(pid) for pid in caller.stdout.readline().split()]
    caller.stdout.close()
    programs = [pid for supervisor in supervisors for pid in child_pids(supervisor)]
    assert len(programs) == len(BINARIES)
    (folder,) = own_state.glob("killed-*")
    remove_abandoned(own_state)
    assert (folder / "etcd").exists()
    caller.send_signal(signal.SIGKILL)
    caller.wait(20)
    wait_for(lambda: not any(map(runs, [*supervisors, *programs])), what="the processes to end", seconds=60)
    remove_abandoned(own_state)
    assert not (folder / "etcd").exists()
    assert (folder / "logs" / "kube-apiserver.log").exists()


class FakePrograms:
    """Four programs that only sleep, one of which may do something else."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name in BINARIES:
            self.write(name, "exec sleep 600")

    def write(self, name: str, script: str) -> None:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)


async def test_a_program_that_ends_is_named_with_its_log(tmp_path: Path) -> None:
    programs = FakePrograms(tmp_path / "bin")
    programs.write("kube-apiserver", "echo 'unknown flag: --nonsense' >&2; exit 3")
    with pytest.raises(ClusterError, match=r"kube-apiserver ended with code 3; log: .*\n.*unknown flag: --nonsense"):
        await EmbeddedCluster.start(name="x", folder=tmp_path / "x", binaries=programs.folder)
    assert (tmp_path / "x" / "logs" / "kube-apiserver.log").exists()


async def test_a_port_that_is_always_taken_ends_the_attempts(tmp_path: Path) -> None:
    programs = FakePrograms(tmp_path / "bin")
    programs.write("etcd", "echo 'listen tcp: bind: address already in use' >&2; exit 1")
    choices = 0

    def choose(count: int) -> Sequence[int]:
        nonlocal choices
        choices += 1
        return free_ports(count)

    with pytest.raises(ClusterError, match="address already in use"):
        await EmbeddedCluster.start(name="x", folder=tmp_path / "x", binaries=programs.folder, choose_ports=choose)
    assert choices == 5


async def test_a_cancelled_start_leaves_no_process(tmp_path: Path) -> None:
    programs = FakePrograms(tmp_path / "bin")
    programs.write("kube-apiserver", f"echo $$ > {tmp_path}/pid; exec sleep 600")
    work = asyncio.ensure_future(EmbeddedCluster.start(name="x", folder=tmp_path / "x", binaries=programs.folder))
    pid_file = tmp_path / "pid"
    pid = int(await asyncio.to_thread(wait_for, lambda: pid_file.exists() and pid_file.read_text().strip(), what="it"))
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert not runs(pid)


@pytest.mark.parametrize("seconds", [0, -1])
async def test_a_grace_below_a_second_is_refused(tmp_path: Path, seconds: int) -> None:
    with pytest.raises(ClusterError, match="node_monitor_grace_seconds: must be 1 or more"):
        await EmbeddedCluster.start(
            name="x", folder=tmp_path / "x", binaries=tmp_path, node_monitor_grace_seconds=seconds
        )
