"""`bayplan inventory > FILE`: save what `bayplan plan` needs of a cluster."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from bayplan.cli.offline.cluster import ClusterError, read_cluster, read_site
from bayplan.cli.offline.document import to_json


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
        document = read_cluster(kubeconfig, read_site(config).topology, datetime.now(UTC))
    except ClusterError as error:
        typer.echo(f"bayplan inventory: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(to_json(document), nl=False)
