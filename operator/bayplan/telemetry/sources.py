"""The one port through which demand is measured, whoever collects the numbers: our own scrapes, or Prometheus.

A source is a pod that should answer. What comes back is raw: counters as they stand, with the time of the sample and
the incarnation that counts, so that rates, coverage and restarts are worked out in one place
(`planning/scaling/demand.py`). Times are on the monotonic clock of this process.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import Protocol

from bayplan.planning.scaling.demand import DoorReading, EngineReading


class TroubleKind(StrEnum):
    """Why a source is not known, the one that says most first."""

    MISSING = "Missing"
    INVALID = "Invalid"
    STALE = "Stale"
    UNREACHABLE = "Unreachable"


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong with one source; the message is for the on-call and holds nothing that changes by itself."""

    kind: TroubleKind
    message: str


@dataclass(frozen=True, slots=True)
class EngineSource:
    """The head pod of a replica. `container` changes with each start of its engine."""

    uid: str
    namespace: str
    pod: str
    address: str
    container: str
    kv_tokens: int | None = None
    """Tokens that its KV cache holds, where that is known."""


@dataclass(frozen=True, slots=True)
class GatewaySource:
    """The Pod of a gateway."""

    uid: str
    namespace: str
    pod: str
    address: str


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """What came from one engine; `trouble` says what of it is not known, None when all is."""

    reading: EngineReading | None
    trouble: Trouble | None = None


@dataclass(frozen=True, slots=True)
class GatewayAnswer:
    """What came from one gateway: readings by `namespace/name`, and tokens reserved by the uid of the engine's pod."""

    models: Mapping[str, DoorReading] = field(default_factory=dict)
    reserved_tokens: Mapping[str, Fraction] | None = None
    """None: it did not say."""
    trouble: Trouble | None = None


class MetricsPort(Protocol):
    """Where numbers come from. Neither method raises: a source that cannot be read has a trouble."""

    async def read_engines(self, sources: Sequence[EngineSource]) -> Mapping[str, EngineAnswer]:
        """Return an answer for each source, by uid."""

    async def read_gateways(self, sources: Sequence[GatewaySource]) -> Mapping[str, GatewayAnswer]:
        """Return an answer for each source, by uid."""

    async def close(self) -> None:
        """Close connections."""
