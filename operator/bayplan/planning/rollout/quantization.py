"""Whether a quantized candidate may be staged: six independent gates on measurements of both sides.

The width of the weights predicts nothing here: hardware support, quality, memory, latency and throughput are measured.
Passing permits staging, never promotion. Source: the founding chapter's lesson 5. Repairs: exact comparisons, finite
numbers.
"""

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from bayplan.planning.numbers import InvalidInput, exact, named, not_negative, positive


class QuantizationGate(StrEnum):
    """The gates, in the order in which failures are reported."""

    HARDWARE_SUPPORT = "hardware-support"
    QUALITY_FLOOR = "quality-floor"
    QUALITY_DROP = "quality-drop"
    WEIGHT_MEMORY = "weight-memory"
    TTFT = "ttft"
    THROUGHPUT = "throughput"


@dataclass(frozen=True, slots=True)
class QuantizationMeasurement:
    """One side, measured. Raises InvalidInput that names the field."""

    name: str
    weight_bits: Fraction
    hardware_supported: bool
    quality_score: Fraction
    weight_memory_gib: Fraction
    p95_ttft_seconds: Fraction
    output_tokens_per_second: Fraction

    def __post_init__(self) -> None:
        named(self.name, "name")
        if not isinstance(self.hardware_supported, bool):
            raise InvalidInput("hardware_supported", f"must be true or false, not {self.hardware_supported!r}")
        for name in ("weight_bits", "weight_memory_gib", "output_tokens_per_second"):
            object.__setattr__(self, name, positive(getattr(self, name), name))
        object.__setattr__(self, "p95_ttft_seconds", not_negative(self.p95_ttft_seconds, "p95_ttft_seconds"))
        object.__setattr__(self, "quality_score", exact(self.quality_score, "quality_score"))


@dataclass(frozen=True, slots=True)
class QuantizationRequirements:
    """Limits; equal passes. `min_relative_throughput` is candidate / baseline. Raises InvalidInput."""

    min_quality_score: Fraction
    max_quality_drop: Fraction
    max_weight_memory_gib: Fraction
    max_p95_ttft_seconds: Fraction
    min_relative_throughput: Fraction

    def __post_init__(self) -> None:
        for name in self.__slots__:
            object.__setattr__(self, name, not_negative(getattr(self, name), name))


@dataclass(frozen=True, slots=True)
class QuantizationDecision:
    """The failed gates and the two compared numbers; without a failed gate the candidate may be staged."""

    failed: tuple[QuantizationGate, ...]
    quality_drop: Fraction
    """Baseline − candidate; negative when the candidate is better."""
    relative_throughput: Fraction
    messages: tuple[str, ...]
    """One sentence with the numbers per failed gate."""

    @property
    def stages(self) -> bool:
        """Whether no gate failed."""
        return not self.failed


def decide_quantization(
    baseline: QuantizationMeasurement, candidate: QuantizationMeasurement, requirements: QuantizationRequirements
) -> QuantizationDecision:
    """Judge all six gates; every failing one is reported."""
    drop = baseline.quality_score - candidate.quality_score
    relative = candidate.output_tokens_per_second / baseline.output_tokens_per_second
    wanted = requirements
    failures = {
        QuantizationGate.HARDWARE_SUPPORT: (
            not candidate.hardware_supported,
            f"{candidate.name} is not supported by the hardware",
        ),
        QuantizationGate.QUALITY_FLOOR: (
            candidate.quality_score < wanted.min_quality_score,
            f"quality {_text(candidate.quality_score)}, at least {_text(wanted.min_quality_score)}",
        ),
        QuantizationGate.QUALITY_DROP: (
            drop > wanted.max_quality_drop,
            f"quality drops by {_text(drop)}, at most {_text(wanted.max_quality_drop)}",
        ),
        QuantizationGate.WEIGHT_MEMORY: (
            candidate.weight_memory_gib > wanted.max_weight_memory_gib,
            f"weights take {_text(candidate.weight_memory_gib)} GiB, at most {_text(wanted.max_weight_memory_gib)}",
        ),
        QuantizationGate.TTFT: (
            candidate.p95_ttft_seconds > wanted.max_p95_ttft_seconds,
            f"p95 TTFT {_text(candidate.p95_ttft_seconds)} s, at most {_text(wanted.max_p95_ttft_seconds)} s",
        ),
        QuantizationGate.THROUGHPUT: (
            relative < wanted.min_relative_throughput,
            f"{_text(relative)} of the baseline's tokens/s, at least {_text(wanted.min_relative_throughput)}",
        ),
    }
    failed = tuple(gate for gate in QuantizationGate if failures[gate][0])
    return QuantizationDecision(failed, drop, relative, tuple(f"{gate}: {failures[gate][1]}" for gate in failed))


def _text(number: Fraction) -> str:
    return f"{float(number):g}"
