"""What a decision on a CapacityPlan is made on."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction

from bayplan.api.capacityplan import CapacityPlanSpec, PlannedClass
from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.api.meta import parse_rfc3339
from bayplan.planning.evidencecontract.canary import CanaryResult
from bayplan.planning.evidencecontract.canonical import digest_of
from bayplan.planning.numbers import InvalidInput
from bayplan.planning.placement.inventory import Inventory
from bayplan.planning.placement.quota import Quota
from bayplan.planning.sizing.records import Limits, Price, ReplicaCapacity, Resilience, WorkloadClass, check_classes


@dataclass(frozen=True, slots=True)
class NamedModel:
    """An InferenceModel whose `capacityPlanRef` names the plan. `own_pods` are on the nodes already."""

    name: str
    spec: InferenceModelSpec
    revision: str
    own_pods: int = 0


@dataclass(frozen=True, slots=True)
class CapacityInputs:
    """Everything that decides. Times are Unix seconds."""

    spec: CapacityPlanSpec
    models: tuple[NamedModel, ...]
    """InferenceModels that name the plan, by name; exactly one, or none with a model inside the plan."""
    inventory: Inventory
    """Nodes and what is claimed on them, without the pods of the model itself."""
    now_seconds: Fraction
    inventory_at_seconds: Fraction | None = None
    """When the nodes were seen; None: they are as they are now."""
    quotas: Sequence[Quota] = ()
    """ResourceQuotas of the namespace."""
    canary: CanaryResult | None = None
    """How the trial of the model's present revision ended; None: there was none."""
    refused: tuple[str, ...] = ()
    """InferenceModels that name the plan and whose own spec is not accepted."""
    levels: frozenset[str] | None = None
    """Topology levels that the operator's configuration knows; None: any."""


@dataclass(frozen=True, slots=True)
class PlanRecords:
    """The spec as planning's records."""

    classes: tuple[WorkloadClass, ...]
    resilience: Resilience
    limits: Limits
    price: Price | None
    benchmark_at_seconds: Fraction

    def capacity(self, spec: CapacityPlanSpec, kv_tokens: int | None) -> ReplicaCapacity:
        """What one replica does: as measured, and what its KV cache holds by the memory plan."""
        measured = spec.benchmark
        return ReplicaCapacity(
            prefill_tokens_per_second=Fraction(measured.prefill_tokens_per_second),
            output_tokens_per_second=Fraction(measured.output_tokens_per_second),
            max_concurrent_requests=measured.max_concurrent_requests,
            kv_tokens=kv_tokens,
        )


def read_records(spec: CapacityPlanSpec) -> PlanRecords:
    """Read the spec. Raises InvalidInput that names the field, where no schema could refuse it."""
    classes = tuple(_workload(one) for one in spec.workload_classes)
    check_classes(classes)
    price = spec.price
    return PlanRecords(
        classes=classes,
        resilience=Resilience(
            min_replicas=spec.resilience.min_replicas,
            reserved_fraction=Fraction(spec.resilience.reserved_fraction),
            domain_level=spec.resilience.survive_loss_of,
            maintenance_replicas=spec.resilience.maintenance_replicas,
        ),
        limits=Limits(
            max_replicas=spec.limits.max_replicas,
            max_gpus=spec.limits.max_gpus,
            max_hourly_cost=optional_fraction(spec.limits.max_hourly_cost),
        ),
        price=None
        if price is None
        else Price(
            hourly_cost=Fraction(price.hourly_cost),
            currency=price.currency,
            source=price.source,
            observed_at_seconds=unix_seconds(price.date, "spec.price.date"),
            unit=price.unit,
        ),
        benchmark_at_seconds=unix_seconds(spec.benchmark.observed_time, "spec.benchmark.observedTime"),
    )


def unix_seconds(text: str, name: str) -> Fraction:
    """An RFC 3339 time exactly. Raises InvalidInput for a day or an hour that does not exist."""
    try:
        since = parse_rfc3339(text) - datetime(1970, 1, 1, tzinfo=UTC)
    except (ValueError, OverflowError):
        raise InvalidInput(name, f"must be a time such as 2026-01-31T12:00:00Z, not {text!r}") from None
    return Fraction(since.days * 86400 + since.seconds) + Fraction(since.microseconds, 10**6)


def inventory_digest(inventory: Inventory) -> str:
    """Digest of what decisions see of the nodes with GPUs, and of what is free on them; worked out once per snapshot.

    Figures of GPUs that the configuration states are in it.

    Heartbeats, CPU-only nodes and who holds what are not in it.
    """
    found: str | None = inventory.derived.get("digest")
    if found is None:
        free = inventory.free
        rows = [
            (
                node.name,
                node.gpus,
                node.gpus_expected,
                node.gpu_product,
                node.gpu_memory_mib,
                node.sharing,
                (node.ready, node.cordoned, node.lost, node.leaving, node.unplaceable),
                node.labels,
                [(taint.key, taint.value, taint.effect) for taint in node.taints],
                node.domains,
                free[node.name],
            )
            for node in sorted(inventory.nodes, key=lambda node: node.name)
            if node.gpus or node.gpus_expected
        ]
        found = inventory.derived["digest"] = digest_of((inventory.gpus, rows))
    return found


def _workload(one: PlannedClass) -> WorkloadClass:
    return WorkloadClass(
        name=one.name,
        requests_per_second=Fraction(one.requests_per_second),
        prompt_tokens=one.prompt_tokens,
        output_tokens=one.output_tokens,
        mean_service_seconds=Fraction(one.mean_service_seconds),
        burst_multiplier=Fraction(one.burst_multiplier),
        max_p95_ttft_seconds=optional_fraction(one.objectives.max_p95_ttft_seconds),
        max_p95_tpot_seconds=optional_fraction(one.objectives.max_p95_tpot_seconds),
    )


def optional_fraction(number: Decimal | None) -> Fraction | None:
    """The number exactly; None stays None."""
    return None if number is None else Fraction(number)
