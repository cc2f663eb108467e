"""A cluster for the length of a `with` block."""

import asyncio
import contextlib
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from e2e.localcluster.cluster import Cluster, ClusterError
from e2e.localcluster.components import NODE_MONITOR_GRACE_SECONDS
from e2e.localcluster.files import state_folder
from e2e.localcluster.providers import start_cluster, unique_name

PROVIDER_VARIABLE = "BAYPLAN_CLUSTER_PROVIDER"
NAME_PATTERN = r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?"


def cluster_folder(name: str) -> Path:
    """Return where the files of a cluster lie. Raises ClusterError for a name that is no short DNS label."""
    if re.fullmatch(NAME_PATTERN, name) is None:
        raise ClusterError(
            f"name: must be 1 to 40 of a-z, 0-9 and -, with a letter or digit at both ends, got {name!r}"
        )
    return state_folder() / "clusters" / name


@asynccontextmanager
async def local_cluster(
    *,
    provider: str | None = None,
    name: str = "session",
    node_monitor_grace_seconds: int = NODE_MONITOR_GRACE_SECONDS,
) -> AsyncIterator[Cluster]:
    """Run a cluster for the length of the block. `name` gets a random suffix, so any number live side by side.

    The provider is `provider`, else $BAYPLAN_CLUSTER_PROVIDER, else embedded. The cluster's folder with its logs is
    removed after a block that ended well and kept, with a note on standard error, after one that did not.
    """
    name = unique_name(name)
    folder = cluster_folder(name)
    cluster = None
    try:
        cluster = await start_cluster(
            provider=provider or os.environ.get(PROVIDER_VARIABLE) or "embedded",
            name=name,
            folder=folder,
            node_monitor_grace_seconds=node_monitor_grace_seconds,
        )
        yield cluster
    except BaseException:
        if folder.exists():
            print(f"logs of the cluster {name} are kept in {folder}", file=sys.stderr)
        raise
    else:
        await cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
        cluster = None
    finally:
        if cluster is not None:
            await asyncio.shield(cluster.stop())
            with contextlib.suppress(OSError):
                shutil.rmtree(folder / "etcd", ignore_errors=True)


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
