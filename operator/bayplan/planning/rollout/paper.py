"""The paper stage: measurements that a candidate brings, judged before a GPU is touched.

A candidate that changes quantization or speculation brings records of both sides. What is missing is named and waited
for; what fails is rejected. A candidate that changes neither needs no paper.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import Any

from bayplan.planning.evidence import MeasurementRecord, read_record, require_comparable
from bayplan.planning.numbers import InvalidInput
from bayplan.planning.rollout.quantization import (
    QuantizationDecision,
    QuantizationMeasurement,
    QuantizationRequirements,
    decide_quantization,
)
from bayplan.planning.rollout.speculation import (
    DraftRound,
    SpeculationCosts,
    SpeculationDecision,
    decide_speculation,
)

MAX_ROUNDS = 10_000


class PaperSubject(StrEnum):
    """What a candidate may change that wants measurements first."""

    QUANTIZATION = "quantization"
    SPECULATION = "speculation"


class PaperOutcome(StrEnum):
    """What the papers say. Only NOT_NEEDED and STAGED let the candidate go on."""

    NOT_NEEDED = "NotNeeded"
    STAGED = "Staged"
    MISSING = "PaperMissing"
    REJECTED = "StagingRejected"


@dataclass(frozen=True, slots=True)
class Paper:
    """One subject's papers: the records that were read and what they decide."""

    records: tuple[MeasurementRecord, ...]
    decision: QuantizationDecision | SpeculationDecision

    @property
    def failures(self) -> tuple[str, ...]:
        """One sentence per failed gate; empty when it may be staged."""
        if isinstance(self.decision, QuantizationDecision):
            return self.decision.messages
        return () if self.decision.enable else (f"speed-up: {self.decision.message}",)


@dataclass(frozen=True, slots=True)
class PaperVerdict:
    """The outcome and one sentence per thing that is missing or failed."""

    outcome: PaperOutcome = PaperOutcome.NOT_NEEDED
    messages: tuple[str, ...] = field(default=())

    @property
    def passes(self) -> bool:
        """Whether the candidate may touch a GPU."""
        return self.outcome in (PaperOutcome.NOT_NEEDED, PaperOutcome.STAGED)


def decide_paper(
    changes: frozenset[PaperSubject], papers: Mapping[PaperSubject, Paper | InvalidInput], *, now_seconds: Fraction
) -> PaperVerdict:
    """Judge the papers of everything that the candidate changes.

    A failed gate outweighs what is missing elsewhere. Papers that could not be read (an InvalidInput stands for them),
    are not current or are not there at all are missing, by name.
    """
    if not changes:
        return PaperVerdict()
    missing, failed = [], []
    for subject in PaperSubject:
        if subject not in changes:
            continue
        paper = papers.get(subject)
        if paper is None:
            missing.append(f"{subject}: the candidate changes it and brings no measurements")
        elif isinstance(paper, InvalidInput):
            missing.append(f"{subject}: {paper}")
        elif doubts := [doubt for record in paper.records if (doubt := record.doubt(now_seconds)) is not None]:
            missing += [f"{subject}: {doubt.reason}" for doubt in doubts]
        else:
            failed += [f"{subject}: {failure}" for failure in paper.failures]
    if failed:
        return PaperVerdict(PaperOutcome.REJECTED, (*failed, *missing))
    if missing:
        return PaperVerdict(PaperOutcome.MISSING, tuple(missing))
    return PaperVerdict(PaperOutcome.STAGED)


_QUANTIZATION = {
    "weight_bits": "weightBits",
    "hardware_supported": "hardwareSupported",
    "quality_score": "qualityScore",
    "weight_memory_gib": "weightMemoryGib",
    "p95_ttft_seconds": "p95TtftSeconds",
    "output_tokens_per_second": "outputTokensPerSecond",
}
_REQUIREMENTS = {
    "min_quality_score": "minQualityScore",
    "max_quality_drop": "maxQualityDrop",
    "max_weight_memory_gib": "maxWeightMemoryGib",
    "max_p95_ttft_seconds": "maxP95TtftSeconds",
    "min_relative_throughput": "minRelativeThroughput",
}


def read_quantization(raw: object) -> Paper:
    """Read {baseline, candidate, requirements} and decide. Raises InvalidInput that names the field and its side."""
    parts = _parts(raw, ("baseline", "candidate", "requirements"))
    records = {side: read_record(parts[side], side) for side in ("baseline", "candidate")}
    require_comparable(records["baseline"], records["candidate"])
    sides = {side: _quantization_side(record, side) for side, record in records.items()}
    wanted = _parts(parts["requirements"], tuple(_REQUIREMENTS.values()), "requirements.")
    with _Below("requirements", _REQUIREMENTS):
        requirements = QuantizationRequirements(**{name: wanted[wire] for name, wire in _REQUIREMENTS.items()})
    return Paper(tuple(records.values()), decide_quantization(sides["baseline"], sides["candidate"], requirements))


def read_speculation(raw: object) -> Paper:
    """Read {baseline, candidate, rounds, minimumSpeedup} and decide. Raises InvalidInput that names the field.

    The baseline's record has `secondsPerToken`, the candidate's `draftSecondsPerToken` and
    `verificationSecondsPerRound`. A round has `draft` and `target` token ids, or `draft` and `failure`.
    """
    parts = _parts(raw, ("baseline", "candidate", "rounds", "minimumSpeedup"))
    records = {side: read_record(parts[side], side) for side in ("baseline", "candidate")}
    require_comparable(records["baseline"], records["candidate"])
    costs_of = {
        "baseline_seconds_per_token": ("baseline", "secondsPerToken"),
        "draft_seconds_per_token": ("candidate", "draftSecondsPerToken"),
        "verification_seconds_per_round": ("candidate", "verificationSecondsPerRound"),
    }
    values = {}
    for name, (side, wire) in costs_of.items():
        with _Below(f"{side}.values", {}):
            values[name] = records[side].value(wire)
    with _Below("", {name: f"{side}.values.{wire}" for name, (side, wire) in costs_of.items()}):
        costs = SpeculationCosts(**values)  # type: ignore[arg-type]
    rounds = parts["rounds"]
    if not isinstance(rounds, list) or not 0 < len(rounds) <= MAX_ROUNDS:
        raise InvalidInput("rounds", f"must be a list of 1 to {MAX_ROUNDS} rounds")
    with _Below("", {"minimum_speedup": "minimumSpeedup"}):
        decision = decide_speculation(
            [_round(one, f"rounds[{at}]") for at, one in enumerate(rounds)],
            costs,
            minimum_speedup=parts["minimumSpeedup"],
        )
    return Paper(tuple(records.values()), decision)


def _quantization_side(record: MeasurementRecord, side: str) -> QuantizationMeasurement:
    with _Below(f"{side}.values", _QUANTIZATION):
        values: dict[str, Any] = {name: record.value(wire) for name, wire in _QUANTIZATION.items()}
        return QuantizationMeasurement(name=record.identity.model, **values)


def _round(raw: object, name: str) -> DraftRound:
    if not isinstance(raw, Mapping) or not isinstance(raw.get("draft"), list):
        raise InvalidInput(f"{name}.draft", "must be a list of token ids")
    target, failure = raw.get("target", []), raw.get("failure", "")
    if not isinstance(target, list) or not isinstance(failure, str):
        raise InvalidInput(f"{name}.target", "must be a list of token ids, or stand as text under failure")
    with _Below(name, {"draft_tokens": "draft", "target_tokens": "target"}):
        return DraftRound(tuple(raw["draft"]), tuple(target), failure)


def _parts(raw: object, names: tuple[str, ...], prefix: str = "") -> Mapping[str, Any]:
    if not isinstance(raw, Mapping):
        raise InvalidInput(prefix.rstrip(".") or "paper", f"must be an object with {', '.join(names)}")
    for name in names:
        if raw.get(name) is None:
            raise InvalidInput(f"{prefix}{name}", "is missing")
    for name in sorted(map(str, raw.keys() - set(names))):
        raise InvalidInput(f"{prefix}{name}", f"is not known; known are {', '.join(names)}")
    return raw


class _Below:
    """Says of an invalid input where in the file it stands: `below` and the field's name there."""

    def __init__(self, below: str, names: Mapping[str, str]) -> None:
        self._below = below
        self._names = names

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, InvalidInput):
            field = self._names.get(error.field, error.field)
            raise InvalidInput(f"{self._below}.{field}" if self._below else field, error.message) from error
