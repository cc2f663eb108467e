"""Limits on counts: the founding chapter's gates (lesson 11), judged exactly and per workload class.

An unmet ceiling is the candidate's fault unless the baseline, under the same load, misses it as well and the candidate
is no worse than that: then the serving side wants tuning, and neither is rolled back nor let on. Whatever is thin,
missing or not comparable is Unknown and asks for more.

This is the one module that another statistic replaces: `judge` takes a gate and both arms, and answers for that gate.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

from bayplan.api.rolloutwords import GateName, Handling, Outcome
from bayplan.planning.gates.measures import LEAST_FOR_P95, ArmMeasures, EdgeCounts, Latency
from bayplan.planning.gates.records import Gate, GateResult
from bayplan.planning.gates.servicemetrics import P95
from bayplan.planning.measurements import Measured, Unknown
from bayplan.planning.numbers import count

TOLERATED_RATIO = Fraction(5, 4)
"""Up to so many times the baseline's own misses a candidate is called no worse than it."""
MOST_EXCESS = Fraction(10**6)
"""Stands for infinitely far beyond a limit of 0."""
_ALLOWED_BEYOND = 1 - P95


@dataclass(frozen=True, slots=True)
class LeastSamples:
    """How much a judgement must rest on, per arm and class. Raises InvalidInput."""

    requests: int
    prompts: int = 1

    def __post_init__(self) -> None:
        count(self.requests, "requests")
        count(self.prompts, "prompts")


def judge(gate: Gate, candidate: ArmMeasures, baseline: ArmMeasures, least: LeastSamples) -> GateResult:
    """Judge one gate. Deterministic; invalid input has raised in the records already."""
    return _JUDGES[gate.name](gate, candidate, baseline, least)


def judge_all(
    gates: Iterable[Gate], candidate: ArmMeasures, baseline: ArmMeasures, least: LeastSamples
) -> tuple[GateResult, ...]:
    """Judge every gate, in the order given."""
    return tuple(judge(gate, candidate, baseline, least) for gate in gates)


def _ceiling(
    gate: Gate, value: Fraction, baseline: Measured, *, samples: int, what: str, baseline_mature: bool
) -> GateResult:
    """A value that must not exceed the limit; the baseline's own value says whose fault a miss is."""
    message = f"{what} {_text(value)}, at most {_text(gate.limit)}"
    if value <= gate.limit:
        return GateResult(gate, Outcome.PASSED, Handling.WAIT, message, value, samples, _excess(value, gate.limit))
    handling = Handling.ROLL_BACK
    known = None if isinstance(baseline, Unknown) or not baseline_mature else baseline
    if known is not None and known > gate.limit and value <= known * TOLERATED_RATIO:
        handling = Handling.TUNE_SERVING
        message += f"; the baseline misses it too with {_text(known)}"
    return GateResult(gate, Outcome.FAILED, handling, message, value, samples, _excess(value, gate.limit))


def _latency(gate: Gate, candidate: ArmMeasures, baseline: ArmMeasures, least: LeastSamples) -> GateResult:
    name = "p95_ttft" if gate.name is GateName.TTFT else "p95_tpot"
    ours, theirs = candidate.of(gate.workload_class), baseline.of(gate.workload_class)
    mine: Latency = getattr(ours, name)
    other: Latency = getattr(theirs, name)
    if isinstance(mine, Unknown):
        return _unknown(gate, mine)
    if isinstance(mine, EdgeCounts):
        return _at_edge(gate, mine, other, needed=max(least.requests, LEAST_FOR_P95))
    if thin := _thin(gate, ours.requests, least.requests):
        return thin
    known = other if isinstance(other, Fraction) else Unknown("not measured as seconds")
    mature = theirs.requests >= least.requests
    return _ceiling(gate, mine, known, samples=ours.requests, what="p95 in seconds", baseline_mature=mature)


def _at_edge(gate: Gate, mine: EdgeCounts, other: Latency, *, needed: int) -> GateResult:
    if mine.edge_seconds != gate.limit:
        return _unknown(gate, Unknown(f"counted at {_text(mine.edge_seconds)} s, not at {_text(gate.limit)} s"))
    if thin := _thin(gate, mine.total, needed):
        return thin
    message = f"{mine.total - mine.within} of {mine.total} requests above {_text(gate.limit)} s"
    excess = mine.beyond / _ALLOWED_BEYOND
    if mine.meets:
        return GateResult(gate, Outcome.PASSED, Handling.WAIT, message, mine.beyond, mine.total, excess)
    handling = Handling.ROLL_BACK
    if (
        isinstance(other, EdgeCounts)
        and other.edge_seconds == gate.limit
        and other.total >= needed
        and not other.meets
        and mine.beyond <= other.beyond * TOLERATED_RATIO
    ):
        handling = Handling.TUNE_SERVING
        message += f"; of the baseline's {other.total - other.within} of {other.total}"
    return GateResult(gate, Outcome.FAILED, handling, message, mine.beyond, mine.total, excess)


def _errors(gate: Gate, candidate: ArmMeasures, baseline: ArmMeasures, least: LeastSamples) -> GateResult:
    ours, theirs = candidate.of(gate.workload_class), baseline.of(gate.workload_class)
    if isinstance(ours.error_rate, Unknown):
        return _unknown(gate, ours.error_rate)
    if thin := _thin(gate, ours.requests, least.requests):
        return thin
    mature = theirs.requests >= least.requests
    return _ceiling(
        gate, ours.error_rate, theirs.error_rate, samples=ours.requests, what="error rate", baseline_mature=mature
    )


def _throughput(gate: Gate, candidate: ArmMeasures, baseline: ArmMeasures, least: LeastSamples) -> GateResult:
    ours, theirs = candidate.of(gate.workload_class), baseline.of(gate.workload_class)
    mine, other = ours.output_tokens_per_second, theirs.output_tokens_per_second
    if isinstance(mine, Unknown):
        return _unknown(gate, mine)
    if isinstance(other, Unknown):
        return _unknown(gate, Unknown(f"baseline: {other.reason}"))
    if thin := _thin(gate, ours.requests, least.requests) or _thin(
        gate, theirs.requests, least.requests, "requests of the baseline"
    ):
        return thin
    if other == 0:
        return _unknown(gate, Unknown("the baseline put out no token"))
    return _floor(gate, mine / other, samples=ours.requests, what="relative throughput")


def _quality_floor(gate: Gate, candidate: ArmMeasures, baseline: ArmMeasures, least: LeastSamples) -> GateResult:
    mine, other = candidate.quality, baseline.quality
    if isinstance(mine, Unknown):
        return _unknown(gate, mine)
    if thin := _thin(gate, candidate.prompts, least.prompts, "prompts"):
        return thin
    result = _floor(gate, mine, samples=candidate.prompts, what="quality")
    mature = not isinstance(other, Unknown) and baseline.prompts >= least.prompts
    if result.outcome is Outcome.FAILED and mature and not isinstance(other, Unknown) and mine >= other:
        message = f"{result.message}; the baseline has {_text(other)}"
        return replace(result, handling=Handling.TUNE_SERVING, message=message)
    return result


def _quality_drop(gate: Gate, candidate: ArmMeasures, baseline: ArmMeasures, least: LeastSamples) -> GateResult:
    mine, other = candidate.quality, baseline.quality
    if isinstance(mine, Unknown):
        return _unknown(gate, mine)
    if isinstance(other, Unknown):
        return _unknown(gate, Unknown(f"baseline: {other.reason}"))
    thin = _thin(gate, candidate.prompts, least.prompts, "prompts")
    if thin := thin or _thin(gate, baseline.prompts, least.prompts, "prompts of the baseline"):
        return thin
    no_other = Unknown("a drop has no baseline of its own")
    return _ceiling(gate, other - mine, no_other, samples=candidate.prompts, what="quality drop", baseline_mature=False)


_Judge = Callable[[Gate, ArmMeasures, ArmMeasures, LeastSamples], GateResult]
_JUDGES: dict[GateName, _Judge] = {
    GateName.QUALITY_FLOOR: _quality_floor,
    GateName.QUALITY_DROP: _quality_drop,
    GateName.TTFT: _latency,
    GateName.TPOT: _latency,
    GateName.THROUGHPUT: _throughput,
    GateName.ERROR_RATE: _errors,
}


def _floor(gate: Gate, value: Fraction, *, samples: int, what: str) -> GateResult:
    message = f"{what} {_text(value)}, at least {_text(gate.limit)}"
    failed = value < gate.limit
    outcome, handling = (Outcome.FAILED, Handling.ROLL_BACK) if failed else (Outcome.PASSED, Handling.WAIT)
    return GateResult(gate, outcome, handling, message, value, samples, _excess(gate.limit, value))


def _thin(gate: Gate, samples: int, needed: int, what: str = "requests") -> GateResult | None:
    if samples >= needed:
        return None
    why = Unknown(f"{samples} of {needed} {what}")
    return GateResult(gate, Outcome.UNKNOWN, Handling.COLLECT, why.reason, why, samples)


def _unknown(gate: Gate, why: Unknown) -> GateResult:
    return GateResult(gate, Outcome.UNKNOWN, Handling.COLLECT, why.reason, why)


def _excess(value: Fraction, limit: Fraction) -> Fraction:
    if limit <= 0:
        return MOST_EXCESS if value > 0 else Fraction(0)
    return min(MOST_EXCESS, max(Fraction(0), value / limit))


def _text(number: Fraction) -> str:
    return f"{float(number):g}"
