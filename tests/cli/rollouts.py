"""Rollouts as the API server shows them, for the tests of `bayplan rollout`."""

from typing import Any

STAGES = [
    {"kind": "Warm"},
    {"kind": "Shadow", "weight": 50},
    {"kind": "Canary", "weight": 10, "approval": True},
    {"kind": "Canary", "weight": 30},
    {"kind": "Promote", "approval": True},
]
AT = "2026-11-30T06:00:00Z"


def rollout(*, phase: str | None = "Canary", index: int | None = 1, spec: Any = None, **status: Any) -> dict[str, Any]:
    """One on trial; `index` is the stage's."""
    trial = {"candidate": "c1", "digest": "d1", "judgedSinceTime": AT}
    stage = None if index is None else {"name": "canary-10", "index": index, "startedTime": AT}
    found: dict[str, Any] = {
        "phase": phase,
        "trial": trial,
        "stage": stage,
        "plan": {
            "epoch": 4,
            "serving": "s1",
            "candidate": "c1",
            "weight": 10,
            "cohortSalt": "abc",
            "candidateReplicas": 2,
            "baseline": ["a", "b"],
        },
    } | status
    return {
        "metadata": {"namespace": "team", "name": "chat", "resourceVersion": "7", "generation": 2},
        "spec": {"modelRef": {"name": "chat"}, "stages": STAGES} | (spec or {}),
        "status": {name: value for name, value in found.items() if value is not None},
    }
