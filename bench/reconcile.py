"""`python -m bench.reconcile`: how fast the operator is and what it costs, on a real control plane.

The operator runs as a process of its own, as the identity that the chart gives it. Writes and times come from the API
server's audit log; Leases, Events and watches are apart. Modes are combined freely, for example
`--objects 2000 --foreign-pods 5000 --failover`.
"""

import asyncio
import json
import shlex
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from aiohttp import ClientError
from rich.console import Console

from bench import phases, report, workload
from bench.phases import Figures
from bench.progress import Bars, bars
from bench.ranges import RangesError, load_ranges, violations
from bench.system import BenchError, Measured, System, system
from e2e.localcluster import ClusterError
from e2e.localcluster.client import ApiError
from e2e.scenarios.stack import StackError

NODES = 50
FOREIGN_PODS_PER_NODE = 10
GPUS_PER_NODE = 8


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to run. Counts and seconds of 0 leave a phase out."""

    objects: int = 0
    placed: int = 0
    foreign_pods: int = 0
    nodes: int = 0
    rate: float = 0.0
    restart: bool = False
    quiet: float = 0.0
    failover: bool = False
    baseline: bool = False

    @property
    def node_count(self) -> int:
        """Nodes as asked for, or enough for the foreign pods and for every placed model."""
        least = -(-(self.placed + self.foreign_pods // 10) // GPUS_PER_NODE)
        return self.nodes or max(NODES, self.foreign_pods // FOREIGN_PODS_PER_NODE, least)


async def run(plan: Plan, progress: Bars) -> dict[str, dict[str, Any]]:
    """Return the columns of the report."""
    async with system(nodes=plan.node_count, foreign_pods=plan.foreign_pods, advance=progress.advance) as running:
        columns = {"bayplan": phases.merge(*await _bayplan(running, plan, progress))}
        if plan.baseline:
            try:
                columns["kopf handlers"] = phases.merge(*await _kopf(running, plan, progress))
            except (ApiError, ClientError, TimeoutError, BenchError) as error:
                # What was measured of Bayplan is not lost with it; a range that names the column still fails.
                progress.note(f"baseline not measured: {error!r}")
        return columns


async def _bayplan(running: System, plan: Plan, progress: Bars) -> list[Figures]:
    operator = await running.start_operator()
    await running.leads(operator)
    before = operator.rss_mb()
    barrier = running.barrier_seconds(operator)
    found = [Figures(values={"start_barrier_seconds": barrier}, details={"rss_mb_before": before})]
    if plan.objects:
        found.append(await phases.burst(running, operator, "burst", plan.objects, progress.advance))
    if plan.rate:
        found.append(await phases.steady(running, operator, "steady", plan.rate, progress.advance))
    if plan.placed:
        found.append(await phases.placed(running, operator, plan.placed, progress.advance))
    found.append(Figures(values={"rss_mb_after": operator.rss_mb()}))
    if plan.restart:
        progress.note("restarting the operator")
        operator, figures = await phases.restart(running, operator)
        found += [figures, Figures(details={"rss_mb_after_restart": operator.rss_mb()})]
    if plan.quiet:
        found.append(await phases.quiet(running, operator, plan.quiet, progress.advance))
    if plan.failover:
        found += await _takeovers(running, operator, progress)
    await running.close()
    return found


async def _takeovers(running: System, leader: Measured, progress: Bars) -> list[Figures]:
    """Kill a leader, then hand over cleanly, each with a standby whose caches are warm."""
    found: list[Figures] = []
    for name, end in (("failover", running.kill), ("handover", running.stop)):
        standby = await running.start_operator()
        await running.warm(standby)
        progress.note(f"{name}: the leader ends")
        found.append(await phases.takeover(running, leader, standby, name=name, end=partial(end, leader)))
        leader = standby
    return found


async def _kopf(running: System, plan: Plan, progress: Bars) -> list[Figures]:
    """The same objects, handled by Kopf's own handlers."""
    await workload.delete_models(running.api)
    handlers = await running.start_kopf()
    await phases.warm_up(running, handlers)
    found = [Figures(details={"rss_mb_before": handlers.rss_mb()})]
    if plan.objects:
        found.append(await phases.burst(running, handlers, "kopf", plan.objects, progress.advance))
    if plan.rate:
        found.append(await phases.steady(running, handlers, "kopf-steady", plan.rate, progress.advance))
    found.append(Figures(values={"rss_mb_after": handlers.rss_mb()}))
    if plan.restart:
        handlers, figures = await phases.restart(running, handlers)
        found.append(figures)
    await running.close()
    return found


def main(
    *,
    objects: Annotated[int, typer.Option(min=0, help="Models without replicas, created in a burst.")] = 0,
    placed: Annotated[int, typer.Option(min=0, help="Models with one replica each, until all are served.")] = 0,
    foreign_pods: Annotated[int, typer.Option(min=0, help="Other people's bound pods.")] = 0,
    nodes: Annotated[int, typer.Option(min=0, help="Nodes; 0: 50, or one for each ten foreign pods.")] = 0,
    rate: Annotated[float, typer.Option(min=0, help="Creates a second for ten seconds after the burst.")] = 0.0,
    restart: Annotated[bool, typer.Option(help="Restart the operator and count its writes.")] = False,
    quiet: Annotated[float, typer.Option(min=0, help="Seconds of rest in which writes are counted.")] = 0.0,
    failover: Annotated[bool, typer.Option(help="Kill the leader, then hand over cleanly.")] = False,
    baseline: Annotated[bool, typer.Option(help="Run Kopf's own handlers on the same objects.")] = False,
    check: Annotated[Path | None, typer.Option(help="Ranges to assert; without a mode its own run is made.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Measure the operator on a real control plane; at least one mode, or --check, is needed."""
    console = Console(stderr=True)
    plan = Plan(
        objects=objects,
        placed=placed,
        foreign_pods=foreign_pods,
        nodes=nodes,
        rate=rate,
        restart=restart,
        quiet=quiet,
        failover=failover,
        baseline=baseline,
    )
    try:
        ranges = load_ranges(check) if check is not None else None
        if plan == Plan():
            if ranges is None:
                raise typer.BadParameter("nothing to run: give a mode such as --objects 1000, or --check")
            plan = Plan(**ranges.run)
        load = report.load_1m()
        with bars(console) as progress:
            columns = asyncio.run(run(plan, progress))
    except (BenchError, StackError, ClusterError, ApiError, RangesError) as error:
        console.print(f"bench.reconcile: {error}", style="red", markup=False)
        raise typer.Exit(2) from None
    command = f"python -m bench.reconcile {shlex.join(sys.argv[1:])}"
    found = report.as_json(command=command, columns=columns, ran_on=report.machine(load_before=load))
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        report.show(found, Console())
    broken = violations(ranges, found) if ranges is not None else []
    for line in broken:
        console.print(f"out of range: {line}", style="red", markup=False)
    raise typer.Exit(1 if broken else 0)


if __name__ == "__main__":
    typer.run(main)
