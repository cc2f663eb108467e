"""What users experience: TTFT, TPOT, end-to-end latency and token throughput, judged against objectives per class.

Source: the founding chapter's lesson 2. Repairs: all comparisons are exact, numbers must be finite, and every workload
class is judged by its own requests alone, so that a slow batch class cannot fail the interactive one or hide it.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from itertools import pairwise

from bayplan.planning.numbers import InvalidInput, count, exact, named, not_negative

P95 = Fraction(95, 100)


class Objective(StrEnum):
    """What can be missed, in the order in which it is reported."""

    TTFT = "ttft"
    TPOT = "tpot"
    E2E = "e2e"
    THROUGHPUT = "throughput"


@dataclass(frozen=True, slots=True)
class Trace:
    """One completed request: seconds on one clock, and its output tokens. Raises InvalidInput that names the field."""

    id: str
    arrived_at: Fraction
    first_token_at: Fraction
    completed_at: Fraction
    output_tokens: int
    workload_class: str = "default"

    def __post_init__(self) -> None:
        named(self.id, "id")
        named(self.workload_class, "workload_class")
        object.__setattr__(self, "output_tokens", count(self.output_tokens, "output_tokens"))
        for name in ("arrived_at", "first_token_at", "completed_at"):
            object.__setattr__(self, name, exact(getattr(self, name), name))
        if self.first_token_at < self.arrived_at:
            raise InvalidInput("first_token_at", "must not be before arrived_at")
        if self.completed_at < self.first_token_at:
            raise InvalidInput("completed_at", "must not be before first_token_at")

    @property
    def ttft_seconds(self) -> Fraction:
        """Arrival to first token."""
        return self.first_token_at - self.arrived_at

    @property
    def tpot_seconds(self) -> Fraction:
        """(completion − first token) / (output tokens − 1); 0 for a single token."""
        if self.output_tokens == 1:
            return Fraction(0)
        return (self.completed_at - self.first_token_at) / (self.output_tokens - 1)

    @property
    def e2e_seconds(self) -> Fraction:
        """Arrival to completion."""
        return self.completed_at - self.arrived_at


@dataclass(frozen=True, slots=True)
class Objectives:
    """Limits of one workload class; equal passes. Raises InvalidInput that names the field."""

    max_p95_ttft_seconds: Fraction
    max_p95_tpot_seconds: Fraction
    max_p95_e2e_seconds: Fraction
    min_output_tokens_per_second: Fraction

    def __post_init__(self) -> None:
        for name in self.__slots__:
            object.__setattr__(self, name, not_negative(getattr(self, name), name))


@dataclass(frozen=True, slots=True)
class ServiceReport:
    """The four numbers of one set of requests, and which objectives they miss."""

    requests: int
    p95_ttft_seconds: Fraction
    p95_tpot_seconds: Fraction
    p95_e2e_seconds: Fraction
    output_tokens_per_second: Fraction
    violations: tuple[Objective, ...]

    @property
    def meets_objectives(self) -> bool:
        """Whether none is missed."""
        return not self.violations


def nearest_rank(values: Iterable[Fraction], share: Fraction = P95) -> Fraction:
    """The value at position max(1, ceil(share × n)) of the sorted values: of up to 19, 95 % gives the maximum."""
    ordered = sorted(values)
    if not ordered:
        raise InvalidInput("values", "must not be empty")
    return ordered[rank_of(len(ordered), share) - 1]


def rank_of(observations: int, share: Fraction = P95) -> int:
    """One-based position of the nearest-rank percentile among so many observations."""
    if not 0 < share <= 1:
        raise InvalidInput("share", f"must be above 0 and at most 1, not {share}")
    return max(1, math.ceil(share * observations))


def evaluate(traces: Sequence[Trace], objectives: Objectives) -> ServiceReport:
    """Judge one set of requests. Throughput is all output tokens / (latest completion − earliest arrival).

    Raises InvalidInput without a request, or when they span no time: no rate is defined then.
    """
    if not traces:
        raise InvalidInput("traces", "must not be empty")
    window = max(trace.completed_at for trace in traces) - min(trace.arrived_at for trace in traces)
    if window == 0:
        raise InvalidInput("window", "must be longer than 0 seconds: no throughput is defined")
    ttft = nearest_rank(trace.ttft_seconds for trace in traces)
    tpot = nearest_rank(trace.tpot_seconds for trace in traces)
    e2e = nearest_rank(trace.e2e_seconds for trace in traces)
    throughput = sum(trace.output_tokens for trace in traces) / window
    missed = {
        Objective.TTFT: ttft > objectives.max_p95_ttft_seconds,
        Objective.TPOT: tpot > objectives.max_p95_tpot_seconds,
        Objective.E2E: e2e > objectives.max_p95_e2e_seconds,
        Objective.THROUGHPUT: throughput < objectives.min_output_tokens_per_second,
    }
    return ServiceReport(len(traces), ttft, tpot, e2e, throughput, tuple(name for name in Objective if missed[name]))


def evaluate_classes(
    traces: Iterable[Trace], objectives: Mapping[str, Objectives]
) -> Mapping[str, ServiceReport | None]:
    """Judge every class of `objectives` by its own requests; None where it had none: neither met nor missed.

    Raises InvalidInput for a request of a class without objectives.
    """
    by_class: dict[str, list[Trace]] = {name: [] for name in objectives}
    for trace in traces:
        if trace.workload_class not in by_class:
            known = ", ".join(sorted(by_class)) or "none"
            raise InvalidInput("workload_class", f"{trace.workload_class} has no objectives; those that have: {known}")
        by_class[trace.workload_class].append(trace)
    return {name: evaluate(own, objectives[name]) if own else None for name, own in by_class.items()}


@dataclass(frozen=True, slots=True)
class Histogram:
    """Cumulative counts of observations at most each edge, as Prometheus has them, and the count of all.

    Edges ascend and are finite; the bucket above the last one is `total` − its count. Raises InvalidInput.
    """

    edges: tuple[Fraction, ...]
    counts: tuple[int, ...]
    total: int

    def __post_init__(self) -> None:
        edges = tuple(exact(edge, "edges") for edge in self.edges)
        counts = tuple(count(value, "counts", least=0) for value in self.counts)
        object.__setattr__(self, "edges", edges)
        object.__setattr__(self, "counts", counts)
        if not edges or len(edges) != len(counts):
            raise InvalidInput("counts", f"must have one count per edge: {len(counts)} for {len(edges)} edges")
        if any(low >= high for low, high in pairwise(edges)):
            raise InvalidInput("edges", "must ascend")
        if any(
            low > high for low, high in zip(counts, (*counts[1:], count(self.total, "total", least=0)), strict=True)
        ):
            raise InvalidInput("counts", "must be cumulative and not exceed the total")

    def at_most(self, limit: Fraction) -> int:
        """Observations at most `limit`, which must be an edge: between edges nothing is known.

        Raises InvalidInput that names the nearest edges.
        """
        wanted = exact(limit, "limit")
        at = bisect_left(self.edges, wanted)
        if at < len(self.edges) and self.edges[at] == wanted:
            return self.counts[at]
        nearest = " and ".join(f"{float(edge):g}" for edge in self.edges[max(0, at - 1) : at + 1])
        raise InvalidInput("limit", f"{float(wanted):g} is no edge of the histogram; the nearest are {nearest}")

    def percentile_meets(self, limit: Fraction, share: Fraction = P95) -> bool | None:
        """Whether the nearest-rank percentile is at most `limit`, exactly; None without observations."""
        within = self.at_most(limit)
        return within >= rank_of(self.total, share) if self.total else None

    def percentile_bounds(self, share: Fraction = P95) -> tuple[Fraction | None, Fraction | None] | None:
        """The edges between which the percentile lies, above the first and at most the second.

        None stands for no lower or no upper edge; without observations the answer itself is None.
        """
        if not self.total:
            return None
        bucket = bisect_left(self.counts, rank_of(self.total, share))
        upper = self.edges[bucket] if bucket < len(self.edges) else None
        return (self.edges[bucket - 1] if bucket else None), upper
