"""Pages of several sizes side by side in one block, as vLLM lays out DeepSeek-V4.

Layers whose blocks hold equal tokens for an equal reach are one group, cut only so that no group is much wider than
another; a block id stands for a page in every layer of one group. How large a block is changed twice
[vLLM `kv_cache_utils.py`: `_get_kv_cache_config_deepseek_v4` to 0.22, `_bucket_layers_by_page_size` 0.23 to 0.26,
`_get_packed_kv_cache_layout` and `_get_packed_kv_cache_groups` from 0.27].
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from bayplan.planning.memory.cachelayers import CacheKind, CacheLayer, PageShape
from bayplan.planning.memory.pages import PackedBlock, PageGroup, PageLayout, PageRules
from bayplan.planning.numbers import InvalidInput


@dataclass(frozen=True, slots=True)
class _Page:
    """One layer's page in a block."""

    stage: int
    size: int


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Layers that may share a block table, by page size."""

    kind: CacheKind
    block_tokens: int
    reach: int
    pages: dict[int, list[_Page]]

    @property
    def repeats(self) -> int:
        """Layers of the commonest page size."""
        return max(map(len, self.pages.values()))

    @property
    def balanced(self) -> bool:
        """Whether the layers are repeats of one pattern, a layer of each size."""
        return len(set(map(len, self.pages.values()))) == 1


def packed_layout(layers: Sequence[CacheLayer], rules: PageRules, *, stages: int = 1) -> PageLayout:
    """Group the caches of `layers` into packed blocks.

    Raises InvalidInput when no bucket mixes page sizes, or a page is larger than the engine's release can place.
    """
    buckets = _buckets(layers, rules)
    mixed = [bucket.repeats for bucket in buckets if bucket.balanced and len(bucket.pages) > 1]
    if not mixed:
        raise InvalidInput("compress_ratios", "must hold layers of ratio 4; without them pages are not known")
    repeats = _repeats([bucket.repeats for bucket in buckets if bucket.balanced], least=max(mixed))
    cut = [(bucket, pages) for bucket in buckets for pages in _cut(bucket, repeats)]
    own = [tuple(_stage_bytes(pages, stage) for stage in range(stages)) for _, pages in cut]
    if rules.packed_block is not PackedBlock.WIDEST_GROUP:
        sizes = {size for bucket in buckets if bucket.kind is CacheKind.FULL for size in bucket.pages}
        placed = [[_placed(page, sizes) for page in pages] for _, pages in cut]
        own = [tuple(_shared_bytes(placed, stage, rules.packed_block) for stage in range(stages))] * len(cut)
    groups = tuple(
        PageGroup(bucket.kind, len(pages), stage_bytes, bucket.block_tokens, bucket.reach)
        for (bucket, pages), stage_bytes in zip(cut, own, strict=True)
    )
    return PageLayout(groups, rules)


def _buckets(layers: Sequence[CacheLayer], rules: PageRules) -> list[_Bucket]:
    found: dict[tuple[CacheKind, int, int], _Bucket] = {}
    for layer in layers:
        spec = layer.spec
        page = spec.page or PageShape()
        block = page.block_tokens or rules.block_tokens
        bucket = found.setdefault((spec.kind, block, spec.reach), _Bucket(spec.kind, block, spec.reach, {}))
        size = page.page_bytes(spec.token_bytes, block)
        bucket.pages.setdefault(size, []).append(_Page(layer.stage, size))
    return list(found.values())


def _repeats(counts: Sequence[int], *, least: int) -> int:
    """The number that pads the counts least when each is rounded up to a multiple of it, the larger of equal ones."""
    return min(range(least, max(counts) + 1), key=lambda each: (sum(-count % each for count in counts), -each))


def _cut(bucket: _Bucket, repeats: int) -> list[list[_Page]]:
    number = -(-bucket.repeats // repeats) if bucket.balanced else 1
    return [[page for pages in bucket.pages.values() for page in pages[index::number]] for index in range(number)]


def _stage_bytes(pages: Sequence[_Page], stage: int) -> int:
    return sum(page.size for page in pages if page.stage == stage)


def _placed(page: _Page, sizes: set[int]) -> _Page:
    """A page grown to the next page size of full attention, as releases before 0.27 place it."""
    larger = [size for size in sizes if size >= page.size]
    if not larger:
        raise InvalidInput("block_size", f"must make a page of {page.size} bytes fit in one of full attention")
    return _Page(page.stage, min(larger))


def _shared_bytes(groups: Sequence[Sequence[_Page]], stage: int, rule: PackedBlock) -> int:
    """Bytes of a block that has room for the most layers of each page size, or of any (`EQUAL_SLOTS`)."""
    slots: Counter[int] = Counter()
    for pages in groups:
        slots |= Counter(page.size for page in pages if page.stage == stage)
    if rule is PackedBlock.EQUAL_SLOTS:
        return sum(slots) * max(slots.values(), default=0)
    return sum(size * number for size, number in slots.items())
