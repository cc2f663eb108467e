"""The paper stage's papers: what a candidate changes that wants measurements, and what it brings. Pure."""

from collections.abc import Iterator, Mapping
from fractions import Fraction

from bayplan.api.capacitywords import Control
from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.api.inferencemodel_status import PlanEvidenceStatus
from bayplan.planning.evidence import MeasurementRecord
from bayplan.planning.numbers import InvalidInput
from bayplan.planning.rollout.paper import (
    Paper,
    PaperOutcome,
    PaperSubject,
    PaperVerdict,
    decide_paper,
    read_quantization,
    read_speculation,
)
from bayplan.reconcile.plainyaml import read_plain_yaml

_FLAGS = {
    PaperSubject.QUANTIZATION: ("--quantization", "-q", "--load-format", "--dtype"),
    PaperSubject.SPECULATION: ("--speculative-config", "-sc", "--speculative"),
}
_READERS = {PaperSubject.QUANTIZATION: read_quantization, PaperSubject.SPECULATION: read_speculation}


def changes_of(before: InferenceModelSpec, after: InferenceModelSpec) -> frozenset[PaperSubject]:
    """What the candidate does otherwise than serving, of that which wants measurements first."""
    return frozenset(subject for subject in PaperSubject if _traits(subject, before) != _traits(subject, after))


def _traits(subject: PaperSubject, spec: InferenceModelSpec) -> object:
    flags = tuple(_values(spec.engine.args, _FLAGS[subject]))
    if subject is PaperSubject.SPECULATION:
        return flags
    architecture = spec.model.architecture
    weights = None if architecture is None else (architecture.weight_bits, architecture.weight_format)
    return weights, spec.engine.kv_cache_dtype, flags


def _values(arguments: tuple[str, ...], flags: tuple[str, ...]) -> Iterator[str]:
    """Arguments that set one of the flags, each with its value."""
    for at, argument in enumerate(arguments):
        name, equals, _ = argument.replace("_", "-").partition("=")
        if any(name == flag or (flag == "--speculative" and name.startswith(flag)) for flag in flags):
            yield argument if equals else " ".join(arguments[at : at + 2])


def model_identity(spec: InferenceModelSpec) -> str:
    """What a record of this spec must name as its model. The runtime of both sides is the candidate's image."""
    return f"{spec.model.uri}@{spec.model.revision}"


def paper_verdict(
    before: InferenceModelSpec | None,
    after: InferenceModelSpec,
    measurements: Mapping[str, str] | str | None,
    *,
    now_seconds: Fraction,
) -> PaperVerdict:
    """Judge what the candidate brings. `measurements` are texts by subject, or why there are none; None: not read yet.

    Without a spec of what serves (`before`) there is nothing that the candidate could be said to change.
    """
    changes = frozenset() if before is None else changes_of(before, after)
    if not changes or before is None:
        return PaperVerdict()
    if measurements is None:
        return PaperVerdict(PaperOutcome.MISSING, ("the measurements are not read yet",))
    if isinstance(measurements, str):
        return PaperVerdict(PaperOutcome.MISSING, tuple(f"{one}: {measurements}" for one in sorted(changes)))
    papers: dict[PaperSubject, Paper | InvalidInput] = {}
    for subject in changes:
        text = measurements.get(subject.value)
        if text is not None:
            papers[subject] = _read(subject, text, before, after)
    return decide_paper(changes, papers, now_seconds=now_seconds)


def with_evidence(paper: PaperVerdict, evidence: PlanEvidenceStatus | None, *, revision: str) -> PaperVerdict:
    """The verdict where `requireEvidence` is set: what the CapacityPlan has not proven is missing, too.

    The trial itself earns `canary-gate`, so that claim cannot be asked for before it.
    """
    if paper.outcome is PaperOutcome.REJECTED:
        return paper
    if evidence is None:
        lack = "no CapacityPlan has judged the model"
    elif evidence.revision != revision:
        lack = f"the CapacityPlan has judged revision {evidence.revision}, not {revision} yet"
    else:
        lack = ", ".join(claim for claim in evidence.unproven if claim != Control.CANARY_GATE)
        lack = lack and f"not proven: {lack}"
    if not lack:
        return paper
    return PaperVerdict(PaperOutcome.MISSING, (*paper.messages, f"requireEvidence: {lack}"))


def _read(
    subject: PaperSubject, text: str, before: InferenceModelSpec, after: InferenceModelSpec
) -> Paper | InvalidInput:
    try:
        paper = _READERS[subject](read_plain_yaml(text, subject.value))
        baseline, candidate = paper.records
        _require_about("baseline", before, baseline)
        _require_about("candidate", after, candidate)
        _require_runtime(after, candidate)
    except InvalidInput as error:
        return error
    return paper


def _require_about(side: str, spec: InferenceModelSpec, record: MeasurementRecord) -> None:
    if record.identity.model != model_identity(spec):
        raise InvalidInput(f"{side}.model", f"must be {model_identity(spec)}, not {record.identity.model}")


def _require_runtime(spec: InferenceModelSpec, record: MeasurementRecord) -> None:
    if record.identity.runtime != spec.engine.image:
        raise InvalidInput("candidate.runtime", f"must be {spec.engine.image}, not {record.identity.runtime}")
