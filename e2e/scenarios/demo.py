"""`make demo`: models from `kubectl apply` to answered, admitted and scaled requests, on a real control plane.

Asks nothing; exits 0 only if every scene reached its state. `--all` (`make demo-all`) adds scenes that are worth a
longer look, `--keep` leaves the last state running until Ctrl-C. A new scene is a function of a `Stage` in a module of
`e2e.scenarios.scenes` and one line in `SCENES`.
"""

import asyncio
import sys
from typing import Annotated

import typer

from e2e.localcluster import ClusterError
from e2e.scenarios.narration import Narrator, SceneFailedError
from e2e.scenarios.scenes import capacity, demand, life, placing, requests, rollouts
from e2e.scenarios.scenes.stage import Scene, Stage
from e2e.scenarios.stack import INVENTORIES, StackError, stack

SCENES = (
    Scene(placing.fleet),
    Scene(placing.first_model),
    Scene(placing.tensor_parallel),
    Scene(placing.does_not_fit),
    Scene(placing.fragmented),
    Scene(capacity.planned),
    Scene(life.scaling, always=False),
    Scene(life.node_loss),
    Scene(requests.answers),
    Scene(requests.overload),
    Scene(demand.load_triples),
    Scene(demand.metrics_are_cut),
    Scene(demand.load_is_gone),
    Scene(rollouts.worse_candidate),
    Scene(rollouts.good_candidate),
    Scene(rollouts.candidate_without_room),
    Scene(life.deletion),
    Scene(placing.two_nodes, always=False),
    Scene(life.operator_killed, always=False),
    Scene(life.wrong_spec, always=False),
)
"""In the order in which they are played."""


async def play(*, keep: bool, everything: bool) -> None:
    """Run the demo on a cluster of its own."""
    async with stack(name="demo", inventory=INVENTORIES / "demo.yaml") as system:
        tell = Narrator(kubeconfig=system.cluster.kubeconfig_path)
        stage = Stage(system, tell)
        for scene in SCENES:
            if scene.always or everything:
                await scene.play(stage)
        tell.console.print(
            f"\n[bold green]All {tell.scenes} scenes reached their state in {tell.seconds:.0f} s.[/bold green]"
        )
        if keep:
            tell.console.print(f"export KUBECONFIG={system.cluster.kubeconfig_path}   # Ctrl-C ends it")
            await asyncio.Event().wait()


def main(
    *,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the system running until Ctrl-C.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Play every scene, not only the best.")] = False,
) -> None:
    """Play the demo."""
    try:
        asyncio.run(play(keep=keep, everything=everything))
    except KeyboardInterrupt:
        raise typer.Exit(0 if keep else 130) from None
    except (SceneFailedError, StackError, ClusterError, TimeoutError) as error:
        print(f"\nthe demo failed: {error}", file=sys.stderr)
        raise typer.Exit(1) from None


if __name__ == "__main__":
    typer.run(main)
