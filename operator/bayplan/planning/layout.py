"""Parallel layouts: how many GPUs one replica takes, and how they are split over tensor and pipeline ranks."""

from dataclasses import dataclass

from bayplan.planning.numbers import InvalidInput, count


@dataclass(frozen=True, slots=True)
class Layout:
    """The shape of one replica: tensor × pipeline GPUs as `nodes` pods of `gpus_per_node` GPUs each.

    Raises InvalidInput when the two products differ or a member is below 1.
    """

    tensor: int
    pipeline: int
    gpus_per_node: int
    nodes: int

    def __post_init__(self) -> None:
        for name in ("tensor", "pipeline", "gpus_per_node", "nodes"):
            count(getattr(self, name), name)
        if self.gpus != self.gpus_per_node * self.nodes:
            raise InvalidInput("gpus_per_node", f"{self.nodes} pods must hold {self.gpus} GPUs together")

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.tensor * self.pipeline

    def __str__(self) -> str:
        return f"tensor={self.tensor} pipeline={self.pipeline}"
