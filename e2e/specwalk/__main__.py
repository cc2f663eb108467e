"""`python -m e2e.specwalk`: walk one object of a kind through its schema on a real control plane.

`--seed` decides steps and their order, so the seed of a failure shows it again. Ends with 1 when anything diverged.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bayplan.api import names
from e2e.hollownodes import NodeShape, hollow_nodes, node_manifest
from e2e.localcluster import Cluster, KubeApi, local_cluster
from e2e.localcluster.client import ApiError
from e2e.scenarios.audit import audit_tail
from e2e.scenarios.stack import (
    ACCOUNT,
    LISTENING,
    NAMESPACE,
    REPOSITORY,
    START_SECONDS,
    StackError,
    roles,
    start_operator,
    wait_for_line,
)
from e2e.specwalk.kinds import KINDS, Kind
from e2e.specwalk.steps import Step, choose, rule_messages, steps_of
from e2e.specwalk.walk import Findings, Walker
from e2e.specwalk.writelog import WriteLog

NODES = 16
NEVER_SECONDS = 86400
CONFIGURATION = {"listen": {"address": "127.0.0.1", "port": 0}, "logging": {"format": "console", "level": "INFO"}}


async def _prepare(cluster: Cluster, api: KubeApi, kind: Kind, namespaces: Sequence[str]) -> None:
    for namespace in namespaces:
        await api.create("/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": namespace}})
        await cluster.apply(list(kind.needs(namespace)), namespace=namespace)


async def campaign(kind: Kind, steps: Sequence[Step], *, walkers: int, advance: Callable[[], object]) -> list[Findings]:
    """Walk the steps, dealt out over `walkers` objects, under one operator."""
    names_of_walkers = [(f"walk-{number}", f"walk-{number}-fresh") for number in range(walkers)]
    nodes = [node_manifest(f"hollow-{number:02}", number, NodeShape()) for number in range(NODES)]
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(
            local_cluster(name="specwalk", node_monitor_grace_seconds=NEVER_SECONDS)
        )
        await cluster.apply(REPOSITORY / "crds")
        await cluster.apply(roles())
        api = await stack.enter_async_context(cluster.api())
        await _prepare(cluster, api, kind, [name for pair in names_of_walkers for name in pair])
        await stack.enter_async_context(hollow_nodes(cluster.kubeconfig_path, nodes, label_selector=names.LABEL_MODEL))
        configuration = cluster.folder / "bayplan.yaml"
        configuration.write_text(yaml.safe_dump(CONFIGURATION))
        kubeconfig = await cluster.service_account_kubeconfig(NAMESPACE, ACCOUNT)
        operator = start_operator(
            name="operator", folder=cluster.folder, kubeconfig=kubeconfig, configuration=configuration
        )
        stack.push_async_callback(operator.stop)
        await wait_for_line(operator, LISTENING, START_SECONDS)
        log = WriteLog(audit_tail(cluster), without=kind.beside)
        following = asyncio.create_task(log.run(), name="write log")
        try:
            walking = [Walker(api, kind, log, namespace=own, fresh=fresh) for own, fresh in names_of_walkers]
            messages = rule_messages(kind)
            async with asyncio.TaskGroup() as group:
                for number, walker in enumerate(walking):
                    group.create_task(walker.walk(steps[number::walkers], messages, advance))
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        return [walker.findings for walker in walking]


def report_of(findings: Sequence[Findings], *, kind: Kind, seed: int, of: int) -> dict[str, Any]:
    """Return the sums over all walkers."""
    return {
        "kind": kind.plural,
        "seed": seed,
        "steps_possible": of,
        "legal": sum(found.legal for found in findings),
        "legal_and_ready": sum(found.ready for found in findings),
        "ruled_out": sum(found.ruled_out for found in findings),
        "illegal": sum(found.illegal for found in findings),
        "most_writes_per_step": max((found.most_writes for found in findings), default=0),
        "divergences": [line for found in findings for line in found.divergences],
    }


def main(
    *,
    kind: Annotated[str, typer.Option(help=f"Plural of the kind: {', '.join(KINDS)}.")] = "inferencemodels",
    seed: Annotated[int, typer.Option(help="Decides the steps and their order.")] = 1,
    steps: Annotated[int, typer.Option(min=0, help="How many steps; 0 takes all there are.")] = 0,
    walkers: Annotated[int, typer.Option(min=1, max=12, help="Objects that walk side by side.")] = 6,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a summary.")] = False,
) -> None:
    """Change one property a step through what its schema accepts and refuses, and back."""
    console = Console(stderr=True)
    if kind not in KINDS:
        raise typer.BadParameter(f"--kind must be one of {', '.join(KINDS)}, not {kind}")
    every = steps_of(KINDS[kind])
    chosen = choose(every, steps, seed=seed)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(f"{kind}, seed {seed}", total=len(chosen))
            findings = asyncio.run(campaign(KINDS[kind], chosen, walkers=walkers, advance=lambda: bar.advance(task)))
    except (StackError, ApiError) as error:
        console.print(f"seed {seed}: {error}", style="red", markup=False)
        raise typer.Exit(2) from None
    report = report_of(findings, kind=KINDS[kind], seed=seed, of=len(every))
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        print("\n".join(f"{name}: {value}" for name, value in report.items() if name != "divergences"))
        for line in report["divergences"]:
            print(f"diverged (seed {seed}): {line}")
    raise typer.Exit(1 if report["divergences"] else 0)


if __name__ == "__main__":
    typer.run(main)
