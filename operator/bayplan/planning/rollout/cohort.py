"""Who gets the candidate: a hash that keeps a session where it is, and a cap on what that adds up to.

A key's place on a ring of 2^64 depends on the salt of this attempt alone. The candidate's cohort starts at one end and
the baseline's at the other, so that a larger weight only adds sessions to either and moves none between them. Sessions
differ in size, so the hash alone does not bound the share of requests: a count per window does, and what exceeds it
goes to the serving revision.
"""

import hashlib
from enum import StrEnum

from bayplan.planning.numbers import InvalidInput, count, named

_RING = 2**64


class Cohort(StrEnum):
    """Where a request belongs by its key."""

    CANDIDATE = "candidate"
    BASELINE = "baseline"
    REST = "rest"


def cohort_key(*, session: str | None, conversation: str | None, request_id: str) -> str:
    """What a request is hashed by: its session, else the digest of its first messages, else itself.

    The three never collide. Raises InvalidInput for a blank request id.
    """
    if session:
        return f"session {session}"
    if conversation:
        return f"conversation {conversation}"
    return f"request {named(request_id, 'request_id')}"


def find_cohort(key: str, *, salt: str, weight_percent: int, baseline_percent: int) -> Cohort:
    """The cohort of a key when the candidate and the baseline get so many percent of the keys.

    The two never overlap: above 100 percent together the baseline's is what the candidate's leaves. In a shadow stage
    the weight is 0, and the baseline's requests are the ones that are copied. Raises InvalidInput.
    """
    _require_percent(weight_percent, "weight_percent")
    _require_percent(baseline_percent, "baseline_percent")
    place = _place(key, salt) * 100
    if place < weight_percent * _RING:
        return Cohort.CANDIDATE
    return Cohort.BASELINE if place >= (100 - baseline_percent) * _RING else Cohort.REST


def within_share(*, weight_percent: int, routed: int, candidate: int, gateways: int | None = 1) -> bool:
    """Whether one more request may go to the candidate in this window.

    `routed` and `candidate` are the requests that this gateway sent in the window, the one in question left out. At the
    end of the window the candidate has at most its weight of all requests plus one, over all `gateways` together:
    candidate + 1 ≤ weight × (routed + 1) + 1 / gateways. Where nobody knows how many there are (None), it has at most
    its weight. Weight 0 lets nothing pass. Raises InvalidInput.
    """
    weight = _require_percent(weight_percent, "weight_percent")
    if gateways is not None:
        count(gateways, "gateways")
    count(routed, "routed", least=0)
    if not 0 <= count(candidate, "candidate", least=0) <= routed:
        raise InvalidInput("candidate", f"must not exceed routed {routed}, not {candidate}")
    if weight == 0:
        return False
    ahead = 100 * (candidate + 1) - weight * (routed + 1)
    return ahead <= 0 if gateways is None else gateways * ahead <= 100


def forget_behind(*, weight_percent: int, routed: int, candidate: int, most_behind: int) -> int:
    """The `routed` to go on counting with, so that the candidate never catches up more than `most_behind` requests.

    A window that began long ago would let it make up at once for all that its sessions did not ask for. With this any
    stretch of the window, wherever it begins, has at most its weight plus `most_behind` plus one. Raises InvalidInput.
    """
    weight = _require_percent(weight_percent, "weight_percent")
    most = 100 * (count(candidate, "candidate", least=0) + count(most_behind, "most_behind"))
    return min(count(routed, "routed", least=0), most // weight) if weight else routed


def derive_salt(*, rollout_uid: str, revision: str, attempt: int) -> str:
    """The salt of one attempt: another attempt picks other sessions. 16 hexadecimal digits."""
    parts = (named(rollout_uid, "rollout_uid"), named(revision, "revision"), str(count(attempt, "attempt")))
    return hashlib.sha256(b"".join(map(_prefixed, parts))).hexdigest()[:16]


def _place(key: str, salt: str) -> int:
    digest = hashlib.sha256(_prefixed(salt) + _prefixed(key)).digest()
    return int.from_bytes(digest[:8])


def _prefixed(text: str) -> bytes:
    raw = text.encode(errors="surrogatepass")
    return len(raw).to_bytes(8) + raw


def _require_percent(value: int, name: str) -> int:
    if type(value) is not int or not 0 <= value <= 100:
        raise InvalidInput(name, f"must be a whole percentage from 0 to 100, not {value!r}")
    return value
