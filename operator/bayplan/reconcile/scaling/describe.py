"""A decision as status and condition. Both change only with a replica or a reason, so at rest nothing is written."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction

from bayplan.api.autoscaling import MOST_TOKENS, Autoscaling, ScalingStatus
from bayplan.api.conditions import Condition, ConditionType, Reason, Status
from bayplan.api.meta import rfc3339
from bayplan.planning.measurements import Measured, Unknown
from bayplan.planning.scaling.seed import Observation, ScalingDecision
from bayplan.reconcile.scaling.history import DemandHistory
from bayplan.telemetry.sources import TroubleKind

Verdict = tuple[ConditionType, Status, Reason, str]
MOST_COUNTED = 2**31 - 1
_REASONS = {
    TroubleKind.MISSING: Reason.METRICS_MISSING,
    TroubleKind.INVALID: Reason.METRICS_INVALID,
    TroubleKind.STALE: Reason.METRICS_STALE,
    TroubleKind.UNREACHABLE: Reason.METRICS_UNREACHABLE,
}


def scaling_status(
    decision: ScalingDecision,
    previous: ScalingStatus | None,
    observations: Sequence[Observation],
    *,
    clock_seconds: Fraction,
    now: datetime,
) -> ScalingStatus:
    """Return the previous status unless the decision differs from it in its target or its reason."""
    target = decision.target_replicas
    if previous is not None and (previous.desired_replicas, previous.reason) == (target, decision.reason):
        return previous
    moved = previous is not None and previous.desired_replicas != target
    rose = previous is not None and target > previous.desired_replicas
    seen = next((one for one in reversed(observations) if one.at_seconds == decision.observed_at_seconds), None)
    age = max(0.0, float(clock_seconds - decision.observed_at_seconds))
    return ScalingStatus(
        desired_replicas=target,
        reason=decision.reason,
        message=decision.message,
        decided_time=rfc3339(now),
        observed_time=rfc3339(now - timedelta(seconds=age)),
        arrival_tokens_per_second=None if seen is None else _tokens(seen.arrival_tokens_per_second),
        queued_tokens=None if seen is None else _tokens(seen.queued_tokens),
        coverage=Decimal(0) if seen is None else _rounded(seen.coverage),
        rate_replicas=_count(decision.rate_replicas),
        queue_replicas=_count(decision.queue_replicas),
        demand_replicas=min(decision.raw_demand_replicas, MOST_COUNTED),
        window_replicas=_count(decision.window_demand_replicas),
        ready_tokens_per_second=_rounded(decision.ready_capacity_tokens_per_second),
        last_scale_time=rfc3339(now) if moved else None if previous is None else previous.last_scale_time,
        last_rise_queue_replicas=(
            min(decision.counted_queue_replicas, MOST_COUNTED)
            if rose
            else None
            if previous is None
            else previous.last_rise_queue_replicas
        ),
    )


def scaling_verdict(
    autoscaling: Autoscaling, decision: ScalingDecision, history: DemandHistory, previous: Sequence[Condition]
) -> Verdict:
    """Return `ScalingActive`. While too little was measured to say anything, what was said before stands."""
    before = next((c for c in previous if c.type == ConditionType.SCALING_ACTIVE), None)
    if history.collecting:
        if before is not None and before.reason in _KEPT:
            return ConditionType.SCALING_ACTIVE, before.status, Reason(before.reason), before.message
        return _verdict(before, "False", Reason.COLLECTING_METRICS, "waiting for the second sample")
    if decision.demand_known:
        text = f"replicas follow demand between {autoscaling.min_replicas} and {autoscaling.max_replicas}"
        return ConditionType.SCALING_ACTIVE, "True", Reason.DEMAND_KNOWN, text
    if history.nobody:
        return _verdict(before, "False", Reason.NO_READY_REPLICA, "no replica is ready and no gateway is live")
    if history.trouble is not None:
        return _verdict(before, "False", _REASONS[history.trouble.kind], history.trouble.message)
    return _verdict(before, "False", Reason.METRICS_INCOMPLETE, decision.message)


_KEPT = frozenset({Reason.DEMAND_KNOWN, Reason.NO_READY_REPLICA, Reason.METRICS_INCOMPLETE, *_REASONS.values()})


def _verdict(before: Condition | None, status: Status, reason: Reason, message: str) -> Verdict:
    """Keep the message with the reason: the next sample names another pod, or another number."""
    same = before is not None and (before.status, before.reason) == (status, reason)
    return ConditionType.SCALING_ACTIVE, status, reason, before.message if same and before is not None else message


def _tokens(value: Measured) -> Decimal | None:
    return None if isinstance(value, Unknown) else _rounded(value)


def _rounded(value: Fraction) -> Decimal:
    """Three decimals are enough to read; no decision is made by them."""
    return Decimal(round(min(value, Fraction(MOST_TOKENS)) * 1000)) / 1000


def _count(value: int | None) -> int | None:
    return None if value is None else min(value, MOST_COUNTED)
