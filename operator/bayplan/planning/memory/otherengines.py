"""Cache budgets of engines that divide a GPU differently from vLLM, as far as their own rules are public.

A figure without a stated fraction is a band: both engines choose their default at run time.
"""

from dataclasses import dataclass
from fractions import Fraction

from bayplan.planning.memory.gpucatalogue import Gpu
from bayplan.planning.memory.terms import Source
from bayplan.planning.numbers import not_negative, positive, share

SGLANG_FRACTIONS = (Fraction(8, 10), Fraction(9, 10))
"""Likely `--mem-fraction-static` when nobody states it: SGLang lowers it from 0.9 for graphs and prefill chunks."""
TENSORRT_LLM_FRACTION = Fraction(9, 10)
"""Default of `free_gpu_memory_fraction`, applied to what is free after the model is loaded [vllm#5158]."""


@dataclass(frozen=True, slots=True)
class CacheBand:
    """Cache of one GPU in GiB: least and most. Equal bounds are a single figure."""

    least_gib: Fraction
    most_gib: Fraction
    source: Source
    rule: str


def sglang_cache(gpu: Gpu, *, weights_gib: Fraction, fraction: Fraction | None = None) -> CacheBand:
    """SGLang: weights and cache together take `--mem-fraction-static` of the GPU; activations live in the rest.

    That is why it shows more cache than vLLM on equal GPUs [vllm#21348]. Without a fraction the answer is Unknown
    between two likely ones. Raises InvalidInput for a fraction outside (0, 1] and weights that are not positive.
    """
    weights = positive(weights_gib, "weights_gib")
    low, high = SGLANG_FRACTIONS if fraction is None else (share(fraction, "mem_fraction_static"),) * 2
    return CacheBand(
        least_gib=low * gpu.visible_gib - weights,
        most_gib=high * gpu.visible_gib - weights,
        source=Source.UNKNOWN if fraction is None else Source.DERIVED,
        rule="GPU memory × mem-fraction-static − weights",
    )


def tensorrt_llm_cache(
    gpu: Gpu, *, weights_gib: Fraction, activation_gib: Fraction, fraction: Fraction | None = None
) -> CacheBand:
    """TensorRT-LLM: a fraction of what is free once weights and activations are allocated.

    Raises InvalidInput for a fraction outside (0, 1] and for sizes that are not positive or, the activation, negative.
    """
    free = gpu.visible_gib - positive(weights_gib, "weights_gib") - not_negative(activation_gib, "activation_gib")
    part = TENSORRT_LLM_FRACTION if fraction is None else share(fraction, "free_gpu_memory_fraction")
    return CacheBand(
        least_gib=free * part,
        most_gib=free * part,
        source=Source.ESTIMATED if fraction is None else Source.DERIVED,
        rule="(GPU memory − weights − activation) × free-gpu-memory-fraction",
    )
