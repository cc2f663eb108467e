"""From pods, Leases and measurements to the world that a decision looks at, and when to look again. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction

from bayplan.api.inferencemodel_status import InferenceModelStatus, Stage
from bayplan.api.rolloutwords import Handling, Outcome, Phase
from bayplan.planning.gates.records import QUALITY_GATES, GateResult
from bayplan.planning.gates.validity import check_gates
from bayplan.planning.groups.members import Group
from bayplan.planning.measurements import Measured, Unknown
from bayplan.planning.rollout.policy import RolloutPolicy
from bayplan.planning.rollout.state import Rejection, RolloutState
from bayplan.planning.rollout.verdicts import Decision, RollbackReason
from bayplan.planning.rollout.world import ArmHeads, Head
from bayplan.planning.words import plural
from bayplan.reconcile.rollout.sampling import EnginePod, Memory

_LEAVING = (Stage.DRAINING, Stage.LOST)


def arm_heads(groups: Iterable[Group], revision: str | None) -> ArmHeads:
    """The replicas of one revision, and what keeps more of them from being ready; leaving ones are none."""
    own = [group for group in groups if revision is not None and group.revision == revision]
    heads = [_head(group) for group in own if group.stage not in (*_LEAVING, Stage.FAILED)]
    return ArmHeads(tuple(heads), _trouble(own))


def _trouble(groups: Sequence[Group]) -> str:
    """The last failure; while its next attempt is under way, that there was one."""
    failed = [group for group in groups if group.stage is Stage.FAILED]
    if failed:
        worst = max(failed, key=lambda group: (group.since, group.name))
        return f"{worst.name} (attempt {worst.attempt + 1}): {worst.message}"
    for group in groups:
        before = group.assignment.failures if group.assignment is not None else 0
        if before and group.stage is not Stage.READY and group.stage not in _LEAVING:
            return f"{group.name} is tried again: {plural(before, 'attempt')} in a row failed"
    return ""


def _head(group: Group) -> Head:
    ready = group.stage is Stage.READY
    node = group.assignment.ranks[0].node if group.assignment is not None else group.head.node or ""
    return Head(uid=group.head.uid, node=node, ready=ready, warm=ready)


def serving_uids(groups: Iterable[Group]) -> frozenset[str]:
    """Uids of the heads that can take requests now."""
    return frozenset(group.head.uid for group in groups if group.stage is Stage.READY)


def engine_pods(groups: Iterable[Group], revision: str | None, *, ready: bool) -> tuple[EnginePod, ...]:
    """The heads of one revision: with `ready` those that can take requests, else all that may still run one."""
    own = [group for group in groups if revision is not None and group.revision == revision]
    if ready:
        own = [group for group in own if group.stage is Stage.READY]
    return tuple(EnginePod(group.head.uid, group.head.pod_ip or "") for group in own)


def invalid_gates(policy: RolloutPolicy, memory: Memory, *, live_gateways: int) -> tuple[GateResult, ...]:
    """Gates that nothing can judge. While no gateway has answered, that is every gate that rests on requests."""
    ttft, tpot = memory.edges or (frozenset(), frozenset())
    known = [gate for gate in policy.gates if memory.edges is not None or gate.name in QUALITY_GATES]
    invalid = check_gates(known, ttft_edges=ttft, tpot_edges=tpot, has_prompts=policy.prompt_set is not None)
    why = "no gateway has told its edges yet" if live_gateways else "no gateway is live that could measure it"
    unjudged = (
        GateResult(gate, Outcome.INVALID, Handling.TUNE_SERVING, why, Unknown(why))
        for gate in policy.gates
        if gate not in known
    )
    if isinstance(memory.prompts, str):
        invalid = tuple(
            replace(result, message=memory.prompts, measured=Unknown(memory.prompts))
            if result.gate.name in QUALITY_GATES
            else result
            for result in invalid
        )
    return (*invalid, *unjudged)


def leaving_streams(state: RolloutState, memory: Memory, groups: Sequence[Group]) -> Measured:
    """Requests under way at what is being rolled back, if that was looked at after every gateway had let go of it."""
    if not any(group.revision == state.candidate for group in groups):
        return Fraction(0)
    settled = state.settled_at_seconds
    if settled is None or memory.streams_at_seconds < settled:
        return Unknown("not looked at since the gateways let go of it")
    return memory.streams


def seen_of(groups: Sequence[Group]) -> tuple[object, ...]:
    """All that a decision sees of a model's pods. A start passes through a dozen states that are none of it."""
    revisions = sorted({group.revision for group in groups})
    return tuple((one, arm_heads(groups, one), engine_pods(groups, one, ready=False)) for one in revisions)


_AT_EACH_ROUND = (Phase.PAPER, Phase.SHADOW, Phase.CANARY, Phase.REPLACING, Phase.RETAINED)
"""Phases in which each measurement may decide: a window to count, or, on paper, room that nobody tells of."""


def news_in(memory: Memory, state: RolloutState, groups: Sequence[Group]) -> tuple[object, ...]:
    """What of the measurements a decision in this phase rests on.

    Nothing else tells of a gateway whose Lease runs out, or of a head on a node that is lost.
    """
    if state.phase in _AT_EACH_ROUND:
        return (memory.rounds,)
    look, proof = memory.look, state.proof
    answered = memory.answered_at_seconds
    return (
        () if look is None else (frozenset(look.snapshot.sources), look.serving),
        memory.edges,
        memory.prompts,
        leaving_streams(state, memory, groups),
        proof is not None and answered is not None and answered > proof.since_seconds,
    )


def next_time(state: RolloutState, policy: RolloutPolicy, now_seconds: Fraction) -> float | None:
    """Seconds until something changes although nothing is measured otherwise: a bake, a deadline, a retention."""
    times: list[Fraction] = []
    if state.phase in (Phase.WARM, Phase.SHADOW, Phase.CANARY, Phase.REPLACING) and state.stage < len(policy.stages):
        stage, clock = policy.stages[state.stage], state.clock
        begun = clock.started_at_seconds + clock.paused_seconds
        if clock.paused_at_seconds is None:
            times += [begun + stage.bake_seconds, begun + stage.deadline_seconds]
    if state.phase is Phase.RETAINED and state.retained_at_seconds is not None:
        times.append(state.retained_at_seconds + policy.retain_seconds)
    waits = [float(time - now_seconds) + 0.01 for time in times if time >= now_seconds]
    return min(waits, default=None)


def with_known_rejections(decision: Decision, model: InferenceModelStatus, *, now_seconds: Fraction) -> Decision:
    """What an earlier Rollout of the model proved, rejected or left behind on trial stays so under a new one."""
    state, revisions = decision.state, model.revisions
    for one in revisions.rejected:
        state = state.with_rejected(Rejection(one.revision, one.reason, one.message, now_seconds))
    left = revisions.candidate
    if left is not None and state.rejection(left) is None:
        why = "its Rollout was deleted while it was on trial"
        state = state.with_rejected(Rejection(left, RollbackReason.DELETED, why, now_seconds))
    for revision in revisions.proven:
        state = state.with_proven(revision)
    return replace(decision, state=state)
