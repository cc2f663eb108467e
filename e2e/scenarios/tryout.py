"""`python -m e2e.scenarios.tryout`: nodes and an operator on the cluster that `make up` left running, until Ctrl-C."""

import asyncio
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from e2e.localcluster import local_cluster
from e2e.localcluster.__main__ import DEFAULT_NAME, typed
from e2e.localcluster.background import ClusterRecord
from e2e.localcluster.client import ApiError
from e2e.localcluster.cluster import ClusterError
from e2e.localcluster.session import cluster_folder
from e2e.scenarios.stack import INVENTORIES, StackError, stack_on

READY = "ready; in another shell:"


async def play(kubeconfig: str, inventory: Path) -> None:
    """Run the nodes of `inventory` and an operator on a cluster until a signal asks for the end."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    os.environ["KUBECONFIG"] = kubeconfig  # the cluster that the provider `existing` reaches
    async with (
        local_cluster(provider="existing", name="tryout") as cluster,
        stack_on(cluster, inventory=inventory) as running,
    ):
        nodes = len((await running.api.get("/api/v1/nodes"))["items"])
        print(f"{nodes} nodes; operator on {running.operator_url(running.operators[0])}, logs in {cluster.folder}")
        print(
            f"{READY}\n"
            f"  export KUBECONFIG={shlex.quote(kubeconfig)}\n"
            f'  export PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"   # kubectl and bayplan\n'
            "  kubectl apply -f examples/llama-8b.yaml\n"
            "  bayplan status --watch"
        )
        print("Ctrl-C ends nodes and operator; `make down` ends the cluster.", flush=True)
        await ended.wait()


def main(
    *,
    name: Annotated[str, typer.Option(help="Cluster that `python -m e2e.localcluster up` started.")] = DEFAULT_NAME,
    inventory: Annotated[Path, typer.Option(help="YAML file with the nodes.")] = INVENTORIES / "demo.yaml",
) -> None:
    """Add simulated GPU nodes and an operator to a running local cluster, until Ctrl-C."""
    try:
        asyncio.run(play(_kubeconfig(name), inventory))
    except (ClusterError, StackError, ApiError) as error:
        print(error, file=sys.stderr)
        raise typer.Exit(1) from None


def _kubeconfig(name: str) -> str:
    record = ClusterRecord.read(cluster_folder(name))
    if record is None or record.ended_processes():
        raise ClusterError(f"no cluster {name} is up; start it with: {typed('up', name)}")
    return record.kubeconfig


if __name__ == "__main__":
    typer.run(main)
