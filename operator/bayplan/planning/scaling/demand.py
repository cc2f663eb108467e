"""Demand on one model: what its gateways saw at the door, and what its engines say of their work.

Gateways count what arrives, before anything is refused, so their counters are demand. Engines count what they have
served, which under overload is capacity; what their queues grow by is added. Both are looked at, because clients may
reach engines past a gateway, and the larger one counts:

    arriving tokens/s = max(door, served + growth of the engines' queues)
    queued tokens     = waiting at the door + waiting in engines

At the door nobody knows how much of its output limit a request will use, and most use little. So promised output
counts by the share of it that requests which have ended have used, by the engines' own sums; all of it before that.

A part of which enough sources answered is scaled to all of them. One with fewer is a lower bound, and so is everything
that it is a part of.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction

from bayplan.planning.measurements import CounterSample, Measured, Total, Unknown, total_of, total_rate
from bayplan.planning.numbers import exact
from bayplan.planning.scaling.seed import Observation

NOT_REPORTED = Unknown("not reported")


@dataclass(frozen=True, slots=True)
class DoorReading:
    """What one gateway said about one model. Prompt and promised output tokens are counted since its start."""

    at_seconds: Fraction
    incarnation: str
    prompt_tokens: Measured
    output_tokens: Measured
    queued_tokens: Measured
    """Prompt and promised output of requests that wait."""


@dataclass(frozen=True, slots=True)
class EngineReading:
    """What one engine said. `served_tokens` counts prompt and output tokens since its start."""

    at_seconds: Fraction
    incarnation: str
    served_tokens: Measured
    waiting_tokens: Measured
    remaining_tokens: Measured = Fraction(0)
    """What it has still to do: the tokens of its running and waiting requests."""
    ended_tokens: Measured = NOT_REPORTED
    """Output of the requests that have ended."""
    promised_tokens: Measured = NOT_REPORTED
    """Output limits of the requests that have ended."""


Readings = Mapping[str, tuple[DoorReading | None, DoorReading]]
"""The reading before and the newest one, by source."""
EngineReadings = Mapping[str, tuple[EngineReading | None, EngineReading]]


@dataclass(frozen=True, slots=True)
class Sources:
    """Uids of those that should answer: live gateways, and heads that serve and do not drain."""

    gateways: frozenset[str]
    engines: frozenset[str]


def measure_demand(
    sources: Sources,
    *,
    doors: Readings,
    engines: EngineReadings,
    now_seconds: Fraction,
    least_coverage: Fraction,
) -> Observation:
    """Return the demand as of the oldest of the newest readings, of now when there are none.

    Readings of others than the expected sources count for nothing: their pods have gone, or drain.
    """
    now = exact(now_seconds, "now_seconds")
    if not sources.gateways and not sources.engines:
        nobody = Unknown("no replica is ready and no gateway is live")
        return Observation(now, queued_tokens=nobody, arrival_tokens_per_second=nobody)
    rates, queues = [], []
    if sources.gateways:
        share = output_share(engines)
        rates.append(_door_rate(doors, sources.gateways, share))
        queued = total_of({uid: new.queued_tokens for uid, (_, new) in doors.items()}, sources.gateways)
        queues.append(_times(queued, _mix(doors, share)))
    if sources.engines:
        served = _rate_of("served_tokens", engines, sources.engines)
        rates.append(_with_growth(served, engines, sources.engines))
        queues.append(total_of({uid: new.waiting_tokens for uid, (_, new) in engines.items()}, sources.engines))
    arriving = [_scaled(total, least_coverage) for total in rates]
    waiting = [_scaled(total, least_coverage) for total in queues]
    coverage = min(total.coverage for total in (*rates, *queues))
    return Observation(
        at_seconds=_as_of(sources, doors, engines, now),
        arrival_tokens_per_second=_largest(arriving),
        queued_tokens=_sum(waiting),
        coverage=Fraction(1) if coverage >= least_coverage else coverage,
    )


def output_share(engines: EngineReadings) -> Fraction:
    """Part of the promised output that requests which have ended have used, at most 1; 1 while none is known."""
    ended = promised = Fraction(0)
    for _, new in engines.values():
        if isinstance(new.ended_tokens, Fraction) and isinstance(new.promised_tokens, Fraction):
            ended, promised = ended + new.ended_tokens, promised + new.promised_tokens
    return min(Fraction(1), ended / promised) if ended else Fraction(1)


def _door_rate(doors: Readings, expected: Collection[str], share: Fraction) -> Total:
    prompt, output = (_rate_of(name, doors, expected) for name in ("prompt_tokens", "output_tokens"))
    if isinstance(prompt.value, Unknown) or isinstance(output.value, Unknown):
        return prompt if isinstance(prompt.value, Unknown) else output
    return Total(prompt.value + share * output.value, min(prompt.coverage, output.coverage))


def _mix(doors: Readings, share: Fraction) -> Fraction:
    """What a promised token at the door counts for, prompts included: what waits is like what came before."""
    prompt = output = Fraction(0)
    for _, new in doors.values():
        if isinstance(new.prompt_tokens, Fraction) and isinstance(new.output_tokens, Fraction):
            prompt, output = prompt + new.prompt_tokens, output + new.output_tokens
    whole = prompt + output
    return (prompt + share * output) / whole if whole else Fraction(1)


def _times(total: Total, factor: Fraction) -> Total:
    return total if isinstance(total.value, Unknown) else Total(total.value * factor, total.coverage)


def _rate_of(counter: str, readings: Readings | EngineReadings, expected: Collection[str]) -> Total:
    earlier, later = {}, {}
    for uid, (old, new) in readings.items():
        value = getattr(new, counter)
        if not isinstance(value, Unknown):
            later[uid] = CounterSample(new.at_seconds, value, new.incarnation)
        before = None if old is None else getattr(old, counter)
        if old is not None and before is not None and not isinstance(before, Unknown):
            earlier[uid] = CounterSample(old.at_seconds, before, old.incarnation)
    return total_rate(earlier, later, expected)


def _with_growth(served: Total, engines: EngineReadings, expected: Collection[str]) -> Total:
    """Add what the queues grew by per second; a queue that shrinks is served work, which is counted already."""
    if isinstance(served.value, Unknown):
        return served
    growth = Fraction(0)
    for uid in expected:
        old, new = engines.get(uid, (None, None))
        if old is None or new is None or old.incarnation != new.incarnation or new.at_seconds <= old.at_seconds:
            continue
        if isinstance(old.waiting_tokens, Unknown) or isinstance(new.waiting_tokens, Unknown):
            continue
        growth += (new.waiting_tokens - old.waiting_tokens) / (new.at_seconds - old.at_seconds)
    return Total(served.value + max(Fraction(0), growth), served.coverage)


def _scaled(total: Total, least_coverage: Fraction) -> Measured:
    if isinstance(total.value, Unknown) or total.coverage < least_coverage:
        return total.value
    return total.value / total.coverage


def _largest(values: Collection[Measured]) -> Measured:
    known = [value for value in values if not isinstance(value, Unknown)]
    return max(known) if known else next(value for value in values if isinstance(value, Unknown))


def _sum(values: Collection[Measured]) -> Measured:
    known = [value for value in values if not isinstance(value, Unknown)]
    return sum(known, start=Fraction(0)) if known else next(value for value in values if isinstance(value, Unknown))


def _as_of(sources: Sources, doors: Readings, engines: EngineReadings, now: Fraction) -> Fraction:
    times = [
        new.at_seconds
        for readings, expected in ((doors, sources.gateways), (engines, sources.engines))
        for uid, (_, new) in readings.items()
        if uid in expected
    ]
    return min((now, *times))
