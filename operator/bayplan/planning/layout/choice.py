"""Parallel layouts: how many GPUs one replica takes, and how they are split over tensor and pipeline ranks.

The memory of a layout is always the memory decision for that very layout, handed in as a function: there is no second
estimate. Which layouts come into question and in which order is the caller's rule; how the best one is chosen is here.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from bayplan.planning.memory import Fit
from bayplan.planning.numbers import InvalidInput, count, largest_divisor

FitT = TypeVar("FitT", bound=Fit)


@dataclass(frozen=True, slots=True)
class Split:
    """A replica over tensor × pipeline GPUs, wherever they are. Raises InvalidInput for a width below 1."""

    tensor: int
    pipeline: int

    def __post_init__(self) -> None:
        count(self.tensor, "tensor")
        count(self.pipeline, "pipeline")

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.tensor * self.pipeline

    def __str__(self) -> str:
        return f"tensor={self.tensor} pipeline={self.pipeline}"


SplitT = TypeVar("SplitT", bound=Split)


@dataclass(frozen=True, slots=True)
class Layout(Split):
    """A split with its pods: `nodes` pods of `gpus_per_node` GPUs each, one per node.

    Raises InvalidInput unless the pods hold exactly the split's GPUs.
    """

    gpus_per_node: int
    nodes: int

    def __post_init__(self) -> None:
        for name in ("tensor", "pipeline", "gpus_per_node", "nodes"):
            count(getattr(self, name), name)
        if self.gpus != self.gpus_per_node * self.nodes:
            raise InvalidInput("gpus_per_node", f"{self.nodes} pods must hold {self.gpus} GPUs together")

    def __str__(self) -> str:
        return f"tensor={self.tensor} pipeline={self.pipeline}"


def arranged(tensor: int, pipeline: int, *, gpus_of_node: int) -> Layout | None:
    """Put a split on nodes of `gpus_of_node` GPUs; None when one tensor group is wider than a node.

    A tensor group never crosses nodes. Each node takes as many whole stages as fit, the same number on every node,
    because engines start with equal ranks per node.
    """
    if tensor > gpus_of_node:
        return None
    stages = largest_divisor(pipeline, up_to=gpus_of_node // tensor)
    return Layout(tensor=tensor, pipeline=pipeline, gpus_per_node=stages * tensor, nodes=pipeline // stages)


@dataclass(frozen=True, slots=True)
class Weighed(Generic[SplitT, FitT]):
    """A layout and the fit of exactly that layout."""

    split: SplitT
    fit: FitT


@dataclass(frozen=True, slots=True)
class Choice(Generic[SplitT, FitT]):
    """The first candidate that fits, the next one that would have, and the nearest of those that do not."""

    chosen: Weighed[SplitT, FitT] | None
    runner_up: Weighed[SplitT, FitT] | None
    closest: Weighed[SplitT, FitT] | None
    """Among the candidates before the chosen one (all of them when none fits): the one with the least shortfall."""


def choose(candidates: Iterable[SplitT], fit_of: Callable[[SplitT], FitT]) -> Choice[SplitT, FitT]:
    """Weigh `candidates` in their order of preference, and stop once the runner-up is known.

    A fit that is unknown counts as not fitting: it proves nothing.
    """
    chosen: Weighed[SplitT, FitT] | None = None
    closest: Weighed[SplitT, FitT] | None = None
    for split in candidates:
        weighed = Weighed(split, fit_of(split))
        if weighed.fit.fits:
            if chosen is not None:
                return Choice(chosen=chosen, runner_up=weighed, closest=closest)
            chosen = weighed
        elif chosen is None and (closest is None or _nearer(weighed.fit, closest.fit)):
            closest = weighed
    return Choice(chosen=chosen, runner_up=None, closest=closest)


def _nearer(fit: Fit, other: Fit) -> bool:
    return fit.headroom_gib is not None and other.headroom_gib is not None and fit.headroom_gib > other.headroom_gib
