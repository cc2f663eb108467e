"""Reading the cluster that a kubeconfig names."""

from datetime import datetime
from pathlib import Path

from bayplan.cli.offline.collect import collect
from bayplan.cli.offline.document import ClusterDocument
from bayplan.cluster.client import ApiClient
from bayplan.cluster.credentials import Credentials, CredentialsError, load_access
from bayplan.cluster.errors import ApiError
from bayplan.cluster.loop import run
from bayplan.planning.placement.topology import Topology

FAILURES = (CredentialsError, ApiError)


def read(kubeconfig: Path | None, topology: Topology, now: datetime) -> ClusterDocument:
    """Read it once. Raises one of FAILURES."""
    path = str(kubeconfig) if kubeconfig is not None else None

    async def collected() -> ClusterDocument:
        async with ApiClient(Credentials(lambda: load_access(kubeconfig=path))) as client:
            return await collect(client, topology=topology, now=now)

    return run(collected())
