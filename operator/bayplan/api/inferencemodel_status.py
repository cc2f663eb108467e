"""`InferenceModel.status`: counts, the numbers that decided, and conditions. Written by the operator alone."""

from decimal import Decimal
from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from bayplan.api.conditions import MAX_CONDITIONS, Condition
from bayplan.api.meta import ExactNumber, StatusSchema, WholeNumber

ShortText = Annotated[str, StringConstraints(max_length=253)]
LongText = Annotated[str, StringConstraints(max_length=1024)]
TimeText = Annotated[str, StringConstraints(max_length=40)]
Count = Annotated[WholeNumber, Field(ge=0)]

MAX_GROUPS_SHOWN = 64
"""Groups listed in status; counts always cover all of them."""


class Provenance(StrEnum):
    """Where a number comes from, strongest first."""

    MEASURED = "Measured"
    DECLARED = "Declared"
    DERIVED = "Derived"
    ESTIMATED = "Estimated"
    UNKNOWN = "Unknown"


class MemoryTerm(StatusSchema):
    """One term of the memory plan, in GiB per GPU."""

    name: ShortText
    gib_per_gpu: ExactNumber
    provenance: Provenance
    detail: LongText = ""


class MemoryStatus(StatusSchema):
    """The fit on one GPU product under one layout. GiB are 2^30 bytes, per GPU."""

    gpu_product: ShortText
    fits: bool | None = None
    required_gib: ExactNumber | None = None
    usable_gib: ExactNumber | None = None
    headroom_gib: ExactNumber | None = None
    max_concurrency: Count | None = None
    terms: Annotated[tuple[MemoryTerm, ...], Field(max_length=16)] = ()


class ParallelismStatus(StatusSchema):
    """The layout that replicas of the target revision get on one GPU product."""

    gpu_product: ShortText
    tensor: Count
    pipeline: Count
    gpus_per_replica: Count
    nodes_per_replica: Count
    provenance: Provenance
    reason: LongText = ""


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
    revision: ShortText
    stage: Stage
    since: TimeText
    warmup_stage: WarmupStage | None = None
    nodes: Annotated[tuple[ShortText, ...], Field(max_length=64)] = ()
    gpu_product: ShortText = ""
    facts: Annotated[tuple[LongText, ...], Field(max_length=8)] = ()
    message: LongText = ""


class PlacementStatus(StatusSchema):
    """Groups on nodes, and what keeps the pending ones out."""

    groups: Annotated[tuple[GroupStatus, ...], Field(max_length=MAX_GROUPS_SHOWN)] = ()
    pending_reason: LongText = ""


class RevisionStatus(StatusSchema):
    """Which revisions are asked for and which serve."""

    target: ShortText = ""
    serving: Annotated[tuple[ShortText, ...], Field(max_length=2)] = ()


class InferenceModelStatus(StatusSchema):
    """Everything that the on-call reads. Holds times, never ages; equal worlds give equal bytes."""

    observed_generation: Count = 0
    replicas: Count = 0
    desired_replicas: Count = 0
    pending_replicas: Count = 0
    warming_replicas: Count = 0
    ready_replicas: Count = 0
    draining_replicas: Count = 0
    gpus: Count = 0
    selector: ShortText = ""
    parallelism: Annotated[tuple[ParallelismStatus, ...], Field(max_length=16)] = ()
    memory: Annotated[tuple[MemoryStatus, ...], Field(max_length=16)] = ()
    placement: PlacementStatus = PlacementStatus()
    revisions: RevisionStatus = RevisionStatus()
    conditions: Annotated[tuple[Condition, ...], Field(max_length=MAX_CONDITIONS)] = ()


def two_decimals(value: Decimal) -> Decimal:
    """Round for display to hundredths of a GiB; decisions never use the rounded value."""
    return value.quantize(Decimal("0.01"))
