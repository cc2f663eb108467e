"""The memory of a concrete `InferenceModel` under a concrete layout, and its words."""

from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType

from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.api.inferencemodel_status import MemoryStatus, MemoryTerm, Provenance, two_decimals
from bayplan.planning.memory import KV_CACHE, MemoryDecision, MemoryRequest, ModelShape, decide_memory
from bayplan.planning.numbers import largest_divisor, to_decimal
from bayplan.planning.words import plural, size_text

ESTIMATED_OVERHEAD_GIB = Fraction(1)
ESTIMATED_OVERHEAD_SHARE = Fraction(4, 100)
"""Runtime overhead without a declared one: 1 GiB + 4 % of the GPU's memory.

A stand-in for activations, sampler, graphs and communication buffers. On 16 published engine start logs with known
load and KV sizes it is off by 1.7 GiB in the median and 2.7 GiB in nine of ten, with as many over as under.
"""

_KV_BYTES: Mapping[str, int] = MappingProxyType(
    {"bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1},
)


def model_shape(spec: InferenceModelSpec) -> ModelShape:
    """The model's numbers. With kvCacheDtype `auto` the cache follows the weights: 4 bytes above 16 bits, else 2."""
    architecture = spec.model.architecture
    auto = 4 if architecture.weight_bits > 16 else 2
    return ModelShape(
        parameters=architecture.parameters,
        weight_bits=Fraction(architecture.weight_bits),
        layers=architecture.layers,
        kv_heads=architecture.kv_heads,
        head_dim=architecture.head_dim,
        kv_element_bytes=Fraction(_KV_BYTES.get(spec.engine.kv_cache_dtype, auto)),
    )


def kv_shards(kv_heads: int, tensor: int) -> int:
    """Ways in which `tensor` ranks divide the KV heads: only as far as they divide; beyond that heads are copied."""
    return largest_divisor(kv_heads, up_to=tensor)


def memory_for_layout(
    spec: InferenceModelSpec, *, gpu_memory_gib: Fraction | None, tensor: int, pipeline: int
) -> MemoryDecision:
    """Decide the fit of `spec` on GPUs of `gpu_memory_gib` (None: unknown) split over tensor × pipeline GPUs."""
    declared = spec.engine.memory_overhead_gib
    if declared is not None:
        overhead, provenance, detail = Fraction(declared), Provenance.DECLARED, "engine.memoryOverheadGib"
    else:
        overhead = ESTIMATED_OVERHEAD_GIB + ESTIMATED_OVERHEAD_SHARE * (gpu_memory_gib or 0)
        provenance, detail = Provenance.ESTIMATED, "1 GiB + 4 % of the GPU's memory"
    return decide_memory(
        MemoryRequest(
            shape=model_shape(spec),
            max_live_tokens_per_request=spec.engine.max_model_len,
            target_concurrency=spec.concurrency,
            gpu_memory_gib=gpu_memory_gib,
            usable_fraction=Fraction(spec.engine.gpu_memory_utilization),
            runtime_overhead_gib=overhead,
            tensor=tensor,
            pipeline=pipeline,
            kv_shards=kv_shards(spec.model.architecture.kv_heads, tensor),
            overhead_provenance=provenance,
            overhead_detail=detail,
        )
    )


def need_text(decision: MemoryDecision) -> str:
    """What one GPU must hold and has: `needs 83.1 GiB of 71.3 GiB per GPU (weights 65.7, …)`."""
    request = decision.request
    parts = []
    for term in decision.terms:
        part = f"{term.name} {float(term.gib_per_gpu):.1f}"
        if term.name == KV_CACHE:
            part += f" for {request.target_concurrency} × {request.max_live_tokens_per_request} tokens"
        if term.provenance is Provenance.ESTIMATED:
            part += " estimated"
        parts.append(part)
    usable = "unknown memory" if decision.usable_gib is None else size_text(decision.usable_gib)
    return f"needs {size_text(decision.required_gib)} of {usable} per GPU ({', '.join(parts)})"


def verdict_text(decision: MemoryDecision) -> str:
    """How the comparison came out: to spare, short by, or unknown."""
    headroom = decision.headroom_gib
    if headroom is None:
        return "nobody states the GPU's memory"
    if headroom < 0:
        return f"short by {size_text(-headroom)}"
    return f"{size_text(headroom)} to spare, room for {plural(decision.max_concurrency or 0, 'request')} of full length"


def smaller_requests(*, concurrency: int, tokens: int) -> tuple[str, ...]:
    """Changes of the request alone, each of which turns a no into a yes; a bound of 0 is none."""
    changes = []
    if concurrency:
        changes.append(f"concurrency ≤ {concurrency}")
    if tokens:
        changes.append(f"engine.maxModelLen ≤ {tokens}")
    return tuple(changes)


def memory_status(gpu_product: str, decision: MemoryDecision) -> MemoryStatus:
    """The decision as `status.memory` shows it, rounded to hundredths; nothing decides by the rounded numbers."""
    headroom = decision.headroom_gib
    return MemoryStatus(
        gpu_product=gpu_product,
        fits=decision.fits,
        required_gib=two_decimals(to_decimal(decision.required_gib)),
        usable_gib=None if decision.usable_gib is None else two_decimals(to_decimal(decision.usable_gib)),
        headroom_gib=None if headroom is None else two_decimals(to_decimal(headroom)),
        max_concurrency=decision.max_concurrency,
        terms=tuple(
            MemoryTerm(
                name=term.name,
                gib_per_gpu=two_decimals(to_decimal(term.gib_per_gpu)),
                provenance=term.provenance,
                detail=term.detail,
            )
            for term in decision.terms
        ),
    )
