"""Does a model fit, by the founding text's formula: weights split evenly, KV by shards, one declared overhead.

The terms stay separate, each with its provenance. All arithmetic is exact, and the fit and the largest concurrency come
from the same numbers, so they cannot contradict each other. `memory.plan` has the engine's real layout and overheads.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

from bayplan.api.provenance import Provenance
from bayplan.planning.memory.terms import KV_CACHE, OVERHEAD, WEIGHTS, Fit, Term
from bayplan.planning.numbers import GIB, count, not_negative, positive, share


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The numbers of a decoder model that decide its memory. Raises InvalidInput for a field that is not positive."""

    parameters: int
    weight_bits: Fraction
    layers: int
    kv_heads: int
    head_dim: int
    kv_element_bytes: Fraction = Fraction(2)

    def __post_init__(self) -> None:
        for name in ("parameters", "layers", "kv_heads", "head_dim"):
            object.__setattr__(self, name, count(getattr(self, name), name))
        for name in ("weight_bits", "kv_element_bytes"):
            object.__setattr__(self, name, positive(getattr(self, name), name))

    @property
    def weight_bytes(self) -> Fraction:
        """Bytes of all weights: parameters × bits / 8."""
        return self.parameters * self.weight_bits / 8

    @property
    def kv_bytes_per_token(self) -> Fraction:
        """KV bytes of one token over all layers: 2 (keys and values) × layers × KV heads × head dim × element bytes."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.kv_element_bytes


@dataclass(frozen=True, slots=True)
class MemoryRequest:
    """What one GPU of a replica must hold. Raises InvalidInput naming the field.

    Under `pipeline` stages the GPU of the stage with the most layers counts: ceil(layers / pipeline) of them.
    """

    shape: ModelShape
    max_live_tokens_per_request: int
    target_concurrency: int
    gpu_memory_gib: Fraction | None
    usable_fraction: Fraction
    runtime_overhead_gib: Fraction
    tensor: int = 1
    pipeline: int = 1
    kv_shards: int = 1
    """Ways in which the KV heads of a layer are divided; the rest of the tensor width holds copies."""
    overhead_provenance: Provenance = Provenance.DECLARED
    overhead_detail: str = ""

    def __post_init__(self) -> None:
        for name in ("max_live_tokens_per_request", "target_concurrency", "tensor", "pipeline", "kv_shards"):
            object.__setattr__(self, name, count(getattr(self, name), name))
        if self.gpu_memory_gib is not None:
            object.__setattr__(self, "gpu_memory_gib", positive(self.gpu_memory_gib, "gpu_memory_gib"))
        object.__setattr__(self, "usable_fraction", share(self.usable_fraction, "usable_fraction"))
        object.__setattr__(
            self, "runtime_overhead_gib", not_negative(self.runtime_overhead_gib, "runtime_overhead_gib")
        )

    @property
    def stage_share(self) -> Fraction:
        """The largest stage's part of the layers."""
        return Fraction(math.ceil(Fraction(self.shape.layers, self.pipeline)), self.shape.layers)


@dataclass(frozen=True, slots=True)
class MemoryDecision(Fit):
    """The fit of a request, and the largest request of its kind that would fit. GiB are per GPU."""

    request: MemoryRequest

    @property
    def concurrency(self) -> int:
        """Requests of full length that are asked for."""
        return self.request.target_concurrency

    @property
    def length(self) -> int:
        """Tokens of a request of full length."""
        return self.request.max_live_tokens_per_request

    @property
    def least_gpu_gib(self) -> Fraction:
        """Memory of a GPU on which the sum of the terms just fits."""
        return self.required_gib / self.request.usable_fraction

    @property
    def stage_bytes(self) -> list[Fraction]:
        """What one decode step of the asked load reads on a GPU of each stage, the largest stage for all."""
        read = sum((term.gib_per_gpu for term in self.terms if term.name != OVERHEAD), start=Fraction(0)) * GIB
        return [read] * self.request.pipeline

    @property
    def kv_gib_per_request(self) -> Fraction:
        """KV cache of one request at its full length."""
        return self._kv_gib_per_token * self.request.max_live_tokens_per_request

    @property
    def max_concurrency(self) -> int | None:
        """Most requests of full length whose KV cache fits; 0 when weights and overhead alone do not. None: unknown."""
        room = self._room_gib
        return None if room is None else math.floor(max(Fraction(0), room) / self.kv_gib_per_request)

    @property
    def kv_tokens(self) -> int | None:
        """Tokens whose KV cache fits beside weights and overhead, whatever requests they belong to. None: unknown."""
        room = self._room_gib
        return None if room is None else math.floor(max(Fraction(0), room) / self._kv_gib_per_token)

    @property
    def max_tokens_per_request(self) -> int | None:
        """Longest request that fits at the asked concurrency; 0 when none does. None: unknown."""
        room = self._room_gib
        if room is None:
            return None
        return math.floor(max(Fraction(0), room) / (self._kv_gib_per_token * self.request.target_concurrency))

    @property
    def _kv_gib_per_token(self) -> Fraction:
        request = self.request
        return request.shape.kv_bytes_per_token * request.stage_share / request.kv_shards / GIB

    @property
    def _room_gib(self) -> Fraction | None:
        """Usable memory that the terms other than the KV cache leave."""
        if self.usable_gib is None:
            return None
        return self.usable_gib - sum(term.gib_per_gpu for term in self.terms if term.name != KV_CACHE)


def decide_memory(request: MemoryRequest) -> MemoryDecision:
    """Compute the terms of `request` and compare their sum with the usable memory.

    weights = parameters × bits / 8 × stage share / tensor; KV = bytes per token × stage share / KV shards × tokens ×
    concurrency; usable = GPU memory × usable fraction. After chapter 22.2 and its companion code.
    """
    shape = request.shape
    kv = (
        shape.kv_bytes_per_token
        * request.stage_share
        / request.kv_shards
        * request.max_live_tokens_per_request
        * request.target_concurrency
        / GIB
    )
    terms = (
        Term(
            WEIGHTS,
            shape.weight_bytes * request.stage_share / request.tensor / GIB,
            Provenance.DERIVED,
            f"{shape.parameters} parameters × {float(shape.weight_bits):g} bits over {request.tensor} GPUs",
        ),
        Term(
            KV_CACHE,
            kv,
            Provenance.DERIVED,
            f"{request.target_concurrency} × {request.max_live_tokens_per_request} tokens",
        ),
        Term(OVERHEAD, request.runtime_overhead_gib, request.overhead_provenance, request.overhead_detail),
    )
    memory = request.gpu_memory_gib
    return MemoryDecision(
        terms=terms, usable_gib=None if memory is None else memory * request.usable_fraction, request=request
    )
