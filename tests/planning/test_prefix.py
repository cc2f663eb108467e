import random
import string
from dataclasses import fields, replace

import pytest

from bayplan.planning.admission.prefix import (
    Media,
    PrefixScope,
    ReuseGranularity,
    block_chain,
    derive_cache_salt,
    find_reuse,
)
from bayplan.planning.numbers import InvalidInput

SCOPE = PrefixScope("weights@1", "tokenizer@1", "template@1", "none", "acme")
SECRET = b"0123456789abcdef"


@pytest.mark.parametrize("part", [field.name for field in fields(PrefixScope)])
def test_every_part_of_the_scope_is_a_boundary(part: str) -> None:
    other = replace(SCOPE, **{part: "other"})

    assert not set(block_chain(SCOPE, [1, 2, 3, 4], block_size=2)) & set(block_chain(other, [1, 2, 3, 4], block_size=2))
    assert derive_cache_salt(SECRET, SCOPE) != derive_cache_salt(SECRET, other)
    with pytest.raises(InvalidInput, match=part):
        replace(SCOPE, **{part: " "})


def test_moving_a_letter_from_one_part_to_the_next_makes_another_scope() -> None:
    left, right = PrefixScope("ab", "c", "t", "n", "d"), PrefixScope("a", "bc", "t", "n", "d")

    assert left.encode() != right.encode()
    assert derive_cache_salt(SECRET, left) != derive_cache_salt(SECRET, right)


def test_a_block_is_the_same_only_behind_the_same_prefix() -> None:
    first, second = (block_chain(SCOPE, tokens, block_size=2) for tokens in ([1, 2, 3, 4, 9], [9, 2, 3, 4]))

    assert len(first) == 2
    assert first[1] != second[1]
    assert block_chain(SCOPE, [1, 2, 7, 7], block_size=2)[0] == first[0]
    assert block_chain(SCOPE, [1, 2, 3, 4], block_size=4)[0] not in first


def test_an_image_in_a_block_changes_it_and_everything_behind_but_nothing_before() -> None:
    plain = block_chain(SCOPE, [1, 2, 0, 0, 5, 6], block_size=2)
    cat, dog = (
        block_chain(SCOPE, [1, 2, 0, 0, 5, 6], block_size=2, media=[Media(2, 2, digest)]) for digest in ("cat", "dog")
    )

    assert plain[0] == cat[0] == dog[0]
    assert len({plain[1], cat[1], dog[1]}) == len({plain[2], cat[2], dog[2]}) == 3


@pytest.mark.parametrize("token", [-1, 1.0, True, 2**63])
def test_what_is_no_token_id_is_refused(token: int) -> None:
    with pytest.raises(InvalidInput, match="token_ids"):
        block_chain(SCOPE, [1, token], block_size=2)


def test_a_stored_sequence_is_reused_as_a_whole_or_block_by_block() -> None:
    stored = [block_chain(SCOPE, [1, 2, 3, 4], block_size=2)]
    wanted = block_chain(SCOPE, [1, 2, 9, 9], block_size=2)

    def reused(granularity: ReuseGranularity) -> int:
        return find_reuse(stored, wanted, tokens=4, block_size=2, granularity=granularity).reused_tokens

    assert reused(ReuseGranularity.BLOCK) == 2
    assert reused(ReuseGranularity.STORED_SEQUENCE) == 0


def test_a_salt_is_what_the_engine_accepts_and_needs_a_real_secret() -> None:
    salt = derive_cache_salt(SECRET, SCOPE)

    assert len(salt) == 43
    assert not set(salt) & set("@/\\\0")
    assert salt == derive_cache_salt(SECRET, SCOPE)
    assert salt != derive_cache_salt(SECRET[::-1], SCOPE)
    with pytest.raises(InvalidInput, match="16 bytes"):
        derive_cache_salt(SECRET[:15], SCOPE)


def test_in_ten_thousand_requests_nothing_is_reused_across_domains_whatever_salt_is_forged() -> None:
    rng = random.Random(7)
    domains = [f"domain-{number}" for number in range(5)]
    prompts = [tuple(rng.randrange(100) for _ in range(8)) for _ in range(20)]
    owner: dict[bytes, str] = {}
    own_hits = 0
    for _ in range(10_000):
        domain = rng.choice(domains)
        # What a caller sends as a salt ends up nowhere but in its own domain's name for itself.
        forged = replace(
            SCOPE, adapter_revision=rng.choice(("none", "".join(rng.choices(string.printable, k=5)) + "x"))
        )
        salt = derive_cache_salt(SECRET, replace(forged, trust_domain=domain))
        for identity in block_chain(replace(SCOPE, trust_domain=salt), rng.choice(prompts), block_size=4):
            own_hits += owner.get(identity) == domain
            assert owner.setdefault(identity, domain) == domain

    assert own_hits > 0
