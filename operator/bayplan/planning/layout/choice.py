"""The first of ordered splits that fits, its runner-up, and the nearest of those that do not.

The memory of a split is always the memory decision for that very split, handed in as a function: there is no second
estimate. Which splits come into question and in which order is the caller's rule.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from bayplan.planning.layout.split import Split
from bayplan.planning.memory import Fit

FitT = TypeVar("FitT", bound=Fit)


SplitT = TypeVar("SplitT", bound=Split)


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
