"""The KV cache of one engine: reference-counted blocks, a least-recently-used free list, and the prefix cache.

The rules are those of vLLM's block pool: only full blocks are cached; a block's key covers everything before it,
because it hashes its parent's key; a cached block that nobody uses stays findable until the free list hands it out.
"""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence

ROOT_HASH = bytes(16)
"""Parent of every first block."""


def chain_block_hashes(
    token_ids: Sequence[int],
    *,
    block_size: int,
    cache_salt: str | None = None,
    extra_keys: Sequence[str] = (),
) -> list[bytes]:
    """Keys of the full blocks of `token_ids`, first block first; the incomplete last block has none.

    `cache_salt` enters the first block alone and reaches the others through their parents; `extra_keys` (an adapter's
    name and path, an image's digest) enter every block. Every part is length-prefixed, so no two inputs meet by
    concatenation. 128-bit BLAKE2b: collisions need not be thought about. Raises ValueError for a block size below 1.
    """
    if block_size < 1:
        raise ValueError(f"block_size: {block_size} is not at least 1")
    tokens = array("q", token_ids)
    extra = b"".join(_sized(key) for key in extra_keys)
    salt = b"\x00" if cache_salt is None else b"\x01" + _sized(cache_salt)
    parent = ROOT_HASH
    hashes = []
    for start in range(0, len(tokens) - block_size + 1, block_size):
        digest = hashlib.blake2b(parent, digest_size=16)
        digest.update(tokens[start : start + block_size])
        digest.update(salt + extra)
        parent = digest.digest()
        hashes.append(parent)
        salt = b"\x00"
    return hashes


def _sized(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return len(data).to_bytes(8, "little") + data


class KVBlockPool:
    """Blocks 0 … `num_blocks` - 1. A block is in use (count > 0) or on the free list, never both.

    Free blocks leave at the head of the list and come back at its tail, so the cached block that was unused for longest
    is the first to be overwritten.
    """

    __slots__ = ("_block_by_hash", "_free", "_hash_by_block", "_references", "num_blocks")

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks: {num_blocks} is not at least 1")
        self.num_blocks = num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._references = [0] * num_blocks
        self._hash_by_block: dict[int, bytes] = {}
        self._block_by_hash: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        """Blocks that nobody uses, cached ones among them."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks in use; a shared block counts once."""
        return self.num_blocks - len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks, used or free, that a prompt could hit."""
        return len(self._block_by_hash)

    def references(self, block: int) -> int:
        """How many sequences use this block."""
        return self._references[block]

    def find(self, hashes: Iterable[bytes]) -> list[int]:
        """The blocks of the longest cached prefix of `hashes`; takes no reference."""
        found = []
        known = self._block_by_hash
        for key in hashes:
            block = known.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def count_unused(self, blocks: Iterable[int]) -> int:
        """How many of these blocks are on the free list, so that `share` would shorten it by as many."""
        references = self._references
        return sum(1 for block in blocks if not references[block])

    def share(self, blocks: Iterable[int]) -> None:
        """Take one reference more on each of these cached blocks."""
        references = self._references
        free = self._free
        for block in blocks:
            if not references[block]:
                del free[block]
            references[block] += 1

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks, forgetting what they cached. Raises MemoryError when there are fewer."""
        free = self._free
        if count > len(free):
            raise MemoryError(f"{count} KV blocks asked for, {len(free)} of {self.num_blocks} free")
        taken = []
        references = self._references
        hashes = self._hash_by_block
        for _ in range(count):
            block, _ = free.popitem(last=False)
            references[block] = 1
            if hashes:
                key = hashes.pop(block, None)
                if key is not None:
                    del self._block_by_hash[key]
            taken.append(block)
        return taken

    def allocate_one(self) -> int:
        """`allocate(1)` without the list. Raises KeyError when no block is free."""
        block, _ = self._free.popitem(last=False)
        self._references[block] = 1
        if self._hash_by_block:
            key = self._hash_by_block.pop(block, None)
            if key is not None:
                del self._block_by_hash[key]
        return block

    def register(self, block: int, key: bytes) -> None:
        """Make a full block findable. Of two blocks with one key the first stays the cached one."""
        if block not in self._hash_by_block and self._block_by_hash.setdefault(key, block) == block:
            self._hash_by_block[block] = key

    def release(self, blocks: Sequence[int]) -> None:
        """Give back one sequence's blocks, in the sequence's order.

        They are freed last block first, so that under pressure a prefix loses its end before its beginning. Raises
        ValueError for a block that is not in use.
        """
        references = self._references
        free = self._free
        for block in reversed(blocks):
            count = references[block] - 1
            if count < 0:
                raise ValueError(f"KV block {block} is freed twice")
            references[block] = count
            if not count:
                free[block] = None
