"""Conditions: own types replaced, foreign ones kept, Ready from containers and readiness gates."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from e2e.nodeagent.conditions import covers, pod_conditions, stamp

WARM = {"type": "bayplan.dev/warm", "status": "True", "reason": "Generated"}


def ready(
    *,
    gates: Sequence[str] = (),
    observed: Sequence[Mapping[str, Any]] = (),
    unready: Sequence[str] = (),
    phase: str = "Running",
) -> Mapping[str, Any]:
    found = pod_conditions(
        readiness_gates=gates,
        observed=observed,
        phase=phase,
        has_address=True,
        initialized=True,
        unready_containers=unready,
    )
    return next(item for item in found if item["type"] == "Ready")


def test_pod_without_gates_is_ready_when_its_containers_are() -> None:
    assert ready()["status"] == "True"


def test_missing_gate_condition_keeps_pod_unready_and_is_named() -> None:
    found = ready(gates=["bayplan.dev/warm"])
    assert (found["status"], found["reason"]) == ("False", "ReadinessGatesNotReady")
    assert '"bayplan.dev/warm" does not exist' in found["message"]


@pytest.mark.parametrize(("status", "expected"), [("True", "True"), ("False", "False"), ("Unknown", "False")])
def test_gate_counts_only_when_true(status: str, expected: str) -> None:
    assert ready(gates=["bayplan.dev/warm"], observed=[WARM | {"status": status}])["status"] == expected


def test_every_gate_counts() -> None:
    found = ready(gates=["bayplan.dev/warm", "other/gate"], observed=[WARM])
    assert found["status"] == "False"
    assert "other/gate" in found["message"]
    assert "bayplan.dev/warm" not in found["message"]


def test_unready_container_comes_before_gates() -> None:
    found = ready(gates=["bayplan.dev/warm"], unready=["engine"])
    assert (found["status"], found["reason"]) == ("False", "ContainersNotReady")
    assert found["message"] == "containers with unready status: [engine]"


@pytest.mark.parametrize(("phase", "reason"), [("Succeeded", "PodCompleted"), ("Failed", "PodFailed")])
def test_ended_pod_is_unready_whatever_its_gates_say(phase: str, reason: str) -> None:
    found = ready(gates=["bayplan.dev/warm"], observed=[WARM], phase=phase)
    assert (found["status"], found["reason"]) == ("False", reason)


def test_transition_time_moves_only_with_the_status() -> None:
    observed = [{"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    same = stamp(observed, [{"type": "Ready", "status": "False", "reason": "New"}], now="2026-01-02T00:00:00Z")
    moved = stamp(observed, [{"type": "Ready", "status": "True"}], now="2026-01-02T00:00:00Z")
    assert same[0]["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    assert moved[0]["lastTransitionTime"] == "2026-01-02T00:00:00Z"


@pytest.mark.parametrize(
    ("observed", "wanted", "expected"),
    [
        ({"phase": "Running", "qosClass": "Burstable"}, {"phase": "Running"}, True),
        ({"phase": "Pending"}, {"phase": "Running"}, False),
        ({}, {"reason": None}, True),
        ({"reason": "Old"}, {"reason": None}, False),
        (
            {"conditions": [WARM, {"type": "Ready", "status": "True"}]},
            {"conditions": [{"type": "Ready", "status": "True"}]},
            True,
        ),
        ({"conditions": [WARM]}, {"conditions": [{"type": "Ready", "status": "True"}]}, False),
        ({"items": [{"a": 1}]}, {"items": [{"a": 1}, {"a": 2}]}, False),
        ({"state": {"running": {}}}, {"state": {"terminated": {"exitCode": 0}}}, False),
        ({}, {"items": []}, True),
    ],
)
def test_report_is_needed_only_for_a_difference(observed: object, wanted: object, expected: bool) -> None:
    assert covers(observed, wanted) is expected
