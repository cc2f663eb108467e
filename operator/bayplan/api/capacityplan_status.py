"""`CapacityPlan.status`: the numbers that were sized, what they break, and which claims are earned. Written by one."""

from decimal import Decimal
from typing import Annotated

from pydantic import Field

from bayplan.api.capacityplan import MAX_CLASSES
from bayplan.api.capacitywords import ClaimState, Control, Dimension, Need
from bayplan.api.conditions import MAX_CONDITIONS, Condition
from bayplan.api.meta import (
    ATOMIC,
    Count,
    Exact,
    Flag,
    Generation,
    Keyed,
    LongText,
    ShortText,
    StatusSchema,
)

MAX_CLAIMS = 2 * MAX_CLASSES + len(Control)
"""Planned classes, required classes, and controls."""
MAX_CONFLICTS = 32
Amount = Annotated[Decimal, Exact(ge=0, le=10**15)]


class DemandStatus(StatusSchema):
    """What all classes ask for at their peaks."""

    prompt_tokens_per_second: Amount
    """Prompt tokens per second."""
    output_tokens_per_second: Amount
    """Output tokens per second."""
    concurrent_requests: Amount
    """Requests served at the same time."""
    kv_tokens: Amount
    """Tokens of all requests that are served at the same time."""


class DimensionStatus(StatusSchema):
    """Replicas that one dimension calls for."""

    name: Dimension
    """The dimension."""
    unrounded: Amount
    """Before rounding up, to six decimals."""
    replicas: Count
    """Whole replicas."""
    binding: Flag
    """Whether it calls for the most; several may tie."""
    bottleneck: Flag
    """Whether it has the largest unrounded value of those that bind."""


class NeedStatus(StatusSchema):
    """Replicas that the load, the loss of a domain, or maintenance call for alone."""

    name: Need
    """What they are for."""
    replicas: Count
    """How many."""


class PlannedLayoutStatus(StatusSchema):
    """The layout that was sized and placed."""

    gpu_product: ShortText
    """GPU product."""
    tensor: Count
    """Tensor-parallel size."""
    pipeline: Count
    """Pipeline-parallel size."""
    gpus_per_replica: Count
    """GPUs of one replica."""


class CostStatus(StatusSchema):
    """Cost of all replicas, to six decimals."""

    per_hour: Amount
    """Per hour."""
    per_million_output_tokens: Amount
    """Per million output tokens at the peak."""
    per_million_tokens: Amount
    """Per million prompt and output tokens at the peak."""
    currency: ShortText
    """Currency."""
    source: LongText
    """Whose price it is."""
    date: ShortText
    """As of when."""


class ConflictStatus(StatusSchema):
    """One thing that cannot be, or is exceeded. Nothing was changed to solve it."""

    reason: ShortText
    """Which, as one word of docs/reasons.md."""
    message: LongText
    """With the numbers."""


class ClaimStatus(StatusSchema):
    """One claim of the evidence."""

    name: ShortText
    """The claim."""
    required: Flag
    """Whether it must be earned."""
    state: ClaimState
    """What became of it."""
    message: LongText = ""
    """Why, with the numbers."""


class EvidenceInputStatus(StatusSchema):
    """What claims rest on, by identity."""

    name: ShortText
    """artifact, inventory, benchmark, price or canary."""
    digest: ShortText
    """Of its content: another one says that it changed."""


class CapacityPlanStatus(StatusSchema):
    """What was planned, on what, and what it proves. Equal worlds give equal bytes; it holds no time of evaluation."""

    observed_generation: Generation = 0
    """Generation of the spec that this status is about."""
    model: ShortText = ""
    """InferenceModel that was planned for; empty when the plan has its own."""
    revision: ShortText = ""
    """Revision that was planned for."""
    demand: DemandStatus | None = None
    """What is asked for."""
    dimensions: Annotated[tuple[DimensionStatus, ...], Field(max_length=8, json_schema_extra=ATOMIC)] = ()
    """Replicas by dimension of the load."""
    needs: Annotated[tuple[NeedStatus, ...], Field(max_length=4, json_schema_extra=ATOMIC)] = ()
    """Replicas by what they are for."""
    replicas: Count | None = None
    """Replicas in all."""
    at_least: Flag = False
    """Whether it may be more: the loss of a domain is not survived where the replicas would be."""
    gpus: Count | None = None
    """GPUs of all replicas."""
    placeable_replicas: Count | None = None
    """Replicas that find a place at the same time."""
    layout: PlannedLayoutStatus | None = None
    """Layout of a replica."""
    cost: CostStatus | None = None
    """What it costs; absent without a price."""
    floor: Count | None = None
    """Fewest replicas that the InferenceModel is held to; absent while benchmark or nodes prove nothing."""
    service_tokens_per_second: Amount | None = None
    """Prompt and output tokens that one replica serves of this mix; what the InferenceModel scales by."""
    target_utilization: Annotated[Decimal, Exact(ge=0, le=1)] | None = None
    """Share of it that arriving tokens may take."""
    conflicts: Annotated[tuple[ConflictStatus, ...], Field(max_length=MAX_CONFLICTS, json_schema_extra=ATOMIC)] = ()
    """Everything that cannot be, or is exceeded."""
    evidence: Annotated[tuple[ClaimStatus, ...], Field(max_length=MAX_CLAIMS, json_schema_extra=ATOMIC)] = ()
    """Claims by name."""
    inputs: Annotated[tuple[EvidenceInputStatus, ...], Field(max_length=8, json_schema_extra=ATOMIC)] = ()
    """What the claims rest on. The inventory is nodes and what is free on them, without the model's own pods."""
    report_digest: ShortText = ""
    """Of all inputs and results: another one says that something changed."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=MAX_CONDITIONS), Keyed("type")] = ()
    """Conditions by type."""
