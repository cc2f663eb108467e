"""The loop behind the claim `queue-scaling`: started below the planned number, demand alone must bring it there.

A decision at the planned number could only ever say "steady". Here one replica fewer is desired and ready, the planned
demand arrives, and the autoscaler decides again and again on its own clock. The fewest replicas are lowered, so that
nothing but demand can raise the target, unless it is the floor that is to be shown at work.
"""

from dataclasses import dataclass, replace
from fractions import Fraction

from bayplan.planning.numbers import count, not_negative
from bayplan.planning.scaling.seed import Observation, ScalingPolicy, ScalingState, decide_scaling

MOST_STEPS = 64


@dataclass(frozen=True, slots=True)
class ScalingLoop:
    """Where the loop started and what it came to."""

    planned_replicas: int
    started_at: int
    reached: int
    steps: int
    message: str
    """Of the last decision."""

    @property
    def arrives(self) -> bool:
        """Whether it reached the planned number from below it."""
        return self.started_at < self.planned_replicas <= self.reached


def run_scaling_loop(
    policy: ScalingPolicy,
    *,
    planned_replicas: int,
    arriving_tokens_per_second: Fraction,
    sample_seconds: Fraction,
    by_demand_alone: bool = True,
) -> ScalingLoop:
    """Run the autoscaler from one replica below the planned number until it rests or arrives.

    Each step is one sample; what was asked for is ready by the next. Raises InvalidInput for a plan of no replica.
    """
    planned = count(planned_replicas, "planned_replicas")
    arriving = not_negative(arriving_tokens_per_second, "arriving_tokens_per_second")
    free = replace(policy, min_replicas=1) if by_demand_alone else policy
    start = desired = min(planned - 1, policy.max_replicas)
    longest = policy.scale_up_cooldown_seconds / sample_seconds + policy.scale_up_samples + 1
    history: list[Observation] = []
    last_scale: Fraction | None = Fraction(0)
    now, steps, message, quiet = Fraction(0), 0, "", 0
    while desired < planned and steps < MOST_STEPS and quiet <= longest:
        now, steps = now + sample_seconds, steps + 1
        history.append(Observation(now, queued_tokens=Fraction(0), arrival_tokens_per_second=arriving))
        state = ScalingState(desired_replicas=desired, ready_replicas=desired, last_scale_at_seconds=last_scale)
        decision = decide_scaling(history, state, free, now_seconds=now)
        message, quiet = decision.message, quiet + 1
        if decision.target_replicas != desired:
            desired, last_scale, quiet = decision.target_replicas, now, 0
    return ScalingLoop(planned, start, desired, steps, message)
