"""Prefix identity: which cached KV blocks a request may reuse, as a boundary of correctness and of trust.

The activation of a token depends on everything before it and on what computed it. So a block's identity chains its
parent's identity with its own token ids, and the chain starts at the scope: weights, tokenizer, chat template, adapter
and trust domain. Every part is length-prefixed, so no two scopes read alike. Only whole blocks have an identity.

Source: the founding chapter's lesson 4. Its cache knows a stored sequence only as a whole; that rule stays available as
`ReuseGranularity.STORED_SEQUENCE`, while engines reuse block by block.
"""

import base64
import hashlib
import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum

from bayplan.planning.numbers import InvalidInput, count, named

_MAX_TOKEN_ID = 2**63
_ENCODING = b"bayplan-prefix-1"
LEAST_SECRET_BYTES = 16


@dataclass(frozen=True, slots=True)
class PrefixScope:
    """What computed the cached state, and who may see it. Raises InvalidInput for a blank part.

    Revisions are immutable digests or commits; without an adapter or template the caller says so by a fixed word.
    """

    weights_revision: str
    tokenizer_revision: str
    template_revision: str
    adapter_revision: str
    trust_domain: str

    def __post_init__(self) -> None:
        for field in fields(self):
            named(getattr(self, field.name), field.name)

    def encode(self) -> bytes:
        """All parts in order, each behind its length in 8 bytes: different scopes never encode alike."""
        return _ENCODING + b"".join(_prefixed(_bytes(getattr(self, field.name))) for field in fields(self))


@dataclass(frozen=True, slots=True)
class Media:
    """An image or other input that fills the place of tokens: where it begins, how many it fills, what it is.

    `digest` covers the content and the preprocessing's version.
    """

    first_token: int
    tokens: int
    digest: str

    def __post_init__(self) -> None:
        count(self.first_token, "first_token", least=0)
        count(self.tokens, "tokens")
        named(self.digest, "digest")


class ReuseGranularity(StrEnum):
    """How much of a stored sequence must match before any of it is reused."""

    BLOCK = "block"
    STORED_SEQUENCE = "stored-sequence"


class ReuseReason(StrEnum):
    """Why so many tokens are reused."""

    REUSED = "reused-whole-blocks"
    NO_PREFIX = "no-exact-prefix-in-scope"


@dataclass(frozen=True, slots=True)
class Reuse:
    """How much of a request is served from the cache, and what is left to compute."""

    reused_blocks: int
    reused_tokens: int
    recompute_tokens: int
    reason: ReuseReason

    @property
    def hit(self) -> bool:
        """Whether anything is reused."""
        return self.reused_blocks > 0


def block_chain(
    scope: PrefixScope, token_ids: Sequence[int], *, block_size: int, media: Sequence[Media] = ()
) -> tuple[bytes, ...]:
    """Identities of the whole blocks of a sequence, each covering everything before it.

    Raises InvalidInput for a block size below 1 or a token id that is no whole number of at least 0.
    """
    count(block_size, "block_size")
    for token in token_ids:
        if type(token) is not int or not 0 <= token < _MAX_TOKEN_ID:
            raise InvalidInput("token_ids", f"must be whole numbers of at least 0, not {token!r}")
    parent = hashlib.sha256(scope.encode() + block_size.to_bytes(8)).digest()
    chain = []
    for start in range(0, stored_tokens(len(token_ids), block_size=block_size), block_size):
        end = start + block_size
        content = b"".join(token.to_bytes(8) for token in token_ids[start:end])
        # The length prefix of each part keeps tokens and media apart.
        inside = [_place(one, start) for one in media if one.first_token < end and one.first_token + one.tokens > start]
        parent = hashlib.sha256(parent + _prefixed(content) + b"".join(map(_prefixed, inside))).digest()
        chain.append(parent)
    return tuple(chain)


def stored_tokens(tokens: int, *, block_size: int) -> int:
    """Tokens of a sequence that the cache keeps: its whole blocks."""
    return tokens // count(block_size, "block_size") * block_size


def find_reuse(
    stored: Iterable[Sequence[bytes]],
    chain: Sequence[bytes],
    *,
    tokens: int,
    block_size: int,
    granularity: ReuseGranularity = ReuseGranularity.BLOCK,
) -> Reuse:
    """Tokens that a request of `tokens` tokens and this block chain reuses from the chains of stored sequences.

    By BLOCK: the longest run of its own blocks, from the start, that some stored sequence has. By STORED_SEQUENCE: the
    longest stored sequence that is a prefix of the request as a whole; identities chain, so its last block tells.
    """
    if granularity is ReuseGranularity.BLOCK:
        known = {identity for other in stored for identity in other}
        blocks = next((i for i, identity in enumerate(chain) if identity not in known), len(chain))
    else:
        place = {identity: i + 1 for i, identity in enumerate(chain)}
        blocks = max((place.get(other[-1], 0) for other in stored if other), default=0)
    reused = blocks * block_size
    return Reuse(blocks, reused, tokens - reused, ReuseReason.REUSED if blocks else ReuseReason.NO_PREFIX)


def derive_cache_salt(secret: bytes, scope: PrefixScope) -> str:
    """The `cache_salt` that keeps the engine's prefix cache inside this scope: 43 characters of base64url.

    HMAC-SHA-256 over the encoded scope, so that nobody without the trust domain's secret can name a salt that hits.
    vLLM accepts at most 128 characters and none of `@ / \\` and NUL. A salt that a caller sends must be replaced by it.
    Raises InvalidInput for a secret under 16 bytes.
    """
    if len(secret) < LEAST_SECRET_BYTES:
        raise InvalidInput("secret", f"must have at least {LEAST_SECRET_BYTES} bytes, not {len(secret)}")
    digest = hmac.new(secret, scope.encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _prefixed(part: bytes) -> bytes:
    return len(part).to_bytes(8) + part


def _place(media: Media, block_start: int) -> bytes:
    return (media.first_token - block_start).to_bytes(8, signed=True) + _bytes(media.digest)


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")  # total, and still one to one
