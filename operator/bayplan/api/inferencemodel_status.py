"""`InferenceModel.status`: counts, the numbers that decided, and conditions. Written by the operator alone."""

from decimal import Decimal
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from bayplan.api.autoscaling import ScalingStatus
from bayplan.api.conditions import MAX_CONDITIONS, Condition
from bayplan.api.meta import ATOMIC, Count, Exact, Generation, Keyed, LongText, ShortText, StatusSchema, TimeText
from bayplan.api.provenance import Provenance

Gib = Annotated[Decimal, Exact(ge=0, le=10**9)]

MAX_GROUPS_SHOWN = 64
"""Groups listed in status; counts always cover all of them."""
MAX_UNPROVEN = 72
"""Required claims of a CapacityPlan: 64 classes and eight controls."""
MAX_REVISIONS = 20
"""Proven and rejected revisions that are remembered, the latest ones."""


class MemoryTerm(StatusSchema):
    """One term of the memory plan, in GiB per GPU."""

    name: ShortText
    """Name of the term, such as weights."""
    gib_per_gpu: Annotated[Decimal, Exact(ge=-(10**9), le=10**9)]
    """Size in GiB per GPU."""
    provenance: Provenance
    """Where the number comes from."""
    detail: LongText = ""
    """How it was computed."""


class MemoryStatus(StatusSchema):
    """The fit on one GPU product under one layout. GiB are 2^30 bytes, per GPU."""

    gpu_product: ShortText
    """GPU product that the plan is for."""
    fits: bool | None = None
    """Whether it fits; absent while unknown."""
    marginal: bool | None = None
    """Whether headroom or shortfall is within 3 % of the usable memory; absent where only five numbers are known."""
    required_gib: Gib | None = None
    """Sum of the terms."""
    usable_gib: Gib | None = None
    """What the engine may take of one GPU."""
    headroom_gib: Annotated[Decimal, Exact(ge=-(10**9), le=10**9)] | None = None
    """Usable minus required; negative is the shortfall."""
    max_concurrency: Count | None = None
    """Most full-length requests that would fit."""
    terms: Annotated[tuple[MemoryTerm, ...], Field(max_length=16, json_schema_extra=ATOMIC)] = ()
    """The terms of the sum."""
    warnings: Annotated[tuple[LongText, ...], Field(max_length=8, json_schema_extra=ATOMIC)] = ()
    """Why the engine may not start although it fits."""


class ParallelismStatus(StatusSchema):
    """The layout that replicas of the target revision get on one GPU product."""

    gpu_product: ShortText
    """GPU product that the layout is for."""
    tensor: Count
    """Tensor-parallel size."""
    pipeline: Count
    """Pipeline-parallel size."""
    data: Count | None = None
    """Engine-internal data-parallel ranks; absent is one."""
    expert: bool | None = None
    """Whether each rank holds whole experts; absent is no."""
    decode_context: Count | None = None
    """Decode-context-parallel size; absent is one."""
    gpus_per_replica: Count
    """GPUs of one replica."""
    nodes_per_replica: Count
    """Nodes, and so pods, of one replica."""
    provenance: Provenance
    """Declared by the user or derived."""
    reason: LongText = ""
    """What decided."""
    runner_up: LongText = ""
    """The next best layout, and why it lost."""
    exchanges: Annotated[tuple[LongText, ...], Field(max_length=8, json_schema_extra=ATOMIC)] = ()
    """What the ranks exchange per step, over which link, and the predicted time."""


class Stage(StrEnum):
    """Life of a replica group. Only Ready serves; a Pending replica has no group and is only counted."""

    RESERVED = "Reserved"
    BINDING = "Binding"
    WARMING = "Warming"
    READY = "Ready"
    DRAINING = "Draining"
    FAILED = "Failed"
    LOST = "Lost"


class WarmupStage(StrEnum):
    """What the engine's public surface showed last while a group warmed."""

    STARTING = "Starting"
    LISTENING = "Listening"
    MODEL_LISTED = "ModelListed"
    GENERATING = "Generating"


class GroupStatus(StatusSchema):
    """One replica group: where it runs and how far it is."""

    name: ShortText
    """Name of the group."""
    revision: ShortText
    """Revision that its pods run."""
    stage: Stage
    """How far it is."""
    since: TimeText
    """When it entered the stage."""
    warmup_stage: WarmupStage | None = None
    """What the engine showed last while it warmed."""
    nodes: Annotated[tuple[ShortText, ...], Field(max_length=64, json_schema_extra=ATOMIC)] = ()
    """Nodes by rank."""
    gpu_product: ShortText = ""
    """GPU product of the nodes."""
    facts: Annotated[tuple[LongText, ...], Field(max_length=8, json_schema_extra=ATOMIC)] = ()
    """Facts that decided the placement."""
    message: LongText = ""
    """What is wrong or awaited."""


class PlacementStatus(StatusSchema):
    """Groups on nodes, and what keeps the pending ones out."""

    groups: Annotated[tuple[GroupStatus, ...], Field(max_length=MAX_GROUPS_SHOWN, json_schema_extra=ATOMIC)] = ()
    """Groups, the first 64 by name."""
    pending_reason: LongText = ""
    """Why replicas are pending."""


class RejectedRevision(StatusSchema):
    """A revision that is never replaced to by itself."""

    revision: ShortText
    """The revision."""
    reason: ShortText
    """Why, as one word: the Rollout's verdict, or RolloutDeleted."""
    message: LongText = ""
    """Why, in full."""


class RevisionStatus(StatusSchema):
    """Which revisions are asked for, which serve, and what became of others."""

    target: ShortText = ""
    """Revision of the spec."""
    serving: Annotated[tuple[ShortText, ...], Field(max_length=2, json_schema_extra=ATOMIC)] = ()
    """Revisions whose ready pods are routed."""
    candidate: ShortText | None = None
    """Revision on trial by a Rollout: its pods get what the Rollout's plan gives them."""
    proven: Annotated[tuple[ShortText, ...], Field(max_length=MAX_REVISIONS, json_schema_extra=ATOMIC)] = ()
    """Revisions that have passed all stages of a Rollout."""
    rejected: Annotated[tuple[RejectedRevision, ...], Field(max_length=MAX_REVISIONS, json_schema_extra=ATOMIC)] = ()
    """Revisions that a Rollout rejected, or whose Rollout was deleted while they were on trial."""


class CapacityGuidanceStatus(StatusSchema):
    """The last numbers that the CapacityPlan in `spec.capacityPlanRef` stood by."""

    plan: ShortText
    """Name of the CapacityPlan."""
    floor: Count
    """Fewest replicas."""
    service_tokens_per_second: Annotated[Decimal, Exact(gt=0, le=10**15)] | None = None
    """Prompt and output tokens that one replica serves per second."""
    target_utilization: Annotated[Decimal, Exact(gt=0, le=1)] | None = None
    """Share of it that arriving tokens may take."""


class PlanEvidenceStatus(StatusSchema):
    """What the CapacityPlan in `spec.capacityPlanRef` has proven of one revision."""

    revision: ShortText
    """Revision that it was decided for."""
    unproven: Annotated[tuple[ShortText, ...], Field(max_length=MAX_UNPROVEN, json_schema_extra=ATOMIC)] = ()
    """Required claims that are not earned."""


class InferenceModelStatus(StatusSchema):
    """Everything that the on-call reads. Holds times, never ages; equal worlds give equal bytes."""

    observed_generation: Generation = 0
    """Generation of the spec that this status is about."""
    replicas: Count = 0
    """Replicas that have pods."""
    desired_replicas: Count = 0
    """Replicas that are wanted."""
    pending_replicas: Count = 0
    """Replicas without a place."""
    warming_replicas: Count = 0
    """Replicas that load or warm up."""
    ready_replicas: Count = 0
    """Replicas that serve."""
    draining_replicas: Count = 0
    """Replicas that finish their requests before they go."""
    gpus: Count = 0
    """GPUs that the replicas hold."""
    selector: ShortText = ""
    """Label selector of the head pods, for the scale subresource."""
    parallelism: Annotated[tuple[ParallelismStatus, ...], Field(max_length=16, json_schema_extra=ATOMIC)] = ()
    """Layout per GPU product."""
    memory: Annotated[tuple[MemoryStatus, ...], Field(max_length=16, json_schema_extra=ATOMIC)] = ()
    """Memory plan per GPU product."""
    placement: PlacementStatus = PlacementStatus()
    """Groups on nodes."""
    scaling: ScalingStatus | None = None
    """The last scaling decision; absent without `spec.autoscaling`."""
    capacity: CapacityGuidanceStatus | None = None
    """What the CapacityPlan gives; absent without `spec.capacityPlanRef`, or before the plan was first proven."""
    evidence: PlanEvidenceStatus | None = None
    """What the CapacityPlan has proven; absent while it has decided nothing."""
    revisions: RevisionStatus = RevisionStatus()
    """Revisions asked for and served."""
    endpoint: ShortText = ""
    """Address inside the cluster that spreads requests over the ready replicas, without admission."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=MAX_CONDITIONS), Keyed("type")] = ()
    """Conditions by type."""


def two_decimals(value: Decimal) -> Decimal:
    """Round for display to hundredths of a GiB; decisions never use the rounded value."""
    return value.quantize(Decimal("0.01"))
