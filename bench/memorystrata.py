"""The strata of the memory benchmark: which rows belong to each, and how far each prediction is off.

A row counts in a stratum when it states what the stratum needs; an exception on such a row is a failure of the planner
and is raised, never left out.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from bayplan.planning.memory.enginerules import vllm_rules
from bayplan.planning.memory.formats import weight_format
from bayplan.planning.memory.gpucatalogue import gpus_named
from bayplan.planning.memory.plan import MemoryPlan, layout_of_pages, plan_memory, step_size
from bayplan.planning.memory.request import PlanRequest
from bayplan.planning.memory.verdict import MemoryVerdict, Risk, decide_fit
from bayplan.planning.memory.weights import MeasuredWeights, WeightNumbers
from bayplan.planning.numbers import GIB
from bench.memorypeers import PEERS, founding_token_bytes
from bench.memoryrows import Observation

WEIGHT_CLASSES = ("bf16", "fp16", "fp8", "gptq-4bit")
"""Formats whose size follows from the tensor classes; what 4-bit makers skip is known from their headers alone."""
Number = float | int | None


@dataclass(frozen=True, slots=True)
class Case:
    """One row of a stratum: relative error of tokens, error of the cache in GiB, where the row states them."""

    observation: Observation
    tokens: float | None = None
    kv_gib: float | None = None
    terms: str = ""
    peers: tuple[tuple[str, float], ...] = ()
    """Error of each peer's rule: in GiB, or relative in tokens for the layout."""

    @property
    def badness(self) -> float:
        """The larger error, for sorting."""
        return max(abs(self.tokens or 0.0), abs(self.kv_gib or 0.0) / 20)


def quantile(values: Iterable[float], percent: float) -> float | None:
    """The percentile with linear interpolation; None without values."""
    found = [abs(value) for value in values]
    return float(np.percentile(found, percent)) if found else None


def figures(cases: list[Case]) -> dict[str, Number]:
    """Numbers of a stratum: fractions and GiB; None without a row that states the quantity."""
    tokens = [case.tokens for case in cases if case.tokens is not None]
    cache = [case.kv_gib for case in cases if case.kv_gib is not None]
    return {
        "n": len(cases),
        "tokens_median": quantile(tokens, 50),
        "tokens_p90": quantile(tokens, 90),
        "kv_gib_median": quantile(cache, 50),
        "kv_gib_p90": quantile(cache, 90),
        "n_tokens": len(tokens),
        "n_kv_gib": len(cache),
    }


def layout_cases(rows: Iterable[Observation], *, hybrid: bool) -> list[Case]:
    """The cache's GiB are given: only the page layout is asked for. Model, width and both figures are needed.

    A hybrid's page follows from the cache's type and from what shares the pool, so these must be known as well.
    """
    cases = []
    for row in rows:
        cache, tokens = row.number("reported_kv_gib_per_gpu"), row.number("reported_kv_tokens")
        model, ranks, flags = row.model, row.ranks, row.flags
        if model is None or ranks is None or flags is None or row.hybrid is not hybrid or not tokens or not cache:
            continue
        if hybrid and (not row.cache_type_known or row.unknown_draft):
            continue
        gpu = row.gpu or gpus_named("H100")[-1]
        request = PlanRequest(model.architecture, weight_format("bf16"), gpu, ranks, flags)
        rules = vllm_rules(row.version)
        pages = layout_of_pages(request, rules, step_size(request, rules)[0])
        pool = Fraction(str(cache)) * GIB
        predicted = pages.reported_tokens(pages.blocks_in([pool] * ranks.pipeline), request.max_model_len)
        simple = founding_token_bytes(
            model.architecture, tensor=ranks.tensor, element_bytes=model.architecture.element_bytes
        )
        cases.append(
            Case(
                row,
                tokens=predicted / tokens - 1,
                terms=f"{len(pages.groups)} groups, blocks of {pages.smallest_block_tokens}",
                peers=(("founding text", float(pool / simple) / tokens - 1),) if simple else (),
            )
        )
    return cases


def budget_cases(rows: Iterable[Observation], *, vendor: str, weights_known: bool) -> list[Case]:
    """The whole budget is predicted. Model, GPU, width, a reported figure, and the weights or a format are needed."""
    cases = []
    for row in rows:
        weights: WeightNumbers | None = row.loaded() if weights_known else row.format
        if row.reasons or row.flags is None or row.gpu is None or row.gpu.vendor != vendor or weights is None:
            continue
        tokens, cache = row.number("reported_kv_tokens"), row.number("reported_kv_gib_per_gpu")
        if not tokens and cache is None:
            continue
        plan = plan_memory(row.request(weights))
        predicted = plan.binding_stage.cache_bytes / GIB
        cases.append(
            Case(
                row,
                tokens=plan.cache_tokens / tokens - 1 if tokens else None,
                kv_gib=float(predicted) - cache if cache is not None else None,
                terms=terms_text(plan),
                peers=_peer_errors(plan, weights, cache),
            )
        )
    return cases


def _peer_errors(plan: MemoryPlan, weights: WeightNumbers, cache: float | None) -> tuple[tuple[str, float], ...]:
    if cache is None or not isinstance(weights, MeasuredWeights):
        return ()
    room = plan.binding_stage.budget_bytes / GIB - weights.gib_per_gpu
    return tuple((peer.name, float(room - peer.overhead_gib(weights.gib_per_gpu)) - cache) for peer in PEERS)


def terms_text(plan: MemoryPlan) -> str:
    """The terms of the binding stage, in GiB."""
    stage = plan.binding_stage
    parts = [f"budget {float(stage.budget_bytes / GIB):.2f}"]
    parts += [f"{term.name} {float(term.gib):.2f}" for term in stage.terms]
    return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class WeightCase:
    """A class estimate against the log."""

    observation: Observation
    error: float
    format: str


def weight_cases(rows: Iterable[Observation]) -> list[WeightCase]:
    """Load size by tensor class. Model, width, format and the reported load are needed; a named stage is compared.

    A row without a GPU counts all the same: the classes asked for are not repacked.
    """
    cases = []
    for row in rows:
        load, kind = row.loaded(), row.format
        if load is None or kind is None or row.model is None or row.ranks is None or row.flags is None:
            continue
        if kind.name not in WEIGHT_CLASSES:
            continue
        gpu = row.gpu or gpus_named("H100")[-1]
        plan = plan_memory(PlanRequest(row.model.architecture, kind, gpu, row.ranks, row.flags))
        estimated = plan.stages[row.stage].weights.gib
        cases.append(WeightCase(row, float(estimated / load.gib_per_gpu) - 1, kind.name))
    return cases


@dataclass(frozen=True, slots=True)
class VerdictCase:
    """A verdict against what happened."""

    observation: Observation
    verdict: MemoryVerdict
    happened: str

    @property
    def started(self) -> bool:
        """Whether the engine started."""
        return self.happened == "fit"

    @property
    def right(self) -> bool:
        """Whether fits and started agree."""
        return self.verdict.fits == self.started

    @property
    def warned(self) -> bool:
        """A fit that carries the warning of a start-up that dies in graph capture."""
        return any(warning.risk is Risk.GRAPH_CAPTURE for warning in self.verdict.warnings)

    @property
    def false_fit(self) -> bool:
        """Fits, unwarned, and did not start."""
        return self.verdict.fits and not self.started and not self.warned


def verdict_cases(rows: Iterable[Observation]) -> list[VerdictCase]:
    """Fits or not. Model, GPU, width and an outcome are needed, and the weights from the log or a format."""
    cases = []
    for row in rows:
        weights = row.loaded() or row.format
        if row.reasons or row.flags is None or weights is None or row.row["outcome"] not in {"fit", "no-fit", "oom"}:
            continue
        cases.append(VerdictCase(row, decide_fit(row.request(weights)), row.row["outcome"]))
    return cases
