"""Idempotency keys: at most one run per tenant, key and payload, without remembering for ever.

A key at work is remembered until its request ends, however long that takes: its hold is the proof. A completed key is
remembered for a while; one of a shed request until its retry hint has passed, so that an impatient retry is answered
as before and an obedient one is considered anew. Cancelled and failed requests are forgotten at once.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace

from bayplan.planning.admission.hints import UNKNOWN_RETRY_MS
from bayplan.planning.admission.records import NANOSECONDS, AdmissionRequest, Admitted, End, Queued, Replayed
from bayplan.planning.admission.sheds import Shed, ShedCode, build_shed

Key = tuple[str, str]
"""Tenant and idempotency key."""
_MILLISECOND = NANOSECONDS // 1000


_UNDECIDED = Queued(ticket=0, start_by_ns=0, predicted_wait_ns=None)


@dataclass(slots=True)
class Identity:
    """What is known of one key: at work while `until_ns` is None."""

    key: Key
    payload_digest: str
    decision: Admitted | Queued | Shed = _UNDECIDED
    until_ns: int | None = None

    @classmethod
    def of(cls, request: AdmissionRequest) -> "Identity | None":
        """The identity of a request that has a key."""
        if request.idempotency_key is None:
            return None
        return cls((request.tenant, request.idempotency_key), request.payload_digest)


class Identities:
    """Keys at work, and a bounded number of keys of requests that ended."""

    def __init__(self, most_ended: int) -> None:
        self._most_ended = most_ended
        self._working: dict[Key, Identity] = {}
        self._ended: OrderedDict[Key, Identity] = OrderedDict()

    def __len__(self) -> int:
        return len(self._working) + len(self._ended)

    def answer(self, request: AdmissionRequest, now_ns: int) -> Replayed | Shed | None:
        """The answer to a key that is known, None for one that is new or forgotten."""
        if request.idempotency_key is None:
            return None
        identity = self._find((request.tenant, request.idempotency_key), now_ns)
        if identity is None:
            return None
        if identity.payload_digest != request.payload_digest:
            message = "this idempotency key was used for another payload; use a new key"
            return build_shed(ShedCode.IDEMPOTENCY_CONFLICT, message)
        if not isinstance(identity.decision, Shed):
            message = "a request with this idempotency key is at work"
            busy = build_shed(ShedCode.IDEMPOTENCY_IN_FLIGHT, message, retry_after_ms=UNKNOWN_RETRY_MS)
            return Replayed(identity.decision, busy)
        hint = identity.decision.retry_after_ms
        if hint is not None and identity.until_ns is not None:
            hint = -(-(identity.until_ns - now_ns) // _MILLISECOND)
        return replace(identity.decision, retry_after_ms=hint, replay=True)

    def begin(self, identity: Identity | None, decision: Admitted | Queued) -> None:
        """The request works or waits."""
        if identity is not None:
            identity.decision = decision
            self._working[identity.key] = identity

    def shed(self, identity: Identity | None, shed: Shed, *, now_ns: int, remember_seconds: int) -> None:
        """The request is refused: its key gets the same answer until the hint has passed, or while remembered."""
        until = now_ns + remember_seconds * NANOSECONDS
        if shed.retry_after_ms is not None:
            until = now_ns + shed.retry_after_ms * _MILLISECOND
        self._end(identity, shed, until)

    def ended(self, identity: Identity | None, end: End, *, now_ns: int, remember_seconds: int) -> None:
        """The request is over: a completed one keeps its key for a while, any other may be tried again."""
        answer = None
        if end is End.COMPLETED:
            message = "the request of this idempotency key was completed; use a new key for a new request"
            answer = build_shed(ShedCode.IDEMPOTENCY_COMPLETED, message)
        self._end(identity, answer, now_ns + remember_seconds * NANOSECONDS)

    def forget(self, identity: Identity | None) -> None:
        """The request came to nothing: its key may be used again."""
        self._end(identity, None, 0)

    def _find(self, key: Key, now_ns: int) -> Identity | None:
        identity = self._working.get(key) or self._ended.get(key)
        if identity is not None and identity.until_ns is not None and identity.until_ns <= now_ns:
            del self._ended[key]
            return None
        return identity

    def _end(self, identity: Identity | None, answer: Shed | None, until_ns: int) -> None:
        if identity is None:
            return
        self._working.pop(identity.key, None)
        if answer is None or self._most_ended == 0:
            return
        identity.decision, identity.until_ns = answer, until_ns
        self._ended[identity.key] = identity
        self._ended.move_to_end(identity.key)
        if len(self._ended) > self._most_ended:
            self._ended.popitem(last=False)
