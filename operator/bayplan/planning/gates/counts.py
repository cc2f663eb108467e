"""What a gateway counts, and what a stage has counted of it.

A stage adds windows in the order of time, each moment at most once, and only such as began after every gateway had
acknowledged the plan. `windows` says how two snapshots make a window.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction

from bayplan.api.rolloutwords import GateName
from bayplan.planning.gates.measures import NOT_MEASURED, ClassMeasures, EdgeCounts, Latency
from bayplan.planning.gates.records import EVERY_CLASS, Gate
from bayplan.planning.gates.servicemetrics import Histogram
from bayplan.planning.measurements import Unknown
from bayplan.planning.numbers import count, exact, named, not_negative


class Arm(StrEnum):
    """Whom a gateway sent the request to, and why."""

    SERVING = "serving"
    BASELINE = "baseline"
    CANDIDATE = "candidate"
    SHADOW = "shadow"
    """A copy for the candidate; the client got the baseline's answer."""


@dataclass(frozen=True, slots=True)
class Row:
    """Cumulative counts of one pod, arm and class at one gateway. Raises InvalidInput that names the field."""

    pod: str
    arm: Arm
    workload_class: str
    requests: int
    errors: int
    output_tokens: int
    loaded_seconds: Fraction
    """Time during which at least one request was at the pod."""
    ttft: Histogram
    tpot: Histogram

    def __post_init__(self) -> None:
        named(self.pod, "pod")
        named(self.workload_class, "workload_class")
        for name in ("requests", "errors", "output_tokens"):
            object.__setattr__(self, name, count(getattr(self, name), name, least=0))
        object.__setattr__(self, "loaded_seconds", not_negative(self.loaded_seconds, "loaded_seconds"))

    @property
    def key(self) -> tuple[str, Arm, str]:
        """Pod, arm and class; one row each."""
        return self.pod, self.arm, self.workload_class


@dataclass(frozen=True, slots=True)
class SourceCounts:
    """All rows of one gateway at one moment: `incarnation` changes when it starts again from 0."""

    at_seconds: Fraction
    incarnation: str
    rows: tuple[Row, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "at_seconds", exact(self.at_seconds, "at_seconds"))
        named(self.incarnation, "incarnation")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What every live gateway said, by its uid; Unknown for one that did not answer, or not in the agreed form."""

    sources: Mapping[str, SourceCounts | Unknown]


@dataclass(frozen=True, slots=True)
class TimedCounts:
    """Requests that were timed, and those of them at most the edge."""

    within: int = 0
    total: int = 0

    def __add__(self, other: "TimedCounts") -> "TimedCounts":
        return TimedCounts(self.within + other.within, self.total + other.total)


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of one arm and class."""

    requests: int = 0
    errors: int = 0
    output_tokens: int = 0
    loaded_seconds: Fraction = Fraction(0)
    ttft: TimedCounts = TimedCounts()
    tpot: TimedCounts = TimedCounts()

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.requests + other.requests,
            self.errors + other.errors,
            self.output_tokens + other.output_tokens,
            self.loaded_seconds + other.loaded_seconds,
            self.ttft + other.ttft,
            self.tpot + other.tpot,
        )


@dataclass(frozen=True, slots=True)
class ArmTally:
    """One arm's and class's tally; the arm is BASELINE or CANDIDATE, also for copies."""

    arm: Arm
    workload_class: str
    tally: Tally


@dataclass(frozen=True, slots=True)
class Window:
    """What happened between two snapshots. With a `problem` it counts nothing. Raises InvalidInput."""

    start_seconds: Fraction
    end_seconds: Fraction
    tallies: tuple[ArmTally, ...] = ()
    routed_requests: int = 0
    """Requests to any pod of the model, copies left out."""
    candidate_requests: int = 0
    """Those of them that went to the candidate, unwarmed pods included."""
    problem: str = ""

    def __post_init__(self) -> None:
        for name in ("start_seconds", "end_seconds"):
            object.__setattr__(self, name, exact(getattr(self, name), name))
        for name in ("routed_requests", "candidate_requests"):
            count(getattr(self, name), name, least=0)


@dataclass(frozen=True, slots=True)
class ArmPods:
    """uids of the head pods that were warm and ready through the whole window."""

    candidate: frozenset[str]
    baseline: frozenset[str]


@dataclass(frozen=True, slots=True)
class StageEvidence:
    """What a stage has counted so far; part of the status, so that a restart loses no more than a window."""

    through_seconds: Fraction | None = None
    """End of the last window that was counted; None: none yet."""
    tallies: tuple[ArmTally, ...] = ()
    routed_requests: int = 0
    candidate_requests: int = 0
    windows: int = 0
    dropped: int = 0
    problem: str = field(default="")
    """Why the last window was dropped; empty when it was counted."""

    def tally(self, arm: Arm, workload_class: str) -> Tally:
        """The counts of that arm and class."""
        found = (one.tally for one in self.tallies if (one.arm, one.workload_class) == (arm, workload_class))
        return next(found, Tally())


def count_window(
    evidence: StageEvidence, window: Window, *, since_seconds: Fraction, now_seconds: Fraction
) -> StageEvidence:
    """Add a window, or note why it is dropped: in doubt, begun before `since_seconds`, again, out of order, ahead."""
    problem = window.problem
    through = evidence.through_seconds
    if window.end_seconds <= window.start_seconds:
        problem = problem or "the window spans no time"
    elif window.end_seconds > now_seconds:
        problem = problem or "the window ends in the future"
    elif window.start_seconds < since_seconds:
        problem = problem or "the window began before the gateways had acknowledged the plan"
    elif through is not None and window.start_seconds < through:
        problem = problem or "the window, or a part of it, was counted already"
    if problem:
        return replace(evidence, dropped=evidence.dropped + 1, problem=problem)
    sums = {(one.arm, one.workload_class): one.tally for one in evidence.tallies}
    for one in window.tallies:
        key = one.arm, one.workload_class
        sums[key] = sums.get(key, Tally()) + one.tally
    return StageEvidence(
        through_seconds=window.end_seconds,
        tallies=tuple(ArmTally(arm, name, tally) for (arm, name), tally in sorted(sums.items())),
        routed_requests=evidence.routed_requests + window.routed_requests,
        candidate_requests=evidence.candidate_requests + window.candidate_requests,
        windows=evidence.windows + 1,
        dropped=evidence.dropped,
    )


def class_measures(evidence: StageEvidence, arm: Arm, gates: Iterable[Gate]) -> Mapping[str, ClassMeasures]:
    """What the gates read of one arm: per class, and per latency gate the counts at its edge."""
    found = {}
    for name, (ttft, tpot) in edges_of(gates).items():
        tally = evidence.tally(arm, name)
        busy = tally.loaded_seconds
        found[name] = ClassMeasures(
            requests=tally.requests,
            p95_ttft=_at_edge(ttft, tally.ttft),
            p95_tpot=_at_edge(tpot, tally.tpot),
            error_rate=Fraction(tally.errors, tally.requests) if tally.requests else Unknown("no request"),
            output_tokens_per_second=Fraction(tally.output_tokens) / busy if busy else Unknown("no time under load"),
        )
    return found


Edges = Mapping[str, tuple[Fraction | None, Fraction | None]]


def edges_of(gates: Iterable[Gate]) -> Edges:
    """Class → limits of TTFT and TPOT; all requests together always count."""
    found: dict[str, tuple[Fraction | None, Fraction | None]] = {EVERY_CLASS: (None, None)}
    for gate in gates:
        ttft, tpot = found.get(gate.workload_class, (None, None))
        if gate.name is GateName.TTFT:
            ttft = gate.limit
        elif gate.name is GateName.TPOT:
            tpot = gate.limit
        found[gate.workload_class] = ttft, tpot
    return found


def _at_edge(edge: Fraction | None, timed: TimedCounts) -> Latency:
    return NOT_MEASURED if edge is None else EdgeCounts(edge, timed.within, timed.total)
