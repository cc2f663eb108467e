"""The block around a cluster: names, providers, what is kept and what is cleared away."""

import os
from pathlib import Path

import pytest

from e2e.localcluster import ApiError, Cluster, ClusterError, local_cluster, local_cluster_sync
from e2e.localcluster.session import cluster_folder, remove_abandoned


@pytest.fixture
def existing(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, own_state: Path) -> Cluster:
    """The session's cluster, as somebody else's: KUBECONFIG names it."""
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig_path))
    return cluster


async def test_a_block_that_ends_well_leaves_nothing_of_its_own(existing: Cluster, own_state: Path) -> None:
    async with local_cluster(provider="existing") as found:
        assert found.folder.parent == own_state
        kubeconfig = await found.service_account_kubeconfig("default", "default")
        assert kubeconfig.is_relative_to(found.folder)
    assert list(own_state.iterdir()) == []


async def test_a_block_that_fails_keeps_its_folder_and_says_where(
    existing: Cluster, own_state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RuntimeError, match="the test failed"):
        async with local_cluster(provider="existing", name="failed") as failed:
            raise RuntimeError("the test failed")
    assert f"logs of the cluster {failed.name} are kept in {failed.folder}" in capsys.readouterr().err
    assert failed.folder.exists()


def test_the_block_without_a_loop_behaves_alike(existing: Cluster, own_state: Path) -> None:
    with local_cluster_sync(provider="existing") as found:
        folder = found.folder
        assert folder.exists()
    assert not folder.exists()
    with pytest.raises(RuntimeError, match="the test failed"), local_cluster_sync(provider="existing") as found:
        raise RuntimeError("the test failed")
    assert found.folder.exists()


async def test_somebody_elses_cluster_is_used_but_never_stopped(existing: Cluster) -> None:
    async with local_cluster(provider="existing") as found:
        assert found.audit_log_path is None
        with pytest.raises(ClusterError, match="no authority that could make a certificate for jane in ops"):
            found.kubeconfig_for("jane", ("ops",))
    async with existing.api() as api:
        assert await api.get("/version")


async def test_the_environment_chooses_the_provider(existing: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAYPLAN_CLUSTER_PROVIDER", "existing")
    async with local_cluster() as found:
        assert found.provider == "existing"


async def test_an_unknown_provider_is_refused_with_the_known_ones(own_state: Path) -> None:
    with pytest.raises(ClusterError, match="provider: must be one of embedded, kind, existing, got 'minikube'"):
        async with local_cluster(provider="minikube"):
            pass


async def test_a_kubeconfig_that_is_no_file_is_named(
    own_state: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/one:{tmp_path}/two")
    with pytest.raises(ClusterError, match="KUBECONFIG must name one file"):
        async with local_cluster(provider="existing"):
            pass


async def test_a_cluster_that_does_not_answer_is_named(
    existing: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = existing.kubeconfig_path.read_text()
    server = next(line for line in text.splitlines() if "server:" in line)
    (tmp_path / "dead").write_text(text.replace(server, "    server: https://127.0.0.1:1"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "dead"))
    with pytest.raises(ClusterError, match="dead does not answer"):
        async with local_cluster(provider="existing"):
            pass


async def test_only_embedded_can_change_the_node_monitor(existing: Cluster) -> None:
    with pytest.raises(ClusterError, match="node_monitor_grace_seconds: only the provider embedded"):
        async with local_cluster(provider="existing", node_monitor_grace_seconds=5):
            pass


async def test_a_refused_request_passes_through_the_block(existing: Cluster) -> None:
    with pytest.raises(ApiError):
        async with local_cluster(provider="existing") as found, found.api() as api:
            await api.get("/api/v1/namespaces/no-such")


@pytest.mark.parametrize("name", ["", "Upper", "-a", "a-", "a/b", "a.b", "a" * 41])
def test_a_name_that_is_no_folder_name_is_refused(name: str) -> None:
    with pytest.raises(ClusterError, match="name: must be 1 to 40"):
        cluster_folder(name)


@pytest.mark.parametrize("name", ["a", "a-1", "a" * 40])
def test_a_short_dns_label_is_a_name(name: str, own_state: Path) -> None:
    assert cluster_folder(name) == own_state / name


def test_old_logs_go_and_a_recorded_or_used_cluster_stays(own_state: Path) -> None:
    for name in ("old", "recorded", "fresh"):
        (own_state / name / "logs").mkdir(parents=True)
        (own_state / f".{name}.lock").touch()
    (own_state / "recorded" / "cluster.json").touch()
    for name in ("old", "recorded"):
        os.utime(own_state / name, (0, 0))
    remove_abandoned(own_state)
    assert sorted(path.name for path in own_state.iterdir()) == [".fresh.lock", ".recorded.lock", "fresh", "recorded"]
