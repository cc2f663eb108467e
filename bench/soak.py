"""`python -m bench.soak`: half an hour of churn, and what the operator's memory, queue and event loop made of it.

The slope of the memory is taken after a warm-up, by Theil and Sen: the median of the slopes between all pairs of
samples, which a single collection or burst does not tilt.
"""

import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Annotated, Any

import typer
from rich.console import Console

from bench import report
from bench.churn import Churn
from bench.phases import SETTLED_SECONDS, lag_buckets, lag_p99_ms
from bench.progress import Bars, bars
from bench.system import BenchError, Measured, System, system
from e2e.localcluster import ClusterError
from e2e.localcluster.client import ApiError
from e2e.scenarios.audit import is_operator_write
from e2e.scenarios.stack import StackError

NODES = 20
SAMPLE_SECONDS = 5.0
WARM_UP_SHARE = 1 / 3
"""This part of the run fills caches, pools and the allocator; its memory is not part of the slope."""
MOST_PAIRED = 360
"""Samples that the slope is taken of: pairs grow with the square."""
OLDEST = "bayplan_workqueue_oldest_seconds"
MB_PER_10_MINUTES = 1.0
OLDEST_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Sample:
    """The operator at one moment."""

    seconds: float
    rss_mb: float
    oldest_seconds: float


def slope_per_10_minutes(samples: Sequence[Sample]) -> float | None:
    """Return the growth of the memory in MB per 10 minutes; None for less than two moments."""
    step = max(1, -(-len(samples) // MOST_PAIRED))
    thinned = samples[::step]
    slopes = [
        (later.rss_mb - earlier.rss_mb) / (later.seconds - earlier.seconds)
        for earlier, later in combinations(thinned, 2)
        if later.seconds > earlier.seconds
    ]
    return statistics.median(slopes) * 600 if slopes else None


def after_warm_up(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples that the slope is about."""
    end = samples[-1].seconds if samples else 0.0
    return [sample for sample in samples if sample.seconds >= end * WARM_UP_SHARE]


async def _sample(operator: Measured, started: float) -> Sample:
    scraped = await operator.samples()
    oldest = max((value for (name, _), value in scraped.items() if name == OLDEST), default=0.0)
    return Sample(time.monotonic() - started, operator.rss_mb(), oldest)


async def run(*, minutes: float, seed: int, progress: Bars) -> dict[str, Any]:
    """Churn for `minutes` and return the figures."""
    async with system(nodes=NODES, foreign_pods=0, advance=progress.advance) as running:
        operator = await running.start_operator()
        await running.leads(operator)
        samples, lag, churn = await _churn(running, operator, minutes, seed, progress)
        left = await _at_rest(running, churn, progress)
        slope = slope_per_10_minutes(after_warm_up(samples))
        return {
            "soak_mb_per_10_minutes": slope,
            "rss_mb_after": samples[-1].rss_mb,
            "event_loop_lag_p99_ms": lag,
            "quiet_writes": left,
            "rss_mb_warm": after_warm_up(samples)[0].rss_mb,
            "queue_oldest_seconds": max(sample.oldest_seconds for sample in samples),
            "done": dict(churn.done),
        }


async def _churn(
    running: System, operator: Measured, minutes: float, seed: int, progress: Bars
) -> tuple[list[Sample], float | None, Churn]:
    churn = Churn(running, random.Random(seed))
    samples: list[Sample] = []
    before = lag_buckets(await operator.samples())
    started = time.monotonic()
    working = asyncio.create_task(churn.run(), name="churn")
    total = max(2, round(minutes * 60 / SAMPLE_SECONDS))
    try:
        for _ in range(total):
            done, _ = await asyncio.wait({working}, timeout=SAMPLE_SECONDS)
            if done:
                working.result()
            if operator.process.exit_code() is not None:
                raise BenchError(f"the operator ended with {operator.process.exit_code()}")
            samples.append(await _sample(operator, started))
            progress.advance("churn: samples", total)
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
    return samples, lag_p99_ms(before, lag_buckets(await operator.samples())), churn


async def _at_rest(running: System, churn: Churn, progress: Bars) -> int:
    """Delete everything, wait for quiet, and return the writes of a further moment of rest."""
    progress.note("coming to rest")
    recording = running.record()
    await churn.clear()
    await recording.until_quiet(5 * SETTLED_SECONDS)
    recording = running.record()
    await asyncio.sleep(5 * SETTLED_SECONDS)
    recording.pull()
    return sum(is_operator_write(request) for request in recording.writes)


def broken(figures: dict[str, Any]) -> list[str]:
    """Return what a soak must not show."""
    found = []
    slope = figures["soak_mb_per_10_minutes"]
    if slope is None or slope >= MB_PER_10_MINUTES:
        found.append(f"memory grows by {slope} MB per 10 minutes, allowed is less than {MB_PER_10_MINUTES}")
    if figures["queue_oldest_seconds"] >= OLDEST_SECONDS:
        found.append(f"a key waited {figures['queue_oldest_seconds']:.1f} s, allowed is less than {OLDEST_SECONDS}")
    if figures["quiet_writes"]:
        found.append(f"{figures['quiet_writes']} writes at rest, allowed is none")
    return found


def main(
    *,
    minutes: Annotated[float, typer.Option(min=0.2, help="How long to churn.")] = 30.0,
    seed: Annotated[int, typer.Option(help="Decides what is changed when.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False,
) -> None:
    """Churn models and nodes, and watch memory, queue and event loop of the operator."""
    console = Console(stderr=True)
    load = report.load_1m()
    try:
        with bars(console) as progress:
            figures = asyncio.run(run(minutes=minutes, seed=seed, progress=progress))
    except (BenchError, StackError, ClusterError, ApiError) as error:
        console.print(f"bench.soak, seed {seed}: {error}", style="red", markup=False)
        raise typer.Exit(2) from None
    ran_on = report.machine(load_before=load)
    found = figures | {"minutes": minutes, "seed": seed, "load_1m": [ran_on.load_1m_before, ran_on.load_1m_after]}
    print(json.dumps(found, indent=2) if as_json else "\n".join(f"{name}: {value}" for name, value in found.items()))
    faults = broken(figures)
    for line in faults:
        print(f"seed {seed}: {line}", file=sys.stderr)
    raise typer.Exit(1 if faults else 0)


if __name__ == "__main__":
    typer.run(main)
