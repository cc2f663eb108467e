"""`spec.autoscaling` and `status.scaling`: how many replicas the operator asks for, and the numbers that decided.

Tokens are prompt and output tokens together; `serviceTokensPerSecond` is in the same unit. Policy and order of a
decision: `planning/scaling/seed.py`.
"""

from decimal import Decimal
from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from bayplan.api.meta import Count, Exact, LongText, Schema, StatusSchema, TimeText, WholeNumber
from bayplan.api.rules import Rule

LEAST_SAMPLES = 2
"""Samples that a scale-down window must hold: one alone could not show that demand stays low."""
MOST_TOKENS = 10**15


class ScalingReason(StrEnum):
    """Why the target is what it is."""

    SCALE_UP = "ScaleUp"
    SCALE_DOWN = "ScaleDown"
    STEADY = "Steady"
    HOLD_COOLDOWN = "HoldCooldown"
    HOLD_UNCONFIRMED = "HoldUnconfirmed"
    HOLD_STABILIZATION = "HoldStabilization"
    HOLD_STALE_METRICS = "HoldStaleMetrics"
    HOLD_UNKNOWN_METRICS = "HoldUnknownMetrics"
    HOLD_AFTER_RESTART = "HoldAfterRestart"


class Autoscaling(Schema):
    """Replicas follow tokens, between two bounds. Excludes `replicas`."""

    rules: ClassVar = (
        Rule(
            expression="self.minReplicas <= self.maxReplicas",
            message="minReplicas must not exceed maxReplicas",
            holds=lambda self: self.min_replicas <= self.max_replicas,
            field="minReplicas",
        ),
        Rule(
            expression=f"self.scaleDownStabilizationSeconds >= {LEAST_SAMPLES} * self.sampleSeconds",
            message=f"scaleDownStabilizationSeconds must be at least {LEAST_SAMPLES} times sampleSeconds",
            holds=lambda self: self.scale_down_stabilization_seconds >= LEAST_SAMPLES * self.sample_seconds,
            field="scaleDownStabilizationSeconds",
        ),
    )

    policy: Literal["Seed"] = "Seed"
    """How demand becomes replicas: ceil(arriving / (service × utilization)) + ceil(queued / (service × drain time))."""
    min_replicas: Annotated[WholeNumber, Field(ge=1, le=10_000)] = 1
    """Fewest replicas."""
    max_replicas: Annotated[WholeNumber, Field(ge=1, le=10_000)]
    """Most replicas."""
    service_tokens_per_second: Annotated[Decimal, Exact(gt=0, le=10**9)]
    """Prompt and output tokens that one replica serves per second within its objectives: measure it."""
    target_utilization: Annotated[Decimal, Exact(gt=0, le=1)] = Decimal("0.8")
    """Share of the service rate that arriving tokens may take."""
    queue_drain_seconds: Annotated[WholeNumber, Field(ge=1, le=86400)] = 60
    """Time within which queued tokens should be served."""
    scale_up_cooldown_seconds: Annotated[WholeNumber, Field(ge=0, le=3600)] = 15
    """Least time between the last change, in either direction, and the next rise."""
    scale_down_stabilization_seconds: Annotated[WholeNumber, Field(ge=2, le=3600)] = 300
    """Window whose highest demand a fall stops at; it must have been watched without a gap."""
    sample_seconds: Annotated[WholeNumber, Field(ge=1, le=300)] = 15
    """Time between two measurements; with Prometheus, no shorter than its own scrape interval."""


TokenRate = Annotated[Decimal, Exact(ge=0, le=MOST_TOKENS)]
Tokens = Annotated[Decimal, Exact(ge=0, le=MOST_TOKENS)]


class ScalingStatus(StatusSchema):
    """The last decision that changed something, with its numbers as they were then. An absent number was not known."""

    desired_replicas: Count
    """Replicas that were decided on."""
    reason: ScalingReason
    """What decided, as one word."""
    message: LongText = ""
    """The decision in a sentence."""
    decided_time: TimeText
    """When it was decided."""
    observed_time: TimeText
    """When its newest measurement was taken."""
    arrival_tokens_per_second: TokenRate | None = None
    """Tokens that arrived per second."""
    queued_tokens: Tokens | None = None
    """Tokens that waited."""
    coverage: Annotated[Decimal, Exact(ge=0, le=1)] = Decimal(1)
    """Share of the sources that had answered."""
    rate_replicas: Count | None = None
    """Replicas for what arrived."""
    queue_replicas: Count | None = None
    """Replicas for what waited."""
    demand_replicas: Count = 0
    """Replicas that were demanded, before the bounds; a lower bound while something was not known."""
    window_replicas: Count | None = None
    """Highest demand of the scale-down window, within the bounds."""
    ready_tokens_per_second: TokenRate = Decimal(0)
    """What the ready replicas served at the target utilization."""
    last_scale_time: TimeText | None = None
    """When the number of desired replicas last changed."""
    last_rise_queue_replicas: Count | None = None
    """Queue part of the last rise: a backlog that grows while those replicas are coming does not ask again."""
