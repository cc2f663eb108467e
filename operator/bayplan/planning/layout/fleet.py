"""The smallest layout of one replica on a fleet of equal nodes, and how many replicas the fleet holds.

The decision of chapter 22.8 and its companion code, which counts GPUs alone: heads, layers and the place of pipeline
stages are left to the rules for a concrete model (`decision`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from bayplan.api.provenance import Provenance
from bayplan.planning.layout.choice import Choice, choose
from bayplan.planning.layout.split import Split
from bayplan.planning.memory import OVERHEAD, WEIGHTS, Fit, Term
from bayplan.planning.numbers import InvalidInput, count, divisors, largest_divisor, not_negative, positive, share


@dataclass(frozen=True, slots=True)
class ReplicaNeed:
    """What one replica needs, and how many are wanted. Raises InvalidInput naming the field.

    `runtime_memory_gib_per_gpu` is what every GPU needs beside its part of the weights, whatever the layout.
    """

    weight_memory_gib: Fraction
    runtime_memory_gib_per_gpu: Fraction
    experts: int = 1
    target_replicas: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight_memory_gib", positive(self.weight_memory_gib, "weight_memory_gib"))
        runtime = not_negative(self.runtime_memory_gib_per_gpu, "runtime_memory_gib_per_gpu")
        object.__setattr__(self, "runtime_memory_gib_per_gpu", runtime)
        for name in ("experts", "target_replicas"):
            object.__setattr__(self, name, count(getattr(self, name), name))


@dataclass(frozen=True, slots=True)
class UniformFleet:
    """Equal nodes of equal GPUs. Raises InvalidInput naming the field."""

    nodes: int
    gpus_per_node: int
    gpu_memory_gib: Fraction
    usable_fraction: Fraction
    fast_intra_node_collectives: bool = True
    """Whether GPUs of a node reach each other fast enough for tensor parallelism."""

    def __post_init__(self) -> None:
        for name in ("nodes", "gpus_per_node"):
            object.__setattr__(self, name, count(getattr(self, name), name))
        object.__setattr__(self, "gpu_memory_gib", positive(self.gpu_memory_gib, "gpu_memory_gib"))
        object.__setattr__(self, "usable_fraction", share(self.usable_fraction, "usable_fraction"))
        if not isinstance(self.fast_intra_node_collectives, bool):
            raise InvalidInput("fast_intra_node_collectives", "must be true or false")

    @property
    def gpus(self) -> int:
        """All GPUs."""
        return self.nodes * self.gpus_per_node

    @property
    def usable_gib(self) -> Fraction:
        """Memory of one GPU that may be planned with."""
        return self.gpu_memory_gib * self.usable_fraction


class FleetReason(StrEnum):
    """The fact about the layout that matters most."""

    NO_LAYOUT_FITS = "NoLayoutFits"
    REPLICA_SHORTFALL = "ReplicaShortfall"
    PIPELINE_SPLIT = "PipelineSplit"
    TENSOR_SPLIT = "TensorSplit"
    SINGLE_GPU = "SingleGPU"


@dataclass(frozen=True, slots=True)
class FleetLayout:
    """The layout of a replica and the replicas that the fleet holds; all widths are 0 when nothing fits."""

    reason: FleetReason
    tensor: int
    pipeline: int
    data: int
    """Replicas that fit, at most the wanted number."""
    expert: int
    usable_gib: Fraction
    choice: Choice[Split, Fit]

    @property
    def feasible(self) -> bool:
        """Whether one whole replica fits."""
        return self.tensor > 0

    @property
    def gpus_per_replica(self) -> int:
        """GPUs of one replica."""
        return self.tensor * self.pipeline


def plan_fleet_layout(need: ReplicaNeed, fleet: UniformFleet) -> FleetLayout:
    """Choose the layout of fewest GPUs that fits, on a tie the one of fewer pipeline stages.

    Tensor widths divide a node's GPUs (only 1 without fast links); pipelines are as long as the fleet allows; a layout
    fits iff weights / (tensor × pipeline) + runtime ≤ usable memory. Experts are split by the largest divisor of their
    number that is not above the replica's GPUs.
    """
    choice = choose(_by_gpus(fleet), lambda split: _fit(need, fleet, split))
    if choice.chosen is None:
        return FleetLayout(
            reason=FleetReason.NO_LAYOUT_FITS,
            tensor=0,
            pipeline=0,
            data=0,
            expert=0,
            usable_gib=fleet.usable_gib,
            choice=choice,
        )
    split = choice.chosen.split
    replicas = min(need.target_replicas, fleet.gpus // split.gpus)
    return FleetLayout(
        reason=_reason(split, replicas, need.target_replicas),
        tensor=split.tensor,
        pipeline=split.pipeline,
        data=replicas,
        expert=largest_divisor(need.experts, up_to=split.gpus),
        usable_gib=fleet.usable_gib,
        choice=choice,
    )


def _by_gpus(fleet: UniformFleet) -> Iterator[Split]:
    """Every split of the fleet: fewest GPUs first, then widest tensor, which is the shortest pipeline."""
    widths = divisors(fleet.gpus_per_node) if fleet.fast_intra_node_collectives else (1,)
    for gpus in range(1, fleet.gpus + 1):
        for tensor in reversed(widths):
            if gpus % tensor == 0:
                yield Split(tensor=tensor, pipeline=gpus // tensor)


def _fit(need: ReplicaNeed, fleet: UniformFleet, split: Split) -> Fit:
    terms = (
        Term(WEIGHTS, need.weight_memory_gib / split.gpus, Provenance.DECLARED),
        Term(OVERHEAD, need.runtime_memory_gib_per_gpu, Provenance.DECLARED),
    )
    return Fit(terms=terms, usable_gib=fleet.usable_gib)


def _reason(split: Split, replicas: int, wanted: int) -> FleetReason:
    if replicas < wanted:
        return FleetReason.REPLICA_SHORTFALL
    if split.tensor > 1:
        return FleetReason.TENSOR_SPLIT
    return FleetReason.PIPELINE_SPLIT if split.pipeline > 1 else FleetReason.SINGLE_GPU
