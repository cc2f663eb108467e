"""`python -m e2e.localcluster build|up|down|status|env`: the cluster from a shell."""

import asyncio
import shlex
import sys
import time
from collections.abc import Coroutine
from typing import Annotated, Any, TypeVar

import typer

from e2e.localcluster.background import ClusterRecord, down, list_records, up
from e2e.localcluster.build import BuildError, ensure_binaries
from e2e.localcluster.client import ApiError
from e2e.localcluster.cluster import ClusterError
from e2e.localcluster.components import NODE_MONITOR_GRACE_SECONDS
from e2e.localcluster.providers import PROVIDERS
from e2e.localcluster.session import cluster_folder
from e2e.localcluster.toolchain import ToolchainError

Result = TypeVar("Result")
DEFAULT_NAME = "bayplan"

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="A real Kubernetes control plane without containers."
)
Name = Annotated[str, typer.Option(help="Name of the cluster; any number run side by side.")]


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run to the end; a failure that we foresee is one message on standard error and exit code 1."""
    try:
        return asyncio.run(work)
    except (BuildError, ToolchainError, ClusterError, ApiError) as error:
        _say(str(error))
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        _say("interrupted; nothing was left running")
        raise typer.Exit(130) from None


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def typed(verb: str, name: str) -> str:
    """What a person types in the repository to start or end a cluster."""
    return f"make {verb}" if name == DEFAULT_NAME else f".venv/bin/python -m e2e.localcluster {verb} --name {name}"


def _print_export(record: ClusterRecord) -> None:
    print(f"export KUBECONFIG={shlex.quote(record.kubeconfig)}")


@app.command("build")
def build_command() -> None:
    """Build etcd and the Kubernetes servers unless they are cached, and print where they are."""
    print(_run(ensure_binaries()))


@app.command("up")
def up_command(
    name: Name = DEFAULT_NAME,
    provider: Annotated[str, typer.Option(help=f"One of {', '.join(PROVIDERS)}.")] = "embedded",
    node_monitor_grace_seconds: Annotated[
        int, typer.Option(min=1, help="How long a node may be silent before it counts as lost (embedded only).")
    ] = NODE_MONITOR_GRACE_SECONDS,
) -> None:
    """Leave a cluster running, with the definitions in crds/, and print the line that points kubectl at it."""
    started = time.monotonic()
    record = _run(up(name=name, provider=provider, say=_say, node_monitor_grace_seconds=node_monitor_grace_seconds))
    _say(f"{time.monotonic() - started:.1f} s; end it with: {typed('down', name)}")
    if name == DEFAULT_NAME:
        _say("it has no nodes and no operator of its own: make tryout adds them")
    _print_export(record)


@app.command("down")
def down_command(name: Name = DEFAULT_NAME) -> None:
    """End a cluster that `up` left running; no process of it remains."""
    _run(down(name=name, say=_say))


@app.command("status")
def status_command() -> None:
    """List the clusters that `up` left running."""
    records = _run(_records())
    if not records:
        print("no cluster is up")
    for record in records:
        ended = record.ended_processes()
        state = f"broken: {', '.join(process.name for process in ended)} ended" if ended else "up"
        print(f"{record.name}  {record.provider}  {state}  KUBECONFIG={record.kubeconfig}")
        for process in record.processes:
            print(f"  {process.name}  pid {process.identity.pid}  log {process.log}")


async def _records() -> list[ClusterRecord]:
    return list_records()


@app.command("env")
def env_command(name: Name = DEFAULT_NAME) -> None:
    """Print the line that points kubectl at a running cluster, for `eval`."""
    _print_export(_run(_running_record(name)))


async def _running_record(name: str) -> ClusterRecord:
    record = ClusterRecord.read(cluster_folder(name))
    if record is None or record.ended_processes():
        raise ClusterError(f"no cluster {name} is up; start it with: {typed('up', name)}")
    return record


if __name__ == "__main__":
    app()
