"""What goes into admission and what comes out of it.

Tokens are whole numbers, KV memory is counted in blocks of the pool's block size, and moments are nanoseconds on one
monotonic clock of the process (`time.monotonic_ns`), so every comparison at a limit is exact.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction

from bayplan.planning.admission.sheds import Shed, ShedCode
from bayplan.planning.numbers import InvalidInput, count, named, positive, whole

NANOSECONDS = 1_000_000_000
"""Nanoseconds of one second."""
LONGEST_KEY = 255
"""Longest idempotency key, in characters."""
MOST_TOKENS = 10**12
"""Token counts above this are refused as absurd; no model comes near."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What one replica has, or one request takes: KV cache blocks and sequence slots."""

    kv_blocks: int
    sequences: int

    def scaled(self, factor: Fraction) -> "Resources":
        """The budget at this factor: KV blocks × factor, rounded down. Sequence slots are never promised twice."""
        return Resources(math.floor(self.kv_blocks * positive(factor, "factor")), self.sequences)


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """One generation request as the gateway reads it. Raises InvalidInput that names the field.

    `sequences` is the API's `n`; each counts prompt and output. Without deadlines only the pool's longest wait bounds
    it. `payload_digest` tells two requests under one idempotency key apart and is needed with a key.
    """

    tenant: str
    prompt_tokens: int
    max_output_tokens: int
    sequences: int = 1
    first_token_by_ns: int | None = None
    complete_by_ns: int | None = None
    idempotency_key: str | None = None
    payload_digest: str = ""

    def __post_init__(self) -> None:
        if not self.tenant or self.tenant.isspace():
            raise InvalidInput("tenant", "must not be blank")
        for name in ("prompt_tokens", "max_output_tokens", "sequences"):
            value = getattr(self, name)
            if type(value) is not int or not 0 <= value <= MOST_TOKENS:
                raise InvalidInput(name, f"must be a whole number from 0 to {MOST_TOKENS}, not {value!r}")
        if self.sequences == 0 or self.prompt_tokens + self.max_output_tokens == 0:
            raise InvalidInput("footprint", "must not be empty: at least one sequence of one prompt or output token")
        for name in ("first_token_by_ns", "complete_by_ns"):
            if getattr(self, name) is not None:
                whole(getattr(self, name), name)
        if self.idempotency_key is not None:
            named(self.idempotency_key, "idempotency_key")
            named(self.payload_digest, "payload_digest")
            if len(self.idempotency_key) > LONGEST_KEY:
                raise InvalidInput("idempotency_key", f"must have at most {LONGEST_KEY} characters")

    @property
    def tokens(self) -> int:
        """Worst case in tokens: (prompt + maximum output) of every sequence."""
        return (self.prompt_tokens + self.max_output_tokens) * self.sequences


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a request reserves: whole blocks of every sequence, one slot each; `tokens` is the unrounded amount."""

    tokens: int
    kv_blocks: int
    sequences: int

    def within(self, room: Resources) -> bool:
        """Whether it takes at most this room, in both parts."""
        return self.kv_blocks <= room.kv_blocks and self.sequences <= room.sequences


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    """What one tenant may have of the pool. None is unlimited. Raises InvalidInput that names the field."""

    weight: int = 1
    """Share of service under contention, relative to other tenants' weights."""
    max_tokens_per_request: int | None = None
    """Most prompt and output tokens of one sequence; tighter than the pool's own bound or without effect."""
    max_live_tokens: int | None = None
    """Most tokens reserved at the same time."""
    max_queued_requests: int | None = None
    """Most requests waiting at the same time."""
    max_wait_seconds: int | None = None
    """Longest wait in the queue; tighter than the pool's own or without effect."""

    def __post_init__(self) -> None:
        count(self.weight, "weight")
        for name, least in (
            ("max_tokens_per_request", 1),
            ("max_live_tokens", 1),
            ("max_queued_requests", 0),
            ("max_wait_seconds", 0),
        ):
            if getattr(self, name) is not None:
                count(getattr(self, name), name, least=least)


@dataclass(frozen=True, slots=True)
class AdmissionPolicy:
    """Limits of one pool. Raises InvalidInput that names the field."""

    block_size: int
    """Tokens of one KV cache block."""
    max_tokens_per_request: int
    """Most prompt and output tokens of one sequence: the engine's `max_model_len` or less."""
    max_queued_requests: int
    """Most requests waiting at the same time; 0 sheds instead of queueing."""
    max_wait_seconds: int = 30
    """Longest wait in the queue of a request whose own deadline is later, or that has none."""
    speculative_tokens: int = 0
    """Draft tokens of one step, for which the engine keeps room beyond every sequence's end."""
    remember_seconds: int = 600
    """How long the key of a completed request is answered with a conflict; 0 forgets it at once."""
    max_remembered_keys: int = 10_000
    """Most keys remembered of requests that ended or were shed; the oldest are forgotten first."""
    max_retry_after_seconds: int = 60
    """Longest retry hint. SDKs give up beyond 120."""
    not_ready_retry_after_seconds: int = 5
    """Retry hint while no replica is ready."""
    default_tenant: TenantPolicy = TenantPolicy()
    """Policy of tenants without an entry in `tenants`."""
    tenants: Mapping[str, TenantPolicy] = field(default_factory=dict)
    """Policies by tenant."""

    def __post_init__(self) -> None:
        for name in ("block_size", "max_tokens_per_request"):
            count(getattr(self, name), name)
        for name in (
            "max_queued_requests",
            "max_wait_seconds",
            "speculative_tokens",
            "remember_seconds",
            "max_remembered_keys",
        ):
            count(getattr(self, name), name, least=0)
        for name in ("max_retry_after_seconds", "not_ready_retry_after_seconds"):
            if count(getattr(self, name), name) > 120:
                raise InvalidInput(name, "must be at most 120: clients give up beyond")

    def tenant(self, name: str) -> TenantPolicy:
        """The policy of this tenant."""
        return self.tenants.get(name, self.default_tenant)

    def footprint(self, request: AdmissionRequest) -> Footprint:
        """What `request` reserves: per sequence ceil((prompt + maximum output + draft tokens) / block size) blocks."""
        per_sequence = request.prompt_tokens + request.max_output_tokens + self.speculative_tokens
        blocks = -(-per_sequence // self.block_size)
        return Footprint(request.tokens, blocks * request.sequences, request.sequences)

    def require_room(self, largest: Resources) -> None:
        """Refuse a policy whose largest allowed request could never run on the `largest` replica."""
        room = largest.kv_blocks * self.block_size - self.speculative_tokens
        if self.max_tokens_per_request > room:
            raise InvalidInput(
                "max_tokens_per_request",
                f"must be at most {room}, what one replica holds, not {self.max_tokens_per_request}: "
                "a larger request could never run",
            )


class End(StrEnum):
    """How a request ended. Only a completed one keeps its idempotency key."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Preference:
    """Which replicas, by uid, a request should get if it need not wait for them. In the queue all of the pool serve."""

    beside: Collection[str] = ()
    """Replicas outside the pool, asked before it."""
    first: Collection[str] = ()
    """Of the pool, asked before the others."""
    spare: Collection[str] = ()
    """Of the pool, left alone while another one has room and is at most half full: beyond, load counts more."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """Room is reserved on `replica` (the pod's uid) until `release(ticket)`; `waited_ns` is 0 without a queue."""

    ticket: int
    replica: str
    footprint: Footprint
    waited_ns: int = 0


@dataclass(frozen=True, slots=True)
class Queued:
    """Waiting under `ticket`; a `Settled` follows by `start_by_ns`. `predicted_wait_ns` is None while unknown."""

    ticket: int
    start_by_ns: int
    predicted_wait_ns: int | None


@dataclass(frozen=True, slots=True)
class Replayed:
    """The key is already at work for the same payload: nothing was reserved again, and `shed` is the answer."""

    original: Admitted | Queued
    shed: Shed


Decision = Admitted | Queued | Shed | Replayed


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of a request that waited. A shed ticket needs no release."""

    ticket: int
    decision: Admitted | Shed


@dataclass(frozen=True, slots=True)
class Decided:
    """The decision about one request, and what it settled for requests that waited before it."""

    decision: Decision
    settled: tuple[Settled, ...] = ()

    @classmethod
    def of(cls, decision: Decision, settled: Sequence[Settled]) -> "Decided":
        """What is said to the caller: a request that began to wait and was let in at once did not wait."""
        if isinstance(decision, Queued):
            for one in settled:
                if one.ticket == decision.ticket:
                    return cls(one.decision, tuple(other for other in settled if other is not one))
        return cls(decision, tuple(settled))


class ReleaseOutcome(StrEnum):
    """What a release found."""

    RELEASED = "released"
    """The reservation was given back."""
    WITHDRAWN = "withdrawn"
    """The request was still waiting and left the queue."""
    DROPPED = "dropped"
    """Its replica had vanished, and the reservation with it."""
    NOT_HELD = "not-held"
    """Nothing is held under the ticket: released before, shed, or never given out. Nothing changed."""


@dataclass(frozen=True, slots=True)
class Released:
    """What a release found, and which waiting requests it let in."""

    outcome: ReleaseOutcome
    settled: tuple[Settled, ...] = ()


@dataclass(frozen=True, slots=True)
class Changed:
    """What a change of replicas did: reservations lost with a replica, and waiting requests settled by it."""

    dropped: tuple[int, ...] = ()
    settled: tuple[Settled, ...] = ()


class Outcome(StrEnum):
    """Closed set of what became of requests, refusals apart (those count by `ShedCode`).

    A request that waited counts as queued, and again when it is admitted or shed.
    """

    ADMITTED = "admitted"
    QUEUED = "queued"
    REPLAYED = "replayed"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"
    WITHDRAWN = "withdrawn"
    LOST = "lost"
    NOT_HELD = "not-held"


@dataclass(frozen=True, slots=True)
class Demand:
    """Totals of requests that more replicas could serve, counted at the door, whatever became of them.

    Refused by their own bound or quota, conflicts and replays are left out. `expected_output_tokens` is the maximum
    output × the observed share of it that answers use, at the time of arrival.
    """

    requests: int = 0
    prompt_tokens: int = 0
    max_output_tokens: int = 0
    expected_output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ReplicaReading:
    """One replica's account. `kv_blocks` and `sequences` are what is reserved of `budget`."""

    budget: Resources
    draining: bool
    holds: int
    tokens: int
    kv_blocks: int
    sequences: int


@dataclass(frozen=True, slots=True)
class Readings:
    """The pool at one moment, for metrics and scaling. Totals count since the start and name every member."""

    replicas: Mapping[str, ReplicaReading]
    """By pod uid."""
    queued_requests: int
    queued_tokens: int
    """Worst case of what waits."""
    queued_expected_tokens: int
    """Prompt and expected output of what waits."""
    demand: Demand
    outcomes: Mapping[Outcome, int]
    sheds: Mapping[ShedCode, int]

    @property
    def live_tokens(self) -> int:
        """Tokens reserved on all replicas."""
        return sum(replica.tokens for replica in self.replicas.values())
