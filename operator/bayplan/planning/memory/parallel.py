"""How one replica is split over GPUs, as far as memory depends on it."""

from dataclasses import dataclass

from bayplan.planning.numbers import InvalidInput, count


@dataclass(frozen=True, slots=True)
class ParallelLayout:
    """Ranks of one engine. Raises InvalidInput for sizes below 1 and for a partition that does not add up."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    """Engine-internal ranks: attention is copied per rank, experts are shared by all."""
    expert_parallel: bool = False
    """Whole experts per rank instead of a slice of each."""
    decode_context: int = 1
    """Ways in which the ranks of one tensor group divide a request's tokens (DCP)."""
    stage_layers: tuple[int, ...] = ()
    """Layers of each stage where the user states them (VLLM_PP_LAYER_PARTITION); empty for the engine's own split."""

    def __post_init__(self) -> None:
        for name in ("tensor", "pipeline", "data", "decode_context"):
            count(getattr(self, name), name)
        if self.tensor % self.decode_context:
            raise InvalidInput("decode_context", f"must divide the tensor width {self.tensor}")
        if self.stage_layers and len(self.stage_layers) != self.pipeline:
            raise InvalidInput("stage_layers", f"must name the layers of {self.pipeline} stages")
        for layers in self.stage_layers:
            count(layers, "stage_layers")

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.tensor * self.pipeline * self.data

    @property
    def expert_ranks(self) -> int:
        """Ranks of one stage that share the experts: tensor × data, with expert parallelism or without."""
        return self.tensor * self.data

    def stages(self, layers: int) -> tuple[range, ...]:
        """Layer indices of each stage.

        The engine splits evenly; spare layers go to the stages before the last, from the back, and never to the first
        while others can take them (vLLM `get_pp_indices`). Raises InvalidInput when there are more stages than layers,
        or when a stated partition does not add up to `layers`.
        """
        if self.pipeline > layers:
            raise InvalidInput("pipeline", f"{self.pipeline} stages need as many layers; the model has {layers}")
        sizes = self.stage_layers or _even_split(layers, self.pipeline)
        if sum(sizes) != layers:
            raise InvalidInput("stage_layers", f"add up to {sum(sizes)}; the model has {layers} layers")
        starts = [sum(sizes[:index]) for index in range(len(sizes))]
        return tuple(range(start, start + size) for start, size in zip(starts, sizes, strict=True))


def _even_split(layers: int, stages: int) -> tuple[int, ...]:
    base, spare = divmod(layers, stages)
    sizes = [base] * stages
    for index in range(2, spare + 2):
        sizes[-index] += 1
    return tuple(sizes)
