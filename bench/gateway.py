"""The gateway's figures: `python -m bench.gateway [--json] [--quick] [--seeds 1 2 3] [--parts …]`.

| part | what |
|---|---|
| `overload` | good tokens per second at 0.5-1.3 and 5 × the peak, with and without admission, on its own clock |
| `holds` | 10⁵ random events, each followed by an independent recount |
| `decisions` | CPU time of one decision of 64 tenants, waiting and shedding included |
| `sockets` | 10³ connections torn at random, at a live gateway |
| `sheds` | OpenAI's client at a live gateway that is full |
| `live-overload` | `overload` at the peak and 5 × it with real streams through a live gateway, on a stretched clock |
| `cost` | CPU time per request at 1,000 a second and per chunk of 100 streams; beside it a bare aiohttp proxy's |

Costs are the least of several rounds: what others do on the machine only adds to them. Exit code 1 when a bar is
missed.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import Any

import psutil
import uvloop
from rich.console import Console
from rich.table import Table

from bench.decisions import decision_times, random_holds
from bench.gatewayclients import shed_contract, torn_sockets
from bench.gatewaycost import Cost, bare_proxy, chunk_cost, request_cost, stub_replica
from bench.gatewayhost import Host, Replica, control_plane, gateway_host
from bench.gatewayoverload import live_overload, replica, section
from bench.overload import PEAK_PER_SECOND, goodput

PARTS = ("overload", "holds", "decisions", "sockets", "sheds", "live-overload", "cost")
LIVE = frozenset({"sockets", "sheds", "live-overload", "cost"})
LOADS = (0.5, 0.7, 0.85, 1.0, 1.15, 1.3)
OVERLOAD = 5.0
PRESSURES = (0.8, 1.2, 3.0)
BARS: dict[str, tuple[str, float]] = {
    "live_goodput.admission.5": ("least", 0.80),
    "live_goodput.none.5": ("most", 0.05),
    "goodput.5": ("least", 0.80),
    "goodput_without_admission.5": ("most", 0.05),
    "leaked": ("most", 0),
    "double": ("most", 0),
    "shed_contract": ("least", 1.0),
    "obeying_got_in": ("least", 1.0),
    "cpu_us_per_request": ("most", 350.0),
    "cpu_us_per_chunk": ("most", 45.0),
    "decision_p99_us": ("most", 50.0),
}


def overload(*, seeds: Sequence[int], quick: bool) -> dict[str, Any]:
    """Good tokens per second by load, as shares of the best without overload."""
    seconds, warm_up = (30.0, 15.0) if quick else (120.0, 40.0)
    rates: dict[bool, dict[str, float]] = {}
    details: dict[str, Any] = {}
    for admission in (True, False):
        rates[admission] = {}
        for load in (*LOADS, OVERLOAD):
            rate, tallies = goodput(load, seeds=list(seeds), seconds=seconds, warm_up=warm_up, admission=admission)
            rates[admission][f"{load:g}"] = round(rate, 1)
            details[f"{'admission' if admission else 'none'} {load:g}"] = [asdict(tally) for tally in tallies]
    best = max(rate for by_load in rates.values() for load, rate in by_load.items() if float(load) != OVERLOAD)
    return {
        "goodput": {load: round(rate / best, 4) for load, rate in rates[True].items()},
        "goodput_without_admission": {load: round(rate / best, 4) for load, rate in rates[False].items()},
        "best_tokens_per_second": best,
        "peak_requests_per_second": PEAK_PER_SECOND,
        "overload_runs": details,
    }


def holds(*, seeds: Sequence[int], quick: bool) -> dict[str, Any]:
    """Leaks and doubles of a random life."""
    found = random_holds(events=10_000 if quick else 100_000, seed=seeds[0])
    return {"leaked": found.leaked + found.left_over, "double": found.double, "hold_events": found.events}


def decisions(*, seeds: Sequence[int], quick: bool) -> dict[str, Any]:
    """The slowest of several pressures and seeds."""
    count, rounds = (5_000, 2) if quick else (20_000, 5)
    by_pressure = {
        f"{pressure:g}": max(
            (decision_times(pressure=pressure, decisions=count, seed=seed, rounds=rounds) for seed in seeds),
            key=lambda times: times.p99,
        )
        for pressure in PRESSURES
    }
    return {
        "decision_p99_us": round(max(times.p99 for times in by_pressure.values()), 1),
        "decision_times": {pressure: asdict(times) for pressure, times in by_pressure.items()},
    }


async def live(parts: Sequence[str], *, seeds: Sequence[int], quick: bool) -> dict[str, Any]:
    """What needs a gateway process."""
    found: dict[str, Any] = {}
    async with control_plane() as cluster:
        if "sockets" in parts:
            replicas = [_simulator(), _simulator()]
            async with gateway_host(cluster, replicas, section={"limits": {"queuedRequests": 40}}) as host:
                torn = await torn_sockets(host, sockets=100 if quick else 1000, seed=seeds[0])
            found |= {"sockets_torn": torn.sockets, "sockets_finished": torn.finished, "sockets_leaked": torn.leaked}
        if "sheds" in parts:
            short = {"limits": {"queuedRequests": 4}, "times": {"waitSeconds": 1}}
            async with gateway_host(cluster, [stub_replica(seats=4)], section=short) as host:
                sheds = await shed_contract(host, clients=20 if quick else 100, obeying=8)
            found |= {
                "shed_contract": sheds.contract,
                "obeying_got_in": sheds.obeying_served / sheds.obeying,
                "sheds": dict(sheds.codes),
                "sheds_broken": sheds.broken[:5],
            }
        if "live-overload" in parts:
            seconds, warm_up = (10.0, 5.0) if quick else (60.0, 60.0)
            runs = {}
            for load in (1.0, OVERLOAD):
                # Engine and gateway are new each time: what the last run left in them is no part of this one.
                async with gateway_host(cluster, [replica()], section=section()) as host:
                    runs[f"{load:g}"] = await live_overload(
                        host, load=load, seconds=seconds, warm_up=warm_up, seed=seeds[0]
                    )
            best = max(tally.tokens_per_second for tally in runs["1"].values())
            found["live_goodput"] = {
                name: {load: round(by_name[name].tokens_per_second / best, 4) for load, by_name in runs.items()}
                for name in ("admission", "none")
            }
            found["live_overload_runs"] = {
                load: {name: asdict(tally) for name, tally in by_name.items()} for load, by_name in runs.items()
            }
        if "cost" in parts:
            async with AsyncExitStack() as stack:
                host = await stack.enter_async_context(gateway_host(cluster, [stub_replica(), stub_replica()]))
                bare = await stack.enter_async_context(bare_proxy(host.engines[0]))
                found |= await _costs(host, bare, quick=quick)
    return found


async def _costs(host: Host, bare: Host, *, quick: bool) -> dict[str, Any]:
    rounds, seconds = (1, 2.0) if quick else (5, 5.0)
    requests: dict[str, list[Cost]] = {"gateway": [], "bare": []}
    chunks: dict[str, list[Cost]] = {"gateway": [], "bare": []}
    for _ in range(rounds):
        for name, one in (("gateway", host), ("bare", bare)):
            requests[name].append(await request_cost(one, rate=1000, seconds=seconds))
            chunks[name].append(await chunk_cost(one, streams=100, tokens=50 if quick else 200))

    def least(costs: Sequence[Cost]) -> float:
        return round(min(cost.cpu_us for cost in costs), 1)

    return {
        "cpu_us_per_request": least(requests["gateway"]),
        "cpu_us_per_chunk": least(chunks["gateway"]),
        "cpu_us_per_request_of_a_bare_proxy": least(requests["bare"]),
        "cpu_us_per_chunk_of_a_bare_proxy": least(chunks["bare"]),
        "cost_rounds": {
            what: {name: [asdict(cost) for cost in costs] for name, costs in by_name.items()}
            for what, by_name in (("requests", requests), ("chunks", chunks))
        },
    }


def _simulator() -> Replica:
    return Replica(
        command=["-m", "e2e.enginesim", "serve", "{model}", "--max-num-seqs", "24", "--host"],
        environment={"ENGINESIM_STEP_SECONDS": "0.005", "ENGINESIM_KV_TOKENS": "16000"},
        kv_blocks=300,
        max_num_seqs=24,
        max_model_len=4096,
    )


def value(report: dict[str, Any], name: str) -> float | None:
    """A figure by its dotted name; None when it was not measured."""
    found: Any = report
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def missed(report: dict[str, Any]) -> list[str]:
    """The bars that were measured and missed."""
    found = []
    for name, (kind, bar) in BARS.items():
        measured = value(report, name)
        if measured is not None and (measured < bar if kind == "least" else measured > bar):
            found.append(f"{name}: {measured:g}, at {kind} {bar:g}")
    return found


def main(arguments: Sequence[str]) -> int:
    """Run the parts and print the report."""
    parser = argparse.ArgumentParser(prog="python -m bench.gateway", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--quick", action="store_true", help="a tenth of everything, to see that it runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    options = parser.parse_args(arguments)
    load_before = os.getloadavg()[0]
    report: dict[str, Any] = {}
    for name, part in (("overload", overload), ("holds", holds), ("decisions", decisions)):
        if name in options.parts:
            report |= part(seeds=options.seeds, quick=options.quick)
    if LIVE & set(options.parts):
        report |= uvloop.run(live(options.parts, seeds=options.seeds, quick=options.quick))
    if (leaked := report.pop("sockets_leaked", None)) is not None:
        report["leaked"] = report.get("leaked", 0) + leaked
    report["machine"] = {
        "processors": psutil.cpu_count(),
        "load_1m_before": round(load_before, 2),
        "load_1m_after": round(os.getloadavg()[0], 2),
    }
    report["missed"] = missed(report)
    print(json.dumps(report, indent=2)) if options.json else _show(report)
    return 1 if report["missed"] else 0


def _show(report: dict[str, Any]) -> None:
    table = Table("figure", "measured", "bar")
    for name, (kind, bar) in BARS.items():
        measured = value(report, name)
        table.add_row(name, "not measured" if measured is None else f"{measured:g}", f"at {kind} {bar:g}")
    for name in ("cpu_us_per_request_of_a_bare_proxy", "cpu_us_per_chunk_of_a_bare_proxy"):
        if name in report:
            table.add_row(name, f"{report[name]:g}", "")
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
