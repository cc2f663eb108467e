"""Fits or does not fit, by exact comparison; how close it is, what decides, and what could still go wrong at start."""

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from bayplan.planning.memory.overheads import CUDA_GRAPHS, FORWARD_PEAK, SAMPLER_PEAK
from bayplan.planning.memory.plan import MemoryPlan, StagePlan, plan_memory
from bayplan.planning.memory.request import PlanRequest
from bayplan.planning.memory.terms import OVERHEAD, WEIGHTS, PlanTerm, Source
from bayplan.planning.numbers import GIB
from bayplan.planning.words import size_text

MARGIN = Fraction(3, 100)
"""Of the budget: within it a verdict is marginal either way."""
RISKY_UTILIZATION = Fraction(98, 100)
"""From here on start-ups die although the cache fits: 0.98 failed where 0.97 booted [vllm#57475]."""
GRAPH_OVERSHOOT_GIB = Fraction(137, 100)
"""By how much a process went over its budget after the profile [vllm#51590]."""
FLOOR_GIB = Fraction(1, 2)
"""Least memory to leave outside the budget [vllm#57475: 0.5 to 2.7 GiB are used there]."""
UNIFIED_BAND_GIB = Fraction(44, 10)
"""What the loader or the page cache moved on a GB10 between equal runs."""


class Risk(StrEnum):
    """Why an engine may not start although the plan fits."""

    GRAPH_CAPTURE = "graph capture"
    UTILIZATION = "utilization"
    UNIFIED_MEMORY = "unified memory"
    HYBRID_POOL = "hybrid pool"
    WEIGHT_ESTIMATE = "weight estimate"


@dataclass(frozen=True, slots=True)
class StartupWarning:
    """One risk with its numbers."""

    risk: Risk
    message: str


@dataclass(frozen=True, slots=True)
class MemoryVerdict:
    """The answer to "does it fit?". `fits` is exact; the rest explains it."""

    plan: MemoryPlan
    fits: bool
    marginal: bool
    """The headroom or the shortfall is at most 3 % of the budget."""
    headroom_bytes: Fraction
    """On the stage with the least; negative is the shortfall."""
    stage: StagePlan
    """The stage with the least headroom."""
    deciding_flag: str
    """The flag that most easily changes a marginal verdict; empty when it is not marginal."""
    warnings: tuple[StartupWarning, ...]

    @property
    def shortfall_gib(self) -> Fraction:
        """GiB per GPU that are missing; 0 when it fits."""
        return max(Fraction(0), -self.headroom_bytes / GIB)

    @property
    def required_bytes(self) -> Fraction:
        """Sum of the terms with the asked load."""
        return self.stage.used_bytes + self.plan.needed_cache_bytes(self.stage)


def decide_fit(request: PlanRequest) -> MemoryVerdict:
    """Plan `request` and compare what it needs with what the budget leaves, exactly; equal fits.

    Raises InvalidInput and UnknownArchitecture as `plan_memory` does.
    """
    return judge(plan_memory(request))


def judge(plan: MemoryPlan) -> MemoryVerdict:
    """The verdict on a plan."""
    stage = min(plan.stages, key=plan.headroom_bytes)
    headroom = plan.headroom_bytes(stage)
    fits = headroom >= 0 and plan.max_concurrency >= plan.request.concurrency
    marginal = abs(headroom) <= MARGIN * stage.budget_bytes
    return MemoryVerdict(
        plan=plan,
        fits=fits,
        marginal=marginal,
        headroom_bytes=headroom,
        stage=stage,
        deciding_flag=_deciding_flag(plan, stage) if marginal else "",
        warnings=_warnings(plan, stage) if fits else (),
    )


_FLAGS = {
    SAMPLER_PEAK: "--max-num-seqs",
    FORWARD_PEAK: "--max-num-batched-tokens",
    CUDA_GRAPHS: "--enforce-eager",
    WEIGHTS: "--quantization",
    OVERHEAD: "--gpu-memory-utilization",
}


def _deciding_flag(plan: MemoryPlan, stage: StagePlan) -> str:
    """The flag behind the largest term that a flag can shrink without touching the load."""
    largest = max((stage.peak, *_counted_graphs(stage)), key=lambda term: term.bytes_per_gpu)
    if largest.bytes_per_gpu < MARGIN * stage.budget_bytes / 2:
        return "--gpu-memory-utilization" if plan.utilization < RISKY_UTILIZATION else "--max-model-len"
    return _FLAGS[largest.name]


def _counted_graphs(stage: StagePlan) -> tuple[PlanTerm, ...]:
    return (stage.graphs,) if stage.graphs_in_budget else ()


def _warnings(plan: MemoryPlan, stage: StagePlan) -> tuple[StartupWarning, ...]:
    found = []
    eager = plan.request.flags.enforce_eager
    floor = FLOOR_GIB + (0 if eager else max(GRAPH_OVERSHOOT_GIB, stage.uncounted_bytes / GIB))
    outside = stage.outside_bytes / GIB if stage.stated_cache_bytes is None else plan.headroom_bytes(stage) / GIB
    if outside < floor:
        found.append(
            StartupWarning(
                Risk.GRAPH_CAPTURE,
                f"{size_text(outside)} are left outside the budget; capturing graphs and allocations after the profile "
                f"may take {size_text(floor)}: lower --gpu-memory-utilization or capture fewer sizes",
            )
        )
    if plan.utilization >= RISKY_UTILIZATION and stage.stated_cache_bytes is None:
        found.append(
            StartupWarning(Risk.UTILIZATION, f"{float(plan.utilization):g} leaves no room; 0.97 or less starts")
        )
    if plan.request.gpu.unified_memory:
        found.append(
            StartupWarning(
                Risk.UNIFIED_MEMORY,
                f"memory is shared with the CPU and its page cache: runs differ by {size_text(UNIFIED_BAND_GIB)}; "
                "state --kv-cache-memory-bytes",
            )
        )
    if plan.request.model.has_states:
        found.append(
            StartupWarning(Risk.HYBRID_POOL, "kept states share the pool; in practice it holds up to 20 % fewer")
        )
    weights = stage.weights
    if weights.source is Source.ESTIMATED and weights.band_bytes > plan.headroom_bytes(stage):
        found.append(
            StartupWarning(
                Risk.WEIGHT_ESTIMATE,
                f"the weights are estimated to ±{size_text(weights.band_bytes / GIB)}, more than the room that is left",
            )
        )
    return tuple(found)
