"""`python -m e2e.nodeagent.control COMMAND …`: tell a running node agent to lose something, or look at it."""

import json
import urllib.error
import urllib.request
from typing import Annotated, Any

import typer

from e2e.nodeagent.nodecondition import NodeCondition

app = typer.Typer(
    help="Speak to a running node agent.", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)
_base = {"url": ""}
Node = Annotated[str, typer.Argument(help="Name of a node of the inventory.")]


@app.callback()
def connect(
    control: Annotated[
        str, typer.Option(envvar="NODEAGENT_CONTROL", help="HOST:PORT that the agent's --control gave.")
    ] = "127.0.0.1:9650",
) -> None:
    """Speak to a running node agent."""
    _base["url"] = control if "://" in control else f"http://{control}"


def _call(path: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(_base["url"] + path, data=data, timeout=330) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        typer.echo(json.load(error)["error"], err=True)
    except urllib.error.URLError as error:
        typer.echo(f"no node agent answers at {_base['url']}: {error.reason}", err=True)
    raise typer.Exit(1)


@app.command()
def state(
    after: Annotated[int | None, typer.Option(help="Answer when the revision has moved on from this one.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait with --after.")] = 30.0,
) -> None:
    """Print nodes, devices, pods and containers as JSON."""
    query = "" if after is None else f"?after={after}&timeout={timeout}"
    typer.echo(json.dumps(_call("/state" + query), indent=2))


@app.command()
def lose_node(
    node: Node,
    mode: Annotated[NodeCondition, typer.Option(help="What becomes of its containers.")] = NodeCondition.DEAD,
) -> None:
    """Lose a node: dead (containers killed), partitioned (they run on), or frozen (they stand still)."""
    _call("/lose-node", {"node": node, "mode": mode.value})


@app.command()
def return_node(node: Node) -> None:
    """Let a lost node report again; pods that were deleted meanwhile are ended."""
    _call("/return-node", {"node": node})


@app.command()
def lose_gpu(
    node: Node,
    count: Annotated[int, typer.Argument(min=1)] = 1,
    *,
    crash: Annotated[
        bool, typer.Option("--crash", help="Take held GPUs first and crash the pods holding them.")
    ] = False,
) -> None:
    """Lower a node's allocatable GPUs; prints the pods that held any of the lost ones."""
    for pod in _call("/lose-gpu", {"node": node, "count": count, "crash": crash})["result"]:
        typer.echo(pod)


@app.command()
def restore_gpu(
    node: Node, count: Annotated[int | None, typer.Argument(min=1, help="How many; all if omitted.")] = None
) -> None:
    """Bring lost GPUs back."""
    _call("/restore-gpu", {"node": node, "count": count})


@app.command()
def kill_pod(
    pod: Annotated[str, typer.Argument(metavar="NAMESPACE/NAME")],
    exit_code: Annotated[int, typer.Argument(min=0, max=255)] = 137,
    reason: Annotated[str | None, typer.Option(help="Reason instead of Error, such as OOMKilled.")] = None,
) -> None:
    """Kill a pod's containers."""
    namespace, slash, name = pod.partition("/")
    if not slash:
        raise typer.BadParameter("must be NAMESPACE/NAME", param_hint="pod")
    _call("/kill-pod", {"namespace": namespace, "name": name, "exitCode": exit_code, "reason": reason})


@app.command()
def fail_pulls(image: str) -> None:
    """Let pulls of an image fail."""
    _call("/fail-pulls", {"image": image})


@app.command()
def heal_pulls(image: str) -> None:
    """Let pulls of an image succeed again."""
    _call("/heal-pulls", {"image": image})


if __name__ == "__main__":
    app()
