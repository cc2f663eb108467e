"""The phases of a run. Each works on the system as the one before left it and returns the figures that it measured."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench import measure, workload
from bench.measure import Key, percentile
from bench.system import BenchError, Measured, Recording, Samples, System
from e2e.scenarios.audit import OPERATOR

SETTLED_SECONDS = 2.0
"""Nothing written for so long is the end of a phase."""
PHASE_SECONDS = 600.0
STEADY_SECONDS = 10.0
WARM_UP_SECONDS = 60.0
PROBE_PERIOD_SECONDS = 0.2
"""Models are created this often while a leader is replaced."""
TAKEOVER_SECONDS = 60.0
LAG = "bayplan_event_loop_lag_seconds_bucket"
QUEUE_DEPTH = "workqueue_depth"
ACTIVE = "controller_runtime_active_workers"

Advance = Callable[[str, int], object]
"""Called with the name of what goes on and how many steps there are, once for each step."""


@dataclass
class Figures:
    """What a phase measured: `values` under the names of the report, `writes` by verb and resource, for people."""

    values: dict[str, float | None] = field(default_factory=dict)
    writes: dict[str, dict[str, int]] = field(default_factory=dict)
    details: dict[str, float | None] = field(default_factory=dict)
    """Not promised, but worth seeing."""


async def warm_up(system: System, party: Measured) -> None:
    """Wait until a process that says nothing about its start handles a first model."""
    recording = system.record(party.user)
    await workload.create_burst(system.api, workload.models("first", 1, replicas=0), lambda: None)
    await _all_have_status(recording, 1, seconds=WARM_UP_SECONDS)
    await recording.until_quiet(SETTLED_SECONDS)


async def burst(system: System, party: Measured, prefix: str, count: int, advance: Advance) -> Figures:
    """Create models without replicas as fast as the API server takes them: the engine alone."""
    recording = system.record(party.user)
    cpu = party.cpu_seconds()
    before = await _lag(party)
    bodies = workload.models(prefix, count, replicas=0)
    await workload.create_burst(system.api, bodies, lambda: advance(f"{prefix}: created", count))
    await _all_have_status(recording, count)
    after = await _lag(party)
    await recording.until_quiet(SETTLED_SECONDS)
    created, first = measure.created(recording.requests), measure.first_status(recording.requests)
    waits = measure.delays(created, first)
    span = max(created.values()) - min(created.values())
    return Figures(
        values={
            "objects_per_second": measure.per_second(created, first),
            "apply_to_status_p50_seconds": percentile(waits, 0.5),
            "apply_to_status_p99_seconds": percentile(waits, 0.99),
            "writes_per_object": len(recording.writes) / count,
            "event_loop_lag_p99_ms": lag_p99_ms(before, after),
        },
        writes={prefix: measure.by_kind(recording.writes)},
        details={
            "creates_per_second": count / span if span > 0 else None,
            "cpu_ms_per_object": (party.cpu_seconds() - cpu) * 1000 / count,
            "events_per_object": recording.apart["create events"] / count,
        },
    )


async def steady(system: System, party: Measured, prefix: str, rate: float, advance: Advance) -> Figures:
    """Create models without replicas at a rate that nobody has to queue for."""
    recording = system.record(party.user)
    count = round(rate * STEADY_SECONDS)
    bodies = workload.models(prefix, count, replicas=0)
    await workload.create_steadily(system.api, bodies, lambda: advance(f"{prefix}: created", count), rate=rate)
    await _all_have_status(recording, count)
    await recording.until_quiet(SETTLED_SECONDS)
    waits = measure.delays(measure.created(recording.requests), measure.first_status(recording.requests))
    return Figures(
        values={
            "steady_apply_to_status_p50_seconds": percentile(waits, 0.5),
            "steady_apply_to_status_p99_seconds": percentile(waits, 0.99),
        }
    )


async def placed(system: System, party: Measured, count: int, advance: Advance) -> Figures:
    """Create models with one replica each, until all are served."""
    recording = system.record(party.user)
    cpu = party.cpu_seconds()
    before = await _lag(party)
    bodies = workload.models("placed", count, replicas=1)
    await workload.create_burst(system.api, bodies, lambda: advance("placed: created", count))

    def all_ready() -> bool:
        return len(measure.ready(recording.requests)) >= count

    await recording.until(all_ready, what=f"{count} models to be ready", seconds=PHASE_SECONDS)
    await recording.until_quiet(SETTLED_SECONDS)
    after = await _lag(party)
    created, requests = measure.created(recording.requests), recording.requests
    firsts = measure.delays(created, measure.first_status(requests))
    bound, ready = measure.bound(requests), measure.ready(requests)
    if len(bound) != count:
        raise BenchError(f"{len(bound)} of {count} models were bound")
    return Figures(
        values={
            "writes_per_placed_model": len(recording.writes) / count,
            "apply_to_bound_p99_seconds": percentile(measure.delays(created, bound), 0.99),
        },
        writes={"placed": measure.by_kind(recording.writes), "placed, apart": dict(recording.apart)},
        details={
            "placed_apply_to_status_p99_seconds": percentile(firsts, 0.99),
            "apply_to_bound_p50_seconds": percentile(measure.delays(created, bound), 0.5),
            "apply_to_ready_p99_seconds": percentile(measure.delays(created, ready), 0.99),
            "placed_models_per_second": measure.per_second(created, ready),
            "placed_statuses_per_model": sum(r.resource == measure.STATUS for r in recording.writes) / count,
            "placed_event_loop_lag_p99_ms": lag_p99_ms(before, after),
            "placed_cpu_ms_per_model": (party.cpu_seconds() - cpu) * 1000 / count,
            "placed_refused_writes": sum(not request.done for request in recording.writes),
            "placed_reads_per_model": recording.reads / count,
            "placed_events_per_model": recording.apart["create events"] / count,
        },
    )


async def restart(system: System, party: Measured) -> tuple[Measured, Figures]:
    """Stop the operator and start it again; nothing has changed meanwhile, so nothing is to be written."""
    await system.stop(party)
    recording = system.record(party.user)
    started = time.monotonic()
    again = await (system.start_operator() if party.user == OPERATOR else system.start_kopf())
    if party.user == OPERATOR:
        await system.leads(again)
        led = time.monotonic() - started
        await _until_idle(again)
    else:
        led = time.monotonic() - started
    await asyncio.sleep(SETTLED_SECONDS)
    await recording.until_quiet(SETTLED_SECONDS)
    return again, Figures(
        values={"restart_writes": len(recording.writes)},
        writes={"restart": measure.by_kind(recording.writes)},
        details={"start_to_leading_seconds": led},
    )


async def quiet(system: System, party: Measured, seconds: float, advance: Advance) -> Figures:
    """Let everything rest and count what is written all the same."""
    recording = system.record(party.user)
    cpu = party.cpu_seconds()
    for _ in range(round(seconds)):
        await asyncio.sleep(1.0)
        advance("quiet: seconds", round(seconds))
    recording.pull()
    return Figures(
        values={"quiet_writes": len(recording.writes)},
        writes={"quiet": measure.by_kind(recording.writes)},
        details={"quiet_cpu_percent": (party.cpu_seconds() - cpu) * 100 / seconds},
    )


async def takeover(
    system: System, leader: Measured, standby: Measured, *, name: str, end: Callable[[], Coroutine[Any, Any, None]]
) -> Figures:
    """Replace the leader and return the longest that a model created meanwhile waited for its first status."""
    recording = system.record(leader.user)
    created: set[Key] = set()

    async def keep_creating() -> None:
        while True:
            body = workload.model(f"{name}-{len(created)}", replicas=0)
            await system.api.request("POST", workload.MODELS, body)
            created.add((workload.NAMESPACE, body["metadata"]["name"]))
            await asyncio.sleep(PROBE_PERIOD_SECONDS)

    ending = asyncio.create_task(end())
    probes = asyncio.create_task(keep_creating())
    try:
        await system.leads(standby)
    finally:
        probes.cancel()
        await asyncio.gather(probes, return_exceptions=True)
    await ending
    what = "the models created meanwhile to be seen"
    await recording.until(lambda: created <= recording.with_status, what=what, seconds=TAKEOVER_SECONDS)
    first = measure.first_status(recording.requests)
    waits = measure.delays(measure.created(recording.requests), {key: first[key] for key in created})
    return Figures(values={f"{name}_seconds": max(waits)})


async def _all_have_status(recording: Recording, count: int, *, seconds: float = PHASE_SECONDS) -> None:
    await recording.until(lambda: len(recording.with_status) >= count, what=f"{count} first statuses", seconds=seconds)


async def _until_idle(operator: Measured) -> None:
    """Wait until the sweep after the start is through."""
    deadline = time.monotonic() + PHASE_SECONDS
    while time.monotonic() < deadline:
        samples = await operator.samples()
        if sum(value for (name, _), value in samples.items() if name in (QUEUE_DEPTH, ACTIVE)) == 0:
            return
        await asyncio.sleep(0.2)
    raise BenchError("the sweep after the start does not end")


async def _lag(party: Measured) -> Mapping[float, float]:
    """Return the cumulative buckets of the event loop's lag; the baseline has none."""
    return lag_buckets(await party.samples()) if party.user == OPERATOR else {}


def lag_buckets(samples: Samples) -> dict[float, float]:
    """Return the cumulative buckets of the event loop's lag: upper bound in seconds to count."""
    return {float(dict(labels)["le"]): value for (name, labels), value in samples.items() if name == LAG}


def lag_p99_ms(before: Mapping[float, float], after: Mapping[float, float]) -> float | None:
    """Return the lag that 99 % of the observations between two scrapes did not exceed; None without any."""
    grown: Sequence[tuple[float, float]] = [(bound, count - before.get(bound, 0.0)) for bound, count in after.items()]
    seconds = measure.histogram_quantile(grown, 0.99)
    return None if seconds is None else seconds * 1000


def merge(*all_figures: Figures) -> dict[str, Any]:
    """Return values, writes and details of several phases in one; a later phase wins where two have the same name."""
    values: dict[str, float | None] = {}
    writes: dict[str, dict[str, int]] = {}
    details: dict[str, float | None] = {}
    for figures in all_figures:
        values |= figures.values
        writes |= figures.writes
        details |= figures.details
    return {"values": values, "writes": writes, "details": details}
