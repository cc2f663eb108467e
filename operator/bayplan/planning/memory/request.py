"""What is asked: a model with its weights, a GPU, a layout, the engine's flags and the load it must hold."""

from dataclasses import dataclass, field, replace
from fractions import Fraction

from bayplan.planning.memory.adapters import AdapterSlots
from bayplan.planning.memory.architecture import ModelArchitecture
from bayplan.planning.memory.cachelayers import CacheSpec, StateTypes, kv_element_bytes
from bayplan.planning.memory.enginerules import vllm_rules
from bayplan.planning.memory.gpucatalogue import Gpu
from bayplan.planning.memory.parallel import ParallelLayout
from bayplan.planning.memory.versions import EngineVersion
from bayplan.planning.memory.weights import WeightNumbers
from bayplan.planning.numbers import InvalidInput, count, not_negative, share

MAX_TOKENS = 10**9
BLOCK_STEP = 16
"""Every attention backend takes blocks of a multiple of this, those of ROCm's MLA of 1 [vLLM 0.32
`get_supported_kernel_block_sizes`]."""
_DTYPES = {"auto": None, "bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "float": 4}


@dataclass(frozen=True, slots=True)
class EngineFlags:
    """vLLM's flags that move memory, by their names; None leaves a flag to the engine's default.

    Raises InvalidInput for a value that the engine would refuse.
    """

    version: EngineVersion | None = None
    """None: the newest known rules."""
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: Fraction | None = None
    kv_cache_dtype: str = "auto"
    mamba_cache_dtype: str = "auto"
    """Of the states of linear attention and Mamba layers."""
    mamba_ssm_cache_dtype: str = "auto"
    """Of their recurrent part alone."""
    dtype: str = "auto"
    block_size: int | None = None
    kv_cache_memory_bytes: int | None = None
    enforce_eager: bool = False
    enable_prefix_caching: bool | None = None
    async_scheduling: bool | None = None
    speculative_tokens: int = 0
    """Tokens that the model's own prediction layers or a draft propose per step."""
    attention_backend: str = ""
    adapters: AdapterSlots | None = None

    def __post_init__(self) -> None:
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "kv_cache_memory_bytes"):
            value = getattr(self, name)
            if value is not None:
                limit = 2**50 if name == "kv_cache_memory_bytes" else MAX_TOKENS
                if count(value, name) > limit:
                    raise InvalidInput(name, f"must be at most {limit}, not {value}")
        if self.gpu_memory_utilization is not None:
            utilization = share(self.gpu_memory_utilization, "gpu_memory_utilization")
            object.__setattr__(self, "gpu_memory_utilization", utilization)
        if self.block_size is not None and self.block_size % BLOCK_STEP and self.block_size != 1:
            raise InvalidInput("block_size", f"must be 1 or a multiple of {BLOCK_STEP}, not {self.block_size}")
        count(self.speculative_tokens, "speculative_tokens", least=0)
        kv_element_bytes(self.kv_cache_dtype, model_element_bytes=2)
        _ = self.states
        if self.dtype not in _DTYPES:
            raise InvalidInput("dtype", f"must be one of {', '.join(_DTYPES)}, not {self.dtype[:30]!r}")

    @property
    def states(self) -> StateTypes:
        """The types of states."""
        return StateTypes(self.mamba_cache_dtype, self.mamba_ssm_cache_dtype)


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """The question that `plan_memory` answers. Raises InvalidInput for a load below one request."""

    model: ModelArchitecture
    weights: WeightNumbers
    gpu: Gpu
    ranks: ParallelLayout = field(default_factory=ParallelLayout)
    flags: EngineFlags = field(default_factory=EngineFlags)
    concurrency: int = 1
    """Requests of full length that one replica must hold at the same time."""
    draft_cache: tuple[CacheSpec, ...] = ()
    """Cache layers of a separate draft model, on one rank."""
    draft_weight_bytes: int = 0
    """Weights of a separate draft model, on one rank."""
    overhead_gib: Fraction | None = None
    """Declared GiB per GPU outside weights and cache: it stands for activation, non-torch memory and graphs."""
    checkpoint_cache_dtype: str = "auto"
    """What the checkpoint declares for its cache: it counts where no flag says otherwise and the engine reads it."""
    measured_blocks: int | None = None
    """Blocks that an engine of exactly this request reported on one rank: it replaces what the terms leave."""

    def __post_init__(self) -> None:
        count(self.concurrency, "concurrency")
        count(self.draft_weight_bytes, "draft_weight_bytes", least=0)
        if self.overhead_gib is not None:
            object.__setattr__(self, "overhead_gib", not_negative(self.overhead_gib, "overhead_gib"))
        if self.measured_blocks is not None:
            count(self.measured_blocks, "measured_blocks")
        declared = self.checkpoint_cache_dtype
        if (
            declared != "auto"
            and self.flags.kv_cache_dtype == "auto"
            and vllm_rules(self.flags.version).checkpoint_cache
        ):
            object.__setattr__(self, "flags", replace(self.flags, kv_cache_dtype=declared))
        element_bytes = _DTYPES[self.flags.dtype]
        if element_bytes is not None and element_bytes != self.model.element_bytes:
            object.__setattr__(self, "model", replace(self.model, element_bytes=element_bytes))

    @property
    def max_model_len(self) -> int:
        """The asked length, or the model's own. Raises InvalidInput when neither is stated."""
        length = self.flags.max_model_len or self.model.max_position_embeddings
        if length is None:
            raise InvalidInput("max_model_len", "is stated neither by the flag nor by the model; state it")
        return length

    def with_flags(self, **changes: object) -> "PlanRequest":
        """The same question with other flags."""
        return replace(self, flags=replace(self.flags, **changes))  # type: ignore[arg-type]
