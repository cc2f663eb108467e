"""The block pool: who holds what, what a prompt can hit, what is overwritten first."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.simulation.kv_blocks import KVBlockPool, chain_block_hashes

TOKENS = list(range(100, 196))


def test_only_full_blocks_have_a_hash():
    assert [len(chain_block_hashes(TOKENS[:count], block_size=32)) for count in (0, 31, 32, 33, 63, 64, 96)] == [
        0,
        0,
        1,
        1,
        1,
        2,
        3,
    ]


def test_a_block_hash_covers_everything_before_it():
    first = chain_block_hashes(TOKENS, block_size=32)
    changed = chain_block_hashes([0, *TOKENS[1:]], block_size=32)
    assert all(left != right for left, right in zip(first, changed, strict=True))
    late = chain_block_hashes([*TOKENS[:-1], 0], block_size=32)
    assert late[:2] == first[:2]
    assert late[2] != first[2]


def test_salt_reaches_every_block_through_the_first():
    plain = chain_block_hashes(TOKENS, block_size=32)
    salted = chain_block_hashes(TOKENS, block_size=32, cache_salt="a")
    other = chain_block_hashes(TOKENS, block_size=32, cache_salt="b")
    assert len({*plain, *salted, *other}) == 9
    assert chain_block_hashes(TOKENS, block_size=32, cache_salt="a") == salted


def test_an_empty_salt_is_not_the_absence_of_one():
    assert chain_block_hashes(TOKENS, block_size=32, cache_salt="") != chain_block_hashes(TOKENS, block_size=32)


def test_extra_keys_do_not_meet_by_concatenation():
    def keys(salt, *extra):
        return chain_block_hashes(TOKENS, block_size=32, cache_salt=salt, extra_keys=extra)[0]

    assert len({keys("ab", "c"), keys("a", "bc"), keys(None, "abc"), keys("abc"), keys(None, "ab", "c")}) == 5


@given(
    st.lists(st.integers(0, 3), min_size=8, max_size=24),
    st.lists(st.integers(0, 3), min_size=8, max_size=24),
    st.sampled_from([None, "", "a", "b", "ab"]),
    st.sampled_from([None, "", "a", "b", "ab"]),
)
def test_hashes_are_equal_exactly_where_salts_and_tokens_so_far_are(left, right, left_salt, right_salt):
    ours = chain_block_hashes(left, block_size=4, cache_salt=left_salt)
    theirs = chain_block_hashes(right, block_size=4, cache_salt=right_salt)
    for index, (one, two) in enumerate(zip(ours, theirs, strict=False)):
        end = (index + 1) * 4
        assert (one == two) == (left_salt == right_salt and left[:end] == right[:end])


def test_a_block_size_below_one_is_refused():
    with pytest.raises(ValueError, match="block_size: 0"):
        chain_block_hashes(TOKENS, block_size=0)


def test_the_block_unused_for_longest_is_overwritten_first():
    pool = KVBlockPool(3)
    blocks = [pool.allocate(1)[0] for _ in range(3)]
    for block, key in zip(blocks, (b"a", b"b", b"c"), strict=True):
        pool.register(block, key)
    for block in (blocks[1], blocks[0], blocks[2]):
        pool.release([block])
    pool.share(pool.find([b"b"]))
    pool.release(pool.find([b"b"]))
    assert pool.allocate(1) == [blocks[0]]
    assert [len(pool.find([key])) for key in (b"a", b"b", b"c")] == [0, 1, 1]


def test_a_sequence_loses_the_end_of_its_prefix_first():
    pool = KVBlockPool(3)
    blocks = pool.allocate(3)
    for block, key in zip(blocks, (b"a", b"b", b"c"), strict=True):
        pool.register(block, key)
    pool.release(blocks)
    pool.allocate(1)
    assert pool.find([b"a", b"b", b"c"]) == blocks[:2]


def test_find_stops_at_the_first_gap():
    pool = KVBlockPool(3)
    blocks = pool.allocate(3)
    pool.register(blocks[0], b"a")
    pool.register(blocks[2], b"c")
    assert pool.find([b"a", b"b", b"c"]) == blocks[:1]


def test_a_shared_block_is_free_only_after_its_last_user():
    pool = KVBlockPool(2)
    block = pool.allocate(1)
    pool.register(block[0], b"a")
    pool.share(block)
    pool.release(block)
    assert (pool.num_free, pool.references(block[0])) == (1, 1)
    pool.release(block)
    assert (pool.num_free, pool.references(block[0])) == (2, 0)


def test_a_double_free_is_refused():
    pool = KVBlockPool(1)
    block = pool.allocate(1)
    pool.release(block)
    with pytest.raises(ValueError, match="freed twice"):
        pool.release(block)


@pytest.mark.parametrize(("count", "fits"), [(3, True), (4, True), (5, False)])
def test_more_blocks_than_are_free_are_refused_whole(count, fits):
    pool = KVBlockPool(4)
    if fits:
        assert len(set(pool.allocate(count))) == count
    else:
        with pytest.raises(MemoryError, match="5 KV blocks asked for, 4 of 4 free"):
            pool.allocate(count)
        assert pool.num_free == 4


def test_of_two_blocks_with_one_key_the_first_stays_cached():
    pool = KVBlockPool(2)
    first, second = pool.allocate(2)
    pool.register(first, b"a")
    pool.register(second, b"a")
    assert pool.find([b"a"]) == [first]
    assert pool.num_cached == 1


@given(st.lists(st.tuples(st.sampled_from("arsf"), st.integers(0, 5)), max_size=60))
def test_no_block_is_lost_or_counted_twice(operations):
    pool = KVBlockPool(6)
    held: list[list[int]] = []
    for operation, number in operations:
        if operation == "a" and number <= pool.num_free:
            held.append(pool.allocate(number))
        elif operation == "r" and held:
            pool.release(held.pop(number % len(held)))
        elif operation == "s":
            found = pool.find([b"%d" % number])
            pool.share(found)
            held.append(found)
        elif operation == "f" and held and held[-1]:
            pool.register(held[-1][0], b"%d" % number)
        users = [sum(blocks.count(block) for blocks in held) for block in range(6)]
        assert [pool.references(block) for block in range(6)] == users
        assert pool.num_used == sum(1 for count in users if count)
        assert pool.num_used + pool.num_free == 6
        for one, two in pairwise(sorted(pool.find([b"0"]) + pool.find([b"1"]) + pool.find([b"2"]))):
            assert one != two
