"""How one replica is divided over GPUs, and how its ranks are put on nodes."""

from dataclasses import dataclass, field

from bayplan.planning.memory.parallel import ParallelLayout
from bayplan.planning.numbers import InvalidInput, count, largest_divisor


@dataclass(frozen=True, slots=True)
class Split:
    """Ranks of one replica, wherever they are. Raises InvalidInput for a size below 1.

    `data` counts engine-internal ranks: each has its own attention and cache, and all share the experts.
    """

    tensor: int
    pipeline: int = 1
    data: int = 1
    expert: bool = False
    """Whole experts per rank instead of a slice of each."""
    decode_context: int = 1
    """Ways in which a tensor group divides the tokens of a request."""

    def __post_init__(self) -> None:
        for name in ("tensor", "pipeline", "data", "decode_context"):
            count(getattr(self, name), name)

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.tensor * self.pipeline * self.data

    @property
    def ranks(self) -> ParallelLayout:
        """The split as the memory plan takes it."""
        return ParallelLayout(
            tensor=self.tensor,
            pipeline=self.pipeline,
            data=self.data,
            expert_parallel=self.expert,
            decode_context=self.decode_context,
        )

    @property
    def sizes(self) -> tuple[int, int, int, bool, int]:
        """Everything that tells two splits apart, whatever nodes they are on."""
        return self.tensor, self.pipeline, self.data, self.expert, self.decode_context

    def __str__(self) -> str:
        parts = [f"tensor={self.tensor} pipeline={self.pipeline}"]
        if self.data > 1:
            parts.append(f"data={self.data}")
        if self.expert:
            parts.append("expert=true")
        if self.decode_context > 1:
            parts.append(f"decodeContext={self.decode_context}")
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class Layout(Split):
    """A split with its pods: `nodes` pods of `gpus_per_node` GPUs each, one per node.

    Raises InvalidInput unless the pods hold exactly the split's GPUs.
    """

    gpus_per_node: int = field(kw_only=True)
    nodes: int = field(kw_only=True)

    def __post_init__(self) -> None:
        for name in ("tensor", "pipeline", "data", "decode_context", "gpus_per_node", "nodes"):
            count(getattr(self, name), name)
        if self.gpus != self.gpus_per_node * self.nodes:
            raise InvalidInput("gpus_per_node", f"{self.nodes} pods must hold {self.gpus} GPUs together")


def arranged(split: Split, *, gpus_of_node: int) -> Layout | None:
    """Put a split on nodes of `gpus_of_node` GPUs; None when that is not possible.

    A tensor group never crosses nodes. Each node takes as many whole stages (or, with data parallelism, whole data
    ranks) as fit, the same number on every node, because engines start with equal ranks per node.
    """
    unit = split.tensor if split.data == 1 else split.tensor * split.pipeline
    units = split.gpus // unit
    if unit > gpus_of_node:
        return None
    together = largest_divisor(units, up_to=gpus_of_node // unit)
    return Layout(*split.sizes, gpus_per_node=together * unit, nodes=units // together)
