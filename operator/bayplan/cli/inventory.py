"""`bayplan inventory > FILE`: save what `bayplan plan` needs of a cluster."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from bayplan.cli.configuration import ConfigurationError, load_configuration
from bayplan.cli.offline.collect import collect
from bayplan.cli.offline.document import ClusterDocument, to_json
from bayplan.cluster.client import ApiClient
from bayplan.cluster.credentials import Credentials, CredentialsError, load_access
from bayplan.cluster.errors import ApiError
from bayplan.cluster.loop import run
from bayplan.planning.topology import Topology


def inventory(
    *,
    kubeconfig: Annotated[Path | None, typer.Option(help="Kubeconfig; $KUBECONFIG without it.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="The operator's configuration file, for its topology; defaults without it.")
    ] = None,
) -> None:
    """Print nodes, what is taken on them, quotas and Bayplan's objects as JSON, for `bayplan plan --nodes`.

    No secret is in it: values of environment variables are left out.
    """
    try:
        topology = load_configuration(config).topology
        typer.echo(to_json(run(read_cluster(kubeconfig, topology, datetime.now(UTC)))), nl=False)
    except (ConfigurationError, CredentialsError, ApiError) as error:
        typer.echo(f"bayplan inventory: {error}", err=True)
        raise typer.Exit(2) from None


async def read_cluster(kubeconfig: Path | None, topology: Topology, now: datetime) -> ClusterDocument:
    """Read the cluster that a kubeconfig names."""
    path = str(kubeconfig) if kubeconfig is not None else None
    async with ApiClient(Credentials(lambda: load_access(kubeconfig=path))) as client:
        return await collect(client, topology=topology, now=now)
