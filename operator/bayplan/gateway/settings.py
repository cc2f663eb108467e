"""What may be configured of a gateway, as plain records: the command line reads the file, tests write them down."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True)
class WorkloadClass:
    """Deadlines of the requests of one class, in seconds from their arrival; None has no deadline."""

    first_token_seconds: float | None = None
    complete_seconds: float | None = None


DEFAULT_CLASS = "default"


@dataclass(frozen=True, slots=True)
class Edges:
    """Histogram edges in seconds, ascending. Raises ValueError that names the histogram."""

    ttft: tuple[float, ...] = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 60.0)
    tpot: tuple[float, ...] = (0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.15, 0.2, 0.5, 1.0)
    e2e: tuple[float, ...] = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)

    def __post_init__(self) -> None:
        for name in ("ttft", "tpot", "e2e"):
            edges = getattr(self, name)
            if not edges or edges[0] <= 0 or any(low >= high for low, high in pairwise(edges)):
                raise ValueError(f"{name}: edges must be above 0 and ascend")


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Limits and times of the request path."""

    max_connections: int = 4096
    """Connections of clients that are open at the same time; more are refused."""
    max_body_bytes: int = 8 * MEBIBYTE
    """Longest request body."""
    max_buffered_bytes: int = 256 * MEBIBYTE
    """Most bytes of bodies and held-back answers in memory at the same time."""
    body_seconds: float = 30.0
    """A body must have arrived whole within this time."""
    idle_connection_seconds: float = 75.0
    """A connection on which no request begins, or whose header does not end, is closed after this time."""
    connect_seconds: float = 2.0
    """An engine must accept a connection within this time."""
    silence_seconds: float = 120.0
    """A stream that moves on neither side for this long, engine or client, is ended."""
    whole_answer_seconds: float = 900.0
    """An answer that is not streamed must have come within this time."""
    max_queued_requests: int = 256
    """Most requests of one model that wait for room; 0 sheds instead."""
    max_wait_seconds: int = 30
    """Longest wait in the queue."""
    default_max_tokens: int = 1024
    """Output limit of a chat that names none; it is sent to the engine, so that the reservation is true."""
    remember_seconds: int = 600
    """How long a completed idempotency key is answered with its first answer, or a conflict."""
    max_replay_bytes: int = 64 * MEBIBYTE
    """Most bytes of answers kept for idempotent replay; 0 keeps none."""
    drain_seconds: float = 300.0
    """At a stop, how long running requests may go on."""
    lease_seconds: float = 15.0
    """The Lease by which the gateway announces itself counts as expired after this time; renewed three times in it."""
    classes: Mapping[str, WorkloadClass] = field(default_factory=lambda: {DEFAULT_CLASS: WorkloadClass()})
    """Workload classes by name; tenants name one of them."""
    tokenizers: Mapping[str, Path] = field(default_factory=dict)
    """`namespace/name` of a model → its tokenizer.json."""
    edges: Edges = Edges()
