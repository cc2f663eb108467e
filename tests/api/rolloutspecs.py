"""Specs and statuses of Rollouts for tests, and accept and reject examples for each of their rules."""

from copy import deepcopy
from typing import Any

from bayplan.api import names
from e2e.specwalk.boundaries import Location
from tests.api.rulecases import ABSENT, Edits, RuleCase

Json = dict[str, Any]
COLLECTION = f"/apis/{names.API_VERSION}/namespaces/{{}}/{names.ROLLOUT_PLURAL}"

MINIMAL_ROLLOUT: Json = {
    "modelRef": {"name": "llama"},
    "stages": [{"kind": "Warm"}, {"kind": "Canary", "weight": 10}, {"kind": "Promote"}],
}

FULL_ROLLOUT: Json = {
    "modelRef": {"name": "llama"},
    "stages": [
        {"kind": "Warm", "deadlineSeconds": 1800, "bakeSeconds": 10, "approval": True},
        {"kind": "Shadow", "weight": 20, "bakeSeconds": 60, "deadlineSeconds": 3000, "approval": True},
        {"kind": "Canary", "weight": 5, "bakeSeconds": 60, "deadlineSeconds": 3000, "approval": True},
        {"kind": "Canary", "weight": 25, "bakeSeconds": 60, "deadlineSeconds": 3000, "approval": True},
        {"kind": "Promote", "deadlineSeconds": 3000, "bakeSeconds": 10, "approval": True},
    ],
    "gates": [
        {"name": "ttft", "limit": 1, "workloadClass": "chat", "enforce": False, "onRegression": "Freeze"},
        {"name": "tpot", "limit": 0.05, "workloadClass": "chat", "enforce": False, "onRegression": "Freeze"},
        {"name": "quality-floor", "limit": 0.8, "enforce": False, "onRegression": "Freeze"},
    ],
    "samples": {"requests": 500, "prompts": 50},
    "onRegression": "Freeze",
    "onDeadline": "Rollback",
    "capacity": "Surge",
    "minReady": 1,
    "maxSurge": 4,
    "retainSeconds": 600,
    "waivers": ["SingleReplica", "NoBaseline"],
    "promptSet": {"name": "prompts"},
    "measurements": {"name": "measured"},
    "requireEvidence": True,
    "maxEvidenceAgeSeconds": 30,
    "maxQualityAgeSeconds": 3600,
    "paused": True,
    "approvals": [{"revision": "0123abc", "stage": "canary-25"}],
    "abort": "0123abc",
    "retry": "second try",
}

_TIME = "2026-01-02T03:04:05.678901Z"
FULL_ROLLOUT_STATUS: Json = {
    "observedGeneration": 3,
    "observedModelGeneration": 4,
    "modelUid": "0000-1111",
    "plan": {
        "epoch": 7,
        "serving": "aaaa",
        "previous": "cccc",
        "candidate": "bbbb",
        "weight": 25,
        "shadowShare": 0,
        "cohortSalt": "0123456789abcdef",
        "stableMin": 3,
        "candidateReplicas": 2,
        "baseline": ["uid-1", "uid-2"],
    },
    "phase": "Canary",
    "stage": {
        "name": "canary-25",
        "index": 3,
        "startedTime": _TIME,
        "pausedTime": _TIME,
        "pausedSeconds": 1.5,
        "passedTime": _TIME,
        "frozenBy": "ttft",
        "late": True,
    },
    "trial": {"candidate": "bbbb", "digest": "0123", "judgedSinceTime": _TIME, "drainFirst": True},
    "attempt": 2,
    "settledTime": _TIME,
    "evidence": {
        "throughTime": _TIME,
        "windows": 9,
        "dropped": 1,
        "problem": "gateway g started anew",
        "routedRequests": 1000,
        "candidateRequests": 240,
        "tallies": [
            {
                "arm": "candidate",
                "workloadClass": "chat",
                "requests": 240,
                "errors": 1,
                "outputTokens": 9000,
                "loadedSeconds": 12.5,
                "ttftWithin": 230,
                "ttftTotal": 239,
                "tpotWithin": 239,
                "tpotTotal": 239,
            }
        ],
    },
    "quality": [
        {
            "revision": "bbbb",
            "promptSet": "0123",
            "passed": 48,
            "failed": 1,
            "unknown": 1,
            "observedTime": _TIME,
            "reason": "no answer",
        }
    ],
    "gates": [
        {
            "name": "ttft",
            "workloadClass": "chat",
            "outcome": "Passed",
            "handling": "Wait",
            "measured": 0.0375,
            "samples": 240,
            "message": "9 of 240 requests above 1 s",
        }
    ],
    "holds": [{"reason": "Baking", "handling": "Wait", "message": "canary-25 lasts at least 60 s"}],
    "surge": {
        "outcome": "DrainsFirst",
        "peakReplicas": 2,
        "drainReplicas": 1,
        "message": "1 serving replica drained first",
        "choices": ["raise maxSurge to 3"],
    },
    "retained": "dddd",
    "retainedTime": _TIME,
    "cause": {"revision": "eeee", "reason": "GateFailed", "message": "ttft: 90 of 100", "time": _TIME},
    "proof": {
        "sinceTime": _TIME,
        "acknowledgedTime": _TIME,
        "drainedTime": _TIME,
        "restoredTime": _TIME,
        "answeredTime": _TIME,
        "missing": ["serving has 1 of 2 replicas ready"],
    },
    "proven": ["aaaa"],
    "rejected": [{"revision": "eeee", "reason": "GateFailed", "message": "ttft", "time": _TIME}],
    "retrySeen": "first try",
    "history": [{"time": _TIME, "revision": "bbbb", "to": "canary-25", "reason": "GateFailed", "message": "ttft"}],
    "conditions": [
        {
            "type": "Ready",
            "status": "False",
            "reason": "Baking",
            "message": "canary-25 lasts at least 60 s",
            "lastTransitionTime": "2026-01-02T03:04:05Z",
            "observedGeneration": 3,
        }
    ],
}


def rollout(spec: Json, name: str = "llama") -> Json:
    """Return a Rollout with this spec, independent of later changes to it."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.ROLLOUT_KIND,
        "metadata": {"name": name},
        "spec": deepcopy(spec),
    }


_STAGES: Location = ("stages",)
_CANARY: Location = ("stages", 2)
_GATE: Location = ("gates", 0)
_WARM, _SHADOW, _PROMOTE = {"kind": "Warm"}, {"kind": "Shadow", "weight": 20}, {"kind": "Promote"}


def _canary(weight: int) -> Json:
    return {"kind": "Canary", "weight": weight}


def _stages(*stages: Json) -> Edits:
    return {_STAGES: list(stages)}


ROLLOUT_RULE_CASES = [
    RuleCase(
        path="spec.stages[]",
        says="weight must be given for Shadow and Canary",
        accept=[{(*_CANARY, "weight"): 6}],
        reject=[{(*_CANARY, "weight"): ABSENT}, {("stages", 0, "weight"): 1}, {("stages", 4, "weight"): 99}],
    ),
    RuleCase(
        path="spec.stages[]",
        says="weight must be at most 99",
        accept=[{("stages", 3, "weight"): 99}, {("stages", 1, "weight"): 100}],
        reject=[{("stages", 3, "weight"): 100}],
    ),
    RuleCase(
        path="spec.stages[]",
        says="deadlineSeconds must be longer than bakeSeconds",
        accept=[{(*_CANARY, "bakeSeconds"): 2999}],
        reject=[{(*_CANARY, "bakeSeconds"): 3000}, {(*_CANARY, "deadlineSeconds"): 60}],
    ),
    RuleCase(
        path="spec.stages",
        says="stages must be Warm, at most one Shadow",
        accept=[
            _stages(_WARM, _canary(1), _PROMOTE),
            _stages(_WARM, _SHADOW, _canary(1), _canary(2), _PROMOTE),
        ],
        reject=[
            _stages(_canary(1), _PROMOTE),
            _stages(_WARM, _canary(1)),
            _stages(_WARM, _canary(1), _SHADOW, _PROMOTE),
            _stages(_WARM, _SHADOW, _SHADOW, _canary(1), _PROMOTE),
            _stages(_WARM, _WARM, _canary(1), _PROMOTE),
            _stages(_WARM, _canary(1), _PROMOTE, _PROMOTE),
            _stages(_SHADOW, _WARM, _canary(1), _PROMOTE),
        ],
    ),
    RuleCase(
        path="spec.stages",
        says="a shadow alone never promotes",
        accept=[_stages(_WARM, _SHADOW, _canary(1), _PROMOTE)],
        reject=[_stages(_WARM, _SHADOW, _PROMOTE), _stages(_WARM, _PROMOTE)],
    ),
    RuleCase(
        path="spec.stages",
        says="weight must increase from Canary to Canary",
        accept=[_stages(_WARM, _canary(1), _canary(2), _canary(99), _PROMOTE)],
        reject=[
            _stages(_WARM, _canary(2), _canary(1), _PROMOTE),
            _stages(_WARM, _canary(2), _canary(2), _PROMOTE),
            _stages(_WARM, _canary(1), _canary(3), _canary(2), _PROMOTE),
        ],
    ),
    RuleCase(
        path="spec.gates[]",
        says="limit must be at most 1: it is a share",
        accept=[
            {(*_GATE, "limit"): 60},
            {(*_GATE, "name"): "throughput", (*_GATE, "limit"): 1.5},
            {(*_GATE, "name"): "error-rate", (*_GATE, "limit"): 1},
        ],
        reject=[{(*_GATE, "name"): "error-rate", (*_GATE, "limit"): 1.01}, {("gates", 2, "limit"): 80}],
    ),
    RuleCase(
        path="spec.gates[]",
        says="workloadClass must be absent for quality",
        accept=[{("gates", 2, "workloadClass"): ""}],
        reject=[{("gates", 2, "workloadClass"): "chat"}],
    ),
    RuleCase(
        path="spec.gates",
        says="gates must differ in name or workloadClass",
        accept=[
            {("gates", 1): {"name": "ttft", "limit": 1}},
            {("gates", 1): {"name": "ttft", "limit": 1, "workloadClass": "batch"}},
        ],
        reject=[
            {("gates", 1): {"name": "ttft", "limit": 2, "workloadClass": "chat"}},
            {("gates", 1): {"name": "quality-floor", "limit": 0.5, "workloadClass": ""}},
        ],
    ),
    RuleCase(
        path="spec",
        says="promptSet must be given where a gate protects quality",
        accept=[{("promptSet",): ABSENT, ("gates",): ABSENT}, {("promptSet",): ABSENT, ("gates", 2): ABSENT}],
        reject=[{("promptSet",): ABSENT}],
    ),
]

ROLLOUT_COMPANIONS: dict[str, Edits] = {
    "spec.stages": {},
    "spec.stages[].kind": {},
    "spec.stages[].bakeSeconds": {("stages", 0, "deadlineSeconds"): 5_184_000},
    "spec.stages[].deadlineSeconds": {("stages", 0, "bakeSeconds"): 0},
    "spec.gates[].limit": {},
}
"""Edits that keep the rules over several fields satisfied while one field goes to its bound."""
