"""From a spec and an inventory to what placement needs: the verdict on memory and the shapes that a group may take."""

from dataclasses import dataclass
from fractions import Fraction

from bayplan.api.conditions import Reason, Status
from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.planning.layout.asked import LayoutDecision
from bayplan.planning.layout.decision import plan_layout
from bayplan.planning.layout.pools import gpu_pools
from bayplan.planning.layout.records import NOTHING_RECORDED, Recorded
from bayplan.planning.numbers import MIB_PER_GIB
from bayplan.planning.placement.group import GroupShape
from bayplan.planning.placement.inventory import Inventory
from bayplan.planning.quantities import requested_bytes, requested_cpu_millis


@dataclass(frozen=True, slots=True)
class ModelFit:
    """The verdict over all GPU products, in the form of the condition `MemoryFit`, and the layout for each."""

    status: Status
    reason: Reason
    message: str
    layouts: tuple[LayoutDecision, ...]
    """One per GPU product that the spec accepts and the fleet has, most preferred first."""

    @property
    def placeable(self) -> tuple[LayoutDecision, ...]:
        """The products on which a group may be placed."""
        return tuple(decision for decision in self.layouts if decision.layout is not None)


_VERDICTS: tuple[tuple[Reason, Status], ...] = (
    (Reason.FITS, "True"),
    (Reason.LAYOUT_KEPT, "Unknown"),
    (Reason.UNKNOWN_GPU_MEMORY, "Unknown"),
    (Reason.UNKNOWN_ARCHITECTURE, "Unknown"),
    (Reason.OVERRIDDEN, "False"),
    (Reason.INSUFFICIENT_MEMORY, "False"),
    (Reason.UNSUPPORTED_ON_HARDWARE, "False"),
    (Reason.NO_LAYOUT, "False"),
)
"""Verdicts on one product, the best first: the best one over all products is the model's."""
_UNPROVEN = 1000
"""Preference of products without a proven fit: behind every proven one."""


def fit_model(spec: InferenceModelSpec, inventory: Inventory, *, recorded: Recorded = NOTHING_RECORDED) -> ModelFit:
    """Decide fit and layout of `spec` on every GPU product of `inventory` that it accepts.

    `recorded` holds the revision's earlier layouts by GPU product; they are kept while possible. A model is refused
    only if every product is.
    """
    layouts = tuple(
        plan_layout(spec, pool, recorded=recorded.get(pool.gpu_product)) for pool in gpu_pools(spec, inventory)
    )
    for reason, status in _VERDICTS:
        decided = [decision for decision in layouts if decision.reason is reason]
        if decided:
            best = decided[0] if decided[0].layout is not None else max(decided, key=_headroom)
            return ModelFit(status=status, reason=reason, message=_with_others(best, layouts), layouts=layouts)
    return ModelFit(status="Unknown", reason=Reason.NO_MATCHING_GPU, message=_no_gpu(spec, inventory), layouts=())


def group_shapes(spec: InferenceModelSpec, fit: ModelFit) -> tuple[GroupShape, ...]:
    """The shapes that a group of `spec` may take, one per placeable product.

    A product with a proven fit goes before one without, then the user's order counts when there is one. Between equals
    spread, residency and tightness decide.
    """
    resources = spec.template.resources
    asked = {**(resources.limits or {}), **(resources.requests or {})} if resources is not None else {}
    cpu = requested_cpu_millis(asked.get("cpu", "0"), "template.resources.requests.cpu")
    memory = requested_bytes(asked.get("memory", "0"), "template.resources.requests.memory")
    return tuple(
        GroupShape(
            layout=decision.layout,
            gpu_product=decision.pool.gpu_product,
            least_gpu_memory_mib=_memory_need(decision),
            cpu_millis=cpu,
            memory_bytes=memory,
            preference=(0 if decision.reason is Reason.FITS else _UNPROVEN)
            + (index if spec.placement.gpu_products else 0),
        )
        for index, decision in enumerate(fit.placeable)
        if decision.layout is not None
    )


def _memory_need(decision: LayoutDecision) -> Fraction | None:
    """Least MiB of a GPU for the proven fit; None when nothing is proven or the proof was overridden."""
    memory = decision.memory
    if decision.reason is not Reason.FITS or memory is None:
        return None
    return memory.least_gpu_gib * MIB_PER_GIB


def _headroom(decision: LayoutDecision) -> Fraction:
    headroom = decision.memory.headroom_gib if decision.memory is not None else None
    return Fraction(-(10**9)) if headroom is None else headroom


def _with_others(best: LayoutDecision, layouts: tuple[LayoutDecision, ...]) -> str:
    others = [f"{d.pool}: {d.reason.value}" for d in layouts if d is not best]
    return best.message + (f" (other products: {', '.join(others)})" if others else "")


def _no_gpu(spec: InferenceModelSpec, inventory: Inventory) -> str:
    wanted = ", ".join(spec.placement.gpu_products) or "any GPU"
    there = sorted({node.gpu_product or "GPUs without a product label" for node in inventory.nodes if node.gpus})
    selector = " inside spec.placement.nodeSelector" if spec.placement.node_selector else ""
    return (
        f"no node{selector} has {wanted}; the cluster has {', '.join(there) if there else 'no GPUs'}; add nodes or "
        "widen spec.placement"
    )
