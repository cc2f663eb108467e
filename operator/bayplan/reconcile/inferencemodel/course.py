"""Which of a model's revisions have groups now, and on whose word: the spec's alone, or a Rollout's. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.api.inferencemodel_status import MAX_REVISIONS, RejectedRevision, RevisionStatus
from bayplan.api.rollout import RolloutSpec
from bayplan.api.rolloutwords import Phase
from bayplan.planning.numbers import InvalidInput
from bayplan.planning.rollout.arms import Arms, arms_of, arms_without_plan
from bayplan.planning.rollout.policy import RolloutPolicy
from bayplan.planning.rollout.state import RolloutState
from bayplan.planning.rollout.verdicts import RollbackReason
from bayplan.reconcile.rollout.stored import policy_of, state_of
from bayplan.reconcile.rollout.view import RolloutView

_AT_REST = (Phase.STEADY, Phase.RETAINED, Phase.ROLLED_BACK)


@dataclass(frozen=True, slots=True)
class Course:
    """What a model is on its way to."""

    target: str
    """Revision of the spec."""
    arms: Arms
    rollout: str = ""
    """Name of the Rollout whose plan this is; empty without a plan."""
    phase: Phase | None = None
    replaces_plainly: bool = True
    proven: tuple[str, ...] = ()
    rejected: tuple[RejectedRevision, ...] = ()

    @property
    def rejection(self) -> RejectedRevision | None:
        """Why the spec's revision is not replaced to, if it is not."""
        return next((one for one in self.rejected if one.revision == self.target), None)

    @property
    def held(self) -> bool:
        """Whether another revision than the spec's serves, and goes on serving for now."""
        return self.arms.serving != self.target

    @property
    def on_trial(self) -> bool:
        """Whether a Rollout is at work."""
        return self.phase is not None and self.phase not in _AT_REST


def course_of(
    target: str,
    spec: InferenceModelSpec,
    previous: RevisionStatus,
    rollout: RolloutView | None,
    *,
    model_uid: str,
    desired: int,
    number: Callable[[str], int],
) -> Course:
    """Work out the course.

    `previous` is what stands in the model's status, `rollout` the one with the say, `number` rises with each new
    revision.
    """
    plainly = spec.update == "Replace"
    planned = _planned(rollout, model_uid) if rollout is not None and not plainly else None
    if planned is None or rollout is None:
        rejected = _with_abandoned(previous)
        served = sorted(previous.serving, key=lambda one: -number(one))
        refused = any(one.revision == target for one in rejected)
        arms = arms_without_plan(target, served, replaces_plainly=plainly, rejected=refused, desired=desired)
        course = Course(target, arms, replaces_plainly=plainly, proven=previous.proven, rejected=rejected)
    else:
        policy, state, min_ready = planned
        course = Course(
            target,
            arms_of(policy, state, desired=desired, min_ready=min_ready),
            rollout=rollout.key.name,
            phase=state.phase,
            replaces_plainly=False,
            proven=state.proven,
            rejected=tuple(
                RejectedRevision(revision=one.revision, reason=str(one.reason), message=one.message)
                for one in state.rejected
            ),
        )
    if spec.suspend:
        return replace(course, arms=replace(course.arms, serving_groups=0, candidate_groups=0, retained_groups=0))
    return course


def unused_candidate(rollout: RolloutView | None, *, model_uid: str) -> str | None:
    """The revision on trial while it has no requests of users: copies and prompts at most."""
    status = rollout.read_status() if rollout is not None else None
    plan = status.plan if status is not None and status.model_uid == model_uid else None
    return plan.candidate if plan is not None and not plan.weight else None


def _planned(rollout: RolloutView, model_uid: str) -> tuple[RolloutPolicy | None, RolloutState, int | None] | None:
    """Policy (None while the spec is not valid), state and declared floor; None while there is no plan."""
    status = rollout.read_status()
    state = state_of(status) if status.model_uid == model_uid else None
    if state is None:
        return None
    spec = rollout.read_spec()
    if not isinstance(spec, RolloutSpec):
        return None, state, None
    try:
        return policy_of(spec, prompt_set=None), state, spec.min_ready
    except InvalidInput:
        return None, state, None


def _with_abandoned(previous: RevisionStatus) -> tuple[RejectedRevision, ...]:
    """A candidate whose Rollout is gone is not tried again by itself."""
    candidate = previous.candidate
    if candidate is None or any(one.revision == candidate for one in previous.rejected):
        return previous.rejected
    message = "its Rollout was deleted, or lost its say, while it was on trial"
    abandoned = RejectedRevision(revision=candidate, reason=RollbackReason.DELETED.value, message=message)
    return (*previous.rejected, abandoned)[-MAX_REVISIONS:]


def revision_status(course: Course, previous: RevisionStatus, ready: Sequence[str]) -> RevisionStatus:
    """What the model's status says of its revisions; `ready` are those with a ready group that serves.

    Plainly, whatever is ready serves. Otherwise a revision that serves goes on doing so while none of its pods is
    ready: another one must not take its place for that.
    """
    arms = course.arms
    if course.rollout:
        serving = (arms.serving, *sorted(arms.replaced or ()))
    elif course.replaces_plainly and not course.held:
        serving = tuple(sorted(set(ready)))
    else:
        others = sorted(one for one in arms.replaced or () if one in ready)
        known = arms.serving in ready or arms.serving in previous.serving
        serving = (*([arms.serving] if known else []), *others)
    return RevisionStatus(
        target=course.target,
        serving=serving[:2],
        candidate=arms.candidate,
        proven=course.proven,
        rejected=course.rejected,
    )
