"""A rollout policy for tests, and parts of it to change."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

from bayplan.api.rolloutwords import GateName, StageKind
from bayplan.planning.gates.records import Gate
from bayplan.planning.gates.thresholds import LeastSamples
from bayplan.planning.rollout.policy import RolloutPolicy, Stage

DEADLINE = Fraction(600)
WARM = Stage(StageKind.WARM, DEADLINE)
SHADOW = Stage(StageKind.SHADOW, DEADLINE, weight=20, bake_seconds=Fraction(50))
CANARY = Stage(StageKind.CANARY, DEADLINE, weight=10, bake_seconds=Fraction(50))
LARGER = Stage(StageKind.CANARY, DEADLINE, weight=25, bake_seconds=Fraction(50))
PROMOTE = Stage(StageKind.PROMOTE, DEADLINE)
GATES = (Gate(GateName.TTFT, Fraction(1)), Gate(GateName.ERROR_RATE, Fraction(5, 100)))
POLICY = RolloutPolicy(
    stages=(WARM, SHADOW, CANARY, LARGER, PROMOTE),
    gates=GATES,
    least=LeastSamples(requests=100, prompts=10),
    max_evidence_age_seconds=Fraction(30),
)


def policy(**of: Any) -> RolloutPolicy:
    return replace(POLICY, **of)


def approval(stage: Stage) -> Stage:
    return replace(stage, approval=True)
