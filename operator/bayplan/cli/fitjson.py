"""The answer of `bayplan fit` as JSON: the same numbers as on the screen, in GiB and bytes, for scripts."""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

from bayplan.cli.fitanswer import FitAnswer
from bayplan.cli.fitview import plan_terms
from bayplan.planning.layout.alternatives import Boundary
from bayplan.planning.layout.search import Weighed
from bayplan.planning.layout.split import Layout
from bayplan.planning.memory.gpucatalogue import Gpu
from bayplan.planning.memory.plan import StagePlan
from bayplan.planning.memory.replica import ReplicaMemory, SplitMemory

Json = dict[str, Any]


def answer_json(answer: FitAnswer, *, with_alternatives: bool = True) -> Json:
    """One answer."""
    question, best = answer.question, answer.best
    found: Json = {
        "fits": answer.fits,
        "verdict": answer.verdict.value,
        "engine": question.budget.engine,
        "gpu": question.gpu.name,
        "gpuMemoryGib": _gib(question.gpu.visible_gib),
        "gpuMemorySource": question.gpu.visible_source.value,
        "model": question.source,
        "problem": answer.problem,
    }
    if best is None or best.memory is None:
        return found
    found |= {"layout": _layout(best.layout), **_memory(best.memory)}
    if answer.exact is not None:
        found |= _exact(answer.exact)
    if answer.band is not None:
        found["cacheBandGib"] = [_gib(answer.band.least_gib), _gib(answer.band.most_gib)]
        found["neededCacheGib"] = _gib(answer.needed_cache_gib)
    found["exchanges"] = [
        {
            "name": one.name,
            "ranks": one.ranks,
            "link": one.link.value,
            "insideFastDomain": one.fast,
            "secondsPerStep": float(one.seconds),
        }
        for one in best.exchanges
    ]
    found["predictedStepSeconds"] = None if best.step_seconds is None else float(best.step_seconds)
    found["runnerUp"] = _runner_up(answer)
    found["remarks"] = [*question.remarks, *found.pop("planRemarks", ())]
    if with_alternatives and not answer.fits and answer.band is None:
        found["alternatives"] = _alternatives(answer)
    return found


def _runner_up(answer: FitAnswer) -> Json | None:
    second: Weighed | None = answer.ranking.runner_up if answer.ranking is not None else None
    if second is None or answer.ranking is None:
        return None
    return {"layout": _layout(second.layout), "lost": answer.ranking.lost}


def _gib(value: Fraction) -> float:
    return round(float(value), 4)


def _layout(layout: Layout) -> Json:
    return {
        "tensor": layout.tensor,
        "pipeline": layout.pipeline,
        "data": layout.data,
        "expert": layout.expert,
        "decodeContext": layout.decode_context,
        "gpus": layout.gpus,
        "nodes": layout.nodes,
    }


def _memory(memory: SplitMemory) -> Json:
    headroom = memory.headroom_gib
    return {
        "requiredGib": _gib(memory.required_gib),
        "usableGib": None if memory.usable_gib is None else _gib(memory.usable_gib),
        "headroomGib": None if headroom is None else _gib(headroom),
        "concurrency": memory.concurrency,
        "maxModelLen": memory.length,
        "maxConcurrency": memory.max_concurrency,
        "kvTokens": memory.kv_tokens,
        "terms": [
            {
                "name": term.name,
                "gib": _gib(term.gib_per_gpu),
                "provenance": term.provenance.value.lower(),
                "formula": term.detail,
            }
            for term in memory.terms
        ],
    }


def _exact(memory: ReplicaMemory) -> Json:
    verdict, plan = memory.verdict, memory.verdict.plan
    return {
        "marginal": verdict.marginal,
        "decidingFlag": verdict.deciding_flag,
        "terms": [
            {
                "name": term.name,
                "gib": _gib(term.gib),
                "provenance": term.source.value,
                "formula": term.formula,
                "inputs": dict(term.inputs),
                "bandGib": _gib(term.band_bytes / 2**30),
            }
            for term in plan_terms(memory)
        ],
        "tightestStage": verdict.stage.index,
        "stages": [_stage(memory, stage) for stage in plan.stages],
        "kv": {
            "blocks": plan.blocks,
            "groups": [
                {"kind": group.kind.value, "layers": group.layers, "blockTokens": group.block_tokens}
                for group in plan.pages.groups
            ],
            "blockBytes": list(plan.pages.block_bytes),
            "printedTokens": plan.cache_tokens,
            "printedConcurrency": float(plan.concurrency),
        },
        "maxNumSeqs": plan.step.sequences,
        "maxNumBatchedTokens": plan.step.batched_tokens,
        "gpuMemoryUtilization": float(plan.utilization),
        "rulesSince": plan.rules.since,
        "warnings": [{"risk": warning.risk.value, "message": warning.message} for warning in verdict.warnings],
        "planRemarks": plan.remarks,
    }


def _stage(memory: ReplicaMemory, stage: StagePlan) -> Json:
    plan = memory.verdict.plan
    return {
        "layers": [stage.layers.start, stage.layers.stop - 1],
        "usedGib": _gib(stage.used_bytes / 2**30),
        "cacheGib": _gib(stage.cache_bytes / 2**30),
        "headroomGib": _gib(plan.headroom_bytes(stage) / 2**30),
        "uncountedGib": _gib(stage.uncounted_bytes / 2**30),
    }


def _alternatives(answer: FitAnswer) -> Json | None:
    found = answer.instead
    if found is None:
        return None
    return {
        "maxConcurrency": found.max_concurrency,
        "maxModelLen": found.max_model_len,
        "tensor": found.tensor,
        "changes": [dict(change.flags) for change in found.changes],
    }


def boundaries_json(found: Sequence[Boundary]) -> list[Json]:
    """`--what-if`."""
    return [{"setting": one.setting, "asked": one.asked, "side": one.side, "limit": one.limit or None} for one in found]


def comparison_json(rows: Iterable[tuple[Gpu, FitAnswer]]) -> list[Json]:
    """`--compare-gpus`."""
    return [answer_json(found, with_alternatives=False) for _, found in rows]
