"""The parallel layout of a concrete `InferenceModel` on each GPU product that the fleet has.

What the user declares is checked, never replaced. What the revision recorded is kept while it is possible: a better
figure in a later catalogue moves nothing that runs.
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

from bayplan.api.conditions import Reason
from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.api.inferencemodel_status import ParallelismStatus
from bayplan.api.provenance import Provenance
from bayplan.planning.layout.asked import Asked, LayoutDecision, ask
from bayplan.planning.layout.declared import declared_problem, no_layout_text
from bayplan.planning.layout.memorytext import need_text, verdict_text
from bayplan.planning.layout.modelnumbers import UnknownModel
from bayplan.planning.layout.pools import GpuPool
from bayplan.planning.layout.records import Recorded, RecordedLayout, with_evidence
from bayplan.planning.layout.refusals import refused, unsupported
from bayplan.planning.layout.search import Ranking, Wanted, Weighed, candidates, search, with_decode_context
from bayplan.planning.layout.split import Layout, Split
from bayplan.planning.memory.replica import ReplicaMemory
from bayplan.planning.words import size_text

EVIDENCE_MARGIN = Fraction(3, 100)
"""An engine's report within this share of the plan confirms it; beyond, it replaces it."""
MAX_PRODUCTS_RECORDED = 32
"""GPU products that a revision remembers a layout for."""


def plan_layout(spec: InferenceModelSpec, pool: GpuPool, *, recorded: RecordedLayout | None = None) -> LayoutDecision:
    """Decide the layout of one replica of `spec` on the GPUs of `pool`.

    `recorded` is the layout that an earlier decision derived for the same revision: it is kept while it is possible.
    Raises InvalidInput for numbers of the model that contradict each other (`model_faults` says so before).
    """
    return _plan(_Relevant(spec), pool, recorded)


class _Relevant:
    """A spec, equal to every other one of which the layout would be the same: pods and nodes change, this does not."""

    __slots__ = ("key", "spec")

    def __init__(self, spec: InferenceModelSpec) -> None:
        self.spec = spec
        self.key = (spec.model, spec.engine, spec.parallelism, spec.concurrency, spec.memory_policy)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Relevant) and self.key == other.key


@lru_cache(maxsize=4096)
def _plan(  # noqa: PLR0911 - one return per reason
    relevant: _Relevant, pool: GpuPool, recorded: RecordedLayout | None
) -> LayoutDecision:
    spec = relevant.spec
    asked = ask(spec, pool, recorded)
    problem = declared_problem(asked.facts, asked.site, asked.wanted)
    if problem:
        message = f"spec.parallelism: {problem}"
        return LayoutDecision(pool=pool, reason=Reason.NO_LAYOUT, message=message, provenance=Provenance.DECLARED)
    provenance = Provenance.DECLARED if asked.wanted.whole else Provenance.DERIVED
    refusal = unsupported(asked)
    if refusal is not None:
        return refusal
    layouts = candidates(asked.facts, asked.site, asked.wanted)
    if not layouts:
        message = f"spec.parallelism: {no_layout_text(asked.site, asked.wanted)}"
        return LayoutDecision(pool=pool, reason=Reason.NO_LAYOUT, message=message, provenance=provenance)
    kept = _recorded_layout(asked, layouts)
    if isinstance(asked.model, UnknownModel):
        return _unknown(asked, kept or layouts[0], provenance)
    if pool.gpu_memory_gib is None and pool.gpu is None:
        return _unproven(asked, kept or layouts[0], provenance)
    ranking = search(asked.question(), layouts)
    if kept is not None:
        decision = _keep(asked, kept, ranking)
        if decision is not None:
            return decision
    if ranking.chosen is None:
        return refused(asked, ranking, provenance)
    return _chosen(asked, ranking, ranking.chosen, provenance)


def _recorded_layout(asked: Asked, layouts: Sequence[Layout]) -> Layout | None:
    """The recorded layout, where rules and nodes still allow it."""
    recorded = asked.recorded
    if recorded is None:
        return None
    wider = [other for layout in layouts if (other := with_decode_context(asked.facts, layout)) is not None]
    return next((layout for layout in (*layouts, *wider) if layout.sizes == recorded.split.sizes), None)


def _keep(asked: Asked, layout: Layout, ranking: Ranking) -> LayoutDecision | None:
    """The revision's layout as long as it fits, or was decided for this very load on no larger GPUs.

    In the second case only our own figures have changed since, and they move nothing that runs. None where the ranking
    chooses it anyway, or it cannot be kept.
    """
    best = ranking.chosen
    if best is not None and best.layout.sizes == layout.sizes:
        return None
    weighed = asked.question().weigh(layout)
    memory, recorded, pool = weighed.memory, asked.recorded, asked.pool
    if memory is None or recorded is None:
        return None
    same = (
        recorded.concurrency == asked.spec.concurrency
        and recorded.gpu_memory_mib is not None
        and pool.gpu_memory_mib is not None
        and pool.gpu_memory_mib >= recorded.gpu_memory_mib
    )
    if not memory.fits and not same:
        return None
    text = f"{pool} with {layout}: {need_text(memory)}: {verdict_text(memory)}"
    if not memory.fits:
        text += "; kept all the same: it was decided for this load, and only the estimate has changed since"
    return LayoutDecision(
        pool=pool,
        reason=Reason.FITS if memory.fits else Reason.LAYOUT_KEPT,
        message=text,
        layout=layout,
        memory=memory,
        provenance=Provenance.DECLARED if asked.wanted.whole else Provenance.DERIVED,
        why="the revision's layout, kept",
        runner_up=None if best is None else best.layout,
        lost="" if best is None else "is not what the revision began with",
        exchanges=tuple(map(str, weighed.exchanges)),
    )


def _unknown(asked: Asked, layout: Layout, provenance: Provenance) -> LayoutDecision:
    """Nothing is known of the model: it is placed as declared, and says what would make the verdict known."""
    message = asked.model.message if isinstance(asked.model, UnknownModel) else ""
    return LayoutDecision(
        pool=asked.pool,
        reason=Reason.UNKNOWN_ARCHITECTURE,
        message=f"{asked.pool} with {layout}: {message}",
        layout=layout,
        provenance=provenance,
        why="declared" if provenance is Provenance.DECLARED else "the smallest layout, because the model is unknown",
    )


def _unproven(asked: Asked, layout: Layout, provenance: Provenance) -> LayoutDecision:
    """Unknown memory proves nothing: the model is placed, and says what would make the verdict known."""
    memory, pool = asked.memory(layout), asked.pool
    needs = "" if memory is None else f" {need_text(memory)}: {verdict_text(memory)}"
    if memory is None:
        needs = " nobody states the GPU's memory"
    return LayoutDecision(
        pool=pool,
        reason=Reason.UNKNOWN_GPU_MEMORY,
        message=f"{pool} with {layout}:{needs}; label the nodes with "
        "nvidia.com/gpu.memory, or declare spec.parallelism if the layout is wrong",
        layout=layout,
        memory=memory,
        provenance=provenance,
        why="declared" if provenance is Provenance.DECLARED else "the smallest layout, because the memory is unknown",
    )


def _chosen(asked: Asked, ranking: Ranking, chosen: Weighed, provenance: Provenance) -> LayoutDecision:
    memory, second = chosen.memory, ranking.runner_up
    if memory is None:
        raise AssertionError("a layout was chosen without its memory")
    return LayoutDecision(
        pool=asked.pool,
        reason=Reason.FITS,
        message=f"{asked.pool} with {chosen.layout}: {need_text(memory)}: {verdict_text(memory)}",
        layout=chosen.layout,
        memory=memory,
        provenance=provenance,
        why=_why(asked, ranking, chosen),
        runner_up=None if second is None else second.layout,
        lost=ranking.lost,
        exchanges=tuple(map(str, chosen.exchanges)),
    )


def _why(asked: Asked, ranking: Ranking, chosen: Weighed) -> str:
    parts = [_rule_of_choice(asked.wanted, chosen.layout)]
    closest = ranking.closest
    if closest is not None and closest.memory is not None and closest.memory.headroom_gib is not None:
        parts.append(f"{closest.layout} is short by {size_text(-closest.memory.headroom_gib)} per GPU")
    if ranking.runner_up is not None:
        parts.append(f"{ranking.runner_up.layout} fits too but {ranking.lost}")
    if not asked.pool.links_known:
        parts.append(f"the GPU catalogue does not know {asked.pool}: its links and formats are not judged")
    outside = [str(one) for one in chosen.exchanges if not one.fast]
    return "; ".join((*parts, *outside))


def _rule_of_choice(wanted: Wanted, layout: Layout) -> str:
    if wanted.whole:
        return "declared"
    declared = [
        f"{name}={value}" for name, value in (("tensor", wanted.tensor), ("pipeline", wanted.pipeline)) if value
    ]
    if declared:
        return f"the fewest GPUs that fit with the declared {' '.join(declared)}"
    return "one GPU is enough" if layout.gpus == 1 else "the fewest GPUs that fit"


def parallelism_status(decision: LayoutDecision) -> ParallelismStatus | None:
    """The decision as `status.parallelism` shows it; None without a layout."""
    layout = decision.layout
    if layout is None:
        return None
    return ParallelismStatus(
        gpu_product=decision.pool.gpu_product,
        tensor=layout.tensor,
        pipeline=layout.pipeline,
        data=layout.data if layout.data > 1 else None,
        expert=True if layout.expert else None,
        decode_context=layout.decode_context if layout.decode_context > 1 else None,
        gpus_per_replica=layout.gpus,
        nodes_per_replica=layout.nodes,
        provenance=decision.provenance,
        reason=decision.why,
        runner_up="" if decision.runner_up is None else f"{decision.runner_up}: {decision.lost}",
        exchanges=decision.exchanges[:8],
    )


def records_of(
    spec: InferenceModelSpec, decisions: Sequence[LayoutDecision], recorded: Recorded
) -> dict[str, RecordedLayout]:
    """What the revision is to remember: `recorded`, and the layouts that were decided now.

    Products that are gone for a while keep theirs, so that a layout outlives the last node of its product.
    """
    found = dict(recorded)
    for decision in decisions:
        layout, pool = decision.layout, decision.pool
        if layout is None or decision.reason is Reason.LAYOUT_KEPT:
            continue
        proven = decision.reason is Reason.FITS and pool.gpu_memory_mib is not None
        found[pool.gpu_product] = RecordedLayout(
            split=Split(*layout.sizes),
            concurrency=spec.concurrency if proven else None,
            gpu_memory_mib=int(pool.gpu_memory_mib) if proven and pool.gpu_memory_mib is not None else None,
        )
    return with_evidence(recorded, dict(sorted(found.items())[:MAX_PRODUCTS_RECORDED]))


def evidence_of(decision: LayoutDecision, recorded: RecordedLayout, blocks: int) -> RecordedLayout | None:
    """What to remember of the KV cache blocks that an engine of this layout reports on a rank.

    None while they are within 3 % of what is planned, and where only five numbers are known: those plan no blocks.
    """
    memory = decision.memory
    if not isinstance(memory, ReplicaMemory) or decision.layout is None:
        return None
    planned = memory.verdict.plan.blocks
    if recorded.split.sizes != decision.layout.sizes or abs(blocks - planned) <= EVIDENCE_MARGIN * planned:
        return None
    return replace(recorded, blocks=blocks, planned_blocks=recorded.planned_blocks or planned)
