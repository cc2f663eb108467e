"""`CapacityPlan`: how many replicas a workload needs, what that costs, and which proof of it is asked for. The spec.

A plan reserves nothing and shrinks nothing: it reports. Requirements (`evidence`) stand apart from what is planned, so
that a workload class that vanishes stays required.
"""

from decimal import Decimal
from typing import Annotated, ClassVar

from pydantic import Field, StringConstraints

from bayplan.api.capacitywords import Control, PricedUnit
from bayplan.api.inferencemodel import Engine, GpuProduct, Model, Parallelism, Placement, TopologyLevel
from bayplan.api.meta import ATOMIC, Exact, Keyed, Schema, TimeText, WholeNumber
from bayplan.api.rules import Rule

MAX_NAME = 63
NAME_RULE = Rule(
    expression=f"self.metadata.name.size() <= {MAX_NAME}",
    message=f"metadata.name must have at most {MAX_NAME} characters",
    holds=lambda name: len(name) <= MAX_NAME,
)
"""Rule on `metadata.name`, stated at the root of the CRD; the predicate takes the name itself."""
MAX_CLASSES = 64
"""Most workload classes: gateways label their metrics by class."""
MOST_TOKENS = 100_000_000
_DAY = 86_400

ClassName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$", min_length=1, max_length=63)
]
"""Name of a workload class, as gateways and gates have it."""
Source = Annotated[str, StringConstraints(pattern=r"^.*\S.*$", min_length=1, max_length=512)]
"""Who says so, and where it can be read again."""


class ClassObjectives(Schema):
    """What requests of a class must experience; a benchmark that does not keep it proves nothing for the class."""

    max_p95_ttft_seconds: Annotated[Decimal, Exact(gt=0, le=_DAY)] | None = None
    """Longest time to first token, 95th percentile."""
    max_p95_tpot_seconds: Annotated[Decimal, Exact(gt=0, le=_DAY)] | None = None
    """Longest time per output token, 95th percentile."""


class PlannedClass(Schema):
    """Requests of one kind, at their mean size."""

    name: ClassName
    """Name of the class."""
    requests_per_second: Annotated[Decimal, Exact(ge=0, le=10**6)]
    """Mean rate."""
    burst_multiplier: Annotated[Decimal, Exact(ge=1, le=1000)] = Decimal(1)
    """Peak rate / mean rate."""
    prompt_tokens: Annotated[WholeNumber, Field(ge=0, le=MOST_TOKENS)]
    """Mean prompt tokens of a request."""
    output_tokens: Annotated[WholeNumber, Field(ge=0, le=MOST_TOKENS)]
    """Mean output tokens of a request."""
    mean_service_seconds: Annotated[Decimal, Exact(gt=0, le=_DAY)]
    """Mean time that a request is served, without its wait."""
    objectives: ClassObjectives = ClassObjectives()
    """What its requests must experience."""


class PlannedBenchmark(Schema):
    """What one replica was measured to do within its objectives, and on what. Another GPU or layout is another one."""

    source: Source
    """Who measured, and where it can be read again."""
    observed_time: TimeText
    """When it was measured."""
    model_revision: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][-A-Za-z0-9._]*$", max_length=128)]
    """The `model.revision` that was measured."""
    engine_image: Annotated[str, StringConstraints(pattern=r"^\S+$", max_length=512)]
    """The `engine.image` that was measured."""
    gpu_product: GpuProduct
    """GPU product that it was measured on."""
    tensor: Annotated[WholeNumber, Field(ge=1, le=64)] = 1
    """Tensor-parallel size that was measured."""
    pipeline: Annotated[WholeNumber, Field(ge=1, le=64)] = 1
    """Pipeline-parallel size that was measured."""
    data: Annotated[WholeNumber, Field(ge=1, le=64)] = 1
    """Engine-internal data-parallel ranks that were measured."""
    prefill_tokens_per_second: Annotated[Decimal, Exact(gt=0, le=10**9)]
    """Prompt tokens per second of one replica."""
    output_tokens_per_second: Annotated[Decimal, Exact(gt=0, le=10**9)]
    """Output tokens per second of one replica."""
    max_concurrent_requests: Annotated[WholeNumber, Field(ge=1, le=1_000_000)]
    """Requests that one replica served at the same time."""
    p95_ttft_seconds: Annotated[Decimal, Exact(gt=0, le=_DAY)] | None = None
    """Time to first token at these rates, 95th percentile."""
    p95_tpot_seconds: Annotated[Decimal, Exact(gt=0, le=_DAY)] | None = None
    """Time per output token at these rates, 95th percentile."""


class PlannedResilience(Schema):
    """What must be left over."""

    rules: ClassVar = (
        Rule(
            expression="!has(self.reservedFraction) || self.reservedFraction < 1.0",
            message="reservedFraction must be below 1, or nothing could be planned with",
            holds=lambda self: self.reserved_fraction < 1,
            field="reservedFraction",
        ),
    )

    min_replicas: Annotated[WholeNumber, Field(ge=1, le=10_000)] = 1
    """Fewest replicas, whatever the load."""
    reserved_fraction: Annotated[Decimal, Exact(ge=0, le=1)] = Decimal(0)
    """Share of every replica's measured rates that is kept free, below 1."""
    survive_loss_of: TopologyLevel | None = None
    """Topology level of which the largest domain may be lost; absent: none is."""
    maintenance_replicas: Annotated[WholeNumber, Field(ge=0, le=1000)] = 0
    """Replicas that may be away for maintenance, at the same time as a domain."""


class PlannedLimits(Schema):
    """Bounds that are reported when they are exceeded. They change no number; equal passes."""

    max_replicas: Annotated[WholeNumber, Field(ge=1, le=10_000)] | None = None
    """Most replicas."""
    max_gpus: Annotated[WholeNumber, Field(ge=0, le=1_000_000)] | None = None
    """Most GPUs; the namespace's ResourceQuotas count as well."""
    max_hourly_cost: Annotated[Decimal, Exact(ge=0, le=10**9)] | None = None
    """Budget per hour, in the price's currency."""


class PlannedPrice(Schema):
    """What an hour of one unit costs, from where, and as of when."""

    hourly_cost: Annotated[Decimal, Exact(ge=0, le=10**6)]
    """Cost of one unit for an hour."""
    unit: PricedUnit = PricedUnit.GPU
    """A GPU, or a whole replica."""
    currency: Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9]*$", max_length=16)]
    """Currency, such as EUR; or an internal unit of account."""
    source: Source
    """Whose price it is, and where it can be read again."""
    date: TimeText
    """As of when."""


class GreatestAges(Schema):
    """How old what a claim rests on may be, in seconds."""

    benchmark: Annotated[WholeNumber, Field(ge=1, le=3650 * _DAY)] = 90 * _DAY
    """Of the benchmark."""
    inventory: Annotated[WholeNumber, Field(ge=1, le=3650 * _DAY)] = 600
    """Of the nodes; the operator always sees them as they are, a saved file ages."""
    price: Annotated[WholeNumber, Field(ge=1, le=3650 * _DAY)] = 90 * _DAY
    """Of the price."""
    canary: Annotated[WholeNumber, Field(ge=1, le=3650 * _DAY)] = 90 * _DAY
    """Of the rollout that the revision has passed."""


class RequiredEvidence(Schema):
    """What must be proven, whatever else the plan says."""

    required_classes: Annotated[
        tuple[ClassName, ...], Field(min_length=1, max_length=MAX_CLASSES, json_schema_extra=ATOMIC)
    ]
    """Workload classes that must be planned for. A class that is deleted above stays required here."""
    controls: Annotated[tuple[Control, ...], Field(max_length=len(Control), json_schema_extra=ATOMIC)] = tuple(Control)
    """Control claims that must be earned; all eight without it."""
    greatest_ages: GreatestAges = GreatestAges()
    """How old what a claim rests on may be."""


def _bounds_ordered(spec: "CapacityPlanSpec") -> bool:
    return spec.limits.max_replicas is None or spec.resilience.min_replicas <= spec.limits.max_replicas


def _budget_priced(spec: "CapacityPlanSpec") -> bool:
    return spec.limits.max_hourly_cost is None or spec.price is not None


class CapacityPlanSpec(Schema):
    """What is to be carried, what one replica does, what must be left over, and what proof is asked for."""

    rules: ClassVar = (
        Rule(
            expression="has(self.model) == has(self.engine)",
            message="model and engine must be given both, or neither: then they are those of the InferenceModel whose "
            "capacityPlanRef names this plan",
            holds=lambda self: (self.model is None) == (self.engine is None),
            field="model",
        ),
        Rule(
            expression="has(self.model) || !(has(self.concurrency) || has(self.parallelism) || has(self.placement))",
            message="concurrency, parallelism and placement must be absent without model and engine",
            holds=lambda self: (
                self.model is not None
                or (self.concurrency is None and self.parallelism is None and self.placement is None)
            ),
            field="model",
        ),
        Rule(
            expression="!has(self.engine) || !has(self.engine.maxNumSeqs) || !has(self.concurrency) || "
            "self.concurrency <= self.engine.maxNumSeqs",
            message="concurrency must not exceed engine.maxNumSeqs",
            holds=lambda self: (
                self.engine is None
                or self.engine.max_num_seqs is None
                or (self.concurrency or 1) <= self.engine.max_num_seqs
            ),
            field="concurrency",
        ),
        Rule(
            expression="!has(self.limits) || !has(self.limits.maxReplicas) || !has(self.resilience) || "
            "self.resilience.minReplicas <= self.limits.maxReplicas",
            message="resilience.minReplicas must not exceed limits.maxReplicas",
            holds=_bounds_ordered,
            field="limits.maxReplicas",
        ),
        Rule(
            expression="!has(self.limits) || !has(self.limits.maxHourlyCost) || has(self.price)",
            message="price must be given where limits.maxHourlyCost is",
            holds=_budget_priced,
            field="price",
        ),
    )

    model: Model | None = None
    """What is served; absent: that of the InferenceModel whose `capacityPlanRef` names this plan."""
    engine: Engine | None = None
    """What serves it."""
    concurrency: Annotated[WholeNumber, Field(ge=1, le=1_000_000)] | None = None
    """Requests of full length that one replica must hold; absent means 1."""
    parallelism: Parallelism | None = None
    """Declared layout of one replica."""
    placement: Placement | None = None
    """Where replicas may run."""
    workload_classes: Annotated[tuple[PlannedClass, ...], Field(min_length=1, max_length=MAX_CLASSES), Keyed("name")]
    """What is to be carried."""
    benchmark: PlannedBenchmark
    """What one replica does."""
    resilience: PlannedResilience = PlannedResilience()
    """What must be left over."""
    limits: PlannedLimits = PlannedLimits()
    """What must not be exceeded."""
    price: PlannedPrice | None = None
    """What it costs."""
    evidence: RequiredEvidence
    """What must be proven."""
