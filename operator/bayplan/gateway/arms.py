"""The rule of one plan at one gateway: which pods are which arm, and which request may go to which of them.

Requests go to `serving` and `previous` as one pool. A session whose cohort is the candidate's goes there while the
candidate's share of what was sent is below its weight, its replicas have room and this gateway's Lease stands; else it
goes to the pool like any other. The baseline's cohort prefers the baseline's pods, and the rest leaves these alone
while others have room, so that both arms of the comparison carry the same load. Weight 100 makes the candidate a part
of the pool: then nobody else has to answer.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Protocol

from bayplan.gateway.endpoints import EngineFacts, HeadView
from bayplan.planning.admission.records import AdmissionRequest, Preference
from bayplan.planning.gates.counts import Arm
from bayplan.planning.rollout.cohort import Cohort, find_cohort, forget_behind, within_share
from bayplan.planning.rollout.plan import Plan

MOST_BEHIND = 20
"""Requests of a cohort that did not come and may still be made up for: more would be a burst."""
WHOLE = 100
"""Percent."""


class Role(Enum):
    """What a pod is to the plan."""

    POOL = "pool"
    CANDIDATE = "candidate"
    NONE = "none"
    """It gets nothing new."""


class Replica(Protocol):
    """What is needed to know of a replica."""

    @property
    def head(self) -> HeadView:
        """Its head."""

    @property
    def facts(self) -> EngineFacts:
        """What its engine has."""

    @property
    def role(self) -> Role:
        """What it is to the plan."""


class Share:
    """How much of what was sent since the weight was taken up went to one arm."""

    __slots__ = ("routed", "sent", "weight")

    def __init__(self, weight: int) -> None:
        self.weight = weight
        self.routed = 0
        self.sent = 0

    def allows(self) -> bool:
        """Whether the arm may get one more. How many gateways there are is not known here, so each keeps below it."""
        return within_share(weight_percent=self.weight, routed=self.routed, candidate=self.sent, gateways=None)

    def note(self, *, mine: bool) -> None:
        """Count a request that is being sent."""
        self.routed += 1
        self.sent += mine
        self.routed = forget_behind(
            weight_percent=self.weight, routed=self.routed, candidate=self.sent, most_behind=MOST_BEHIND
        )


class Arms:
    """The rule of one plan."""

    def __init__(self, plan: Plan, *, lapsed: Callable[[], bool], former: "Arms | None" = None) -> None:
        """`lapsed` tells whether this gateway's Lease does not stand; `former` is the rule before, whose counts go on
        where nothing that they are about has changed.
        """
        self.plan = plan
        self.lapsed = lapsed
        self.candidates: dict[str, int] = {}
        """Ready candidate replicas, by pod uid: the longest sequence in tokens that each takes."""
        self._baseline = frozenset(plan.baseline)
        self._ready_baseline: frozenset[str] = frozenset()
        self._share = Share(0)
        self._baseline_share = Share(0)
        if former is not None and (former.plan.candidate, former.plan.cohort_salt) == (
            plan.candidate,
            plan.cohort_salt,
        ):
            self._share, self._baseline_share = former._share, former._baseline_share

    @property
    def alone(self) -> bool:
        """Whether every request is the candidate's."""
        return self.plan.weight == WHOLE

    @property
    def splits(self) -> bool:
        """Whether it matters whose request it is."""
        return bool(self.plan.weight or self.plan.shadow_share)

    def role(self, revision: str) -> Role:
        """What a pod of this revision is."""
        plan = self.plan
        if revision in (plan.serving, plan.previous):
            return Role.POOL
        if revision != plan.candidate or not self.splits:
            return Role.NONE
        return Role.POOL if self.alone else Role.CANDIDATE

    def recount(self, replicas: Mapping[str, Replica]) -> None:
        """Take in which replicas are there: neither arm gets more than its part of what is ready."""
        self.candidates = {
            uid: one.facts.max_model_len
            for uid, one in replicas.items()
            if one.role is not Role.NONE and one.head.revision == self.plan.candidate
        }
        ready = sum(one.role is not Role.NONE for one in replicas.values())
        self._ready_baseline = frozenset(
            uid for uid in self._baseline if (one := replicas.get(uid)) is not None and one.role is Role.POOL
        )
        weight = min(self.plan.weight, WHOLE * len(self.candidates) // ready) if ready else 0
        if weight != self._share.weight:
            self._share = Share(weight)
        compared = weight
        if self.plan.shadow_share and self._ready_baseline:
            # A cohort above the baseline's part of the pool would load these pods more than the others.
            pool = sum(one.role is Role.POOL for one in replicas.values())
            compared = min(self.plan.shadow_share, WHOLE * len(self._ready_baseline) // pool)
        if compared != self._baseline_share.weight:
            self._baseline_share = Share(compared)

    # -- one request

    def cohort(self, key: str) -> Cohort:
        """Whose request it is, by its key, as far as the arm's share is not used up."""
        cohort = find_cohort(
            key,
            salt=self.plan.cohort_salt,
            weight_percent=self._share.weight,
            baseline_percent=self._baseline_share.weight,
        )
        if cohort is Cohort.CANDIDATE:
            return cohort if self._share.allows() and not self.lapsed() else Cohort.REST
        if cohort is Cohort.BASELINE and not (self._ready_baseline and self._baseline_share.allows()):
            return Cohort.REST
        return cohort

    def preference(self, cohort: Cohort, request: AdmissionRequest) -> Preference:
        """Where a request of this cohort should go, if it need not wait there."""
        if cohort is Cohort.CANDIDATE:
            longest = request.prompt_tokens + request.max_output_tokens
            fitting = [uid for uid, length in self.candidates.items() if longest <= length]
            if self.alone:
                return Preference(first=fitting)
            return Preference(beside=fitting, spare=self._ready_baseline)
        if cohort is Cohort.BASELINE:
            return Preference(first=self._ready_baseline)
        return Preference(spare=self._ready_baseline)

    def arm(self, cohort: Cohort, replica: Replica) -> Arm | None:
        """As which arm's a request may go to the replica now; None: it may not go there."""
        if replica.role is Role.NONE:
            return None
        if replica.head.revision == self.plan.candidate:
            ours = self.alone or cohort is Cohort.CANDIDATE
            return Arm.CANDIDATE if ours and not self.lapsed() else None
        if cohort is Cohort.BASELINE and replica.head.uid in self._ready_baseline:
            return Arm.BASELINE
        return Arm.SERVING

    def sent(self, arm: Arm) -> None:
        """Count a request that is being sent."""
        self._share.note(mine=arm is Arm.CANDIDATE)
        self._baseline_share.note(mine=arm is Arm.BASELINE)

    def copies(self, cohort: Cohort) -> bool:
        """Whether a request of this cohort is copied to the candidate."""
        return bool(self.plan.shadow_share) and cohort is Cohort.BASELINE and not self.lapsed()
