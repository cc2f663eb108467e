"""Whether the candidate fits, over all its stages, before anything of it is started."""

from dataclasses import dataclass
from enum import StrEnum

from bayplan.api.rolloutwords import CapacityMode, StageKind, Waiver
from bayplan.planning.numbers import InvalidInput, count
from bayplan.planning.rollout.policy import RolloutPolicy
from bayplan.planning.words import plural


@dataclass(frozen=True, slots=True)
class SurgeAnswer:
    """What placement says. Raises InvalidInput.

    `placeable[d]` is the number of candidate groups that can be placed at once when d serving replicas have been
    drained; it never falls with d. `missing` is placement's sentence about the first group that cannot.

    `nodes[d]` are the nodes on which the heads of the first groups then are, as many groups as must be compared;
    `missing_apart` is placement's sentence about the first group that finds room only beside another.
    """

    placeable: tuple[int, ...]
    nodes: tuple[tuple[str, ...], ...]
    missing: str = ""
    missing_apart: str = ""

    def __post_init__(self) -> None:
        if not self.placeable:
            raise InvalidInput("placeable", "must say at least what fits without draining")
        for groups in self.placeable:
            count(groups, "placeable", least=0)
        if len(self.nodes) != len(self.placeable):
            raise InvalidInput("nodes", f"must have {len(self.placeable)} entries, one for each of placeable")


class SurgeOutcome(StrEnum):
    """How it fits, if it does."""

    FITS = "Fits"
    DRAINS_FIRST = "DrainsFirst"
    DOES_NOT_FIT = "SurgeDoesNotFit"


@dataclass(frozen=True, slots=True)
class SurgeDecision:
    """The outcome with its numbers, and what could be done about it."""

    outcome: SurgeOutcome
    message: str
    peak_replicas: int
    """Most candidate replicas at once, before promotion."""
    drain_replicas: int = 0
    """Serving replicas that make room."""
    stable_min: int = 0
    """Serving replicas that stay."""
    choices: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the candidate may be started."""
        return self.outcome is not SurgeOutcome.DOES_NOT_FIT


def decide_surge(policy: RolloutPolicy, answer: SurgeAnswer, *, serving_replicas: int, floor: int) -> SurgeDecision:
    """Decide how the peak over all stages is placed; the floor is never broken.

    Raises InvalidInput for negative numbers.
    """
    count(serving_replicas, "serving_replicas", least=0)
    count(floor, "floor", least=0)
    peaks = [_peak(policy, serving_replicas - drained) for drained in range(serving_replicas + 1)]
    if policy.capacity is not CapacityMode.DRAIN_FIRST and _holds(policy, answer, peaks, 0):
        message = f"{plural(peaks[0], 'candidate replica')} fit beside {plural(serving_replicas, 'serving replica')}"
        return SurgeDecision(SurgeOutcome.FITS, message, peaks[0], stable_min=serving_replicas)
    if policy.capacity is not CapacityMode.SURGE:
        for drained in range(1, max(0, serving_replicas - _least_left(policy, floor)) + 1):
            in_place = policy.capacity is CapacityMode.AUTO or peaks[drained] <= drained
            if in_place and _holds(policy, answer, peaks, drained):
                return _drains(peaks[drained], drained, serving_replicas - drained)
    return _refusal(policy, answer, peaks, floor=floor)


def _least_left(policy: RolloutPolicy, floor: int) -> int:
    """Serving replicas that draining leaves: one at least where the stages compare with it, or copy its requests."""
    shadow = any(stage.kind is StageKind.SHADOW for stage in policy.stages)
    return floor if Waiver.NO_BASELINE in policy.waivers and not shadow else max(1, floor)


def _peak(policy: RolloutPolicy, serving_replicas: int) -> int:
    return max(policy.replicas_for(stage, serving_replicas=serving_replicas) for stage in policy.stages)


def _holds(policy: RolloutPolicy, answer: SurgeAnswer, peaks: list[int], drained: int) -> bool:
    at = min(drained, len(answer.placeable) - 1)
    apart = len(answer.nodes[at]) >= policy.least_candidates
    return apart and peaks[drained] <= min(answer.placeable[at], policy.max_surge)


def _drains(peak: int, drained: int, left: int) -> SurgeDecision:
    message = f"{plural(drained, 'serving replica')} drained first for {plural(peak, 'candidate replica')}; {left} stay"
    if left == 0:
        message += ": downtime until the candidate is warm"
    return SurgeDecision(SurgeOutcome.DRAINS_FIRST, message, peak, drain_replicas=drained, stable_min=left)


def _refusal(policy: RolloutPolicy, answer: SurgeAnswer, peaks: list[int], *, floor: int) -> SurgeDecision:
    peak, placeable = peaks[0], answer.placeable[0]
    serving = len(peaks) - 1
    choices = []
    needed = peak if policy.capacity is CapacityMode.SURGE else min(peaks)
    if needed > policy.max_surge:
        message = f"the stages need {plural(needed, 'candidate replica')}, maxSurge allows {policy.max_surge}"
        choices.append(f"raise maxSurge to {needed}")
    elif peak <= placeable and len(answer.nodes[0]) < policy.least_candidates:
        short = policy.least_candidates - len(answer.nodes[0])
        message = (
            f"candidate replicas needed on {plural(policy.least_candidates, 'node')}, or a slow node would look like a "
            f"slow revision; room on {len(answer.nodes[0])} ({', '.join(answer.nodes[0])}), {short} missing"
        )
        if answer.missing_apart:
            message += f": {answer.missing_apart}"
        choices.append(f"free or add room for {plural(short, 'group')} on another node")
    else:
        short = max(0, peak - placeable)
        message = f"{plural(peak, 'candidate replica')} needed at the peak, {placeable} placeable, {short} missing"
        if answer.missing:
            message += f": {answer.missing}"
        choices.append(f"free or add room for {plural(short, 'group')}")
    if peak > policy.least_candidates:
        choices.append("lower the largest canary weight")
    if policy.least_candidates > 1:
        choices.append("waive SingleReplica, to judge a single candidate replica")
    if policy.capacity is CapacityMode.SURGE:
        choices.append("capacity: Auto or DrainFirst, to drain serving replicas first")
    elif floor > 0:
        choices.append(f"lower minReady: {serving} serving, at least {floor} must stay")
    elif _least_left(policy, floor) > 0:
        choices.append("waive NoBaseline and leave out the shadow stage, to drain the last serving replica")
    return SurgeDecision(SurgeOutcome.DOES_NOT_FIT, message, peak, stable_min=serving, choices=tuple(choices))
