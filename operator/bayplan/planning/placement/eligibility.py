"""Which nodes could take one pod of a group: every constraint under its own name.

The same rules hold when a group is planned and when its reservation is rechecked before release.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from bayplan.api.podtemplate import Toleration
from bayplan.planning.numbers import MIB_PER_GIB
from bayplan.planning.placement.gpus import bare_product
from bayplan.planning.placement.group import GroupRequest, GroupShape
from bayplan.planning.placement.inventory import Effect, Free, Node, Sharing, Taint

_REPELLING = (Effect.NO_SCHEDULE, Effect.NO_EXECUTE)


class Obstacle(StrEnum):
    """Why a node cannot take a pod of the group. The value completes "N nodes are …"."""

    NO_GPU = "without GPUs"
    PRODUCT = "of another GPU product"
    SELECTOR = "outside placement.nodeSelector"
    LOST = "lost"
    NOT_READY = "not ready"
    CORDONED = "cordoned"
    LEAVING = "leaving"
    UNPLACEABLE = "not placeable now"
    SHARING = "of shared or partitioned GPUs, which cannot work as one replica"
    TOO_FEW_GPUS = "with too few GPUs for one pod"
    TOO_LITTLE_CPU = "with too little CPU for one pod"
    TOO_LITTLE_MEMORY = "with too little memory for one pod"
    GPU_MEMORY = "of GPUs with too little memory"
    TAINTED = "tainted without a toleration"
    EXCLUDED = "set aside after a failure or for another replica"
    GPUS_BUSY = "short of free GPUs"
    CPU_BUSY = "short of free CPU"
    MEMORY_BUSY = "short of free memory"
    PODS_FULL = "full of pods"

    @property
    def is_size(self) -> bool:
        """Whether the node would not do even if it were empty."""
        return self in (
            Obstacle.TOO_FEW_GPUS,
            Obstacle.TOO_LITTLE_CPU,
            Obstacle.TOO_LITTLE_MEMORY,
            Obstacle.GPU_MEMORY,
        )

    @property
    def is_room(self) -> bool:
        """Whether the node would do if less were taken on it."""
        return self in (Obstacle.GPUS_BUSY, Obstacle.CPU_BUSY, Obstacle.MEMORY_BUSY, Obstacle.PODS_FULL)


def tolerates(tolerations: Sequence[Toleration], taint: Taint) -> bool:
    """Whether any toleration matches the taint, by Kubernetes' rules; one without a key matches every key."""
    return any(
        (t.effect is None or t.effect == taint.effect)
        and t.key in (None, taint.key)
        and (t.operator == "Exists" or t.value == taint.value)
        for t in tolerations
    )


def node_obstacle(node: Node, request: GroupRequest, shape: GroupShape) -> Obstacle | None:
    """The first thing, apart from room, that keeps one pod of `shape` off `node`; None when nothing does."""
    if node.gpus == 0 and node.gpus_expected == 0:
        return Obstacle.NO_GPU
    if shape.gpu_product not in (None, node.gpu_product) and not _same_product(node, shape):
        return Obstacle.PRODUCT
    if request.node_selector and any(node.labels.get(k) != v for k, v in request.node_selector.items()):
        return Obstacle.SELECTOR
    return _state_obstacle(node) or _hardware_obstacle(node, shape) or _access_obstacle(node, request)


def room_obstacle(free: Free, shape: GroupShape) -> Obstacle | None:
    """The first resource of which too little is free for one pod; equal to the need passes."""
    if free.gpus < shape.gpus_per_pod:
        return Obstacle.GPUS_BUSY
    if free.cpu_millis < shape.cpu_millis:
        return Obstacle.CPU_BUSY
    if free.memory_bytes < shape.memory_bytes:
        return Obstacle.MEMORY_BUSY
    return Obstacle.PODS_FULL if free.pods < 1 else None


def admission_problem(node: Node, request: GroupRequest, shape: GroupShape) -> str:
    """Why the node no longer admits a pod of the group, room aside, in words that name the detail; "" if it does."""
    obstacle = node_obstacle(node, request, shape)
    if obstacle is None:
        return ""
    detail = {
        Obstacle.PRODUCT: node.gpu_product or "no product label",
        Obstacle.LEAVING: node.leaving,
        Obstacle.UNPLACEABLE: node.unplaceable,
        Obstacle.TAINTED: ", ".join(str(taint) for taint in repelling_taints(node, request.tolerations)),
        Obstacle.EXCLUDED: request.excluded_nodes.get(node.name, ""),
    }.get(obstacle, "")
    return f"{obstacle.value} ({detail})" if detail else obstacle.value


def repelling_taints(node: Node, tolerations: Sequence[Toleration]) -> tuple[Taint, ...]:
    """Taints of the node that keep pods away and are not tolerated."""
    return tuple(taint for taint in node.taints if taint.effect in _REPELLING and not tolerates(tolerations, taint))


def _same_product(node: Node, shape: GroupShape) -> bool:
    return shape.gpu_product is None or bare_product(node.gpu_product) == bare_product(shape.gpu_product)


def _state_obstacle(node: Node) -> Obstacle | None:
    if node.lost:
        return Obstacle.LOST
    if not node.ready:
        return Obstacle.NOT_READY
    if node.cordoned:
        return Obstacle.CORDONED
    if node.leaving:
        return Obstacle.LEAVING
    return Obstacle.UNPLACEABLE if node.unplaceable else None


def _hardware_obstacle(node: Node, shape: GroupShape) -> Obstacle | None:
    if node.sharing is not Sharing.NONE and shape.layout.gpus > 1:
        return Obstacle.SHARING
    if node.gpus < shape.gpus_per_pod:
        return Obstacle.TOO_FEW_GPUS
    if node.cpu_millis < shape.cpu_millis:
        return Obstacle.TOO_LITTLE_CPU
    if node.memory_bytes < shape.memory_bytes:
        return Obstacle.TOO_LITTLE_MEMORY
    need, memory = shape.least_gpu_memory_mib, node.gpu_memory_mib
    return Obstacle.GPU_MEMORY if need is not None and memory is not None and memory < need else None


@dataclass(frozen=True, slots=True)
class Size:
    """What one pod asks of a resource that a node has too little of even when it is empty, and what the node has."""

    asked: Fraction
    """In `unit`."""
    there: Fraction
    unit: str


def size_of(obstacle: Obstacle, node: Node, shape: GroupShape) -> Size:
    """The amounts behind an obstacle of size. Raises KeyError for another obstacle."""
    asked, there, scale, unit = {
        Obstacle.TOO_FEW_GPUS: (shape.gpus_per_pod, node.gpus, 1, "GPUs"),
        Obstacle.TOO_LITTLE_CPU: (shape.cpu_millis, node.cpu_millis, 1000, "CPU"),
        Obstacle.TOO_LITTLE_MEMORY: (shape.memory_bytes, node.memory_bytes, 2**30, "GiB of memory"),
        Obstacle.GPU_MEMORY: (
            shape.least_gpu_memory_mib or 0,
            node.gpu_memory_mib or 0,
            MIB_PER_GIB,
            "GiB of memory per GPU",
        ),
    }[obstacle]
    return Size(asked=Fraction(asked) / scale, there=Fraction(there) / scale, unit=unit)


def _access_obstacle(node: Node, request: GroupRequest) -> Obstacle | None:
    if node.taints and repelling_taints(node, request.tolerations):
        return Obstacle.TAINTED
    return Obstacle.EXCLUDED if node.name in request.excluded_nodes else None
