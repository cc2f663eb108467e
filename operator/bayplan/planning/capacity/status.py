"""A decision as `CapacityPlan.status`. Equal decisions give equal bytes; the time of the decision is nowhere in it."""

from datetime import datetime
from decimal import Decimal
from fractions import Fraction

from bayplan.api.capacityplan_status import (
    MAX_CLAIMS,
    MAX_CONFLICTS,
    CapacityPlanStatus,
    ClaimStatus,
    ConflictStatus,
    CostStatus,
    DemandStatus,
    DimensionStatus,
    EvidenceInputStatus,
    NeedStatus,
    PlannedLayoutStatus,
)
from bayplan.api.conditions import merge_conditions
from bayplan.planning.capacity.decide import CapacityDecision, Sizing
from bayplan.planning.capacity.guidance import rate
from bayplan.planning.capacity.verdicts import verdicts_of
from bayplan.planning.evidencecontract.canonical import digest_of

MOST_SHOWN = 10**15


def capacity_status(
    decision: CapacityDecision, previous: CapacityPlanStatus, *, generation: int, now: datetime
) -> CapacityPlanStatus:
    """Return the status; `now` only dates conditions that have changed."""
    report = decision.evidence
    status = CapacityPlanStatus(
        observed_generation=generation,
        model="" if decision.model is None else decision.model.name,
        revision="" if decision.model is None else decision.model.revision,
        conflicts=tuple(
            ConflictStatus(reason=conflict.reason.value, message=conflict.message)
            for conflict in decision.conflicts[:MAX_CONFLICTS]
        ),
        evidence=tuple(
            ClaimStatus(name=claim.name, required=claim.required, state=claim.state, message=claim.message)
            for claim in (() if report is None else report.claims[:MAX_CLAIMS])
        ),
        inputs=tuple(EvidenceInputStatus(name=one.name.value, digest=one.digest) for one in decision.evidence_inputs),
    )
    if decision.sizing is not None:
        status = status.model_copy(update=_numbers(decision, decision.sizing))
    verdicts = verdicts_of(decision)
    return status.model_copy(
        update={
            "report_digest": report_digest(decision, status),
            "conditions": merge_conditions(previous.conditions, verdicts, generation=generation, now=now),
        }
    )


def report_digest(decision: CapacityDecision, status: CapacityPlanStatus) -> str:
    """Digest of every input and every result: equal inputs give equal digests, any changed one another digest."""
    inputs, model = decision.inputs, decision.model
    return digest_of(
        {
            "spec": inputs.spec.model_dump(by_alias=True, exclude_defaults=True),
            "model": None if model is None else model.spec.model_dump(by_alias=True, exclude_defaults=True),
            "revision": None if model is None else model.revision,
            "quotas": None
            if decision.sizing is None
            else [(quota.name, quota.hard, quota.used, quota.scoped) for quota in inputs.quotas],
            "canary": inputs.canary,
            "evidence": None if decision.evidence is None else decision.evidence.claims,
            "results": status.model_dump(by_alias=True, exclude={"conditions", "report_digest", "observed_generation"}),
            "verdicts": verdicts_of(decision),
        }
    )


def _numbers(decision: CapacityDecision, sizing: Sizing) -> dict[str, object]:
    demand, load, fleet = sizing.demand, sizing.load, sizing.fleet
    holds, usable = decision.measured_inputs_hold, 1 - decision.inputs.spec.resilience.reserved_fraction
    layout = sizing.layout.layout if sizing.layout is not None else None
    return {
        "demand": DemandStatus(
            prompt_tokens_per_second=_shown(demand.prompt_tokens_per_second),
            output_tokens_per_second=_shown(demand.output_tokens_per_second),
            concurrent_requests=_shown(demand.concurrent_requests),
            kv_tokens=_shown(demand.kv_tokens),
        ),
        "dimensions": tuple(
            DimensionStatus(
                name=name,
                unrounded=_shown(unrounded),
                replicas=load.rounded[name],
                binding=name in load.binding,
                bottleneck=name in load.bottlenecks,
            )
            for name, unrounded in load.unrounded.items()
        ),
        "needs": tuple(NeedStatus(name=need, replicas=replicas) for need, replicas in fleet.needs.items()),
        "replicas": fleet.replicas,
        "at_least": fleet.at_least,
        "gpus": fleet.replicas * sizing.gpus_per_replica if layout is not None else None,
        "placeable_replicas": min(fleet.placement.replicas, fleet.replicas),
        "layout": None
        if layout is None or sizing.layout is None
        else PlannedLayoutStatus(
            gpu_product=sizing.layout.pool.gpu_product,
            tensor=layout.tensor,
            pipeline=layout.pipeline,
            gpus_per_replica=layout.gpus,
        ),
        "cost": _cost(decision, sizing),
        "floor": fleet.replicas if holds else None,
        "service_tokens_per_second": rate(load.service_tokens_per_second) if holds else None,
        "target_utilization": usable if holds else None,
    }


def _cost(decision: CapacityDecision, sizing: Sizing) -> CostStatus | None:
    price = decision.inputs.spec.price
    if sizing.cost is None or price is None:
        return None
    return CostStatus(
        per_hour=_shown(sizing.cost.per_hour),
        per_million_output_tokens=_shown(sizing.cost.per_million_output_tokens),
        per_million_tokens=_shown(sizing.cost.per_million_tokens),
        currency=price.currency,
        source=price.source,
        date=price.date,
    )


def _shown(number: Fraction) -> Decimal:
    """To six decimals, for people; nothing is decided by it."""
    return min(Decimal(MOST_SHOWN), Decimal(round(number * 10**6)).scaleb(-6))
