"""The founding chapter's release decision on finished summaries of two arms: promote, hold or roll back.

Lesson 11 as it stands: an unwarmed or thin candidate holds, however bad; then every gate is judged and any failure
rolls back; a shadow alone never promotes. It looks at the candidate's warm-up and samples only. The staged rollout
decides on counts instead; this is for reports that have nothing but two summaries.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction

from bayplan.api.rolloutwords import GateName
from bayplan.planning.gates.measures import ArmMeasures, ClassMeasures
from bayplan.planning.gates.records import EVERY_CLASS, Gate, GateResult, worst_first
from bayplan.planning.gates.thresholds import LeastSamples, judge
from bayplan.planning.numbers import InvalidInput, count, named, not_negative, positive

_RELATIVE = frozenset({GateName.QUALITY_DROP, GateName.THROUGHPUT})


class ReleaseMode(StrEnum):
    """How the arm got its requests."""

    SHADOW = "shadow"
    CANARY = "canary"


class ReleaseAction(StrEnum):
    """What to do with the candidate."""

    PROMOTE = "promote"
    HOLD = "hold"
    ROLLBACK = "rollback"


class ReleaseHold(StrEnum):
    """Why it holds."""

    NOT_WARMED = "not-warmed"
    INSUFFICIENT_SAMPLES = "insufficient-samples"
    SHADOW_NEEDS_CANARY = "shadow-needs-canary"


@dataclass(frozen=True, slots=True)
class ReleaseMeasurement:
    """One arm, summarised. Raises InvalidInput that names the field."""

    revision: str
    mode: ReleaseMode
    warmed: bool
    sample_count: int
    quality_score: Fraction
    p95_ttft_seconds: Fraction
    p95_tpot_seconds: Fraction
    output_tokens_per_second: Fraction
    error_rate: Fraction

    def __post_init__(self) -> None:
        named(self.revision, "revision")
        try:
            object.__setattr__(self, "mode", ReleaseMode(self.mode))
        except ValueError as error:
            raise InvalidInput("mode", f"must be shadow or canary, not {self.mode!r}") from error
        if not isinstance(self.warmed, bool):
            raise InvalidInput("warmed", f"must be true or false, not {self.warmed!r}")
        object.__setattr__(self, "sample_count", count(self.sample_count, "sample_count", least=0))
        for name in ("quality_score", "p95_ttft_seconds", "p95_tpot_seconds", "error_rate"):
            object.__setattr__(self, name, not_negative(getattr(self, name), name))
        name = "output_tokens_per_second"
        object.__setattr__(self, name, positive(self.output_tokens_per_second, name))

    def measures(self) -> ArmMeasures:
        """The summary as the gates read it; every sample counts as a prompt too."""
        requests = ClassMeasures(
            requests=self.sample_count,
            p95_ttft=self.p95_ttft_seconds,
            p95_tpot=self.p95_tpot_seconds,
            error_rate=self.error_rate,
            output_tokens_per_second=self.output_tokens_per_second,
        )
        return ArmMeasures({EVERY_CLASS: requests}, quality=self.quality_score, prompts=self.sample_count)


@dataclass(frozen=True, slots=True)
class ReleaseRequirements:
    """Limits; equal passes. Raises InvalidInput that names the field."""

    min_sample_count: int
    min_quality_score: Fraction
    max_quality_drop: Fraction
    max_p95_ttft_seconds: Fraction
    max_p95_tpot_seconds: Fraction
    min_relative_throughput: Fraction
    max_error_rate: Fraction

    def __post_init__(self) -> None:
        object.__setattr__(self, "min_sample_count", count(self.min_sample_count, "min_sample_count"))
        for name in self.__slots__[1:]:
            object.__setattr__(self, name, not_negative(getattr(self, name), name))

    def gates(self) -> tuple[Gate, ...]:
        """The six gates."""
        return (
            Gate(GateName.QUALITY_FLOOR, self.min_quality_score),
            Gate(GateName.QUALITY_DROP, self.max_quality_drop),
            Gate(GateName.TTFT, self.max_p95_ttft_seconds),
            Gate(GateName.TPOT, self.max_p95_tpot_seconds),
            Gate(GateName.THROUGHPUT, self.min_relative_throughput),
            Gate(GateName.ERROR_RATE, self.max_error_rate),
        )


@dataclass(frozen=True, slots=True)
class ReleaseDecision:
    """The action, why it holds if it does, and the failed gates, worst first."""

    action: ReleaseAction
    holds: tuple[ReleaseHold, ...] = ()
    failed: tuple[GateResult, ...] = ()


def decide_release(
    baseline: ReleaseMeasurement, candidate: ReleaseMeasurement, requirements: ReleaseRequirements
) -> ReleaseDecision:
    """Decide in the chapter's order: readiness, then all gates, then shadow, then promote."""
    unready = []
    if not candidate.warmed:
        unready.append(ReleaseHold.NOT_WARMED)
    if candidate.sample_count < requirements.min_sample_count:
        unready.append(ReleaseHold.INSUFFICIENT_SAMPLES)
    if unready:
        return ReleaseDecision(ReleaseAction.HOLD, tuple(unready))
    least = LeastSamples(1)
    # The baseline's samples are not asked for here, and its own misses excuse nothing.
    enough = replace(baseline, sample_count=1)
    results = [
        judge(gate, candidate.measures(), enough.measures() if gate.name in _RELATIVE else ArmMeasures(), least)
        for gate in requirements.gates()
    ]
    failed = worst_first(result for result in results if result.failed)
    if failed:
        return ReleaseDecision(ReleaseAction.ROLLBACK, failed=failed)
    if candidate.mode is ReleaseMode.SHADOW:
        return ReleaseDecision(ReleaseAction.HOLD, (ReleaseHold.SHADOW_NEEDS_CANARY,))
    return ReleaseDecision(ReleaseAction.PROMOTE)
