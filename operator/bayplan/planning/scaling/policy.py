"""From `spec.autoscaling` to the policy that decisions use."""

from fractions import Fraction

from bayplan.api.autoscaling import Autoscaling
from bayplan.planning.scaling.seed import ScalingPolicy

SCALE_UP_SAMPLES = 2
"""A sample in whose middle demand rose saw only a part of the rise: with the second one, one step goes all the way."""
PASSING_QUEUE_SECONDS = 1
"""Where requests arrive all the time, a look finds some that wait for the next step of an engine. If each of them asked
for a replica, there would always be one too many."""
SAMPLES_MISSED = 3
"""Samples in a row that may fail before a window has a hole, and before the newest counts as old."""
MOST_SAMPLES = 240
"""A window holds no more: each decision looks at all of them, in the event loop."""


def pace_of(autoscaling: Autoscaling) -> int:
    """Seconds between two samples: the user's, or longer where the window would hold too many."""
    return max(autoscaling.sample_seconds, -(-autoscaling.scale_down_stabilization_seconds // MOST_SAMPLES))


def policy_of(autoscaling: Autoscaling) -> ScalingPolicy:
    """The policy `Seed` with the user's numbers. The schema has refused what would be none."""
    window, gap = autoscaling.scale_down_stabilization_seconds, SAMPLES_MISSED * pace_of(autoscaling)
    return ScalingPolicy(
        min_replicas=autoscaling.min_replicas,
        max_replicas=autoscaling.max_replicas,
        service_tokens_per_second=Fraction(autoscaling.service_tokens_per_second),
        target_utilization=Fraction(autoscaling.target_utilization),
        queue_drain_seconds=Fraction(autoscaling.queue_drain_seconds),
        passing_queue_seconds=Fraction(PASSING_QUEUE_SECONDS),
        scale_up_cooldown_seconds=Fraction(autoscaling.scale_up_cooldown_seconds),
        scale_up_samples=SCALE_UP_SAMPLES,
        scale_down_stabilization_seconds=Fraction(window),
        max_sample_gap_seconds=Fraction(min(gap, window)),
        max_sample_age_seconds=Fraction(gap),
    )
