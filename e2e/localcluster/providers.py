"""Where a cluster comes from: processes of our own (`embedded`), Docker (`kind`), or whatever KUBECONFIG names."""

import asyncio
import os
import secrets
import shutil
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

from e2e.localcluster import components
from e2e.localcluster.build import ensure_binaries
from e2e.localcluster.client import ApiError
from e2e.localcluster.cluster import BaseCluster, Cluster, ClusterError
from e2e.localcluster.embedded import EmbeddedCluster
from e2e.localcluster.kubeconfig import KubeconfigError

KIND_CREATE_SECONDS = 300.0


class KindCluster(BaseCluster):
    """A cluster of the `kind` program; its nodes are containers."""

    provider = "kind"

    def __init__(self, *, name: str, folder: Path) -> None:
        super().__init__(name=name, folder=folder)
        self.kubeconfig_path = folder / "kubeconfig"

    @classmethod
    async def start(cls, *, name: str, folder: Path) -> "KindCluster":
        """Create the cluster. Raises ClusterError when Docker does not answer, `kind` is missing or it fails."""
        if shutil.which("docker") is None:
            raise ClusterError("provider kind: no `docker` on PATH; use the provider `embedded`, which needs none")
        code, output = await _run("docker", "info")
        if code != 0:
            raise ClusterError(f"provider kind: Docker does not answer; use the provider `embedded`\n{output[-600:]}")
        if shutil.which("kind") is None:
            raise ClusterError("provider kind: no `kind` on PATH (https://kind.sigs.k8s.io says how to install it)")
        folder.mkdir(parents=True, mode=0o700)
        cluster = cls(name=name, folder=folder)
        command = ("kind", "create", "cluster", "--name", name, "--kubeconfig", str(cluster.kubeconfig_path))
        try:
            code, output = await _run(*command, "--wait", f"{KIND_CREATE_SECONDS:.0f}s")
        except BaseException:
            await cluster.stop()
            raise
        if code != 0:
            await cluster.stop()
            raise ClusterError(f"`{' '.join(command)}` failed with exit code {code}\n{output[-2000:]}")
        return cluster

    async def stop(self) -> None:
        """Delete the cluster."""
        code, output = await _run(
            "kind", "delete", "cluster", "--name", self.name, "--kubeconfig", str(self.kubeconfig_path)
        )
        if code != 0:
            raise ClusterError(f"`kind delete cluster --name {self.name}` failed with exit code {code}\n{output}")


class ExistingCluster(BaseCluster):
    """A cluster that somebody else runs; it is never stopped."""

    provider = "existing"

    def __init__(self, *, name: str, folder: Path, kubeconfig: Path) -> None:
        super().__init__(name=name, folder=folder)
        self.kubeconfig_path = kubeconfig

    @classmethod
    async def start(cls, *, name: str, folder: Path, environment: Mapping[str, str] = os.environ) -> "ExistingCluster":
        """Reach the cluster of $KUBECONFIG (default ~/.kube/config). Raises ClusterError when it does not answer."""
        chosen = environment.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
        kubeconfig = Path(chosen)
        if not kubeconfig.is_file():
            raise ClusterError(f"provider existing: KUBECONFIG must name one file, {chosen} is none")
        cluster = cls(name=name, folder=folder, kubeconfig=kubeconfig)
        try:
            async with cluster.api() as api:
                await api.get("/version")
        except (KubeconfigError, ApiError, OSError, TimeoutError) as error:
            raise ClusterError(f"provider existing: the cluster of {kubeconfig} does not answer: {error}") from error
        folder.mkdir(parents=True, mode=0o700)
        return cluster

    async def stop(self) -> None:
        """Leave the cluster alone."""


async def _run(*command: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    return process.returncode or 0, output.decode(errors="replace")


async def _start_embedded(name: str, folder: Path, node_monitor_grace_seconds: int) -> Cluster:
    binaries = await ensure_binaries()
    return await EmbeddedCluster.start(
        name=name, folder=folder, binaries=binaries, node_monitor_grace_seconds=node_monitor_grace_seconds
    )


async def _start_kind(name: str, folder: Path, node_monitor_grace_seconds: int) -> Cluster:
    _require_default_grace("kind", node_monitor_grace_seconds)
    return await KindCluster.start(name=name, folder=folder)


async def _start_existing(name: str, folder: Path, node_monitor_grace_seconds: int) -> Cluster:
    _require_default_grace("existing", node_monitor_grace_seconds)
    return await ExistingCluster.start(name=name, folder=folder)


def _require_default_grace(provider: str, seconds: int) -> None:
    if seconds != components.NODE_MONITOR_GRACE_SECONDS:
        raise ClusterError(f"node_monitor_grace_seconds: only the provider embedded can change it, not {provider}")


PROVIDERS: Final[Mapping[str, Callable[[str, Path, int], Awaitable[Cluster]]]] = {
    "embedded": _start_embedded,
    "kind": _start_kind,
    "existing": _start_existing,
}


async def start_cluster(
    *,
    provider: str,
    name: str,
    folder: Path,
    node_monitor_grace_seconds: int = components.NODE_MONITOR_GRACE_SECONDS,
) -> Cluster:
    """Start or reach a cluster; `folder` must not exist. Raises ClusterError, also for an unknown provider."""
    if provider not in PROVIDERS:
        raise ClusterError(f"provider: must be one of {', '.join(PROVIDERS)}, got {provider!r}")
    return await PROVIDERS[provider](name, folder, node_monitor_grace_seconds)


def unique_name(prefix: str) -> str:
    """Return a name that no other cluster on this machine has."""
    return f"{prefix}-{secrets.token_hex(4)}"
