"""What an InferenceModel's status says: counts, numbers that decided, and one sentence per condition. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from bayplan.api.autoscaling import ScalingStatus
from bayplan.api.conditions import ConditionType, Reason, Status, merge_conditions
from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.api.inferencemodel_status import (
    MAX_GROUPS_SHOWN,
    GroupStatus,
    InferenceModelStatus,
    PlacementStatus,
    Stage,
)
from bayplan.api.meta import rfc3339
from bayplan.planning.groups.members import Group
from bayplan.planning.groups.replicas import ALIVE, Target
from bayplan.reconcile.inferencemodel.course import Course, revision_status
from bayplan.reconcile.inferencemodel.manifests import ModelIdentity, head_selector
from bayplan.reconcile.inferencemodel.plan import ModelPlan
from bayplan.reconcile.inferencemodel.warmup import WarmupObservation
from bayplan.reconcile.scaling.autoscaler import NO_PLAN, PlanWord

Verdict = tuple[ConditionType, Status, Reason, str]
START_PROBLEMS = {
    **dict.fromkeys(
        ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"),
        Reason.IMAGE_PULL_ERROR,
    ),
    **dict.fromkeys(
        ("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CreatePodSandboxError"),
        Reason.CONTAINER_NOT_STARTED,
    ),
}
"""A waiting container's reasons, as a kubelet gives them, that do not pass by themselves."""


@dataclass(frozen=True, slots=True)
class Blocker:
    """Why replicas that are wanted have no group."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that the status is made from."""

    model: ModelIdentity
    generation: int
    spec: InferenceModelSpec
    target: Target
    """What groups of the revision that serves are to be."""
    plan: ModelPlan
    """What that revision means on the present nodes."""
    groups: Sequence[Group]
    course: Course
    desired: int
    """Replicas that spec or demand ask for, whatever a Rollout keeps or adds."""
    blocker: Blocker | None = None
    warming: Mapping[str, WarmupObservation] = field(default_factory=dict)
    """Last warm-up observation by group name."""
    moving_nodes: frozenset[str] = frozenset()
    """Nodes that are to be emptied."""
    scaling: ScalingStatus | None = None
    """The last decision of autoscaling."""
    scaling_verdict: Verdict | None = None
    """Its condition."""
    capacity: PlanWord = NO_PLAN
    """What the CapacityPlan says that the model names."""
    endpoint: str = ""
    """Where the model's service answers."""
    side_blocker: Blocker | None = None
    """Why replicas of a candidate have no group."""


@dataclass(frozen=True, slots=True)
class _Counts:
    """Of the groups that serve as one pool; a candidate's are no part of what the model promises."""

    wanted: int
    alive: int
    ready: int
    draining: int
    failed: int
    outdated: int
    moving: int

    @property
    def pending(self) -> int:
        return max(0, self.wanted - self.alive)

    @property
    def warming(self) -> int:
        return self.alive - self.ready


def build_status(situation: Situation, previous: InferenceModelStatus, *, now: datetime) -> InferenceModelStatus:
    """Return the status; equal situations give equal bytes, whenever they are looked at."""
    groups = situation.groups
    pool = [g for g in groups if situation.course.arms.pools(g.revision)]
    every = [g for g in groups if g.stage in ALIVE and g.defect is None]
    alive = [g for g in pool if g.stage in ALIVE and g.defect is None]
    counts = _Counts(
        wanted=situation.target.replicas,
        alive=len(alive),
        ready=sum(1 for g in alive if g.stage is Stage.READY),
        draining=sum(1 for g in groups if g.stage is Stage.DRAINING),
        failed=sum(1 for g in pool if g.stage is Stage.FAILED),
        outdated=sum(1 for g in alive if not situation.target.matches(g)),
        moving=sum(1 for g in alive if _nodes_of(g) & situation.moving_nodes),
    )
    verdicts = _verdicts(situation, counts, alive)
    ready = [g for g in every if g.stage is Stage.READY]
    return InferenceModelStatus(
        observed_generation=situation.generation,
        replicas=len(every),
        desired_replicas=situation.desired,
        pending_replicas=counts.pending,
        warming_replicas=len(every) - len(ready),
        ready_replicas=len(ready),
        draining_replicas=counts.draining,
        gpus=_gpus_held(groups),
        selector=",".join(f"{key}={value}" for key, value in head_selector(situation.model).items()),
        parallelism=situation.plan.parallelism_status(),
        memory=situation.plan.memory_status(),
        placement=PlacementStatus(
            groups=_groups_shown(groups, situation.warming),
            pending_reason=_pending_reason(situation, counts),
        ),
        scaling=situation.scaling,
        capacity=situation.capacity.numbers,
        evidence=situation.capacity.evidence,
        revisions=revision_status(
            situation.course, previous.revisions, [g.revision for g in alive if g.stage is Stage.READY]
        ),
        endpoint=situation.endpoint,
        conditions=merge_conditions(previous.conditions, verdicts, generation=situation.generation, now=now),
    )


def _pending_reason(situation: Situation, counts: _Counts) -> str:
    if situation.blocker is not None and counts.pending:
        return situation.blocker.message[:1024]
    if situation.side_blocker is not None and situation.course.arms.candidate is not None:
        return f"candidate {situation.course.arms.candidate}: {situation.side_blocker.message}"[:1024]
    return ""


def invalid_status(
    message: str, previous: InferenceModelStatus, groups: Sequence[Group], *, generation: int, now: datetime
) -> InferenceModelStatus:
    """Return the status of a spec that cannot be acted on: what runs keeps running, and is shown as it is.

    What the last accepted spec asked for and how it was planned stay as they were.
    """
    verdicts: list[Verdict] = [
        (ConditionType.ACCEPTED, "False", Reason.INVALID_SPEC, message),
        (ConditionType.READY, "False", Reason.INVALID_SPEC, f"the spec is not accepted: {message}"),
        (ConditionType.STALLED, "True", Reason.INVALID_SPEC, message),
    ]
    alive = [g for g in groups if g.stage in ALIVE and g.defect is None]
    ready = sum(1 for g in alive if g.stage is Stage.READY)
    return previous.model_copy(
        update={
            "observed_generation": generation,
            "replicas": len(alive),
            "pending_replicas": max(0, (previous.desired_replicas or 0) - len(alive)),
            "warming_replicas": len(alive) - ready,
            "ready_replicas": ready,
            "draining_replicas": sum(1 for g in groups if g.stage is Stage.DRAINING),
            "gpus": _gpus_held(groups),
            "placement": PlacementStatus(groups=_groups_shown(groups, {})),
            "conditions": merge_conditions(previous.conditions, verdicts, generation=generation, now=now),
        }
    )


def _gpus_held(groups: Sequence[Group]) -> int:
    holding = (g for g in groups if g.stage in (*ALIVE, Stage.DRAINING))
    return sum(rank.gpus for g in holding if g.assignment is not None for rank in g.assignment.ranks)


def _groups_shown(groups: Sequence[Group], warming: Mapping[str, WarmupObservation]) -> tuple[GroupStatus, ...]:
    shown = sorted(groups, key=lambda g: g.name)[:MAX_GROUPS_SHOWN]
    return tuple(_group_status(g, warming.get(g.name)) for g in shown)


def _nodes_of(group: Group) -> set[str]:
    return {rank.node for rank in group.assignment.ranks} if group.assignment else set()


def _group_status(group: Group, warming: WarmupObservation | None) -> GroupStatus:
    assignment = group.assignment
    since, stage = group.since, None
    if group.stage is Stage.WARMING and warming is not None:
        since, stage = warming.since, warming.stage
    return GroupStatus(
        name=group.name,
        revision=group.revision,
        stage=group.stage,
        since=rfc3339(since),
        warmup_stage=stage,
        nodes=tuple(rank.node for rank in assignment.ranks) if assignment else (),
        gpu_product=assignment.gpu_product if assignment else "",
        facts=tuple(fact[:1024] for fact in assignment.facts[:8]) if assignment else (),
        message=(group.message or (warming.message if warming and group.stage is Stage.WARMING else ""))[:1024],
    )


def _verdicts(situation: Situation, counts: _Counts, alive: Sequence[Group]) -> list[Verdict]:
    memory_status, memory_reason, memory_message = situation.plan.verdict()
    verdicts: list[Verdict] = [
        (ConditionType.ACCEPTED, "True", Reason.VALID, "the spec is valid"),
        (ConditionType.MEMORY_FIT, memory_status, memory_reason, memory_message),
        _placed(situation, counts, alive),
        _warm(situation, counts, alive),
        *([situation.scaling_verdict] if situation.scaling_verdict is not None else []),
        *([situation.capacity.verdict] if situation.capacity.verdict is not None else []),
        _current(situation, counts),
    ]
    verdicts.append(_ready(situation, counts, verdicts))
    blocked_by_spec = not situation.plan.placeable and counts.pending > 0 and memory_reason is not Reason.INSPECTING
    rejection = situation.course.rejection
    if blocked_by_spec:
        verdicts.append((ConditionType.STALLED, "True", memory_reason, memory_message))
    elif rejection is not None and situation.course.held and not situation.course.on_trial:
        _, _, reason, message = _current(situation, counts)
        verdicts.append((ConditionType.STALLED, "True", reason, message))
    elif not _settled(counts) or situation.course.held or situation.course.on_trial:
        reason, message = _first_problem(verdicts) or _unseen_work(situation.course, situation.blocker, counts)
        verdicts.append((ConditionType.RECONCILING, "True", reason, message))
    return verdicts


def _settled(counts: _Counts) -> bool:
    at_rest = counts.draining == counts.outdated == counts.moving == 0
    return at_rest and counts.alive == counts.ready == counts.wanted


def _unseen_work(course: Course, blocker: Blocker | None, counts: _Counts) -> tuple[Reason, str]:
    """What goes on although every condition is fine."""
    if course.on_trial:
        return Reason.ROLLOUT_IN_PROGRESS, f"rollouts.bayplan.dev {course.rollout}: {course.phase}"
    if counts.moving:
        return Reason.REPLACING, f"{counts.moving} replicas are to move off leaving nodes{_waiting_for(blocker)}"
    return Reason.DRAINING, "replicas are leaving"


def _waiting_for(blocker: Blocker | None) -> str:
    return f", which waits: {blocker.message}" if blocker is not None else ""


def _first_problem(verdicts: Sequence[Verdict]) -> tuple[Reason, str] | None:
    """The first condition that is not fine; one that is only blocked by another leaves the word to that one."""
    order = (ConditionType.PLACED, ConditionType.WARM, ConditionType.CURRENT, ConditionType.READY)
    for kind in order:
        for found, status, reason, message in verdicts:
            if found is kind and status != "True" and reason is not Reason.BLOCKED:
                return reason, message
    return None


def _placed(situation: Situation, counts: _Counts, alive: Sequence[Group]) -> Verdict:
    kind = ConditionType.PLACED
    if counts.wanted == 0 and counts.alive == 0:
        return kind, "True", Reason.NOTHING_TO_PLACE, "no replicas are asked for"
    if counts.pending:
        return _pending(situation.blocker, counts)
    stuck = next((g for g in alive if g.stage is Stage.BINDING and g.message), None)
    if stuck is not None:
        return kind, "False", Reason.UNSCHEDULABLE, f"group {stuck.name}: {stuck.message}"
    open_groups = [g.name for g in alive if g.stage in (Stage.RESERVED, Stage.BINDING)]
    if open_groups:
        return kind, "False", Reason.RESERVING, f"waiting for the scheduler to bind {', '.join(open_groups[:4])}"
    beside = f", and {counts.alive - counts.wanted} more beside them" if counts.alive > counts.wanted else ""
    placed = min(counts.alive, counts.wanted)
    text = f"{placed} of {counts.wanted} replicas have their whole GPU group{beside}"
    return kind, "True", Reason.PLACED, text


def _pending(blocker: Blocker | None, counts: _Counts) -> Verdict:
    kind, text = ConditionType.PLACED, f"{counts.pending} of {counts.wanted} replicas"
    if blocker is not None:
        return kind, "False", blocker.reason, f"{text} pending: {blocker.message}"
    if counts.failed >= counts.pending:
        return kind, "False", Reason.BLOCKED, f"{text} failed and wait for their next attempt"
    return kind, "False", Reason.RESERVING, f"{text} are not reserved yet"


def _warm(situation: Situation, counts: _Counts, alive: Sequence[Group]) -> Verdict:
    kind = ConditionType.WARM
    pools = situation.course.arms.pools
    failed = [g for g in situation.groups if g.stage is Stage.FAILED and g.defect is None and pools(g.revision)]
    if failed:
        worst = max(failed, key=lambda g: (g.since, g.name))
        reason = Reason.WARMUP_FAILED if worst.head.warmup_failed else Reason.ENGINE_FAILED
        attempt = f"attempt {worst.attempt + 1}"
        return kind, "False", reason, f"group {worst.name} ({attempt}): {worst.message}{_where_it_says_why(worst)}"
    waiting = [g for g in alive if g.stage is not Stage.READY]
    for group in waiting:
        problem = START_PROBLEMS.get(group.message.partition(":")[0])
        if problem is not None:
            return kind, "False", problem, f"group {group.name}: {group.message}"
    if waiting:
        parts = [_warming_text(g, situation.warming.get(g.name)) for g in waiting[:4]]
        more = f"; and {len(waiting) - 4} more" if len(waiting) > 4 else ""
        return kind, "False", Reason.WARMUP_RUNNING, "; ".join(parts) + more
    if counts.alive == 0:
        return kind, "False" if counts.wanted else "True", Reason.NOTHING_TO_WARM, "no replica is placed"
    return kind, "True", Reason.WARM, f"{counts.ready} replicas answered a real generation"


def _where_it_says_why(group: Group) -> str:
    """An exit code tells nobody what to change; the engine's log does, while the pod is kept through the pause."""
    pod = next((m for m in group.members if m.exit is not None), group.head)
    return f"; its log: kubectl logs -n {pod.namespace} {pod.name}" if pod.container_id is not None else ""


def _warming_text(group: Group, seen: WarmupObservation | None) -> str:
    if group.stage is Stage.WARMING and seen is not None:
        return f"{group.name}: {seen.stage.value} since {rfc3339(seen.since)}"
    return f"{group.name}: {group.stage.value} since {rfc3339(group.since)}"


def _current(situation: Situation, counts: _Counts) -> Verdict:
    course, revision = situation.course, situation.target.revision
    if course.held:
        return _held(course, revision)
    if counts.outdated:
        text = f"{counts.outdated} of {counts.alive} replicas are to be replaced by revision {revision}"
        if not counts.pending:
            text += _waiting_for(situation.blocker)
        return ConditionType.CURRENT, "False", Reason.REPLACING, text
    return ConditionType.CURRENT, "True", Reason.CURRENT, f"all replicas run revision {revision}"


def _held(course: Course, serving: str) -> Verdict:
    """The spec asks for another revision than the one that serves."""
    kind, rejection, goes_on = ConditionType.CURRENT, course.rejection, f"; {serving} serves"
    named = f"rollouts.bayplan.dev {course.rollout}"
    if course.on_trial:
        text = f"{named} tries {course.target} ({course.phase}){goes_on}"
        return kind, "False", Reason.ROLLOUT_IN_PROGRESS, text
    if rejection is not None:
        text = f"{course.target} was rejected: {rejection.reason}: {rejection.message}{goes_on}"
        return kind, "False", Reason.REVISION_REJECTED, text
    if course.rollout:
        return kind, "False", Reason.ROLLOUT_IN_PROGRESS, f"{named} has not begun with {course.target} yet{goes_on}"
    return kind, "False", Reason.WAITING_FOR_ROLLOUT, f"{course.target} waits for a Rollout of this model{goes_on}"


def _ready(situation: Situation, counts: _Counts, others: Sequence[Verdict]) -> Verdict:
    """One condition, one reason: what is not ready carries the reason of what keeps it from being so."""
    kind = ConditionType.READY
    if counts.wanted == 0:
        if counts.alive or counts.draining:
            text = f"{counts.alive + counts.draining} replicas are still leaving"
            return kind, "False", Reason.DRAINING, text
        if situation.spec.suspend:
            return kind, "True", Reason.SUSPENDED, "suspended: no replicas run, as asked"
        return kind, "True", Reason.SCALED_TO_ZERO, "no replicas run, as asked"
    text = f"{counts.ready} of {counts.wanted} replicas ready"
    if counts.ready >= counts.wanted:
        return kind, "True", Reason.READY, text
    cause = _first_problem(others)
    if cause is None:
        return kind, "False", Reason.NOT_READY, text
    reason, message = cause
    return kind, "False", reason, f"{text}; {message}"
