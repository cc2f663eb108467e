"""The best split of a replica on the nodes of one GPU product, and the runner-up with the reason why it lost.

Tensor groups stay inside the fast domain and stages go across: stages of a tensor group that could be wider inside its
fast domain are a second resort.
Ranked: fewest GPUs; then room in the KV cache, where it differs by a quarter or more; then communication: a tensor
group inside the fast domain, fewest nodes, least predicted time of a decode step. What is within 5 % of the least time
is settled by measurement where one exists.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

from bayplan.planning.layout.links import (
    Collective,
    StepFacts,
    collectives,
    fast_domain,
    milliseconds,
    read_seconds,
)
from bayplan.planning.layout.rules import MAX_WIDTH, RuleFacts, keeps_rules, valid_widths
from bayplan.planning.layout.split import Layout, Split, arranged
from bayplan.planning.memory.gpucatalogue import Gpu
from bayplan.planning.memory.replica import SplitMemory
from bayplan.planning.words import plural

CAPACITY_TIE = Fraction(4, 5)
"""Layouts whose cache holds at least this part of the best one's are equal in it."""
TIME_TIE = Fraction(105, 100)
"""Layouts within this factor of the least predicted time are equal in it: the prediction is no better."""

Sizes = tuple[int, int, int, bool, int]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is declared of a layout; None is derived."""

    tensor: int | None = None
    pipeline: int | None = None
    data: int | None = None
    expert: bool | None = None
    decode_context: int | None = None

    @property
    def whole(self) -> bool:
        """Whether nothing is left to derive that a GPU count depends on."""
        return self.tensor is not None and self.pipeline is not None


@dataclass(frozen=True, slots=True)
class Site:
    """Where a replica may run: nodes of one GPU product."""

    node_sizes: tuple[int, ...]
    """GPUs per node, largest first."""
    gpu: str = "GPUs without a product label"
    """The product, for people."""
    single: str = ""
    """Why a replica takes one GPU only ("shared GPUs"); empty when it may take several."""

    @property
    def gpus_of_node(self) -> int:
        """GPUs of the largest node that a replica may use together."""
        return 1 if self.single else self.node_sizes[0]

    @property
    def gpu_noun(self) -> str:
        """One GPU of the product."""
        return "GPU" if self.gpu.startswith("GPUs ") else f"{self.gpu} GPU"

    def nodes_of(self, gpus: int) -> int:
        """Nodes that have at least `gpus`."""
        return sum(size >= gpus for size in self.node_sizes)

    def holds(self, layout: Layout) -> bool:
        """Whether there are enough nodes of the layout's size."""
        return layout.nodes <= min(MAX_WIDTH, self.nodes_of(layout.gpus_per_node))


@lru_cache(maxsize=256)  # a fleet has many models of one architecture on the same nodes
def candidates(facts: RuleFacts, site: Site, wanted: Wanted) -> tuple[Layout, ...]:
    """Every layout that the rules and the nodes allow, fewest GPUs first; without decode context parallelism, which is
    a second resort (`with_decode_context`).

    A derived tensor width divides the node's GPUs or is a power of two. Data ranks are derived only where neither
    tensor nor pipeline is stated, and where they help: for experts beside a cache that a tensor group would copy (one
    latent vector, or fewer KV heads than ranks).
    """
    most = site.gpus_of_node
    widths: Sequence[int] = [w for w in valid_widths(facts, up_to=most) if most % w == 0 or w & (w - 1) == 0]
    if wanted.tensor is not None:
        widths = [wanted.tensor]
    longest = 1 if site.single else min(facts.layers, MAX_WIDTH)
    stages = range(1, longest + 1) if wanted.pipeline is None else (wanted.pipeline,)
    found = {
        layout.sizes: layout
        for tensor in widths
        for pipeline in stages
        for data in _data_ranks(facts, site, wanted, tensor=tensor, pipeline=pipeline)
        if (split := _ways_of_experts(facts, wanted, Split(tensor, pipeline, data))) is not None
        and (layout := arranged(split, gpus_of_node=most)) is not None
        and site.holds(layout)
    }
    return tuple(sorted(found.values(), key=lambda layout: (layout.gpus, layout.nodes, layout.pipeline, layout.data)))


def _data_ranks(facts: RuleFacts, site: Site, wanted: Wanted, *, tensor: int, pipeline: int) -> Sequence[int]:
    if wanted.data is not None:
        return (wanted.data,)
    copied = facts.latent or any(tensor >= heads for heads in facts.kv_heads)
    stated = wanted.tensor is not None or wanted.pipeline is not None
    if not facts.experts or not copied or stated or pipeline > 1 or site.single:
        return (1,)
    most = min(MAX_WIDTH, sum(site.node_sizes) // tensor)
    return [ranks for ranks in (1, 2, 4, 8, 16, 32, 64) if ranks <= most]


def _ways_of_experts(facts: RuleFacts, wanted: Wanted, split: Split) -> Split | None:
    """Slices of experts where they are valid, whole experts else; with data ranks the other way round."""
    whole = Split(split.tensor, split.pipeline, split.data, expert=True, decode_context=wanted.decode_context or 1)
    sliced = Split(split.tensor, split.pipeline, split.data, decode_context=wanted.decode_context or 1)
    if wanted.expert is not None:
        order = [whole if wanted.expert else sliced]
    else:
        order = [whole, sliced] if split.data > 1 and facts.experts else [sliced, whole]
    return next((one for one in order if keeps_rules(facts, one)), None)


@lru_cache(maxsize=4096)
def with_decode_context(facts: RuleFacts, layout: Layout) -> Layout | None:
    """The layout with the most ways of decode context parallelism that the rules allow; None when there is none."""
    for context in range(layout.tensor, 1, -1):
        split = Split(layout.tensor, layout.pipeline, layout.data, layout.expert, context)
        if keeps_rules(facts, split):
            return Layout(*split.sizes, gpus_per_node=layout.gpus_per_node, nodes=layout.nodes)
    return None


@dataclass(frozen=True, slots=True)
class Weighed:
    """A layout, the memory of exactly that layout, and what its ranks exchange."""

    layout: Layout
    memory: SplitMemory | None
    exchanges: tuple[Collective, ...] = ()
    step_seconds: Fraction | None = None
    """Predicted time of one decode step; None where the GPU's bandwidth is not known."""

    @property
    def outside(self) -> bool:
        """Whether a tensor group leaves the fast domain."""
        return any(not one.fast and one.name.startswith("tensor") for one in self.exchanges)

    @property
    def kv_tokens(self) -> int:
        """Tokens that the replica's cache holds; 0 while unknown."""
        return 0 if self.memory is None else self.memory.kv_tokens or 0


@dataclass(frozen=True, slots=True)
class Ranking:
    """The best layout, the next best, and the nearest of those that do not fit."""

    chosen: Weighed | None
    runner_up: Weighed | None
    lost: str
    """Why the runner-up lost; empty without one."""
    closest: Weighed | None
    """Of those that do not fit and take no more GPUs than the chosen one: the one with the least shortfall."""
    weighed: tuple[Weighed, ...]
    """All that were looked at."""


@dataclass(frozen=True, slots=True)
class Question:
    """What the search needs beside the candidates."""

    facts: RuleFacts
    memory_of: Callable[[Layout], SplitMemory | None]
    gpu: Gpu | None = None
    """None where nobody knows its links: then a node counts as a fast domain, and no exchange is priced."""
    step: StepFacts | None = None
    stages_declared: bool = False
    """The user states the pipeline, so that its place is no longer a choice."""
    measured: Mapping[Sizes, Fraction] = field(default_factory=dict)
    """Tokens per second by sizes, where somebody measured them: they settle what the prediction cannot."""

    def second_resort(self, layouts: Sequence[Layout]) -> frozenset[Sizes]:
        """Sizes of layouts with stages whose tensor group could be wider inside the fast domain.

        A wider group serves with fewer steps in a row; stages that it would make needless only add to a token's time.
        """
        if self.stages_declared:
            return frozenset()
        domain = None if self.gpu is None else fast_domain(self.gpu)
        widest = max((one.tensor for one in layouts if domain is None or one.tensor <= domain), default=1)
        return frozenset(one.sizes for one in layouts if one.pipeline > 1 and one.tensor < widest)

    def weigh(self, layout: Layout) -> Weighed:
        """The layout with its memory and its exchanges."""
        memory = self.memory_of(layout)
        if self.gpu is None or self.step is None:
            return Weighed(layout, memory)
        exchanges = collectives(self.step, layout, self.gpu)
        read = None if memory is None else read_seconds(self.gpu, stage_bytes=memory.stage_bytes)
        said = sum((one.seconds for one in exchanges), start=Fraction(0))
        return Weighed(layout, memory, exchanges, None if read is None else read + said)


def search(question: Question, layouts: Sequence[Layout]) -> Ranking:
    """Weigh `layouts`, fewest GPUs first, until a size fits and a runner-up is known.

    Decode context parallelism is tried for a size of which nothing else fits. A fit that is unknown counts as not
    fitting: it proves nothing.
    """
    seen: list[Weighed] = []
    order: list[tuple[Weighed, str]] = []
    later = question.second_resort(layouts)
    first = [layout for layout in layouts if layout.sizes not in later]
    second = [layout for layout in layouts if layout.sizes in later]
    for same_size in (*_by_gpus(first), *_by_gpus(second)):
        found = [question.weigh(layout) for layout in same_size]
        fitting = [one for one in found if _fits(one)]
        if not fitting and not order:
            # Where nothing is left for a cache, dividing its tokens frees nothing.
            some = [one.layout for one in found if one.kv_tokens]
            wider = [other for layout in some if (other := with_decode_context(question.facts, layout))]
            more = [question.weigh(layout) for layout in wider]
            found += more
            fitting = [one for one in more if _fits(one)]
        seen += found
        for winner, why in _ranked(fitting, question.measured, count=2 - len(order)):
            lost = why
            if order and not why:
                lost = _loses_by_size(order[0][0].layout, winner.layout, narrow=winner.layout.sizes in later)
            order.append((winner, lost))
        if len(order) == 2:
            break
    chosen = order[0][0] if order else None
    runner_up, lost = order[1] if len(order) > 1 else (None, "")
    short = [
        one
        for one in seen
        if one.memory is not None
        and not _fits(one)
        and (chosen is None or one.layout.gpus <= chosen.layout.gpus)
        and one.memory.headroom_gib is not None
    ]
    closest = max(short, key=_headroom, default=None)
    return Ranking(chosen, runner_up, lost, closest, tuple(seen))


def _loses_by_size(best: Layout, other: Layout, *, narrow: bool) -> str:
    if other.gpus > best.gpus or not narrow:
        return f"takes {other.gpus} GPUs instead of {best.gpus}"
    return f"cuts {plural(other.gpus, 'GPU')} into stages where a wider tensor group stays in its fast domain"


def _fits(one: Weighed) -> bool:
    return one.memory is not None and one.memory.fits is True


def _headroom(one: Weighed) -> Fraction:
    headroom = None if one.memory is None else one.memory.headroom_gib
    return Fraction(0) if headroom is None else headroom


def _by_gpus(layouts: Sequence[Layout]) -> Iterator[list[Layout]]:
    sizes: dict[int, list[Layout]] = {}
    for layout in layouts:
        sizes.setdefault(layout.gpus, []).append(layout)
    for gpus in sorted(sizes):
        yield sizes[gpus]


def _ranked(
    found: Sequence[Weighed], measured: Mapping[Sizes, Fraction], *, count: int
) -> Iterator[tuple[Weighed, str]]:
    """The best `count` of one size, each after the first with the reason why it lost against the first."""
    rest, first = list(found), None
    for _ in range(min(count, len(rest))):
        best = _best(rest, measured)
        yield best, "" if first is None else _loses(first, best, measured)
        first = first or best
        rest.remove(best)


def _best(found: list[Weighed], measured: Mapping[Sizes, Fraction]) -> Weighed:
    most = max(one.kv_tokens for one in found)
    kept = [one for one in found if one.kv_tokens >= CAPACITY_TIE * most]
    kept = [one for one in kept if not one.outside] or kept
    nodes = min(one.layout.nodes for one in kept)
    kept = [one for one in kept if one.layout.nodes == nodes]
    times = [one.step_seconds for one in kept if one.step_seconds is not None]
    if len(times) == len(kept):
        kept = [one for one in kept if (one.step_seconds or 0) <= TIME_TIE * min(times)]
        known = [one for one in kept if one.layout.sizes in measured]
        if known:
            return max(known, key=lambda one: measured[one.layout.sizes])
        return min(kept, key=lambda one: (one.step_seconds or 0, one.layout.pipeline, one.layout.sizes))
    return min(kept, key=lambda one: (one.layout.pipeline, one.layout.data, one.layout.sizes))


def _loses(  # noqa: PLR0911 - one return per criterion
    best: Weighed, other: Weighed, measured: Mapping[Sizes, Fraction]
) -> str:
    """Why `other`, of as many GPUs, lost against `best`."""
    if other.kv_tokens < CAPACITY_TIE * best.kv_tokens:
        return f"holds {other.kv_tokens} tokens instead of {best.kv_tokens}"
    if other.outside and not best.outside:
        (link,) = {one.link.value for one in other.exchanges if one.name.startswith("tensor")}
        return f"has its tensor group over {link}, outside the fast domain"
    if other.layout.nodes > best.layout.nodes:
        return f"needs {plural(other.layout.nodes, 'node')} instead of {best.layout.nodes}"
    times = (best.step_seconds, other.step_seconds)
    if best.layout.sizes in measured and times[0] is not None and times[1] is not None:
        rival = measured.get(other.layout.sizes)
        if times[1] <= TIME_TIE * times[0] or rival is not None:
            text = "was not measured" if rival is None else f"was measured at {float(rival):g} tokens/s"
            return f"{text}, against {float(measured[best.layout.sizes]):g} tokens/s"
    if times[0] is not None and times[1] is not None:
        return f"is predicted at {milliseconds(times[1])} per step instead of {milliseconds(times[0])}"
    if other.layout.pipeline > best.layout.pipeline:
        return f"needs {plural(other.layout.pipeline, 'pipeline stage')} instead of {best.layout.pipeline}"
    return f"has {other.layout} instead of {best.layout}"
