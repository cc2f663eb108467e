"""What an InferenceModel takes from the CapacityPlan that it names: floor and rates, and whether the proof is current.

The last numbers that a plan stood by stay in the model's status: they stand while the plan's evidence is stale, when
the plan is deleted, and over a restart. Only an edit of the reference removes them.
"""

from dataclasses import dataclass, replace
from fractions import Fraction

from bayplan.api.capacityplan_status import CapacityPlanStatus
from bayplan.api.capacitywords import ClaimState
from bayplan.api.conditions import ConditionType, Reason
from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.api.inferencemodel_status import MAX_UNPROVEN, CapacityGuidanceStatus, PlanEvidenceStatus
from bayplan.planning.capacity.guidance import Guidance, guided
from bayplan.reconcile.scaling.autoscaler import NO_PLAN, PlanWord, ScalingPlan
from bayplan.reconcile.scaling.describe import Verdict

_KIND = ConditionType.EVIDENCE_CURRENT


@dataclass(frozen=True, slots=True)
class PlanGuidance:
    """`spec` is the model's, with the plan's numbers in its autoscaling; the rest is absent without a reference."""

    spec: InferenceModelSpec
    word: PlanWord = NO_PLAN
    conflict: str = ""
    """Why the floor is not kept in full."""

    def applied(self, scaling: ScalingPlan) -> ScalingPlan:
        """The plan for replicas with what the CapacityPlan says.

        `ScalingActive` tells a conflict: replicas cannot follow the plan, whatever demand does.
        """
        verdict = scaling.verdict
        if self.conflict and scaling.status is not None:
            verdict = (ConditionType.SCALING_ACTIVE, "False", Reason.PLAN_EXCEEDS_MODEL, self.conflict)
        return replace(scaling, verdict=verdict, capacity=self.word)


def guide(
    spec: InferenceModelSpec,
    previous: CapacityGuidanceStatus | None,
    plan: CapacityPlanStatus | None,
    *,
    plan_generation: int = 0,
) -> PlanGuidance:
    """Return the guidance of the plan that `spec` names; `plan` is its status, None where there is no such plan."""
    if spec.capacity_plan_ref is None:
        return PlanGuidance(spec)
    name = spec.capacity_plan_ref.name
    decided = plan is not None and plan.observed_generation == plan_generation
    standing = previous if previous is not None and previous.plan == name else None
    if decided and plan is not None and plan.floor is not None:
        standing = CapacityGuidanceStatus(
            plan=name,
            floor=plan.floor,
            service_tokens_per_second=plan.service_tokens_per_second,
            target_utilization=plan.target_utilization,
        )
    current = plan if decided else None
    word = PlanWord(standing, _evidence(current), _verdict(name, current, standing))
    autoscaling = spec.autoscaling
    if standing is None or autoscaling is None:
        return PlanGuidance(spec, word)
    guidance = Guidance(
        floor=standing.floor,
        service_tokens_per_second=Fraction(standing.service_tokens_per_second or autoscaling.service_tokens_per_second),
        target_utilization=standing.target_utilization or autoscaling.target_utilization,
    )
    conflict = ""
    if standing.floor > autoscaling.max_replicas:
        conflict = (
            f"CapacityPlan {name} needs {standing.floor} replicas, autoscaling.maxReplicas stops them at "
            f"{autoscaling.max_replicas}"
        )
    return PlanGuidance(spec.model_copy(update={"autoscaling": guided(autoscaling, guidance)}), word, conflict)


def _evidence(plan: CapacityPlanStatus | None) -> PlanEvidenceStatus | None:
    """Without a revision the plan has judged nothing."""
    if plan is None or not plan.revision or not plan.evidence:
        return None
    unproven = (claim.name for claim in plan.evidence if claim.required and claim.state is not ClaimState.EARNED)
    return PlanEvidenceStatus(revision=plan.revision, unproven=tuple(unproven)[:MAX_UNPROVEN])


def _verdict(name: str, plan: CapacityPlanStatus | None, standing: CapacityGuidanceStatus | None) -> Verdict:
    stands = f"; the floor of {standing.floor} stands" if standing is not None else ""
    condition = next((c for c in plan.conditions if c.type == _KIND), None) if plan is not None else None
    if condition is None:
        text = f"CapacityPlan {name} does not exist, or is not decided yet{stands}"
        return _KIND, "Unknown", Reason.PLAN_MISSING, text
    try:
        reason = Reason(condition.reason)
    except ValueError:  # a newer operator wrote it
        reason = Reason.PLAN_MISSING
    good = condition.status == "True"
    return _KIND, condition.status, reason, f"CapacityPlan {name}: {condition.message}{'' if good else stands}"
