"""A gate, and what became of it."""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from bayplan.api.rolloutwords import GateName, Handling, OnRegression, Outcome
from bayplan.planning.measurements import Measured
from bayplan.planning.numbers import InvalidInput, not_negative

EVERY_CLASS = ""
"""Stands for the requests of all workload classes together."""


QUALITY_GATES = frozenset({GateName.QUALITY_FLOOR, GateName.QUALITY_DROP})
LATENCY_GATES = frozenset({GateName.TTFT, GateName.TPOT})


@dataclass(frozen=True, slots=True)
class Gate:
    """A limit; equal passes. Raises InvalidInput that names the field.

    Seconds for TTFT and TPOT, which bound the p95; a share of the requests for ERROR_RATE; candidate / baseline for
    THROUGHPUT; a share of the prompts for the two quality gates, which know no workload class.
    """

    name: GateName
    limit: Fraction
    workload_class: str = EVERY_CLASS
    enforce: bool = True
    """False: it is judged and reported, and decides nothing."""
    on_regression: OnRegression = OnRegression.ROLLBACK

    def __post_init__(self) -> None:
        object.__setattr__(self, "limit", not_negative(self.limit, "limit"))
        if self.name in QUALITY_GATES and self.workload_class != EVERY_CLASS:
            raise InvalidInput("workload_class", f"must be empty for {self.name}: prompts belong to no class")

    @property
    def key(self) -> tuple[GateName, str]:
        """Name and class; one gate each."""
        return self.name, self.workload_class

    def __str__(self) -> str:
        return f"{self.name}[{self.workload_class}]" if self.workload_class else self.name.value


@dataclass(frozen=True, slots=True)
class GateResult:
    """What became of a gate, and the numbers that decided."""

    gate: Gate
    outcome: Outcome
    handling: Handling
    message: str
    measured: Measured
    """p95 in seconds or the share of requests beyond the edge; error rate; relative throughput; quality or its drop."""
    samples: int = 0
    """Requests or prompts of the candidate that it rests on."""
    excess: Fraction = Fraction(0)
    """How many times the limit was reached; above 1 it failed."""

    @property
    def failed(self) -> bool:
        """Whether it failed and counts."""
        return self.outcome is Outcome.FAILED and self.gate.enforce

    @property
    def rolls_back(self) -> bool:
        """Whether it takes the candidate's traffic away."""
        return self.failed and self.handling is Handling.ROLL_BACK and self.gate.on_regression is OnRegression.ROLLBACK

    @property
    def freezes(self) -> bool:
        """Whether it stops the rollout until somebody decides."""
        return self.failed and self.handling is Handling.ROLL_BACK and self.gate.on_regression is OnRegression.FREEZE

    @property
    def blocks(self) -> bool:
        """Whether the candidate cannot go on with it."""
        return self.gate.enforce and self.outcome is not Outcome.PASSED


def worst_first(results: Iterable[GateResult]) -> tuple[GateResult, ...]:
    """Order by what is to be done, then by how far the limit was exceeded, then by name and class."""
    handlings, names = list(Handling), list(GateName)

    def rank(result: GateResult) -> tuple[int, Fraction, int, str]:
        gate = result.gate
        return handlings.index(result.handling), -result.excess, names.index(gate.name), gate.workload_class

    return tuple(sorted(results, key=rank))


def require_distinct(gates: Iterable[Gate]) -> None:
    """Raise InvalidInput when two gates protect the same thing."""
    seen: set[tuple[GateName, str]] = set()
    for gate in gates:
        if gate.key in seen:
            raise InvalidInput("gates", f"{gate} stands there twice")
        seen.add(gate.key)
