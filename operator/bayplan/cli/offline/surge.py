"""`SurgeFits` of a Rollout whose model would change: whether the candidate's replicas of all stages have room."""

from collections.abc import Callable, Sequence

from bayplan.api.conditions import ConditionType, Reason, Status
from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.api.rollout import RolloutSpec
from bayplan.api.rolloutwords import CapacityMode
from bayplan.planning.forecast import forecast_model, group_request
from bayplan.planning.modelplan import group_shapes
from bayplan.planning.placement.apart import ApartPlacer
from bayplan.planning.placement.inventory import Inventory
from bayplan.planning.placement.quota import Quota
from bayplan.planning.rollout.surge import SurgeAnswer, SurgeOutcome, decide_surge
from bayplan.reconcile.rollout.stored import policy_of

Verdict = tuple[ConditionType, Status, Reason, str]
_REASONS = {
    SurgeOutcome.FITS: Reason.FITS,
    SurgeOutcome.DRAINS_FIRST: Reason.DRAINS_FIRST,
    SurgeOutcome.DOES_NOT_FIT: Reason.SURGE_DOES_NOT_FIT,
}


def surge_verdict(
    rollout: RolloutSpec,
    candidate: InferenceModelSpec,
    *,
    revision: str,
    groups: Sequence[str],
    desired: int,
    inventory: Inventory,
    quotas: Sequence[Quota],
    nodes_of: Callable[[str], Sequence[str]],
) -> Verdict:
    """Decide as the operator does before anything of a candidate exists. `groups` go in their order to make room."""
    policy = policy_of(rollout, prompt_set=None)
    placeable: list[int] = []
    nodes: list[tuple[str, ...]] = []
    missing = ""
    apart: ApartPlacer | None = None
    most_drained = len(groups) if policy.capacity is not CapacityMode.SURGE else 0
    for drained in range(most_drained + 1):
        gone, staying = groups[:drained], groups[drained:]
        standing = [nodes_of(group) for group in staying]
        freed = inventory.without_owners(gone)
        forecast = forecast_model(
            "candidate",
            revision,
            candidate,
            replicas=len(staying) + policy.max_surge,
            inventory=freed,
            quotas=quotas,
            standing=standing,
        )
        shapes = group_shapes(candidate, forecast.fit)
        if apart is None and shapes:
            apart = ApartPlacer(group_request("candidate", revision, candidate, shapes), policy.least_candidates)
        if apart is not None:
            apart.add(freed, standing)
        nodes.append(apart.head_nodes if apart is not None else ())
        placed = forecast.placement.replicas
        placeable.append(max(placed, placeable[-1] if placeable else 0))
        missing = missing or ("" if placed >= policy.max_surge else forecast.placed[2].partition(": ")[2])
        if placeable[-1] >= policy.max_surge:
            break
    serving = len(groups)
    floor = min(serving, desired if rollout.min_ready is None else rollout.min_ready)
    answer = SurgeAnswer(tuple(placeable), tuple(nodes), missing, apart.missing if apart is not None else "")
    decision = decide_surge(policy, answer, serving_replicas=serving, floor=floor)
    message = decision.message
    if not decision.fits:
        message += f"; choices: {'; '.join(decision.choices)}"
    status: Status = "True" if decision.fits else "False"
    return ConditionType.SURGE_FITS, status, _REASONS[decision.outcome], message
