"""What the operator would say of a model that nobody has applied yet: fit, and a place for every replica.

The same decisions in the same order as when replicas are reserved, on a copy of the inventory; nothing is reserved.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bayplan.api.conditions import Reason, Status
from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.planning.modelplan import ModelFit, fit_model, group_shapes
from bayplan.planning.placement.fleet import FleetPlacement, place_replicas
from bayplan.planning.placement.group import GroupRequest, GroupShape
from bayplan.planning.placement.inventory import Inventory
from bayplan.planning.placement.quota import Quota, quota_shortfall
from bayplan.planning.quantities import PodRequest
from bayplan.planning.words import plural


@dataclass(frozen=True, slots=True)
class ModelForecast:
    """The verdicts, and the inventory as it would be afterwards."""

    fit: ModelFit
    wanted: int
    placement: FleetPlacement
    placed: tuple[Status, Reason, str]
    """In the form of the condition `Placed`."""

    @property
    def gpus(self) -> int:
        """GPUs of the replicas that found a place."""
        return sum(decision.needed_gpus for decision in self.placement.placed)


def group_request(name: str, revision: str, spec: InferenceModelSpec, shapes: Sequence[GroupShape]) -> GroupRequest:
    """What replicas of a model ask of the fleet."""
    return GroupRequest(
        name=name,
        revision=revision,
        shapes=tuple(shapes),
        node_selector=spec.placement.node_selector,
        tolerations=spec.placement.tolerations,
        topology=spec.placement.topology,
        spread_level=spec.placement.spread.level,
    )


def forecast_model(
    name: str,
    revision: str,
    spec: InferenceModelSpec,
    *,
    replicas: int,
    inventory: Inventory,
    quotas: Sequence[Quota] = (),
    standing: Sequence[Sequence[str]] = (),
) -> ModelForecast:
    """Decide fit, and place what `standing` groups leave of `replicas`, one after the other.

    It ends where one finds no place or a quota has no room. `standing` are the nodes of each group that stays.
    """
    fit = fit_model(spec, inventory)
    shapes = group_shapes(spec, fit)
    missing = max(0, replicas - len(standing))
    if replicas == 0:
        verdict: tuple[Status, Reason, str] = ("True", Reason.NOTHING_TO_PLACE, "no replicas are asked for")
        return ModelForecast(fit, 0, FleetPlacement(inventory), verdict)
    if missing and not shapes:
        text = f"{missing} of {plural(replicas, 'replica')} pending: {fit.message}"
        return ModelForecast(fit, replicas, FleetPlacement(inventory), ("False", fit.reason, text))
    placement = FleetPlacement(inventory)
    short = ""
    if missing:
        request = group_request(name, revision, spec, shapes)
        placement = place_replicas(request, inventory, missing, standing=standing)
        allowed, short = _within_quota(placement, quotas)
        if short:
            placement = place_replicas(request, inventory, allowed, standing=standing)
    pending = missing - placement.replicas
    text = f"{pending} of {plural(replicas, 'replica')} pending"
    if short:
        verdict = ("False", Reason.QUOTA_EXCEEDED, f"{text}: {short}")
    elif placement.refusal is not None:
        verdict = ("False", placement.refusal.reason, f"{text}: {placement.refusal.message}")
    else:
        verdict = ("True", Reason.PLACED, f"{plural(replicas, 'replica')} would have their whole GPU group")
    return ModelForecast(fit, replicas, placement, verdict)


def _within_quota(placement: FleetPlacement, quotas: Sequence[Quota]) -> tuple[int, str]:
    """Replicas that the quotas have room for, and which one is short for the next."""
    pods = 0
    for index, decision in enumerate(placement.placed):
        shape = decision.shape
        if shape is None:
            continue
        pods += shape.pods
        node = placement.inventory.by_name[decision.nodes[0]]
        per_pod = PodRequest(gpus=shape.gpus_per_pod, cpu_millis=shape.cpu_millis, memory_bytes=shape.memory_bytes)
        short = quota_shortfall(quotas, pods=pods, per_pod=per_pod, gpu_resource=node.gpu_resource)
        if short:
            return index, short
    return placement.replicas, ""
