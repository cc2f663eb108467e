"""Whether a rollback is over: nobody sends to the candidate, nothing of it is under way, and serving does its work."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

from bayplan.planning.measurements import Measured
from bayplan.planning.numbers import count, named
from bayplan.planning.words import plural


@dataclass(frozen=True, slots=True)
class GatewayAck:
    """What one gateway's Lease says. Raises InvalidInput for a blank uid."""

    uid: str
    epoch: int
    """The plan that it carries out; 0 when it has acknowledged none."""
    live: bool = True
    """False: its Lease has run out, and by then it sends the candidate nothing."""

    def __post_init__(self) -> None:
        named(self.uid, "uid")
        count(self.epoch, "epoch", least=0)


def lagging(gateways: Iterable[GatewayAck], epoch: int) -> tuple[str, ...]:
    """Live gateways that have not acknowledged this epoch yet."""
    return tuple(sorted(gateway.uid for gateway in gateways if gateway.live and gateway.epoch < epoch))


@dataclass(frozen=True, slots=True)
class RollbackProof:
    """When each part was first true, and stayed so. The rollback is proven when all are."""

    since_seconds: Fraction
    """When the traffic was taken away."""
    acknowledged_at_seconds: Fraction | None = None
    drained_at_seconds: Fraction | None = None
    restored_at_seconds: Fraction | None = None
    answered_at_seconds: Fraction | None = None
    missing: tuple[str, ...] = ()
    """One sentence per part that is not true yet."""

    @property
    def returned(self) -> bool:
        """Whether no request can be at the candidate any more, nor get there."""
        return self.acknowledged_at_seconds is not None and self.drained_at_seconds is not None

    @property
    def proven(self) -> bool:
        """Whether it is over."""
        return self.returned and self.restored_at_seconds is not None and self.answered_at_seconds is not None


def prove(
    proof: RollbackProof,
    *,
    lagging_gateways: tuple[str, ...],
    candidate_streams: Measured,
    serving_ready: int,
    full_size: int,
    answered_at_seconds: Fraction | None,
    now_seconds: Fraction,
) -> RollbackProof:
    """Bring the proof up to date. Streams that are not known prove nothing.

    An answer counts when serving gave it after the traffic was taken away; where no replica is wanted, none is owed.
    """
    streams = "" if candidate_streams == 0 else f"requests at the candidate: {_text(candidate_streams)}"
    if lagging_gateways:
        waits = f"{plural(len(lagging_gateways), 'gateway')} not acknowledged: {', '.join(lagging_gateways[:3])}"
    else:
        waits = ""
    small = "" if serving_ready >= full_size else f"serving has {serving_ready} of {full_size} replicas ready"
    answered = full_size == 0 or (answered_at_seconds is not None and answered_at_seconds > proof.since_seconds)
    silent = "" if answered else "serving has answered no request since"

    def first(earlier: Fraction | None, why_not: str) -> Fraction | None:
        return None if why_not else now_seconds if earlier is None else earlier

    acknowledged = first(proof.acknowledged_at_seconds, waits)
    # What was under way while a gateway could still send is no end of it.
    drained = first(proof.drained_at_seconds, streams or waits)
    return replace(
        proof,
        acknowledged_at_seconds=acknowledged,
        drained_at_seconds=drained,
        restored_at_seconds=first(proof.restored_at_seconds, small),
        answered_at_seconds=first(proof.answered_at_seconds, silent),
        missing=tuple(why for why in (waits, streams, small, silent) if why),
    )


def _text(measured: Measured) -> str:
    return f"{float(measured):g}" if isinstance(measured, Fraction) else f"not known, {measured.reason}"
