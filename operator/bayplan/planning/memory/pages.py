"""How the engine cuts the KV cache into pages: groups of layers that share one pool of equal blocks.

vLLM's rule for models whose layers differ in kind [`v1/core/kv_cache_planning.py`, before 0.33 `kv_cache_utils.py`]:
layers of one kind are cut into groups of equal layer count, a block id stands for one page in every layer of one group,
and all groups draw block ids from one pool. A request takes, per group, the blocks that its kind needs. States are as
large as one attention page: the attention block grows until its page holds a state.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction

from bayplan.planning.memory.architecture import Mixer
from bayplan.planning.memory.cachelayers import CacheKind, CacheLayer, CacheSpec
from bayplan.planning.numbers import InvalidInput, count


class PackedBlock(StrEnum):
    """How large a block is where pages of several sizes lie side by side (`packedpages`)."""

    EQUAL_SLOTS = "as many pages of each size as the commonest has"
    SLOTS = "as many pages of each size as any group has"
    WIDEST_GROUP = "the pages of the widest group"


@dataclass(frozen=True, slots=True)
class PageRules:
    """What of the rule depends on engine version and deployment."""

    block_tokens: int = 16
    """Tokens per block before anything is aligned."""
    groups_by_kind: bool = True
    """False: before 0.9.2 all attention was allocated as full attention."""
    chunked_by_kind: bool = True
    """False: before 0.13 chunked local layers were allocated as full attention."""
    padding_ratio: Fraction = Fraction(3, 2)
    """The commoner kind sets the group's size when it has fewer than this times the layers of the rarer one."""
    in_flight_tokens: int = 2048
    """Tokens of a request that may be scheduled and not yet settled; windows hold their blocks meanwhile."""
    extra_state_blocks: int = 0
    """State pages per request beside the one in use: 1 more under prefix caching, one per speculative token."""
    mamba_checkpoint_blocks: int = 0
    """Further pages of a Mamba-2 state under prefix caching, for the checkpoint at the end of a prompt."""
    decode_context: int = 1
    tokens_by_concurrency: bool = True
    """The engine's token figure is concurrency × length; before 0.20.1 it was blocks / groups × block size."""
    packed_block: PackedBlock = PackedBlock.WIDEST_GROUP
    null_block: bool = False
    """From 0.29 one block is kept back when the longest request is checked."""

    def __post_init__(self) -> None:
        for name in ("block_tokens", "in_flight_tokens", "decode_context"):
            count(getattr(self, name), name)


@dataclass(frozen=True, slots=True)
class PageGroup:
    """Layers that share a block table: a block holds `block_tokens` of each of them."""

    kind: CacheKind
    layers: int
    """Layers in the whole model."""
    stage_bytes: tuple[int, ...]
    """Bytes that one block takes on each stage."""
    block_tokens: int
    reach: int = 0
    state_blocks: int = 1
    """Pages that a request holds in a group of states."""


@dataclass(frozen=True, slots=True)
class PageLayout:
    """The groups of a model and what one block costs."""

    groups: tuple[PageGroup, ...]
    rules: PageRules
    block_bytes: tuple[int, ...] = field(init=False)
    """Bytes of one block id on each stage: the largest group there."""

    def __post_init__(self) -> None:
        sizes = tuple(map(max, zip(*(group.stage_bytes for group in self.groups), strict=True)))
        object.__setattr__(self, "block_bytes", sizes)

    @property
    def smallest_block_tokens(self) -> int:
        """Tokens of the smallest attention block."""
        blocks = [group.block_tokens for group in self.groups if group.kind is not CacheKind.STATE]
        return min(blocks, default=self.rules.block_tokens)

    def blocks_for(self, length: int) -> int:
        """Blocks that one request of `length` tokens takes over all groups."""
        return sum(_group_blocks(group, length, self.rules) for group in self.groups)

    def blocks_in(self, pool_bytes: Sequence[Fraction]) -> int:
        """Blocks that every stage can hold in its pool; the smallest pool binds. 0 for a negative pool."""
        return max(
            0,
            min((math.floor(pool / size) for pool, size in zip(pool_bytes, self.block_bytes, strict=True)), default=0),
        )

    def concurrency(self, blocks: int, length: int) -> Fraction:
        """Requests of `length` tokens that `blocks` hold, as the engine reports it."""
        return Fraction(blocks, self.blocks_for(length))

    def reported_tokens(self, blocks: int, length: int) -> int:
        """The engine's "KV cache size" in tokens for a longest request of `length`."""
        if self.rules.tokens_by_concurrency:
            return math.floor(self.concurrency(blocks, length) * length)
        return blocks // len(self.groups) * self.smallest_block_tokens * self.rules.decode_context

    def usable_blocks(self, blocks: int) -> int:
        """Blocks that the engine's own start-up check counts."""
        return max(0, blocks - 1) if self.rules.null_block else blocks


def _group_blocks(group: PageGroup, length: int, rules: PageRules) -> int:
    """Blocks of one group for a request of `length` tokens [vLLM `max_memory_usage_bytes` of each spec]."""
    block = group.block_tokens
    if group.kind is CacheKind.STATE:
        return group.state_blocks
    if group.kind is CacheKind.SLIDING:
        held = min(group.reach - 1 + rules.in_flight_tokens, length)
        return -(-held // block) + 1
    if group.kind is CacheKind.CHUNKED:
        return -(-min(group.reach + rules.in_flight_tokens, length) // block)
    own = -(-length // rules.decode_context)
    return -(-own // block)


def page_layout(layers: Sequence[CacheLayer], rules: PageRules, *, stages: int = 1) -> PageLayout:
    """Group the caches of `layers` into pages.

    Raises InvalidInput when there are none, and for page sizes that the engine cannot bring together.
    """
    if not layers:
        raise InvalidInput("layers", "no layer keeps a cache; there is nothing to plan")
    promoted = _promoted(layers, rules)
    kinds = {layer.spec.kind for layer in promoted}
    if len(kinds) == 1 and kinds != {CacheKind.STATE} and len({layer.spec.reach for layer in promoted}) == 1:
        return PageLayout((_one_group(promoted, rules.block_tokens, stages),), rules)
    page, blocks = _common_page(promoted, rules)
    return PageLayout(_split_groups(promoted, page, blocks, rules, stages), rules)


def _promoted(layers: Sequence[CacheLayer], rules: PageRules) -> Sequence[CacheLayer]:
    """Local attention beside full attention, where the version allocates it as full attention."""
    local = set()
    if not rules.groups_by_kind:
        local = {CacheKind.SLIDING, CacheKind.CHUNKED}
    elif not rules.chunked_by_kind:
        local = {CacheKind.CHUNKED}
    kinds = {layer.spec.kind for layer in layers}
    if CacheKind.FULL not in kinds or not kinds & local:
        return layers
    full = {layer.spec: replace(layer.spec, kind=CacheKind.FULL, reach=0) for layer in layers}
    return [replace(layer, spec=full[layer.spec]) if layer.spec.kind in local else layer for layer in layers]


def _one_group(layers: Sequence[CacheLayer], block: int, stages: int) -> PageGroup:
    """One block table for all: pages of different layers may differ, a block is their sum."""
    return PageGroup(
        kind=layers[0].spec.kind,
        layers=len(layers),
        stage_bytes=tuple(
            sum(layer.spec.token_bytes * block for layer in layers if layer.stage == stage) for stage in range(stages)
        ),
        block_tokens=block,
        reach=layers[0].spec.reach,
    )


def _common_page(layers: Sequence[CacheLayer], rules: PageRules) -> tuple[int, dict[CacheSpec, int]]:
    """The page that all kinds share, and the tokens of each kind's block.

    The attention block grows in steps of its own size until a page holds the largest state; then the smaller pages grow
    to the largest, by whole multiples of their block or by padding [`unify_kv_cache_spec_page_size`].
    """
    specs = {layer.spec for layer in layers}
    attention = {spec for spec in specs if spec.kind is not CacheKind.STATE}
    state = max((spec.token_bytes for spec in specs - attention), default=0)
    block = rules.block_tokens
    if attention and state:
        full = [spec for spec in attention if spec.kind is CacheKind.FULL] or list(attention)
        token = max(spec.token_bytes for spec in full)
        block *= max(1, -(-state // (block * token)))
    pages = {spec: spec.token_bytes * (block if spec in attention else 1) for spec in specs}
    page = max(pages.values())
    blocks = {}
    for spec in specs:
        multiple = page // pages[spec] if page % pages[spec] == 0 else 1
        blocks[spec] = block * multiple if spec in attention else block
    return page, blocks


def _split_groups(
    layers: Sequence[CacheLayer], page: int, blocks: dict[CacheSpec, int], rules: PageRules, stages: int
) -> tuple[PageGroup, ...]:
    buckets: dict[tuple[CacheKind, int, int, str], list[CacheLayer]] = {}
    for layer in layers:
        spec = layer.spec
        family = spec.family if spec.kind is CacheKind.STATE else ""
        buckets.setdefault((spec.kind, spec.reach, blocks[spec], family), []).append(layer)
    least = min(len(bucket) for bucket in buckets.values())
    most = max(len(bucket) for bucket in buckets.values())
    size = most if most < least * rules.padding_ratio else least
    groups = []
    for (kind, reach, block, family), bucket in buckets.items():
        checkpoints = rules.mamba_checkpoint_blocks if family == Mixer.MAMBA else 0
        number = -(-len(bucket) // size)
        for index in range(number):
            members = bucket[index::number]
            groups.append(
                PageGroup(
                    kind=kind,
                    layers=len(members),
                    stage_bytes=tuple(page * sum(layer.stage == stage for layer in members) for stage in range(stages)),
                    block_tokens=block,
                    reach=reach,
                    state_blocks=1 + rules.extra_state_blocks + checkpoints,
                )
            )
    return tuple(groups)
