"""The parallel layout of a concrete `InferenceModel` on each GPU product that the fleet has.

Rules of the engine (vLLM): the tensor width divides the attention heads; KV heads are divided evenly or copied evenly;
a tensor group stays inside a node. Order of preference, after chapter 22.8: one GPU, then the smallest tensor width
inside a node, and only then pipeline stages, which cost latency (fewest nodes, shortest pipeline, fewest GPUs). What
the user declares is checked, never replaced.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from bayplan.api.conditions import Reason
from bayplan.api.inferencemodel import Architecture, InferenceModelSpec, Parallelism
from bayplan.api.inferencemodel_status import ParallelismStatus, Provenance
from bayplan.planning.gpus import MIG_INVALID, bare_product
from bayplan.planning.inventory import Inventory, Node, Sharing
from bayplan.planning.layout import Choice, Layout, Split, arranged, choose
from bayplan.planning.memory import MemoryDecision
from bayplan.planning.modelmemory import memory_for_layout, need_text, smaller_requests, verdict_text
from bayplan.planning.numbers import MIB_PER_GIB
from bayplan.planning.words import plural, size_text

MAX_WIDTH = 64
"""Longest tensor width and pipeline, and most pods of a group: the API's bounds."""


@dataclass(frozen=True, slots=True)
class GpuPool:
    """All nodes of one GPU product that the model's selector admits, ready or not: a layout outlives a reboot."""

    gpu_product: str
    node_sizes: tuple[int, ...]
    """GPUs per node, largest first."""
    gpu_memory_mib: int | Fraction | None
    """The smallest memory among the pool's GPUs; None when a node does not state it."""
    memory_provenance: Provenance = Provenance.UNKNOWN
    sharing: Sharing = Sharing.NONE

    @property
    def gpus_of_node(self) -> int:
        """GPUs of the largest node."""
        return self.node_sizes[0]

    @property
    def gpu_memory_gib(self) -> Fraction | None:
        """Memory of one GPU in GiB."""
        return None if self.gpu_memory_mib is None else Fraction(self.gpu_memory_mib) / MIB_PER_GIB

    def nodes_of(self, gpus: int) -> int:
        """Nodes that have at least `gpus`."""
        return sum(size >= gpus for size in self.node_sizes)


@dataclass(frozen=True, slots=True)
class LayoutDecision:
    """The layout for one GPU product, or why there is none.

    `reason` is Fits, OverriddenByPolicy or UnknownGPUMemory with a layout, InsufficientMemory or NoLayout without.
    """

    pool: GpuPool
    reason: Reason
    message: str
    layout: Layout | None = None
    memory: MemoryDecision | None = None
    """Memory of `layout`, or of the closest one when nothing fits; None when a rule failed before memory mattered."""
    provenance: Provenance = Provenance.DERIVED
    why: str = ""
    """Why this layout and not the next best."""
    runner_up: Layout | None = None


def gpu_pools(spec: InferenceModelSpec, inventory: Inventory) -> tuple[GpuPool, ...]:
    """The GPU products that the spec accepts and the inventory has, in the user's order, else smallest memory first.

    Small before large, so that messages speak first of the GPUs that a model leaves to nobody larger.

    Shared GPUs count only where the user names their product: others may use the memory that a fit promises.
    """
    products, selector = spec.placement.gpu_products, spec.placement.node_selector
    key = ("gpu_pools", products, tuple(sorted(selector.items())))
    found: tuple[GpuPool, ...] | None = inventory.derived.get(key)
    if found is None:
        found = inventory.derived[key] = _pools(products, selector, inventory)
    return found


def _pools(products: Sequence[str], selector: Mapping[str, str], inventory: Inventory) -> tuple[GpuPool, ...]:
    wanted = [bare_product(product) for product in products]
    by_product: dict[str, list[Node]] = {}
    for node in inventory.nodes:
        bare = bare_product(node.gpu_product)
        size = node.gpus or node.gpus_expected
        selected = all(node.labels.get(key) == value for key, value in selector.items())
        accepted = bare in wanted if wanted else node.sharing is not Sharing.SHARED
        if size and selected and accepted and MIG_INVALID not in bare:
            by_product.setdefault(bare, []).append(node)
    pools = {bare: _pool(nodes) for bare, nodes in by_product.items()}
    if wanted:
        return tuple(pools[bare] for bare in sorted(pools, key=wanted.index))
    return tuple(pools[bare] for bare in sorted(pools, key=lambda bare: (*_size(pools[bare]), bare)))


def _size(pool: GpuPool) -> tuple[bool, int | Fraction]:
    return pool.gpu_memory_mib is None, pool.gpu_memory_mib or 0


def _pool(nodes: list[Node]) -> GpuPool:
    memories = [node.gpu_memory_mib for node in nodes]
    known = [memory for memory in memories if memory is not None]
    whole = len(known) == len(memories)
    estimated = any(node.gpu_memory_provenance is not Provenance.MEASURED for node in nodes)
    return GpuPool(
        gpu_product=min(node.gpu_product for node in nodes),
        node_sizes=tuple(sorted((node.gpus or node.gpus_expected for node in nodes), reverse=True)),
        gpu_memory_mib=min(known) if whole else None,
        memory_provenance=(Provenance.ESTIMATED if estimated else Provenance.MEASURED) if whole else Provenance.UNKNOWN,
        sharing=max((node.sharing for node in nodes), key=list(Sharing).index),
    )


def width_problem(architecture: Architecture, tensor: int) -> str:
    """The rule of the engine that a tensor width breaks; empty when it is valid."""
    heads, kv_heads = architecture.attention_heads, architecture.kv_heads
    if heads % tensor:
        return f"tensor={tensor} does not divide the {heads} attention heads"
    if tensor <= kv_heads and kv_heads % tensor:
        return f"tensor={tensor} does not divide the {kv_heads} KV heads"
    if tensor > kv_heads and tensor % kv_heads:
        return f"tensor={tensor} is not a multiple of the {kv_heads} KV heads, so they cannot be copied evenly"
    return ""


def valid_widths(architecture: Architecture, *, up_to: int) -> tuple[int, ...]:
    """Tensor widths that the engine accepts for the model, ascending."""
    return tuple(width for width in range(1, up_to + 1) if not width_problem(architecture, width))


def plan_layout(spec: InferenceModelSpec, pool: GpuPool, *, recorded: Split | None = None) -> LayoutDecision:
    """Decide the layout of one replica of `spec` on the GPUs of `pool`.

    `recorded` is the layout that an earlier decision derived for the same revision: it is kept while it is possible.
    """
    problem = _declared_problem(spec, pool)
    if problem:
        return LayoutDecision(pool=pool, reason=Reason.NO_LAYOUT, message=problem, provenance=Provenance.DECLARED)
    declared = spec.parallelism.tensor is not None and spec.parallelism.pipeline is not None
    provenance = Provenance.DECLARED if declared else Provenance.DERIVED
    candidates = _candidates(spec, pool)
    if not candidates:
        return LayoutDecision(
            pool=pool, reason=Reason.NO_LAYOUT, message=_too_few_nodes(spec, pool), provenance=provenance
        )
    kept = [layout for layout in candidates if recorded is not None and _same(layout, recorded)]
    order = (*kept, *(layout for layout in candidates if layout not in kept))
    if pool.gpu_memory_gib is None:
        return _unproven(spec, pool, order[0], provenance)
    choice = choose(order, lambda layout: _memory(spec, pool, layout))
    if choice.chosen is None:
        return _refused(spec, pool, order, choice, provenance)
    layout, memory = choice.chosen.split, choice.chosen.fit
    return LayoutDecision(
        pool=pool,
        reason=Reason.FITS,
        message=f"{named(pool)} with {layout}: {need_text(memory)}: {verdict_text(memory)}",
        layout=layout,
        memory=memory,
        provenance=provenance,
        why="the revision's layout, kept" if layout in kept else _why(spec, choice),
        runner_up=None if choice.runner_up is None else choice.runner_up.split,
    )


def _same(layout: Layout, split: Split) -> bool:
    return (layout.tensor, layout.pipeline) == (split.tensor, split.pipeline)


def _unproven(spec: InferenceModelSpec, pool: GpuPool, layout: Layout, provenance: Provenance) -> LayoutDecision:
    """Unknown memory proves nothing: the model is placed, and says what would make the verdict known."""
    memory = _memory(spec, pool, layout)
    return LayoutDecision(
        pool=pool,
        reason=Reason.UNKNOWN_GPU_MEMORY,
        message=f"{named(pool)} with {layout}: {need_text(memory)}: {verdict_text(memory)}; label the nodes with "
        "nvidia.com/gpu.memory, or declare spec.parallelism if the layout is wrong",
        layout=layout,
        memory=memory,
        provenance=provenance,
        why="declared" if provenance is Provenance.DECLARED else "the smallest layout, because the memory is unknown",
    )


def named(pool: GpuPool) -> str:
    """The product for people."""
    return pool.gpu_product or "GPUs without a product label"


def parallelism_status(decision: LayoutDecision) -> ParallelismStatus | None:
    """The decision as `status.parallelism` shows it; None without a layout."""
    layout = decision.layout
    if layout is None:
        return None
    return ParallelismStatus(
        gpu_product=decision.pool.gpu_product,
        tensor=layout.tensor,
        pipeline=layout.pipeline,
        gpus_per_replica=layout.gpus,
        nodes_per_replica=layout.nodes,
        provenance=decision.provenance,
        reason=decision.why,
    )


def _memory(spec: InferenceModelSpec, pool: GpuPool, layout: Layout) -> MemoryDecision:
    return memory_for_layout(spec, gpu_memory_gib=pool.gpu_memory_gib, tensor=layout.tensor, pipeline=layout.pipeline)


def _declared_problem(spec: InferenceModelSpec, pool: GpuPool) -> str:
    """The rule that a declared width breaks, with the next valid size."""
    tensor, pipeline = spec.parallelism.tensor, spec.parallelism.pipeline
    architecture = spec.model.architecture
    where = f"of a node with {named(pool)}"
    if tensor is not None:
        problem = width_problem(architecture, tensor)
        if not problem and tensor > pool.gpus_of_node:
            problem = f"tensor={tensor} is wider than the {pool.gpus_of_node} GPUs {where}"
        if problem:
            widths = valid_widths(architecture, up_to=pool.gpus_of_node)
            following = next((width for width in widths if width > tensor), widths[-1])
            return f"spec.parallelism: {problem}; the next valid size is tensor={following}"
    if pipeline is not None and pipeline > architecture.layers:
        layers = architecture.layers
        return (
            f"spec.parallelism: pipeline={pipeline} exceeds the {layers} layers; the next valid size is "
            f"pipeline={min(layers, MAX_WIDTH)}"
        )
    if pool.sharing is not Sharing.NONE and ((tensor or 1) > 1 or (pipeline or 1) > 1):
        return f"spec.parallelism: {named(pool)} are {pool.sharing.value}, which hold one replica each: use 1"
    return ""


def _too_few_nodes(spec: InferenceModelSpec, pool: GpuPool) -> str:
    """What is declared asks for more nodes than there are, even with the narrowest width that is left open."""
    tensor, pipeline = spec.parallelism.tensor or 1, spec.parallelism.pipeline or 1
    layout = arranged(tensor, pipeline, gpus_of_node=pool.gpus_of_node)
    if layout is None:
        raise AssertionError("a width beyond the node was refused before")
    there = pool.nodes_of(layout.gpus_per_node)
    shorter = (
        stages
        for stages in range(pipeline - 1, 0, -1)
        if (other := arranged(tensor, stages, gpus_of_node=pool.gpus_of_node)) is not None
        and other.nodes <= pool.nodes_of(other.gpus_per_node)
    )
    gpu = f"{pool.gpu_product} GPU" if pool.gpu_product else "GPU"
    return (
        f"spec.parallelism: tensor={tensor} pipeline={pipeline} needs {plural(layout.nodes, 'node')} with "
        f"{plural(layout.gpus_per_node, gpu)} each, {there} {'exists' if there == 1 else 'exist'}; add "
        f"{layout.nodes - there}, or use at most pipeline={next(shorter)}"
    )


def _candidates(spec: InferenceModelSpec, pool: GpuPool) -> tuple[Layout, ...]:
    """Layouts that the rules allow, most preferred first."""
    return _ordered_layouts(spec.model.architecture, spec.parallelism, pool)


@lru_cache(maxsize=256)
def _ordered_layouts(architecture: Architecture, declared: Parallelism, pool: GpuPool) -> tuple[Layout, ...]:
    """Up to hundreds of layouts, the same ones for every model of an architecture: worth remembering."""
    found = _layouts(architecture, declared, pool)
    return tuple(sorted(found, key=lambda layout: (layout.pipeline > 1, layout.nodes, layout.pipeline, layout.gpus)))


def _layouts(architecture: Architecture, declared: Parallelism, pool: GpuPool) -> Iterator[Layout]:
    most = 1 if pool.sharing is not Sharing.NONE else pool.gpus_of_node
    widths: Iterable[int] = valid_widths(architecture, up_to=most)
    if declared.tensor is not None:
        widths = (declared.tensor,)
    else:
        widths = [width for width in widths if most % width == 0 or width & (width - 1) == 0]
    longest = 1 if pool.sharing is not Sharing.NONE else min(architecture.layers, MAX_WIDTH)
    stages = range(1, longest + 1) if declared.pipeline is None else (declared.pipeline,)
    for tensor in widths:
        for pipeline in stages:
            layout = arranged(tensor, pipeline, gpus_of_node=pool.gpus_of_node)
            if layout is not None and layout.nodes <= min(MAX_WIDTH, pool.nodes_of(layout.gpus_per_node)):
                yield layout


def _why(spec: InferenceModelSpec, choice: Choice[Layout, MemoryDecision]) -> str:
    chosen, closest, runner_up = choice.chosen, choice.closest, choice.runner_up
    if chosen is None:
        return ""
    parts = [_rule_of_choice(spec, chosen.split)]
    if closest is not None and closest.fit.headroom_gib is not None:
        parts.append(f"{closest.split} is short by {size_text(-closest.fit.headroom_gib)} per GPU")
    if runner_up is not None:
        parts.append(f"{runner_up.split} fits too but {_loses(chosen.split, runner_up.split)}")
    return "; ".join(parts)


def _rule_of_choice(spec: InferenceModelSpec, layout: Layout) -> str:
    tensor, pipeline = spec.parallelism.tensor, spec.parallelism.pipeline
    if tensor is not None and pipeline is not None:
        return "declared"
    if tensor is not None:
        return f"the shortest pipeline that fits with the declared tensor={tensor}"
    if pipeline is not None:
        return f"the smallest tensor width that fits with the declared pipeline={pipeline}"
    if layout.pipeline > 1:
        return "no tensor width inside one node fits"
    return "the smallest tensor width that fits" if layout.tensor > 1 else "one GPU is enough"


def _loses(chosen: Layout, other: Layout) -> str:
    if other.nodes > chosen.nodes:
        return f"needs {other.nodes} nodes instead of {chosen.nodes}"
    if other.pipeline > chosen.pipeline:
        return f"needs {plural(other.pipeline, 'pipeline stage')} instead of {chosen.pipeline}"
    return f"takes {other.gpus} GPUs instead of {chosen.gpus}"


def _refused(
    spec: InferenceModelSpec,
    pool: GpuPool,
    candidates: Iterable[Layout],
    choice: Choice[Layout, MemoryDecision],
    provenance: Provenance,
) -> LayoutDecision:
    """Nothing fits: say by how much, and what would. Under Warn the closest layout is used all the same."""
    closest = choice.closest
    if closest is None:
        raise AssertionError("a refusal without candidates")
    warn = spec.memory_policy == "Warn"
    decisions = [_memory(spec, pool, layout) for layout in candidates]
    changes = (
        *_undeclared(spec, pool),
        *smaller_requests(
            concurrency=max(decision.max_concurrency or 0 for decision in decisions),
            tokens=max(decision.max_tokens_per_request or 0 for decision in decisions),
        ),
    )
    if not changes:
        needed = closest.fit.required_gib / closest.fit.request.usable_fraction
        changes = (f"GPUs of {size_text(needed)} or more, or more nodes",)
    return LayoutDecision(
        pool=pool,
        reason=Reason.OVERRIDDEN if warn else Reason.INSUFFICIENT_MEMORY,
        message=f"{named(pool)} with {closest.split}: {need_text(closest.fit)}: {verdict_text(closest.fit)}; fits with "
        + ", or ".join(changes)
        + ("; placed all the same because memoryPolicy is Warn" if warn else ""),
        layout=closest.split if warn else None,
        memory=closest.fit,
        provenance=provenance,
        why="the layout with the least shortfall, placed because memoryPolicy is Warn" if warn else "",
    )


def _undeclared(spec: InferenceModelSpec, pool: GpuPool) -> tuple[str, ...]:
    """The layout that would fit if nothing were declared, as a change of what is declared."""
    if spec.parallelism.tensor is None and spec.parallelism.pipeline is None:
        return ()
    free = spec.model_copy(update={"parallelism": type(spec.parallelism)()})
    found = choose(_candidates(free, pool), lambda layout: _memory(free, pool, layout)).chosen
    if found is None:
        return ()
    split = found.split
    return (f"tensor={split.tensor}" + (f" pipeline={split.pipeline}" if split.pipeline > 1 else ""),)
