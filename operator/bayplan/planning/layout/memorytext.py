"""The memory of a concrete `InferenceModel` under a concrete split, and its words."""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType

from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.api.inferencemodel_status import MemoryStatus, MemoryTerm, two_decimals
from bayplan.api.provenance import Provenance
from bayplan.planning.layout.engineflags import engine_flags
from bayplan.planning.layout.knownmodel import KnownModel
from bayplan.planning.layout.modelnumbers import CountedModel, ModelNumbers
from bayplan.planning.layout.split import Split
from bayplan.planning.memory import KV_CACHE, WEIGHTS, MemoryDecision, MemoryRequest, decide_memory
from bayplan.planning.memory.gpucatalogue import Gpu
from bayplan.planning.memory.replica import ReplicaMemory, SplitMemory, replica_memory, short_name
from bayplan.planning.memory.request import PlanRequest
from bayplan.planning.memory.terms import Term
from bayplan.planning.numbers import largest_divisor, to_decimal
from bayplan.planning.words import plural, size_text

ESTIMATED_OVERHEAD_GIB = Fraction(1)
ESTIMATED_OVERHEAD_SHARE = Fraction(4, 100)
"""Runtime overhead beside five numbers without a declared one: 1 GiB + 4 % of the GPU's memory.

A stand-in for activations, sampler, graphs and communication buffers, which five numbers say nothing about. On 16
published engine start logs it is off by 1.7 GiB in the median and 2.7 GiB in nine of ten, with as many over as under.
"""

_ORDER = {WEIGHTS: 0, KV_CACHE: 1}
"""What a message names first; the other terms follow in the order of a start-up."""
_KV_BYTES: Mapping[str, int] = MappingProxyType(
    {"bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1},
)


def kv_shards(kv_heads: int, tensor: int) -> int:
    """Ways in which `tensor` ranks divide the KV heads: only as far as they divide; beyond that heads are copied."""
    return largest_divisor(kv_heads, up_to=tensor)


def plan_request(spec: InferenceModelSpec, model: KnownModel, gpu: Gpu, split: Split) -> PlanRequest:
    """The question that the exact plan answers for `spec` on `gpu` under `split`."""
    overhead = spec.engine.memory_overhead_gib
    return PlanRequest(
        model=model.architecture,
        weights=model.weights,
        gpu=gpu,
        ranks=split.ranks,
        flags=engine_flags(spec),
        concurrency=spec.concurrency,
        overhead_gib=None if overhead is None else Fraction(overhead),
        checkpoint_cache_dtype=model.cache_dtype,
    )


def known_memory(
    spec: InferenceModelSpec, model: KnownModel, gpu: Gpu, split: Split, *, measured_blocks: int | None = None
) -> ReplicaMemory:
    """The exact plan of `spec` on `gpu` under `split`; `measured_blocks` is an engine's own report for it."""
    return _planned(replace(plan_request(spec, model, gpu, split), measured_blocks=measured_blocks))


@lru_cache(maxsize=4096)
def _planned(request: PlanRequest) -> ReplicaMemory:
    """Equal questions come again with every node that changes."""
    return replica_memory(request)


def counted_memory(
    spec: InferenceModelSpec, model: CountedModel, *, gpu_memory_gib: Fraction | None, split: Split
) -> MemoryDecision:
    """The founding formula for `spec` on GPUs of `gpu_memory_gib` (None: unknown); data ranks share the load evenly."""
    declared = spec.engine.memory_overhead_gib
    if declared is not None:
        overhead, provenance, detail = Fraction(declared), Provenance.DECLARED, "engine.memoryOverheadGib"
    else:
        overhead = ESTIMATED_OVERHEAD_GIB + ESTIMATED_OVERHEAD_SHARE * (gpu_memory_gib or 0)
        provenance, detail = Provenance.ESTIMATED, "1 GiB + 4 % of the GPU's memory"
    auto = 4 if model.shape.weight_bits > 16 else 2
    cache = _KV_BYTES.get(spec.engine.kv_cache_dtype, auto)
    return decide_memory(
        MemoryRequest(
            shape=replace(model.shape, kv_element_bytes=Fraction(cache)),
            max_live_tokens_per_request=spec.engine.max_model_len,
            target_concurrency=-(-spec.concurrency // split.data),
            gpu_memory_gib=gpu_memory_gib,
            usable_fraction=Fraction(spec.engine.gpu_memory_utilization),
            runtime_overhead_gib=overhead,
            tensor=split.tensor,
            pipeline=split.pipeline,
            kv_shards=kv_shards(model.shape.kv_heads, split.tensor) * split.decode_context,
            overhead_provenance=provenance,
            overhead_detail=detail,
        )
    )


def split_memory(
    spec: InferenceModelSpec,
    model: ModelNumbers,
    *,
    gpu: Gpu | None,
    gpu_memory_gib: Fraction | None,
    split: Split,
    measured_blocks: int | None = None,
) -> SplitMemory | None:
    """The memory of `spec` under `split`, as well as its model is known; None when nothing can be said."""
    if isinstance(model, KnownModel):
        return None if gpu is None else known_memory(spec, model, gpu, split, measured_blocks=measured_blocks)
    if isinstance(model, CountedModel):
        return counted_memory(spec, model, gpu_memory_gib=gpu_memory_gib, split=split)
    return None


def need_text(memory: SplitMemory) -> str:
    """What one GPU must hold and has: `needs 83.1 GiB of 71.3 GiB per GPU (weights 65.7, KV 12.9 for …)`."""
    usable = "unknown memory" if memory.usable_gib is None else size_text(memory.usable_gib)
    parts = [_term_text(term, memory) for term in sorted(memory.terms, key=lambda term: _ORDER.get(term.name, 2))]
    return f"needs {size_text(memory.required_gib)} of {usable} per GPU ({', '.join(parts)})"


def _term_text(term: Term, memory: SplitMemory) -> str:
    part = f"{short_name(term)} {float(term.gib_per_gpu):.1f}"
    if term.name == KV_CACHE:
        part += f" for {memory.concurrency} × {memory.length} tokens"
    if term.provenance is Provenance.ESTIMATED:
        part += " estimated"
    return part


def verdict_text(memory: SplitMemory) -> str:
    """How the comparison came out: to spare, short by, or unknown; whether it is marginal, and what decides then."""
    headroom = memory.headroom_gib
    if headroom is None:
        return "nobody states the GPU's memory"
    if not memory.fits:
        text = f"short by {size_text(-headroom)}"
    else:
        room = plural(memory.max_concurrency or 0, "request")
        text = f"{size_text(headroom)} to spare, room for {room} of full length"
    if isinstance(memory, ReplicaMemory) and memory.verdict.marginal:
        text += f", marginal: {memory.verdict.deciding_flag} decides"
    return text


def smaller_requests(*, concurrency: int, tokens: int) -> tuple[str, ...]:
    """Changes of the request alone, each of which turns a no into a yes; a bound of 0 is none."""
    changes = []
    if concurrency:
        changes.append(f"concurrency ≤ {concurrency}")
    if tokens:
        changes.append(f"maxModelLen ≤ {tokens}")
    return tuple(changes)


def memory_status(gpu_product: str, memory: SplitMemory) -> MemoryStatus:
    """The decision as `status.memory` shows it, rounded to hundredths; nothing decides by the rounded numbers."""
    headroom = memory.headroom_gib
    exact = memory.verdict if isinstance(memory, ReplicaMemory) else None
    return MemoryStatus(
        gpu_product=gpu_product,
        fits=memory.fits,
        marginal=None if exact is None else exact.marginal,
        required_gib=two_decimals(to_decimal(memory.required_gib)),
        usable_gib=None if memory.usable_gib is None else two_decimals(to_decimal(memory.usable_gib)),
        headroom_gib=None if headroom is None else two_decimals(to_decimal(headroom)),
        max_concurrency=memory.max_concurrency,
        terms=tuple(
            MemoryTerm(
                name=term.name,
                gib_per_gpu=two_decimals(to_decimal(term.gib_per_gpu)),
                provenance=term.provenance,
                detail=term.detail,
            )
            for term in memory.terms
        ),
        warnings=()
        if exact is None
        else tuple(f"{warning.risk.value}: {warning.message}" for warning in exact.warnings),
    )
