"""The engine's own rules for parallel sizes: what it refuses at start, known before a GPU is taken.

vLLM 0.33; each rule names its source. A size that breaks one is refused with the rule and the next valid size.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from bayplan.planning.layout.split import Split
from bayplan.planning.memory.architecture import FeedForward, Mixer, ModelArchitecture
from bayplan.planning.memory.formats import WeightFormat
from bayplan.planning.memory.weights import VOCABULARY_PADDING, WeightNumbers

MAX_WIDTH = 64
"""Longest tensor width, pipeline and number of data ranks: the API's bounds."""


class Rule(StrEnum):
    """What a size can break, in the order in which the engine would find out."""

    ATTENTION_HEADS = "attention heads"
    """`verify_with_parallel_config` [vllm#2652, #414, #596, #1705]; heads of states and groups of outputs are divided
    alike [vLLM 0.32 `mamba_mixer2.py`, `gdn/base.py`, `deepseek_v4/attention.py`]."""
    VOCABULARY = "vocabulary"
    """`VocabParallelEmbedding`, built before any layer: padded to 64 and divided [llm-d-planner#205, vllm#31474]."""
    KV_HEADS = "KV heads"
    """`QKVParallelLinear`: divided, or copied evenly beyond their number [vllm#5951]."""
    INNER_WIDTH = "inner width"
    """`MergedColumnParallelLinear` and `FusedMoE`: the inner width divides."""
    QUANTIZED_BLOCKS = "quantized blocks"
    """A slice holds whole blocks of the weights' scales [vllm#17604; 0.32 `fp8_utils.py`, `auto_awq.py`]."""
    EXPERTS = "experts"
    """Experts divide over tensor × data ranks; without experts there is no expert parallelism [vllm#52435]."""
    STAGES = "pipeline stages"
    """Every stage has a layer (`get_pp_indices`)."""
    DECODE_CONTEXT = "decode context"
    """`verify_with_parallel_config` for decode context parallelism."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A rule that a split breaks."""

    rule: Rule
    message: str
    """`tensor=3 does not divide the 32 attention heads`."""
    way_out: str = ""
    """The next valid size, or another setting under which the size is valid."""

    def __str__(self) -> str:
        return f"{self.message}; {self.way_out}" if self.way_out else self.message


@dataclass(frozen=True, slots=True)
class RuleFacts:
    """What the rules look at. None and 0: not known, so the rule is left to the engine."""

    layers: int
    heads: int | None = None
    kv_heads: tuple[int, ...] = ()
    """KV heads of each kind of attention; empty where every rank holds the same latent vector."""
    latent: bool = False
    windows: bool = False
    experts: int | None = None
    vocab_size: int | None = None
    dense_widths: tuple[int, ...] = ()
    expert_width: int | None = None
    further_heads: tuple[tuple[int, str], ...] = ()
    """What else is divided over the ranks head by head: number and name."""
    attention_widths: tuple[int, ...] = ()
    """Inner widths of the attention's output projections, which the ranks divide as they divide the heads."""
    block: int = 0
    """Columns that share a scale in the packed linear layers."""
    expert_block: int = 0


def rule_facts(model: ModelArchitecture, *, block: int = 0, expert_block: int = 0) -> RuleFacts:
    """The facts of an architecture; `block` and `expert_block` come from the weights' format."""
    shape, experts = model.attention, model.experts
    dense = [model.intermediate_size] if any(x.feed_forward is FeedForward.DENSE for x in model.layers) else []
    shared = [experts.shared_intermediate_size] if experts is not None else []
    kv_heads: tuple[int, ...] = ()
    if shape is not None and not model.is_latent:
        kv_heads = tuple(dict.fromkeys((shape.kv_heads, shape.global_kv_heads or shape.kv_heads)))
    return RuleFacts(
        layers=len(model.layers),
        heads=None if shape is None else shape.heads,
        kv_heads=kv_heads,
        latent=model.is_latent,
        windows=any(layer.mixer in {Mixer.SLIDING, Mixer.CHUNKED} for layer in model.layers),
        experts=None if experts is None else experts.experts,
        vocab_size=model.vocab_size,
        dense_widths=tuple(width for width in (*dense, *shared) if width),
        expert_width=None if experts is None else experts.intermediate_size,
        further_heads=_further_heads(model),
        attention_widths=_attention_widths(model),
        block=block,
        expert_block=expert_block,
    )


def _further_heads(model: ModelArchitecture) -> tuple[tuple[int, str], ...]:
    """Mamba's groups are copied where they do not divide; heads and DeepSeek-V4's groups of outputs are not."""
    found: list[tuple[int, str]] = []
    if model.compressed is not None:
        found.append((model.compressed.o_groups, "groups of attention outputs"))
    if model.linear is not None:
        found.append((model.linear.key_heads, "linear attention key heads"))
        found.append((model.linear.value_heads, "linear attention value heads"))
    if model.mamba is not None:
        found.append((model.mamba.heads, "Mamba heads"))
    return tuple(found)


def _attention_widths(model: ModelArchitecture) -> tuple[int, ...]:
    shape, found = model.attention, []
    mixers = {layer.mixer for layer in model.layers}
    if shape is not None and Mixer.LATENT in mixers and model.latent is not None:
        found.append(shape.heads * model.latent.v_head_dim)
    elif shape is not None:
        kinds = (Mixer.FULL, Mixer.SLIDING, Mixer.CHUNKED)
        found += [shape.heads * shape.of(mixer)[1] for mixer in kinds if mixer in mixers]
    if Mixer.GATED_DELTA in mixers and model.linear is not None:
        found.append(model.linear.value_heads * model.linear.value_head_dim)
    return tuple(dict.fromkeys(found))


def facts_for(model: ModelArchitecture, weights: WeightNumbers, *, block: int | None = None) -> RuleFacts:
    """The facts of an architecture with these weights.

    `block` is what the checkpoint's own config.json states; without it the weights' format tells. Headers and logs say
    nothing about blocks, so their rule is left to the engine then.
    """
    if isinstance(weights, WeightFormat):
        stays = weights.linear_bits is None or (weights.attention_stays_with_experts and model.has_experts)
        own = weights.block if block is None else block
        return rule_facts(model, block=0 if stays else own, expert_block=0 if weights.expert_bits is None else own)
    return rule_facts(model, block=block or 0, expert_block=block or 0)


Check = Callable[[RuleFacts, Split], Broken | None]


def _attention_heads(facts: RuleFacts, split: Split) -> Broken | None:
    own = () if facts.heads is None else ((facts.heads, "attention heads"),)
    for heads, what in (*own, *facts.further_heads):
        if heads % split.tensor:
            return Broken(Rule.ATTENTION_HEADS, f"tensor={split.tensor} does not divide the {heads} {what}")
    return None


def _kv_heads(facts: RuleFacts, split: Split) -> Broken | None:
    tensor = split.tensor
    for heads in facts.kv_heads:
        if tensor <= heads and heads % tensor:
            return Broken(Rule.KV_HEADS, f"tensor={tensor} does not divide the {heads} KV heads")
        if tensor > heads and tensor % heads:
            return Broken(
                Rule.KV_HEADS,
                f"tensor={tensor} is not a multiple of the {heads} KV heads, so they cannot be copied evenly",
            )
    return None


def _vocabulary(facts: RuleFacts, split: Split) -> Broken | None:
    if facts.vocab_size is None:
        return None
    padded = -(-facts.vocab_size // VOCABULARY_PADDING) * VOCABULARY_PADDING
    if padded % split.tensor == 0:
        return None
    return Broken(Rule.VOCABULARY, f"tensor={split.tensor} does not divide the padded vocabulary of {padded}")


def _slices(facts: RuleFacts, split: Split) -> Iterator[tuple[int, int, int, bool]]:
    """Inner width, ranks that divide it, columns of a scale, and whether it is the experts'."""
    for width in facts.dense_widths:
        yield width, split.tensor, facts.block, False
    if facts.expert_width is not None and not split.expert:
        yield facts.expert_width, split.tensor * split.data, facts.expert_block, True


def _inner_width(facts: RuleFacts, split: Split) -> Broken | None:
    for width, ranks, _, experts in _slices(facts, split):
        if width % ranks:
            what = "an expert's inner width" if experts else "the inner width"
            return Broken(Rule.INNER_WIDTH, f"{_sizes(split, experts)} does not divide {what} of {width}")
    return None


def _quantized_blocks(facts: RuleFacts, split: Split) -> Broken | None:
    inner = ((*one, "an expert's inner width" if one[3] else "the inner width") for one in _slices(facts, split))
    attention = ((width, split.tensor, facts.block, False, "the attention's width") for width in facts.attention_widths)
    for width, ranks, block, experts, what in (*inner, *attention):
        if ranks > 1 and block and (width // ranks) % block:
            return Broken(
                Rule.QUANTIZED_BLOCKS,
                f"{_sizes(split, experts)} cuts {what} of {width} into slices of {width // ranks}, which hold no whole "
                f"blocks of {block}",
            )
    return None


def _sizes(split: Split, experts: bool) -> str:  # noqa: FBT001 - which of two texts
    return f"tensor={split.tensor}" + (f" data={split.data}" if experts and split.data > 1 else "")


def _experts(facts: RuleFacts, split: Split) -> Broken | None:
    if not split.expert:
        return None
    ranks = split.tensor * split.data
    if not facts.experts:
        return Broken(Rule.EXPERTS, "expert=true needs a mixture of experts", "leave expert parallelism out")
    if facts.experts % ranks:
        return Broken(Rule.EXPERTS, f"the {facts.experts} experts do not divide over tensor × data = {ranks} ranks")
    return None


def _stages(facts: RuleFacts, split: Split) -> Broken | None:
    if split.pipeline <= facts.layers:
        return None
    return Broken(
        Rule.STAGES,
        f"pipeline={split.pipeline} exceeds the {facts.layers} layers",
        f"the next valid size is pipeline={min(facts.layers, MAX_WIDTH)}",
    )


def _decode_context(facts: RuleFacts, split: Split) -> Broken | None:  # noqa: PLR0911 - one return per rule
    context, tensor = split.decode_context, split.tensor
    if context == 1:
        return None
    text = f"decodeContext={context}"
    if tensor % context:
        return Broken(Rule.DECODE_CONTEXT, f"{text} does not divide tensor={tensor}")
    if facts.windows:
        return Broken(
            Rule.DECODE_CONTEXT, f"{text} does not work with sliding windows", "leave decode context parallelism out"
        )
    if facts.latent or not facts.kv_heads or facts.heads is None:
        return None
    (kv_heads, *_) = facts.kv_heads
    if tensor <= kv_heads:
        return Broken(
            Rule.DECODE_CONTEXT,
            f"{text} needs tensor above the {kv_heads} KV heads, whose copies it divides; tensor is {tensor}",
        )
    if context > tensor // kv_heads:
        return Broken(Rule.DECODE_CONTEXT, f"{text} is more than the {tensor // kv_heads} copies of each KV head")
    if facts.heads // kv_heads % context:
        return Broken(
            Rule.DECODE_CONTEXT, f"{text} does not divide the {facts.heads // kv_heads} query heads of a KV head"
        )
    return None


_TENSOR_CHECKS: tuple[Check, ...] = (_attention_heads, _vocabulary, _kv_heads, _inner_width, _quantized_blocks)
_CHECKS: tuple[Check, ...] = (*_TENSOR_CHECKS, _experts, _stages, _decode_context)


def keeps_rules(facts: RuleFacts, split: Split) -> bool:
    """Whether the engine would start with this split, as far as divisibility goes."""
    return all(check(facts, split) is None for check in _CHECKS)


def broken_rule(facts: RuleFacts, split: Split, *, widest: int = MAX_WIDTH) -> Broken | None:
    """The first rule that `split` breaks, with the next valid size up to `widest` GPUs; None when it keeps all."""
    for check in _CHECKS:
        found = check(facts, split)
        if found is not None:
            return found if found.way_out else replace(found, way_out=_way_out(facts, split, found.rule, widest))
    return None


def _way_out(facts: RuleFacts, split: Split, rule: Rule, widest: int) -> str:
    """The next valid size, larger first; expert parallelism where it lifts the rule."""
    found = []
    if rule is Rule.DECODE_CONTEXT:
        smaller = _next(range(split.decode_context - 1, 0, -1), lambda size: replace(split, decode_context=size), facts)
        return f"the next valid size is decodeContext={smaller}"
    if rule is Rule.EXPERTS and split.data > 1:
        sizes = (*range(split.data + 1, MAX_WIDTH + 1), *range(split.data - 1, 0, -1))
        data = _next(sizes, lambda size: replace(split, data=size), facts)
        return f"the next valid size is data={data}" if data else "leave expert parallelism out"
    narrow = replace(split, decode_context=1)
    sizes = (*range(split.tensor + 1, widest + 1), *range(min(split.tensor - 1, widest), 0, -1))
    width = _next(sizes, lambda size: replace(narrow, tensor=size), facts)
    if width is not None:
        found.append(f"the next valid size is tensor={width}")
    if rule in {Rule.INNER_WIDTH, Rule.QUANTIZED_BLOCKS} and keeps_rules(facts, replace(narrow, expert=True)):
        found.append("expert parallelism keeps whole experts" if not split.expert else "")
    return ", or ".join(text for text in found if text)


def _next(sizes: range | tuple[int, ...], of: Callable[[int], Split], facts: RuleFacts) -> int | None:
    return next((size for size in sizes if keeps_rules(facts, of(size))), None)


def valid_widths(facts: RuleFacts, *, up_to: int) -> tuple[int, ...]:
    """Tensor widths that the engine accepts, ascending; with expert parallelism where only that makes one valid."""
    return tuple(width for width in range(1, up_to + 1) if any(_tensor_ok(facts, width, way) for way in (False, True)))


def _tensor_ok(facts: RuleFacts, width: int, expert: bool) -> bool:  # noqa: FBT001 - one of two ways
    return keeps_rules(facts, Split(width, expert=expert))
