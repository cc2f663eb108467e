"""Clusters that outlive the command which started them: `up`, `down`, and what is known about each."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from e2e.localcluster.client import KubeApi, read_manifests
from e2e.localcluster.cluster import Cluster, ClusterError
from e2e.localcluster.components import NODE_MONITOR_GRACE_SECONDS
from e2e.localcluster.embedded import EmbeddedCluster
from e2e.localcluster.files import locked, write_whole
from e2e.localcluster.processes import ProcessIdentity, end_process
from e2e.localcluster.providers import KindCluster, start_cluster
from e2e.localcluster.session import RECORD, cluster_folder, clusters_folder, lock_of

CRDS = Path(__file__).parents[2] / "crds"
GRACE_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class ProcessRecord:
    """One background process: the supervisor that its identity names takes its program with it."""

    name: str
    log: str
    identity: ProcessIdentity


@dataclass(frozen=True, kw_only=True)
class ClusterRecord:
    """What `up` left behind. `processes` is empty for providers that run none of ours."""

    name: str
    provider: str
    kubeconfig: str
    processes: tuple[ProcessRecord, ...]

    @classmethod
    def read(cls, folder: Path) -> "ClusterRecord | None":
        """Return the record in a cluster's folder, None when there is none. Raises ClusterError when it is damaged."""
        path = folder / RECORD
        try:
            raw = json.loads(path.read_text())
            processes = tuple(
                ProcessRecord(name=entry["name"], log=entry["log"], identity=ProcessIdentity(**entry["identity"]))
                for entry in raw["processes"]
            )
            return cls(name=raw["name"], provider=raw["provider"], kubeconfig=raw["kubeconfig"], processes=processes)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise ClusterError(f"{path} is damaged ({error!r}); end its processes by hand and remove it") from error

    @classmethod
    def of(cls, cluster: Cluster) -> "ClusterRecord":
        """Describe a cluster that was just started."""
        processes = cluster.processes if isinstance(cluster, EmbeddedCluster) else []
        return cls(
            name=cluster.name,
            provider=cluster.provider,
            kubeconfig=str(cluster.kubeconfig_path),
            processes=tuple(
                ProcessRecord(name=process.name, log=str(process.log_path), identity=process.identity)
                for process in processes
            ),
        )

    def write(self, folder: Path) -> None:
        """Store the record in the cluster's folder."""
        write_whole(folder / RECORD, json.dumps(dataclasses.asdict(self), indent=1) + "\n")

    def ended_processes(self) -> tuple[ProcessRecord, ...]:
        """Return the processes that no longer run."""
        return tuple(process for process in self.processes if not process.identity.is_alive())

    async def end_processes(self) -> None:
        """End what still runs, last started first, and wait for each."""
        for process in reversed(self.processes):
            await end_process(process.identity, grace_seconds=GRACE_SECONDS)


def list_records() -> list[ClusterRecord]:
    """Return the records of all background clusters, by name."""
    folders = sorted(clusters_folder().glob(f"*/{RECORD}"))
    return [record for path in folders if (record := ClusterRecord.read(path.parent)) is not None]


async def up(
    *,
    name: str,
    provider: str,
    say: Callable[[str], None],
    node_monitor_grace_seconds: int = NODE_MONITOR_GRACE_SECONDS,
) -> ClusterRecord:
    """Start a cluster in the background unless it runs, and apply the definitions in crds/. Raises ClusterError."""
    folder = cluster_folder(name)
    async with locked(lock_of(folder), say=say):
        record = ClusterRecord.read(folder)
        if record is not None and record.provider != provider:
            raise ClusterError(f"cluster {name} runs with provider {record.provider}; `down` it first")
        if record is not None and not record.ended_processes():
            say(f"cluster {name} is already running")
            await _apply_definitions(record, say)
            return record
        if record is not None:
            ended = ", ".join(process.name for process in record.ended_processes())
            say(f"cluster {name} had lost {ended}: starting it anew, its logs are kept in {_set_aside(folder)}")
            await record.end_processes()
        elif folder.exists():
            _set_aside(folder)
        cluster = await start_cluster(
            provider=provider, name=name, folder=folder, node_monitor_grace_seconds=node_monitor_grace_seconds
        )
        try:
            record = ClusterRecord.of(cluster)
            await _apply_definitions(record, say)
            record.write(folder)
            # Only a recorded process is let go: whoever is killed before this line leaves nothing running.
            if isinstance(cluster, EmbeddedCluster):
                cluster.release()
        except BaseException:
            await cluster.stop()
            raise
        say(f"cluster {name} is ready")
    return record


def _aside(folder: Path) -> Path:
    """Where the logs of the cluster before this one are kept."""
    return folder.with_name(f"{folder.name}.previous")


def _set_aside(folder: Path) -> Path:
    aside = _aside(folder)
    shutil.rmtree(aside, ignore_errors=True)
    shutil.rmtree(folder / "etcd", ignore_errors=True)
    folder.rename(aside)
    return aside


async def _apply_definitions(record: ClusterRecord, say: Callable[[str], None]) -> None:
    if not read_manifests(CRDS):
        return
    async with KubeApi.open(Path(record.kubeconfig)) as api:
        applied = await api.apply(CRDS)
    say(f"applied {', '.join(entry['metadata']['name'] for entry in applied)}")


async def down(*, name: str, say: Callable[[str], None]) -> None:
    """End a background cluster and remove its files; it is fine when there is none. Raises ClusterError."""
    folder = cluster_folder(name)
    async with locked(lock_of(folder), say=say):
        record = ClusterRecord.read(folder)
        shutil.rmtree(_aside(folder), ignore_errors=True)
        if record is None:
            # A killed `up` leaves a folder; its processes have ended with it, since they were never let go.
            left = folder.exists()
            shutil.rmtree(folder, ignore_errors=True)
            say(f"no cluster {name} is up" + ("; removed what a start that was cut off had left" if left else ""))
            return
        await record.end_processes()
        if record.provider == KindCluster.provider:
            await KindCluster(name=name, folder=folder).stop()
        shutil.rmtree(folder)
    say(f"cluster {name} is down")
