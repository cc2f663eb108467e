"""What the reconciler asks about an autoscaled model, and what wakes it up again.

After each measurement the decision is worked out on how the model stood last; only if target, reason or condition
would differ is the model reconciled.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction

from bayplan.api.autoscaling import Autoscaling, ScalingReason, ScalingStatus
from bayplan.api.conditions import Condition, ConditionType, Reason
from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.api.inferencemodel_status import (
    CapacityGuidanceStatus,
    InferenceModelStatus,
    PlanEvidenceStatus,
    Stage,
)
from bayplan.cluster.resources import Key
from bayplan.planning.groups.members import Group, GroupLimits
from bayplan.planning.measurements import Measured, moment
from bayplan.planning.scaling.policy import pace_of, policy_of
from bayplan.planning.scaling.seed import ScalingDecision, ScalingPolicy
from bayplan.reconcile.fleet import Fleet
from bayplan.reconcile.gateways import Gateways
from bayplan.reconcile.scaling.decide import Standing, decide_replicas, standing_of
from bayplan.reconcile.scaling.describe import Verdict, scaling_status, scaling_verdict
from bayplan.reconcile.scaling.history import DemandHistory
from bayplan.reconcile.scaling.sampling import DemandSampler, Round
from bayplan.telemetry.sources import EngineSource, MetricsPort


@dataclass(frozen=True, slots=True)
class PlanWord:
    """What a CapacityPlan says of a model; all of it is absent without one."""

    numbers: CapacityGuidanceStatus | None = None
    evidence: PlanEvidenceStatus | None = None
    verdict: Verdict | None = None
    """`EvidenceCurrent`."""


NO_PLAN = PlanWord()


@dataclass(frozen=True, slots=True)
class ScalingPlan:
    """What autoscaling wants of a model now. All but `replicas` is absent where it has no say."""

    replicas: int
    status: ScalingStatus | None = None
    verdict: Verdict | None = None
    remaining_tokens: Mapping[str, Measured] | None = None
    """What serving replicas have still to do, by the uid of their head; None where nobody measures it."""
    capacity: PlanWord = NO_PLAN
    """What the CapacityPlan says that the model names."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """How a model stood when it was last reconciled."""

    autoscaling: Autoscaling
    policy: ScalingPolicy
    standing: Standing
    conditions: tuple[Condition, ...]
    decided_on: Fraction
    """Time of the newest observation."""
    outcome: tuple[object, ...]
    """What status and condition say of it."""
    unused: str | None = None
    """Revision whose replicas have no requests of users."""


class Autoscaler:
    """Decides for the models of one process. `clock` is monotonic, `now` the date of the API server."""

    def __init__(
        self,
        metrics: MetricsPort,
        *,
        gateways: Gateways,
        fleet: Fleet,
        limits: GroupLimits,
        clock: Callable[[], float],
        now: Callable[[], datetime],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._gateways = gateways
        self._fleet = fleet
        self._limits = limits
        self._clock = clock
        self._now = now
        self._sampler = DemandSampler(metrics, clock=clock, sleep=sleep)
        self._asked: dict[Key, _Asked] = {}

    async def close(self) -> None:
        """End all measurements."""
        await self._sampler.close()

    def forget(self, key: Key) -> None:
        """Measure a model no more."""
        self._asked.pop(key, None)
        self._sampler.forget(key)

    def plan(
        self,
        key: Key,
        uid: str,
        spec: InferenceModelSpec,
        status: InferenceModelStatus,
        *,
        unused: str | None = None,
        changed: Callable[[], None],
    ) -> ScalingPlan:
        """Return how many replicas a model is to have; `changed` is called when that may have become another number.

        `unused` is a revision on trial without requests of users: copies at its engines are nobody's demand, and its
        replicas carry none.
        """
        autoscaling = spec.autoscaling
        if autoscaling is None or spec.suspend:
            self.forget(key)
            text = "suspended: no replicas run, as asked"
            verdict: Verdict = (ConditionType.SCALING_ACTIVE, "False", Reason.SUSPENDED, text)
            return ScalingPlan(spec.wanted_replicas, verdict=None if autoscaling is None else verdict)
        policy = policy_of(autoscaling)
        history = self._sampler.ensure(
            key,
            uid,
            sample_seconds=pace_of(autoscaling),
            look=lambda: self._round(key, uid),
            sampled=lambda: self._sampled(key, changed),
        )
        standing = standing_of(self._used(uid, unused), status, autoscaling)
        decision = self._decide(history, standing, policy)
        verdict = scaling_verdict(autoscaling, decision, history, status.conditions)
        scaling = self._status(key, decision, status.scaling, history)
        after = Standing(
            desired=scaling.desired_replicas,
            ready=standing.ready,
            pending=standing.pending + max(0, scaling.desired_replicas - standing.desired),
            warming=standing.warming,
            last_scale=self._now() if scaling.desired_replicas != standing.desired else standing.last_scale,
            last_ready=standing.last_ready,
            last_rise_queue=scaling.last_rise_queue_replicas,
        )
        self._asked[key] = _Asked(
            autoscaling,
            policy,
            after,
            status.conditions,
            decided_on=decision.observed_at_seconds,
            outcome=_outcome(scaling.desired_replicas, scaling.reason, verdict),
            unused=unused,
        )
        return ScalingPlan(scaling.desired_replicas, scaling, verdict, history.remaining_tokens)

    def _status(
        self, key: Key, decision: ScalingDecision, previous: ScalingStatus | None, history: DemandHistory
    ) -> ScalingStatus:
        """What was decided on one measurement stands until the next one, or until the target is another."""
        asked = self._asked.get(key)
        again = asked is not None and asked.decided_on == decision.observed_at_seconds
        kept = previous is not None and previous.desired_replicas == decision.target_replicas
        if previous is not None and kept and (again or history.collecting):
            return previous
        clock = moment(self._clock())
        return scaling_status(decision, previous, history.observations, clock_seconds=clock, now=self._now())

    def _decide(self, history: DemandHistory, standing: Standing, policy: ScalingPolicy) -> ScalingDecision:
        return decide_replicas(
            history.observations,
            standing,
            policy,
            since_seconds=history.since,
            clock_seconds=moment(self._clock()),
            now=self._now(),
        )

    def _round(self, key: Key, uid: str) -> Round | None:
        asked = self._asked.get(key)
        if asked is None:
            return None
        serving = [group for group in self._used(uid, asked.unused) if group.stage is Stage.READY]
        now = self._now()
        return Round(
            engines=[_source(group) for group in serving],
            gateways=self._gateways.live(key.namespace),
            ready_seconds={group.head.uid: (now - group.since).total_seconds() for group in serving},
            policy=asked.policy,
        )

    def _used(self, uid: str, unused: str | None) -> list[Group]:
        return [group for group in self._fleet.groups_of(uid, self._limits) if group.revision != unused]

    def _sampled(self, key: Key, changed: Callable[[], None]) -> None:
        asked, history = self._asked.get(key), self._sampler.history(key)
        if asked is None or history is None:
            return
        decision = self._decide(history, asked.standing, asked.policy)
        verdict = scaling_verdict(asked.autoscaling, decision, history, asked.conditions)
        if _outcome(decision.target_replicas, decision.reason, verdict) != asked.outcome:
            changed()


def _outcome(replicas: int, reason: ScalingReason, verdict: Verdict) -> tuple[object, ...]:
    return replicas, reason, verdict[1], verdict[2]


def _source(group: Group) -> EngineSource:
    head = group.head
    return EngineSource(
        uid=head.uid,
        namespace=head.namespace,
        pod=head.name,
        address=head.pod_ip or "",
        container=head.container_id or "",
        kv_tokens=head.kv_tokens,
    )
