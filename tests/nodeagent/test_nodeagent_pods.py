"""The life of pods on a real API server and scheduler."""

import pytest

from tests.nodeagent.bench import Bench, condition, main_state

pytestmark = pytest.mark.apiserver


async def test_bound_pod_runs_becomes_ready_with_its_gate_and_leaves_on_delete(bench: Bench) -> None:
    pod = bench.pod("gated", readinessGates=[{"conditionType": "bayplan.dev/warm"}])
    await bench.create(pod)

    running = await bench.until("gated", lambda pod: pod["status"].get("phase") == "Running")
    assert condition(running, "ContainersReady")["status"] == "True"
    ready = condition(running, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "ReadinessGatesNotReady")
    assert running["status"]["podIP"].startswith("127.")

    warm = {"status": {"conditions": [{"type": "bayplan.dev/warm", "status": "True"}]}}
    await bench.api.patch(f"{bench.pods}/gated/status", warm, content_type="application/strategic-merge-patch+json")
    became = await bench.until("gated", lambda pod: condition(pod, "Ready").get("status") == "True")
    assert condition(became, "bayplan.dev/warm")["status"] == "True"
    assert "reason" not in condition(became, "Ready")

    await bench.api.delete(f"{bench.pods}/gated")
    await bench.until_gone("gated")
    await bench.state(lambda state: not state.pods)
    assert main_state(running)["state"]["running"]["startedAt"]
