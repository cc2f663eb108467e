"""From what was measured, and how a model stands, to a decision. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction

from bayplan.api.autoscaling import Autoscaling
from bayplan.api.inferencemodel_status import InferenceModelStatus, Stage
from bayplan.api.meta import parse_rfc3339
from bayplan.planning.groups.members import Group
from bayplan.planning.groups.replicas import ALIVE
from bayplan.planning.measurements import Unknown
from bayplan.planning.scaling.seed import Observation, ScalingDecision, ScalingPolicy, ScalingState, decide_scaling


@dataclass(frozen=True, slots=True)
class Standing:
    """How a model stands: what was decided last, and what became of it."""

    desired: int
    ready: int
    pending: int
    warming: int
    last_scale: datetime | None = None
    last_ready: datetime | None = None
    last_rise_queue: int | None = None


def standing_of(groups: Sequence[Group], status: InferenceModelStatus, autoscaling: Autoscaling) -> Standing:
    """Read the last decision from the stored status; a model that never had one begins where its replicas are.

    Pods are never the base of a decision: a surplus that is only passing would be kept for ever.
    """
    last = status.scaling
    within = min(autoscaling.max_replicas, max(autoscaling.min_replicas, status.desired_replicas))
    desired = within if last is None else last.desired_replicas
    alive = [group for group in groups if group.stage in ALIVE and group.defect is None]
    ready = [group for group in alive if group.stage is Stage.READY]
    warming = sum(group.stage is Stage.WARMING for group in alive)
    return Standing(
        desired=desired,
        ready=len(ready),
        warming=warming,
        pending=max(0, desired - len(ready) - warming),
        last_scale=_time(last.last_scale_time) if last is not None else None,
        last_ready=max((group.since for group in ready), default=None),
        last_rise_queue=last.last_rise_queue_replicas if last is not None else None,
    )


def _time(text: str | None) -> datetime | None:
    return None if text is None else parse_rfc3339(text)


def decide_replicas(
    observations: Sequence[Observation],
    standing: Standing,
    policy: ScalingPolicy,
    *,
    since_seconds: Fraction | None,
    clock_seconds: Fraction,
    now: datetime,
) -> ScalingDecision:
    """Decide on the monotonic clock of the observations; dates of the API server are turned into ages first.

    Nothing measured, and observations from the future (the clock went back), are Unknown.
    """
    nothing = Unknown("nothing was measured yet")
    if observations and max(seen.at_seconds for seen in observations) > clock_seconds:
        observations, nothing = (), Unknown("the clock went back")
    seen = observations or (Observation(clock_seconds, queued_tokens=nothing, arrival_tokens_per_second=nothing),)

    def on_clock(date: datetime | None) -> Fraction | None:
        return None if date is None else clock_seconds - Fraction(max(0.0, (now - date).total_seconds()))

    state = ScalingState(
        desired_replicas=standing.desired,
        ready_replicas=standing.ready,
        pending_replicas=standing.pending,
        warming_replicas=standing.warming,
        last_scale_at_seconds=on_clock(standing.last_scale),
        last_queue_replicas=standing.last_rise_queue,
        last_ready_at_seconds=on_clock(standing.last_ready),
        observing_since_seconds=clock_seconds if since_seconds is None else min(since_seconds, clock_seconds),
    )
    return decide_scaling(seen, state, policy, now_seconds=clock_seconds)
