"""What every pass over a model works with, and what one pass finds out."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime

from bayplan.api.conditions import Reason
from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.cluster.cache import Store
from bayplan.cluster.errors import ApiError
from bayplan.planning.groups.members import GroupLimits
from bayplan.planning.groups.replicas import Backoff, Target
from bayplan.reconcile.fleet import Fleet
from bayplan.reconcile.inferencemodel.children import ChildWriter
from bayplan.reconcile.inferencemodel.drain import DrainTracker
from bayplan.reconcile.inferencemodel.groups import GroupWriter
from bayplan.reconcile.inferencemodel.inspection import Inspector
from bayplan.reconcile.inferencemodel.manifests import ModelIdentity
from bayplan.reconcile.inferencemodel.plan import ModelPlan
from bayplan.reconcile.inferencemodel.release import Rechecker
from bayplan.reconcile.inferencemodel.status import Blocker
from bayplan.reconcile.inferencemodel.warmup import WarmupTracker
from bayplan.reconcile.quotas import QuotaView
from bayplan.reconcile.scaling.autoscaler import ScalingPlan


@dataclass(frozen=True, slots=True)
class Hold:
    """No new group is tried until `until`: admission said no, or a reservation was given back."""

    until: datetime
    blocker: Blocker
    pods: tuple[str, str]
    """Revision and template of the pods that it is about: pods of another spec may be tried at once."""


@dataclass(frozen=True, slots=True)
class Tools:
    """Caches, writers, trackers, limits and clock, shared by all passes of a process."""

    fleet: Fleet
    groups: GroupWriter
    children: ChildWriter
    inspector: Inspector
    rechecker: Rechecker
    warmups: WarmupTracker
    drains: DrainTracker
    quotas: Store[QuotaView]
    limits: GroupLimits
    backoff: Backoff
    now: Callable[[], datetime]
    random: random.Random
    confirm: Callable[[ModelIdentity, int], Awaitable[None]]
    """Reads a model live before anything is reserved for it; raises WorldChangedError when it is gone, or no longer of
    the given generation."""
    holds: dict[tuple[str, str], Hold] = field(default_factory=dict)
    """Model uid and revision → why no new group is tried for a while."""
    unconfirmed: dict[tuple[str, str], int] = field(default_factory=dict)
    """Model uid and revision → released groups in a row that the scheduler did not bind."""

    def forget(self, uid: str) -> None:
        """Drop what is remembered of a model."""
        for memory in (self.holds, self.unconfirmed):
            for key in [key for key in memory if key[0] == uid]:
                del memory[key]


@dataclass(frozen=True, slots=True)
class Wish:
    """One revision of a model at one generation: what its groups are to be, and what that means on the nodes."""

    model: ModelIdentity
    generation: int
    spec: InferenceModelSpec
    """The present spec with what the revision's hash covers as the revision has it."""
    target: Target
    plan: ModelPlan
    scaling: ScalingPlan
    revisions: frozenset[str] = frozenset()
    """Revisions of the model that are still needed."""
    apart: bool = False
    """Whether its groups go to nodes of their own where there are some: a candidate on one node is compared with it."""

    @property
    def memory_key(self) -> tuple[str, str]:
        """Under which passes remember what went wrong with groups of the revision."""
        return self.model.uid, self.target.revision


@dataclass(slots=True)
class Findings:
    """What one pass finds out besides the groups."""

    blocker: Blocker | None = None
    """Why replicas that are wanted have no group."""
    waits: list[float] = field(default_factory=list)
    """Seconds after which to look again although nobody may have written anything."""
    notes: list[tuple[Reason, str]] = field(default_factory=list)
    """What was done and is worth an event."""
    error: ApiError | None = None
    """The request that ended the pass; to be raised once the status is written."""
