"""The kind provider, with programs in place of Docker and kind."""

from pathlib import Path

import pytest

from e2e.localcluster import ClusterError, local_cluster

KIND = """
echo "$@" >> {folder}/calls
[ "$1" = create ] || exit 0
[ -z "$KIND_ERROR" ] || {{ echo "$KIND_ERROR" >&2; exit 1; }}
while [ "$1" != "--kubeconfig" ]; do shift; done
echo kubeconfig > "$2"
"""


class Tools:
    """A PATH with nothing on it but what a test installs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def install(self, name: str, script: str) -> None:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{script.format(folder=self.folder)}\n")
        path.chmod(0o755)

    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_state: Path) -> Tools:
    monkeypatch.setenv("PATH", str(tmp_path / "tools"))
    return Tools(tmp_path / "tools")


async def test_a_cluster_is_created_and_deleted_by_its_own_name(tools: Tools) -> None:
    tools.install("docker", "exit 0")
    tools.install("kind", KIND)
    async with local_cluster(provider="kind", name="k") as cluster:
        assert cluster.kubeconfig_path.read_text() == "kubeconfig\n"
        assert cluster.audit_log_path is None
    created, deleted = tools.calls()
    assert created.startswith(f"create cluster --name {cluster.name} --kubeconfig {cluster.kubeconfig_path} --wait ")
    assert deleted.startswith(f"delete cluster --name {cluster.name} ")


async def test_without_docker_the_other_provider_is_named(tools: Tools) -> None:
    with pytest.raises(ClusterError, match="no `docker` on PATH; use the provider `embedded`"):
        async with local_cluster(provider="kind"):
            pass


async def test_a_docker_that_does_not_answer_is_quoted(tools: Tools) -> None:
    tools.install("docker", "echo 'Cannot connect to the Docker daemon' >&2; exit 1")
    with pytest.raises(ClusterError, match=r"Docker does not answer[\s\S]*Cannot connect to the Docker daemon"):
        async with local_cluster(provider="kind"):
            pass


async def test_a_missing_kind_is_named(tools: Tools) -> None:
    tools.install("docker", "exit 0")
    with pytest.raises(ClusterError, match="no `kind` on PATH"):
        async with local_cluster(provider="kind"):
            pass


async def test_a_failed_creation_is_quoted_and_cleared_away(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    tools.install("docker", "exit 0")
    tools.install("kind", KIND)
    monkeypatch.setenv("KIND_ERROR", "no space left")
    with pytest.raises(ClusterError, match=r"kind create cluster[\s\S]*no space left"):
        async with local_cluster(provider="kind"):
            pass
    assert [call.split()[0] for call in tools.calls()] == ["create", "delete"]
