"""What a stage has counted, and what its gates say of it."""

from dataclasses import dataclass

from bayplan.api.rolloutwords import Waiver
from bayplan.planning.gates.counts import Arm, class_measures, count_window
from bayplan.planning.gates.measures import ArmMeasures
from bayplan.planning.gates.quality import QualityCounts, current_quality
from bayplan.planning.gates.records import EVERY_CLASS, GateResult, worst_first
from bayplan.planning.gates.thresholds import judge_all
from bayplan.planning.measurements import Measured, Unknown
from bayplan.planning.rollout.policy import RolloutPolicy
from bayplan.planning.rollout.state import RolloutState
from bayplan.planning.rollout.world import World


@dataclass(frozen=True, slots=True)
class Assessment:
    """Every gate's result, worst first, and what an arm has counted too little of."""

    results: tuple[GateResult, ...]
    thin: tuple[str, ...]


NOTHING_JUDGED = Assessment((), ())


def counted(state: RolloutState, world: World) -> RolloutState:
    """Add the new window, if it began after the gateways had acknowledged a plan that gives this stage its share."""
    since = state.settled_at_seconds
    if world.window is None or since is None:
        return state
    since = max(since, state.clock.started_at_seconds)
    return state.change(
        evidence=count_window(state.evidence, world.window, since_seconds=since, now_seconds=world.now_seconds)
    )


def assess(
    policy: RolloutPolicy, state: RolloutState, world: World, *, candidate: str, baseline: str | None
) -> Assessment:
    """Judge every gate on what this stage has counted, and say which arm has counted too little."""
    evidence = state.evidence
    ours = class_measures(evidence, Arm.CANDIDATE, policy.gates)
    theirs = class_measures(evidence, Arm.BASELINE, policy.gates)
    own_quality = _quality(policy, state, world, world.candidate_quality, candidate)
    other_quality = _quality(policy, state, world, world.baseline_quality, baseline or "")
    own = ArmMeasures(ours, own_quality, _prompts(world.candidate_quality))
    other = ArmMeasures(theirs, other_quality, _prompts(world.baseline_quality))
    unjudged = {result.gate.key: result for result in world.invalid}
    judged = judge_all(policy.gates, own, other, policy.least)
    results = tuple(unjudged.get(result.gate.key, result) for result in judged)
    arms = [("candidate", Arm.CANDIDATE)]
    if not without_baseline(policy, world):
        arms.append(("baseline", Arm.BASELINE))
    classes = sorted({EVERY_CLASS, *(gate.workload_class for gate in policy.gates if gate.enforce)})
    thin = tuple(
        f"{name}{f'[{one}]' if one else ''}: {requests} of {policy.least.requests} requests"
        for name, arm in arms
        for one in classes
        if (requests := evidence.tally(arm, one).requests) < policy.least.requests
    )
    return Assessment(worst_first(results), thin)


def _quality(
    policy: RolloutPolicy, state: RolloutState, world: World, counts: QualityCounts | None, revision: str
) -> Measured:
    if policy.prompt_set is None:
        return Unknown("no prompt set")
    return current_quality(
        counts,
        revision=revision,
        prompt_set=policy.prompt_set,
        since_seconds=state.judged_since_seconds,
        oldest_seconds=policy.max_quality_age_seconds,
        now_seconds=world.now_seconds,
    )


def _prompts(counts: QualityCounts | None) -> int:
    return counts.prompts if counts is not None else 0


def without_baseline(policy: RolloutPolicy, world: World) -> bool:
    """Whether there is nobody to compare with, and the user knows."""
    return Waiver.NO_BASELINE in policy.waivers and not world.serving.serving
