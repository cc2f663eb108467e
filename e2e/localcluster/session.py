"""A cluster for the length of a `with` block."""

import asyncio
import os
import re
import shutil
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from e2e.localcluster.cluster import Cluster, ClusterError
from e2e.localcluster.components import NODE_MONITOR_GRACE_SECONDS
from e2e.localcluster.files import hold, locked, state_folder
from e2e.localcluster.providers import start_cluster, unique_name

PROVIDER_VARIABLE = "BAYPLAN_CLUSTER_PROVIDER"
RECORD = "cluster.json"
KEPT_DAYS = 3
NAME_PATTERN = r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?"


def clusters_folder() -> Path:
    """Return the folder that holds a folder per cluster of this user."""
    return state_folder() / "clusters"


def cluster_folder(name: str) -> Path:
    """Return where the files of a cluster lie. Raises ClusterError for a name that is no short DNS label."""
    if re.fullmatch(NAME_PATTERN, name) is None:
        raise ClusterError(
            f"name: must be 1 to 40 of a-z, 0-9 and -, with a letter or digit at both ends, got {name!r}"
        )
    return clusters_folder() / name


def lock_of(folder: Path) -> Path:
    """Return the lock that whoever starts, uses or ends the cluster of a folder holds."""
    return folder.with_name(f".{folder.name}.lock")


@asynccontextmanager
async def local_cluster(
    *,
    provider: str | None = None,
    name: str = "session",
    node_monitor_grace_seconds: int = NODE_MONITOR_GRACE_SECONDS,
) -> AsyncIterator[Cluster]:
    """Run a cluster for the length of the block. `name` gets a random suffix, so any number live side by side.

    The provider is `provider`, else $BAYPLAN_CLUSTER_PROVIDER, else embedded. The cluster's folder with its logs is
    removed after a block that ended well and kept, with a note on standard error, after one that did not; kept ones go
    after KEPT_DAYS.
    """
    provider = provider or os.environ.get(PROVIDER_VARIABLE) or "embedded"
    name = unique_name(name)
    folder = cluster_folder(name)
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    remove_abandoned(folder.parent)
    cluster: Cluster | None = None
    ended_well = False
    async with locked(lock_of(folder)):
        try:
            cluster = await start_cluster(
                provider=provider, name=name, folder=folder, node_monitor_grace_seconds=node_monitor_grace_seconds
            )
            yield cluster
            ended_well = True
        finally:
            if cluster is not None:
                await asyncio.shield(cluster.stop())
            if ended_well:
                _remove(folder)
            elif folder.exists():
                shutil.rmtree(folder / "etcd", ignore_errors=True)
                print(f"logs of the cluster {name} are kept in {folder}", file=sys.stderr)


def remove_abandoned(root: Path) -> None:
    """Remove what clusters of killed callers left under `root`: their data now, their logs after KEPT_DAYS.

    A cluster in use is known by the lock that its caller holds, one that `up` started by its record.
    """
    for lock in root.glob(".*.lock"):
        folder = lock.with_name(lock.name.removeprefix(".").removesuffix(".lock"))
        if (folder / RECORD).exists() or not folder.exists() or (held := hold(lock)) is None:
            continue
        with held:
            shutil.rmtree(folder / "etcd", ignore_errors=True)
            if time.time() - folder.stat().st_mtime > KEPT_DAYS * 24 * 3600:
                _remove(folder)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    lock_of(folder).unlink(missing_ok=True)


@contextmanager
def local_cluster_sync(
    *,
    provider: str | None = None,
    name: str = "session",
    node_monitor_grace_seconds: int = NODE_MONITOR_GRACE_SECONDS,
) -> Iterator[Cluster]:
    """As `local_cluster`, for code without an event loop (a pytest fixture of session scope)."""
    block = local_cluster(provider=provider, name=name, node_monitor_grace_seconds=node_monitor_grace_seconds)
    with asyncio.Runner() as runner:
        cluster = runner.run(block.__aenter__())
        try:
            yield cluster
        except BaseException as error:
            if not runner.run(block.__aexit__(type(error), error, error.__traceback__)):
                raise
        else:
            runner.run(block.__aexit__(None, None, None))
