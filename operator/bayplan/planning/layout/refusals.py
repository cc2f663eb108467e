"""Why a spec has no layout on a GPU product, and what would give it one."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from bayplan.api.conditions import Reason
from bayplan.api.provenance import Provenance
from bayplan.planning.layout.alternatives import changes_that_fit, longest_length
from bayplan.planning.layout.asked import Asked, LayoutDecision
from bayplan.planning.layout.engineflags import engine_flags
from bayplan.planning.layout.knownmodel import KnownModel
from bayplan.planning.layout.memorytext import need_text, smaller_requests, verdict_text
from bayplan.planning.layout.search import Ranking, Wanted, candidates, search
from bayplan.planning.memory.replica import ReplicaMemory, SplitMemory
from bayplan.planning.memory.support import unsupported_text
from bayplan.planning.words import size_text

LENGTHS_TRIED = 3
"""Refused layouts whose longest length is searched: those with the least shortfall."""


def unsupported(asked: Asked) -> LayoutDecision | None:
    """The format of weights or cache that the GPU or the engine's release cannot run, checked before memory."""
    model, gpu = asked.model, asked.pool.gpu
    if gpu is None or not isinstance(model, KnownModel):
        return None
    problem = unsupported_text(gpu, model.weights, engine_flags(asked.spec))
    if not problem:
        return None
    return LayoutDecision(pool=asked.pool, reason=Reason.UNSUPPORTED_ON_HARDWARE, message=f"{asked.pool}: {problem}")


def refused(asked: Asked, ranking: Ranking, provenance: Provenance) -> LayoutDecision:
    """Nothing fits: say by how much, and what would. Under Warn the closest layout is used all the same."""
    closest, pool = ranking.closest, asked.pool
    if closest is None or closest.memory is None:
        raise AssertionError("a refusal without candidates")
    warn = asked.spec.memory_policy == "Warn"
    memory = closest.memory
    changes = _changes(asked, ranking)
    if not changes:
        changes = (f"GPUs of {size_text(memory.least_gpu_gib)} or more, or more nodes",)
    return LayoutDecision(
        pool=pool,
        reason=Reason.OVERRIDDEN if warn else Reason.INSUFFICIENT_MEMORY,
        message=f"{pool} with {closest.layout}: {need_text(memory)}: {verdict_text(memory)}; fits with "
        + ", or ".join(changes)
        + ("; placed all the same because memoryPolicy is Warn" if warn else ""),
        layout=closest.layout if warn else None,
        memory=memory,
        provenance=provenance,
        why="the layout with the least shortfall, placed because memoryPolicy is Warn" if warn else "",
        exchanges=tuple(map(str, closest.exchanges)),
    )


def _changes(asked: Asked, ranking: Ranking) -> tuple[str, ...]:
    """What would fit: the layout if nothing were declared, fewer or shorter requests, flags that free memory."""
    memories = [one.memory for one in ranking.weighed if one.memory is not None]
    nearest = sorted(memories, key=lambda memory: memory.headroom_gib or Fraction(0), reverse=True)[:LENGTHS_TRIED]
    flags = []
    if nearest and isinstance(nearest[0], ReplicaMemory):
        flags = [str(change) for change in changes_that_fit(nearest[0].request)][:2]
    return (
        *_undeclared(asked),
        *smaller_requests(
            concurrency=max((memory.max_concurrency or 0 for memory in memories), default=0),
            tokens=max((_longest(memory) for memory in (nearest if _exact(nearest) else memories)), default=0),
        ),
        *flags,
    )


def _exact(memories: Sequence[SplitMemory]) -> bool:
    return any(isinstance(memory, ReplicaMemory) for memory in memories)


def _longest(memory: SplitMemory) -> int:
    if isinstance(memory, ReplicaMemory):
        return longest_length(memory.request) or 0
    return memory.max_tokens_per_request or 0


def _undeclared(asked: Asked) -> tuple[str, ...]:
    """The layout that would fit if nothing were declared, as a change of what is declared."""
    if asked.wanted == Wanted():
        return ()
    free = replace(asked.question(), stages_declared=False)
    found = search(free, candidates(asked.facts, asked.site, Wanted())).chosen
    if found is None:
        return ()
    layout = found.layout
    text = [f"tensor={layout.tensor}"]
    if layout.pipeline > 1:
        text.append(f"pipeline={layout.pipeline}")
    if layout.data > 1:
        text.append(f"data={layout.data}")
    return (" ".join(text),)
