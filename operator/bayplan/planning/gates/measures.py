"""What is known of one arm: per workload class and, for quality, as a whole."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from bayplan.planning.gates.servicemetrics import P95, rank_of
from bayplan.planning.measurements import Measured, Unknown
from bayplan.planning.numbers import InvalidInput, count, exact, not_negative

LEAST_FOR_P95 = 20
"""Below so many requests the nearest-rank p95 is their maximum: one slow request would decide."""
NOT_MEASURED = Unknown("not measured")


@dataclass(frozen=True, slots=True)
class EdgeCounts:
    """Requests that took at most `edge_seconds`, of all that were timed. Raises InvalidInput."""

    edge_seconds: Fraction
    within: int
    total: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "edge_seconds", exact(self.edge_seconds, "edge_seconds"))
        count(self.total, "total", least=0)
        if not 0 <= count(self.within, "within", least=0) <= self.total:
            raise InvalidInput("within", f"must not exceed the total of {self.total}, not {self.within}")

    @property
    def beyond(self) -> Fraction:
        """Share of the requests above the edge; 0 without a request."""
        return Fraction(self.total - self.within, self.total) if self.total else Fraction(0)

    @property
    def meets(self) -> bool:
        """Whether the nearest-rank p95 is at most the edge, exactly. False without a request."""
        return self.total > 0 and self.within >= rank_of(self.total, P95)


Latency = Fraction | EdgeCounts | Unknown
"""A p95 in seconds, or counts at the edge that stands for the limit, or why there is neither."""


@dataclass(frozen=True, slots=True)
class ClassMeasures:
    """One arm's requests of one class. Raises InvalidInput that names the field."""

    requests: int
    p95_ttft: Latency = NOT_MEASURED
    p95_tpot: Latency = NOT_MEASURED
    error_rate: Measured = NOT_MEASURED
    output_tokens_per_second: Measured = NOT_MEASURED

    def __post_init__(self) -> None:
        count(self.requests, "requests", least=0)
        for name in ("p95_ttft", "p95_tpot", "error_rate", "output_tokens_per_second"):
            value = getattr(self, name)
            if not isinstance(value, Unknown | EdgeCounts):
                object.__setattr__(self, name, not_negative(value, name))


@dataclass(frozen=True, slots=True)
class ArmMeasures:
    """One arm: measures by class (`EVERY_CLASS` for all requests together), and the quality of its answers."""

    classes: Mapping[str, ClassMeasures] = field(default_factory=dict)
    quality: Measured = NOT_MEASURED
    prompts: int = 0
    """Prompts that the quality rests on."""

    def of(self, workload_class: str) -> ClassMeasures:
        """The measures of that class; without a request of it nothing is known."""
        return self.classes.get(workload_class, ClassMeasures(0))
