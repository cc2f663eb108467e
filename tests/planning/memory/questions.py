"""Requests that tests start from."""

from fractions import Fraction
from typing import Any

from bayplan.planning.memory.catalogue import catalogue_model
from bayplan.planning.memory.enginerules import vllm_rules
from bayplan.planning.memory.formats import weight_format
from bayplan.planning.memory.gpucatalogue import Gpu, find_gpu
from bayplan.planning.memory.parallel import ParallelLayout
from bayplan.planning.memory.plan import layout_of_pages, step_size
from bayplan.planning.memory.request import EngineFlags, PlanRequest
from bayplan.planning.memory.versions import EngineVersion
from bayplan.planning.memory.weights import WeightNumbers
from bayplan.planning.numbers import GIB


def gpu(name: str = "H100") -> Gpu:
    found = find_gpu(name)
    assert found is not None
    return found


def ask(
    model: str = "Llama-3.1-8B",
    *,
    on: str = "H100",
    version: str = "0.19.0",
    ranks: ParallelLayout | None = None,
    weights: WeightNumbers | None = None,
    concurrency: int = 1,
    **flags: Any,
) -> PlanRequest:
    known = catalogue_model(model)
    return PlanRequest(
        known.architecture,
        weights or weight_format(known.native_format),
        gpu(on),
        ranks or ParallelLayout(),
        EngineFlags(version=EngineVersion.parse(version), **flags),
        concurrency,
    )


def tokens_in(plan_request: PlanRequest, gib: str) -> int:
    """What the engine would print as its cache size for a pool of `gib` on each stage."""
    rules = vllm_rules(plan_request.flags.version)
    pages = layout_of_pages(plan_request, rules, step_size(plan_request, rules)[0])
    pool = [Fraction(gib) * GIB] * plan_request.ranks.pipeline
    return pages.reported_tokens(pages.blocks_in(pool), plan_request.max_model_len)
