"""`bayplan plan FILE…`: the operator's verdicts on manifests, before anybody applies them."""

import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bayplan.cli.offline.cluster import ClusterError, read_cluster, read_site
from bayplan.cli.offline.document import ClusterDocument, from_json
from bayplan.cli.offline.evaluate import Evaluation
from bayplan.cli.offline.manifests import MAX_BYTES, read_manifests
from bayplan.cli.offline.render import INVALID, as_json, as_junit, as_table, exit_code
from bayplan.planning.numbers import InvalidInput
from bayplan.planning.placement.topology import Topology

PIPE_WIDTH = 200
MAX_INVENTORY_BYTES = 16 * MAX_BYTES


def plan(
    files: Annotated[list[str], typer.Argument(help="Manifests: files, folders, or - for standard input.")],
    *,
    nodes: Annotated[
        Path | None, typer.Option(help="Inventory saved by `bayplan inventory`; a live cluster without it.")
    ] = None,
    kubeconfig: Annotated[
        Path | None, typer.Option(help="Kubeconfig of the live cluster; $KUBECONFIG without it.")
    ] = None,
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Of manifests that name none.")] = "default",
    config: Annotated[
        Path | None,
        typer.Option(help="The operator's configuration file, for its topology and GPUs; defaults without it."),
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    junit: Annotated[Path | None, typer.Option(help="Also write a JUnit report to this file.")] = None,
) -> None:
    """Say what the operator would say of InferenceModels, Rollouts and CapacityPlans, and what would change.

    Ends with 0 when all is ready, 1 for a conflict, 2 when something is invalid or cannot be read.
    """
    if nodes is not None and kubeconfig is not None:
        raise typer.BadParameter("give --nodes or --kubeconfig, not both")
    now = datetime.now(UTC)
    try:
        site = read_site(config)
        manifests = read_manifests(files, namespace=namespace)
        document = _document(nodes, kubeconfig, site.topology, now)
        evaluation = Evaluation(document, topology=site.topology, gpus=site.gpus, now=now, live=nodes is None)
        reports = evaluation.run(manifests)
    except (ClusterError, InvalidInput) as error:
        typer.echo(f"bayplan plan: {error}", err=True)
        raise typer.Exit(INVALID) from None
    if junit is not None:
        junit.write_text(as_junit(reports), encoding="utf-8")
    if json_output:
        typer.echo(as_json(reports))
    else:
        terminal = sys.stdout.isatty() or "COLUMNS" in os.environ
        console = Console() if terminal else Console(width=PIPE_WIDTH)
        console.print(as_table(reports))
    raise typer.Exit(exit_code(reports))


def _document(nodes: Path | None, kubeconfig: Path | None, topology: Topology, now: datetime) -> ClusterDocument:
    if nodes is None:
        return read_cluster(kubeconfig, topology, now)
    try:
        with nodes.open("rb") as file:
            text = file.read(MAX_INVENTORY_BYTES + 1)
    except OSError as error:
        raise InvalidInput(str(nodes), f"cannot be read: {error.strerror}") from None
    if len(text) > MAX_INVENTORY_BYTES:
        raise InvalidInput(str(nodes), f"is longer than {MAX_INVENTORY_BYTES} bytes")
    return from_json(text, str(nodes))
