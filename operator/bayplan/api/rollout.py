"""`Rollout`: how a new revision of one InferenceModel earns its traffic. This module is the spec.

A standing policy: it acts whenever the model's revision changes, and is written once. What changes during a trial
(`paused`, `approvals`, `abort`, `retry`) is a person's word on it.
"""

from decimal import Decimal
from itertools import pairwise
from typing import Annotated, ClassVar

from pydantic import Field, StringConstraints

from bayplan.api.meta import ATOMIC, Exact, Flag, ObjectName, Schema, WholeNumber
from bayplan.api.rollout_status import MAX_CANDIDATES, MAX_GATES
from bayplan.api.rolloutwords import CapacityMode, GateName, OnDeadline, OnRegression, StageKind, Waiver
from bayplan.api.rules import Rule

MAX_NAME = 63
NAME_RULE = Rule(
    expression=f"self.metadata.name.size() <= {MAX_NAME}",
    message=f"metadata.name must have at most {MAX_NAME} characters",
    holds=lambda name: len(name) <= MAX_NAME,
)
"""Rule on `metadata.name`, stated at the root of the CRD; the predicate takes the name itself."""
MAX_STAGES = 12
MAX_APPROVALS = 64
_DAY = 86_400
_SHARED = (StageKind.SHADOW, StageKind.CANARY)
_SHARES = (GateName.ERROR_RATE, GateName.QUALITY_FLOOR, GateName.QUALITY_DROP)
_QUALITY = (GateName.QUALITY_FLOOR, GateName.QUALITY_DROP)


class ModelRef(Schema):
    """The InferenceModel, in the same namespace."""

    rules: ClassVar = (
        Rule(
            expression="self.name == oldSelf.name",
            message="name is immutable: create another Rollout for another model",
            field="name",
        ),
    )

    name: ObjectName
    """Name of the InferenceModel; it may be created later."""


class RolloutStage(Schema):
    """One stage. The candidate goes on when everything that the stage asks for holds."""

    rules: ClassVar = (
        Rule(
            expression="has(self.weight) == (self.kind in ['Shadow', 'Canary'])",
            message="weight must be given for Shadow and Canary, and for no other kind",
            holds=lambda self: (self.weight is not None) == (self.kind in _SHARED),
            field="weight",
        ),
        Rule(
            expression="self.kind != 'Canary' || !has(self.weight) || self.weight <= 99",
            message="weight must be at most 99 in a Canary: all requests are what Promote gives",
            holds=lambda self: self.kind is not StageKind.CANARY or self.weight is None or self.weight <= 99,
            field="weight",
        ),
        Rule(
            expression="self.bakeSeconds < self.deadlineSeconds",
            message="deadlineSeconds must be longer than bakeSeconds, or the stage could never end",
            holds=lambda self: self.bake_seconds < self.deadline_seconds,
            field="deadlineSeconds",
        ),
    )

    kind: StageKind
    """Warm loads it, Shadow copies requests to it, Canary gives it requests, Promote makes it serve."""
    weight: Annotated[WholeNumber, Field(ge=1, le=100)] | None = None
    """Percent of the requests: given to the candidate in a Canary, copied to it in a Shadow."""
    bake_seconds: Annotated[WholeNumber, Field(ge=0, le=30 * _DAY)] = 0
    """Least time in the stage."""
    deadline_seconds: Annotated[WholeNumber, Field(ge=1, le=60 * _DAY)] = 3600
    """Longest time in the stage, pauses and the wait for an approval left out."""
    approval: Flag = False
    """Whether somebody must approve, in `approvals`, before the stage is entered."""


class RolloutGate(Schema):
    """A limit that the candidate must keep; equal passes."""

    rules: ClassVar = (
        Rule(
            expression="self.name in ['ttft', 'tpot', 'throughput'] || self.limit <= 1",
            message="limit must be at most 1: it is a share",
            holds=lambda self: self.name not in _SHARES or self.limit <= 1,
            field="limit",
        ),
        Rule(
            expression="!(self.name in ['quality-floor', 'quality-drop']) || !has(self.workloadClass) || "
            "self.workloadClass == ''",
            message="workloadClass must be absent for quality: prompts belong to no class",
            holds=lambda self: self.name not in _QUALITY or not self.workload_class,
            field="workloadClass",
        ),
    )

    name: GateName
    """What is protected. `ttft` and `tpot`: the 95th percentile; `throughput`: candidate / baseline, a least value;
    `quality-floor`: share of right answers, a least value; `quality-drop`: the baseline's share minus the candidate's.
    """
    limit: Annotated[Decimal, Exact(ge=0, le=10**6)]
    """Seconds for ttft and tpot, where it must be an edge of the gateways' histograms; else a share or a ratio."""
    workload_class: Annotated[
        str, StringConstraints(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$", max_length=63)
    ] = ""
    """Requests of this class alone; absent means all of them together."""
    enforce: Flag = True
    """False judges and reports it, and decides nothing by it."""
    on_regression: OnRegression | None = None
    """What this gate does when it fails; absent means `spec.onRegression`."""


class Samples(Schema):
    """How much a judgement must rest on, per arm and class."""

    requests: Annotated[WholeNumber, Field(ge=1, le=10**9)] = 100
    """Fewest requests."""
    prompts: Annotated[WholeNumber, Field(ge=1, le=100_000)] = 20
    """Fewest scored prompts."""


class ConfigMapRef(Schema):
    """A ConfigMap in the same namespace."""

    name: ObjectName
    """Its name."""


class Approval(Schema):
    """Somebody's word that one revision may enter one stage."""

    revision: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+$", min_length=1, max_length=63)]
    """The revision, as `status.revisions.target` of the InferenceModel says it."""
    stage: Annotated[str, StringConstraints(pattern=r"^[a-z]+(-[0-9]+)?$", min_length=1, max_length=16)]
    """The stage: warm, shadow, canary-WEIGHT or promote."""


def _kinds(stages: tuple[RolloutStage, ...]) -> list[StageKind]:
    return [stage.kind for stage in stages]


def _in_order(stages: tuple[RolloutStage, ...]) -> bool:
    kinds = _kinds(stages)
    at_ends = kinds[:1] == [StageKind.WARM] and kinds[-1:] == [StageKind.PROMOTE]
    once = kinds.count(StageKind.WARM) == kinds.count(StageKind.PROMOTE) == 1
    shadows = kinds.count(StageKind.SHADOW)
    return at_ends and once and shadows <= 1 and (shadows == 0 or kinds[1] is StageKind.SHADOW)


def _weights_increase(stages: tuple[RolloutStage, ...]) -> bool:
    weights = [stage.weight for stage in stages if stage.kind is StageKind.CANARY and stage.weight is not None]
    return all(low < high for low, high in pairwise(weights))


_CLASS = "(has({0}.workloadClass) ? {0}.workloadClass : '')"
_WEIGHED = "{0}.kind == 'Canary' && has({0}.weight)"


class RolloutSpec(Schema):
    """What the user wants. The operator never writes it."""

    rules: ClassVar = (
        Rule(
            expression="has(self.promptSet) || !has(self.gates) || "
            "!self.gates.exists(g, g.name in ['quality-floor', 'quality-drop'])",
            message="promptSet must be given where a gate protects quality: nothing else measures it",
            holds=lambda self: self.prompt_set is not None or all(gate.name not in _QUALITY for gate in self.gates),
            field="promptSet",
        ),
    )

    model_ref: ModelRef
    """The InferenceModel whose revisions are tried; it must have `update: Rollout`."""
    stages: Annotated[
        tuple[RolloutStage, ...],
        Field(max_length=MAX_STAGES, json_schema_extra=ATOMIC),
        Rule(
            expression="self.size() > 1 && self[0].kind == 'Warm' && self[self.size() - 1].kind == 'Promote' && "
            "self.exists_one(s, s.kind == 'Warm') && self.exists_one(s, s.kind == 'Promote') && "
            "(!self.exists(s, s.kind == 'Shadow') || "
            "(self[1].kind == 'Shadow' && self.exists_one(s, s.kind == 'Shadow')))",
            message="stages must be Warm, at most one Shadow, Canaries, and Promote, in this order",
            holds=_in_order,
        ),
        Rule(
            expression="self.exists(s, s.kind == 'Canary')",
            message="stages must have a Canary before Promote: a shadow alone never promotes",
            holds=lambda stages: StageKind.CANARY in _kinds(stages),
        ),
        Rule(
            expression=f"self.filter(s, {_WEIGHED.format('s')}).map(s, s.weight).isSorted() && "
            f"self.all(a, !({_WEIGHED.format('a')}) || "
            f"self.exists_one(b, {_WEIGHED.format('b')} && b.weight == a.weight))",
            message="weight must increase from Canary to Canary",
            holds=_weights_increase,
        ),
    ]
    """The stages, in order: Warm, at most one Shadow, one or more Canaries, Promote."""
    gates: Annotated[
        tuple[RolloutGate, ...],
        Field(max_length=MAX_GATES, json_schema_extra=ATOMIC),
        Rule(
            expression="self.all(a, self.exists_one(b, "
            f"a.name == b.name && {_CLASS.format('a')} == {_CLASS.format('b')}))",
            message="gates must differ in name or workloadClass",
            holds=lambda gates: len({(gate.name, gate.workload_class) for gate in gates}) == len(gates),
        ),
    ] = ()
    """What the candidate must keep in Shadow and Canaries, and after Promote while the old revision is there."""
    samples: Samples = Samples()
    """How much a judgement must rest on."""
    on_regression: OnRegression = OnRegression.ROLLBACK
    """What a failing gate does: take the traffic away, or freeze the stage until somebody decides."""
    on_deadline: OnDeadline = OnDeadline.PAUSE
    """What a stage does that lasts too long. It never goes on."""
    capacity: CapacityMode = CapacityMode.AUTO
    """Where the candidate's GPUs come from: beside serving, in its place down to the floor, or what fits."""
    min_ready: Annotated[WholeNumber, Field(ge=0, le=10_000)] | None = None
    """The floor: ready replicas that always serve. Absent means what demand needs; 0 allows downtime."""
    max_surge: Annotated[WholeNumber, Field(ge=1, le=MAX_CANDIDATES)] = 2
    """Most candidate replicas before promotion, and most replicas above the wanted ones after it."""
    retain_seconds: Annotated[WholeNumber, Field(ge=0, le=30 * _DAY)] = 0
    """How long replicas of the replaced revision, at most `maxSurge`, are kept without traffic."""
    waivers: Annotated[tuple[Waiver, ...], Field(max_length=2, json_schema_extra=ATOMIC)] = ()
    """What is done without, knowingly: SingleReplica judges one candidate pod, NoBaseline compares with nobody."""
    prompt_set: ConfigMapRef | None = None
    """Prompts and checks that measure quality."""
    measurements: ConfigMapRef | None = None
    """Measurements of both sides, under the keys `quantization` and `speculation`, for a candidate that changes it."""
    require_evidence: Flag = False
    """Whether a candidate starts only once the model's CapacityPlan has proven its revision, `canary-gate` apart."""
    max_evidence_age_seconds: Annotated[WholeNumber, Field(ge=1, le=3600)] = 60
    """Evidence that ended longer ago lets nobody go on."""
    max_quality_age_seconds: Annotated[WholeNumber, Field(ge=1, le=30 * _DAY)] = _DAY
    """Answers to prompts that are older let nobody go on."""
    paused: Flag = False
    """Stop the clock and the way on; the way back stays open."""
    approvals: Annotated[tuple[Approval, ...], Field(max_length=MAX_APPROVALS, json_schema_extra=ATOMIC)] = ()
    """Revisions that may enter stages that ask for approval."""
    abort: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+$", min_length=1, max_length=63)] | None = None
    """Revision that is to lose its traffic at once, and is not tried again."""
    retry: Annotated[str, StringConstraints(max_length=63)] = ""
    """A new token lets a rejected revision, or a stage that stopped, start again."""
