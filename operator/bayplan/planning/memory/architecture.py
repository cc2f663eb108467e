"""What a model is, in the numbers that decide memory: its layers one by one, and the shapes of what they are made of.

Names are those of the Hugging Face `config.json`, cleared of each family's own spelling (`modelconfig` does that).
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from bayplan.planning.numbers import InvalidInput, count, named

MAX_LAYERS = 4096
MAX_DIMENSION = 2**31
"""Bounds of single numbers: above them a config is corrupt, and arithmetic over it would only waste memory."""


class UnknownArchitecture(InvalidInput):
    """The model's class is not known, or fields that it needs are missing. Never a guess: `needs` names the fields."""

    def __init__(self, architecture: str, needs: tuple[str, ...], message: str) -> None:
        super().__init__("architecture", message)
        self.architecture = architecture
        self.needs = needs


class Mixer(StrEnum):
    """What moves information between the tokens of a layer; it decides what the layer keeps per request."""

    FULL = "full attention"
    SLIDING = "sliding window attention"
    CHUNKED = "chunked local attention"
    LATENT = "latent attention"
    """MLA: one compressed vector per token instead of heads."""
    GATED_DELTA = "gated delta net"
    MAMBA = "Mamba-2"
    MAMBA_1 = "Mamba-1"
    KIMI_DELTA = "Kimi delta attention"
    LATENT_WINDOW = "sliding window latent attention"
    """DeepSeek-V4: one vector per token of the window alone."""
    LATENT_SPARSE = "compressed sparse attention"
    """DeepSeek-V4: as the former, and a vector per 4 tokens, picked by an indexer."""
    LATENT_HEAVY = "heavily compressed attention"
    """DeepSeek-V4: as LATENT_WINDOW, and a vector per 128 tokens."""
    PARALLEL = "attention beside Mamba-2"
    """Both in one layer, each with its cache (Falcon-H1)."""
    SHORT_CONVOLUTION = "gated short convolution"
    """Keeps its last inputs alone (LFM2)."""
    NONE = "none"
    """The layer is a feed-forward block alone."""


STATE_MIXERS = frozenset({Mixer.GATED_DELTA, Mixer.MAMBA, Mixer.MAMBA_1, Mixer.KIMI_DELTA, Mixer.SHORT_CONVOLUTION})
"""Keep a state of fixed size per request instead of keys and values per token."""


COMPRESSED_MIXERS = frozenset({Mixer.LATENT_WINDOW, Mixer.LATENT_SPARSE, Mixer.LATENT_HEAVY})
"""The kinds of DeepSeek-V4's attention."""
HEADED_MIXERS = frozenset({Mixer.FULL, Mixer.SLIDING, Mixer.CHUNKED, Mixer.LATENT, Mixer.PARALLEL, *COMPRESSED_MIXERS})
"""Have attention heads."""


class FeedForward(StrEnum):
    """The other half of a layer."""

    DENSE = "dense"
    EXPERTS = "experts"
    NONE = "none"


class Layer(NamedTuple):
    """One decoder layer."""

    mixer: Mixer
    feed_forward: FeedForward
    intermediate_size: int | None = None
    """Inner width of its dense block where layers differ; None for the model's."""


def _dimensions(record: object, *names: str, least: int = 1) -> None:
    for name in names:
        value = getattr(record, name)
        if value is not None and count(value, name, least=least) > MAX_DIMENSION:
            raise InvalidInput(name, f"must be at most {MAX_DIMENSION}, not {value}")


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Attention heads. Global layers of some families have their own head size and number of KV heads."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    """Tokens that a sliding layer sees."""
    own_token_beside_window: bool = False
    """The window is the tokens before the present one."""
    chunk: int | None = None
    """Tokens of a chunk of chunked local attention."""
    global_kv_heads: int | None = None
    global_head_dim: int | None = None
    keys_are_values: bool = False
    """Global layers store one projection for keys and values; the engine loads it twice (Gemma 4)."""
    output_gate: bool = False
    """The query projection is doubled by a gate."""

    def __post_init__(self) -> None:
        _dimensions(self, "heads", "kv_heads", "head_dim", "window", "chunk", "global_kv_heads", "global_head_dim")
        for name, kv_heads in (
            ("num_key_value_heads", self.kv_heads),
            ("num_global_key_value_heads", self.global_kv_heads),
        ):
            if kv_heads is not None and self.heads % kv_heads:
                raise InvalidInput(name, f"{kv_heads} must divide the {self.heads} attention heads")

    def of(self, mixer: Mixer) -> tuple[int, int]:
        """KV heads and head size of a layer of this kind."""
        if mixer is Mixer.FULL and (self.global_head_dim or self.global_kv_heads):
            return self.global_kv_heads or self.kv_heads, self.global_head_dim or self.head_dim
        return self.kv_heads, self.head_dim


@dataclass(frozen=True, slots=True)
class LatentShape:
    """Multi-head latent attention (DeepSeek): ranks of the compressed projections and the parts of a head."""

    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None

    def __post_init__(self) -> None:
        _dimensions(self, "kv_lora_rank", "qk_nope_head_dim", "v_head_dim", "q_lora_rank")
        _dimensions(self, "qk_rope_head_dim", least=0)

    @property
    def cached_elements(self) -> int:
        """Elements kept per token and layer."""
        return self.kv_lora_rank + self.qk_rope_head_dim


@dataclass(frozen=True, slots=True)
class CompressedShape:
    """DeepSeek-V4's attention beside its heads: the ranks of its projections, and the streams between its layers."""

    qk_rope_head_dim: int
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    hc_mult: int
    """Streams of the hyper-connections."""

    def __post_init__(self) -> None:
        _dimensions(self, "qk_rope_head_dim", "q_lora_rank", "o_lora_rank", "o_groups", "hc_mult")


@dataclass(frozen=True, slots=True)
class IndexerShape:
    """The small attention that picks tokens for sparse MLA; it has a cache of its own."""

    heads: int
    head_dim: int

    def __post_init__(self) -> None:
        _dimensions(self, "heads", "head_dim")


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """A mixture of experts: how many there are, how many a token visits, and their inner width."""

    experts: int
    per_token: int
    intermediate_size: int
    shared_intermediate_size: int = 0
    """Inner width of all shared experts of a layer together; 0 for none."""
    latent_size: int | None = None
    """Width that routed experts work in, between two projections; None for the model's hidden size."""

    def __post_init__(self) -> None:
        _dimensions(self, "experts", "per_token", "intermediate_size", "latent_size")
        _dimensions(self, "shared_intermediate_size", least=0)
        if self.per_token > self.experts:
            raise InvalidInput("num_experts_per_tok", f"{self.per_token} is more than the {self.experts} experts")


@dataclass(frozen=True, slots=True)
class LinearShape:
    """Linear attention with a matrix state per value head (gated delta net, Kimi delta attention)."""

    key_heads: int
    value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int
    state_bytes: int | None = None
    """Bytes per element of the recurrent state where the model states it; None follows the model's dtype."""

    def __post_init__(self) -> None:
        _dimensions(self, "key_heads", "value_heads", "key_head_dim", "value_head_dim", "conv_kernel", "state_bytes")


@dataclass(frozen=True, slots=True)
class MambaShape:
    """A Mamba-2 mixer. `state_bytes` as in LinearShape."""

    heads: int
    head_dim: int
    state_size: int
    groups: int
    conv_kernel: int
    state_bytes: int | None = None
    gated_norm: bool = True
    """Its output is normalized."""

    def __post_init__(self) -> None:
        _dimensions(self, "heads", "head_dim", "state_size", "groups", "conv_kernel", "state_bytes")

    @property
    def intermediate_size(self) -> int:
        """Inner width."""
        return self.heads * self.head_dim


@dataclass(frozen=True, slots=True)
class FirstMambaShape:
    """A Mamba-1 mixer: channels with a state each, and the rank of its time steps."""

    channels: int
    state_size: int
    conv_kernel: int
    step_rank: int

    def __post_init__(self) -> None:
        _dimensions(self, "channels", "state_size", "conv_kernel", "step_rank")


@dataclass(frozen=True, slots=True)
class ConvolutionShape:
    """A gated short convolution: its channels and how many inputs it sees."""

    channels: int
    kernel: int

    def __post_init__(self) -> None:
        _dimensions(self, "channels")
        _dimensions(self, "kernel", least=2)


@dataclass(frozen=True, slots=True)
class Traits:
    """What a family's code adds beside the large matrices; it matters only for the exact number of parameters."""

    gated_mlp: bool = True
    """Feed-forward blocks have gate, up and down; False: up and down."""
    qkv_bias: bool = False
    all_bias: bool = False
    """Every linear layer has a bias."""
    output_bias: bool = False
    """The attention's output projection has a bias."""
    head_bias: bool = False
    qk_norm: bool = False
    wide_qk_norm: bool = False
    """Queries and keys are normalized with a weight for each of their columns, not of a head's."""
    norms_per_layer: int = 2
    norm_per_part: bool = False
    """A layer has one norm for each of its two halves that is there."""
    norm_bias: bool = False
    final_norm_bias: bool = False
    sinks: bool = False
    """One learned sink per query head."""
    router_bias: bool = False
    router_scales: bool = False
    """The router scales its input per channel and its output per expert (Gemma 4)."""
    expert_bias: bool = False
    shared_expert_gate: bool = False
    dense_beside_experts: bool = False
    """Expert layers have a dense block as well."""
    layer_scalars: int = 0
    """Single learned numbers per layer."""
    learned_positions: int = 0
    """Rows of a learned position embedding."""


@dataclass(frozen=True, slots=True)
class ModelArchitecture:
    """A decoder model. Raises InvalidInput for a field out of bounds and for parts that a layer needs and lacks."""

    name: str
    """Class of the model, as `architectures` of config.json names it."""
    layers: tuple[Layer, ...]
    hidden_size: int
    vocab_size: int
    attention: AttentionShape | None = None
    intermediate_size: int | None = None
    latent: LatentShape | None = None
    compressed: CompressedShape | None = None
    indexer: IndexerShape | None = None
    experts: ExpertShape | None = None
    linear: LinearShape | None = None
    mamba: MambaShape | None = None
    first_mamba: FirstMambaShape | None = None
    convolution: ConvolutionShape | None = None
    mtp_layers: int = 0
    """Multi-token-prediction layers in the checkpoint; loaded only when the engine speculates with them."""
    tied_embeddings: bool = False
    stores_tied_head: bool = False
    """The checkpoint holds the output head although it equals the embedding."""
    element_bytes: int = 2
    """Bytes per element of the model's own dtype."""
    max_position_embeddings: int | None = None
    vision_parameters: int = 0
    """Parameters of the vision tower and its projector; they stay in 16 bits under quantization."""
    traits: Traits = field(default_factory=Traits)

    def __post_init__(self) -> None:
        named(self.name, "architectures")
        _dimensions(self, "hidden_size", "vocab_size", "intermediate_size", "element_bytes", "max_position_embeddings")
        _dimensions(self, "mtp_layers", least=0)
        count(self.vision_parameters, "vision_parameters", least=0)
        if not 0 < len(self.layers) <= MAX_LAYERS:
            raise InvalidInput("num_hidden_layers", f"must be 1 to {MAX_LAYERS}, not {len(self.layers)}")
        self._require_parts()

    def _require_parts(self) -> None:
        mixers = {layer.mixer for layer in self.layers}
        blocks = {layer.feed_forward for layer in self.layers}
        attention = self.attention
        parts: tuple[tuple[bool, object, str], ...] = (
            (bool(mixers & HEADED_MIXERS), attention, "num_attention_heads"),
            (bool(mixers & {Mixer.SLIDING, *COMPRESSED_MIXERS}), attention and attention.window, "sliding_window"),
            (Mixer.CHUNKED in mixers, attention and attention.chunk, "attention_chunk_size"),
            (Mixer.LATENT in mixers, self.latent, "kv_lora_rank"),
            (bool(mixers & COMPRESSED_MIXERS), self.compressed, "o_lora_rank"),
            (Mixer.LATENT_SPARSE in mixers, self.indexer, "index_head_dim"),
            (bool(mixers & {Mixer.GATED_DELTA, Mixer.KIMI_DELTA}), self.linear, "linear_num_value_heads"),
            (bool(mixers & {Mixer.MAMBA, Mixer.PARALLEL}), self.mamba, "mamba_num_heads"),
            (Mixer.MAMBA_1 in mixers, self.first_mamba, "mamba_d_state"),
            (Mixer.SHORT_CONVOLUTION in mixers, self.convolution, "conv_L_cache"),
            (FeedForward.DENSE in blocks, self.intermediate_size, "intermediate_size"),
            (FeedForward.EXPERTS in blocks, self.experts, "num_experts"),
        )
        missing = tuple(name for needed, part, name in parts if needed and not part)
        if missing:
            raise UnknownArchitecture(
                self.name, missing, f"{self.name} has layers that need {', '.join(missing)}; state them"
            )

    @property
    def is_latent(self) -> bool:
        """Whether attention keeps one latent vector per token."""
        return any(layer.mixer is Mixer.LATENT or layer.mixer in COMPRESSED_MIXERS for layer in self.layers)

    @property
    def prediction_mixer(self) -> Mixer:
        """The mixer of a multi-token-prediction layer."""
        if self.compressed is not None:
            return Mixer.LATENT_WINDOW
        return Mixer.LATENT if self.is_latent else Mixer.FULL

    @property
    def has_states(self) -> bool:
        """Whether some layers keep a state of fixed size: a hybrid or a pure state-space model."""
        return any(layer.mixer in STATE_MIXERS or layer.mixer is Mixer.PARALLEL for layer in self.layers)

    @property
    def has_experts(self) -> bool:
        """Whether some layer is a mixture of experts."""
        return any(layer.feed_forward is FeedForward.EXPERTS for layer in self.layers)
