"""The life of pods on a real API server and scheduler."""

import asyncio
import json
import socket
from typing import Any

import pytest

from e2e.localcluster import MERGE_PATCH, Cluster
from tests.nodeagent.bench import Bench, condition, main_state

pytestmark = pytest.mark.apiserver

WARM_GATE = [{"conditionType": "bayplan.dev/warm"}]
STRATEGIC = "application/strategic-merge-patch+json"


async def set_warm(bench: Bench, name: str, status: str = "True") -> None:
    body = {"status": {"conditions": [{"type": "bayplan.dev/warm", "status": status, "reason": "ByTest"}]}}
    await bench.api.patch(f"{bench.pods}/{name}/status", body, content_type=STRATEGIC)


def gpus(count: int) -> dict[str, Any]:
    return {"resources": {"limits": {"nvidia.com/gpu": count}}}


def terminated(pod: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = (main_state(pod).get("state") or {}).get("terminated") or {}
    return found


def waiting_reason(pod: dict[str, Any]) -> str:
    return str(((main_state(pod).get("state") or {}).get("waiting") or {}).get("reason"))


async def test_bound_pod_runs_becomes_ready_with_its_gate_and_leaves_on_delete(bench: Bench) -> None:
    await bench.create(bench.pod("gated", readinessGates=WARM_GATE))

    running = await bench.until("gated", lambda pod: pod["status"].get("phase") == "Running")
    assert condition(running, "ContainersReady")["status"] == "True"
    ready = condition(running, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "ReadinessGatesNotReady")
    assert running["status"]["podIP"].startswith("127.")
    assert main_state(running)["state"]["running"]["startedAt"]

    await set_warm(bench, "gated")
    became = await bench.until("gated", lambda pod: condition(pod, "Ready").get("status") == "True")
    assert condition(became, "bayplan.dev/warm")["reason"] == "ByTest"
    assert "reason" not in condition(became, "Ready")

    await set_warm(bench, "gated", "False")
    await bench.until("gated", lambda pod: condition(pod, "Ready").get("status") == "False")

    await bench.api.delete(f"{bench.pods}/gated")
    await bench.until_gone("gated")
    await bench.state(lambda state: not state.pods)


@pytest.mark.parametrize(("code", "phase", "reason"), [(0, "Succeeded", "Completed"), (3, "Failed", "Error")])
async def test_exit_without_restart_ends_the_pod(bench: Bench, code: int, phase: str, reason: str) -> None:
    await bench.create(bench.pod("short", container=bench.script(f"raise SystemExit({code})", **gpus(4))))
    ended = await bench.until("short", lambda pod: pod["status"].get("phase") == phase)
    assert (terminated(ended)["exitCode"], terminated(ended)["reason"]) == (code, reason)
    assert terminated(ended)["finishedAt"] >= terminated(ended)["startedAt"]
    assert condition(ended, "Ready")["status"] == "False"
    assert not bench.agent.state().node(bench.node()).devices["nvidia.com/gpu"].held


async def test_foreign_condition_survives_the_containers_end(bench: Bench) -> None:
    await bench.create(bench.pod("gated", readinessGates=WARM_GATE))
    await bench.until("gated", lambda pod: pod["status"].get("phase") == "Running")
    await set_warm(bench, "gated")
    await bench.until("gated", lambda pod: condition(pod, "Ready").get("status") == "True")
    bench.agent.kill_pod(bench.namespace, "gated", exit_code=1)
    ended = await bench.until("gated", lambda pod: pod["status"].get("phase") == "Failed")
    assert condition(ended, "bayplan.dev/warm") == {
        "type": "bayplan.dev/warm",
        "status": "True",
        "reason": "ByTest",
        "lastProbeTime": None,
        "lastTransitionTime": None,
    }
    assert (condition(ended, "Ready")["status"], condition(ended, "Ready")["reason"]) == ("False", "PodFailed")


async def test_container_that_is_killed_from_outside_counts_as_out_of_memory(bench: Bench) -> None:
    source = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    await bench.create(bench.pod("greedy", container=bench.script(source)))
    ended = await bench.until("greedy", lambda pod: pod["status"].get("phase") == "Failed")
    assert (terminated(ended)["exitCode"], terminated(ended)["reason"]) == (137, "OOMKilled")


async def test_killed_pod_shows_the_asked_exit_code_and_reason(bench: Bench) -> None:
    await bench.create(bench.pod("victim"))
    await bench.until("victim", lambda pod: pod["status"].get("phase") == "Running")
    bench.agent.kill_pod(bench.namespace, "victim", exit_code=42, reason="Error")
    ended = await bench.until("victim", lambda pod: pod["status"].get("phase") == "Failed")
    assert (terminated(ended)["exitCode"], terminated(ended)["reason"]) == (42, "Error")


async def test_end_of_the_log_becomes_the_message_when_asked_for(bench: Bench) -> None:
    source = "print('first'); print('no room for the KV cache'); raise SystemExit(1)"
    container = bench.script(source, terminationMessagePolicy="FallbackToLogsOnError")
    await bench.create(bench.pod("talks", container=container))
    ended = await bench.until("talks", lambda pod: pod["status"].get("phase") == "Failed")
    assert terminated(ended)["message"] == "first\nno room for the KV cache"


@pytest.mark.parametrize(("policy", "code"), [("Always", 0), ("OnFailure", 1)])
async def test_restart_policy_starts_the_container_again_under_a_new_id(bench: Bench, policy: str, code: int) -> None:
    container = bench.script(f"raise SystemExit({code})")
    await bench.create(bench.pod("again", restartPolicy=policy, container=container))
    first = await bench.until("again", lambda pod: main_state(pod).get("containerID"))
    later = await bench.until("again", lambda pod: main_state(pod).get("restartCount", 0) >= 2)
    assert main_state(later)["lastState"]["terminated"]["exitCode"] == code
    assert main_state(later)["containerID"] != main_state(first)["containerID"]
    assert later["status"]["phase"] == "Running"
    await bench.until("again", lambda pod: waiting_reason(pod) == "CrashLoopBackOff")


async def test_success_ends_a_pod_that_restarts_on_failure(bench: Bench) -> None:
    marker = bench.state_dir / "second"
    source = f"import pathlib; p = pathlib.Path({str(marker)!r}); code = 0 if p.exists() else 1; p.touch(); exit(code)"
    source = source.replace("exit(code)", "raise SystemExit(code)")
    await bench.create(bench.pod("retry", restartPolicy="OnFailure", container=bench.script(source)))
    ended = await bench.until("retry", lambda pod: pod["status"].get("phase") == "Succeeded")
    assert main_state(ended)["restartCount"] == 1


async def test_init_containers_come_first(bench: Bench) -> None:
    pod = bench.pod("prepared", initContainers=[{"name": "fetch", "image": "fetcher:1"}])
    await bench.create(pod)
    running = await bench.until("prepared", lambda pod: pod["status"].get("phase") == "Running")
    done = running["status"]["initContainerStatuses"][0]["state"]["terminated"]
    assert (done["exitCode"], done["reason"]) == (0, "Completed")
    assert done["finishedAt"] <= main_state(running)["state"]["running"]["startedAt"]
    assert condition(running, "Initialized")["status"] == "True"


async def test_pod_beyond_the_free_gpus_is_refused_and_the_next_one_fits(bench: Bench) -> None:
    await bench.create(bench.pod("first", container=gpus(3)))
    await bench.until("first", lambda pod: pod["status"].get("phase") == "Running")
    # Bound by hand: the scheduler would not have done that.
    await bench.create(bench.pod("second", nodeName=bench.node(), container=gpus(2)))
    refused = await bench.until("second", lambda pod: pod["status"].get("phase") == "Failed")
    assert refused["status"]["reason"] == "UnexpectedAdmissionError"
    assert "Requested: 2, Available: 1" in refused["status"]["message"]
    assert "containerStatuses" not in refused["status"]
    await bench.create(bench.pod("third", nodeName=bench.node(), container=gpus(1)))
    await bench.until("third", lambda pod: pod["status"].get("phase") == "Running")
    held = bench.agent.state().node(bench.node()).devices["nvidia.com/gpu"].held
    assert sorted(len(indexes) for indexes in held.values()) == [1, 3]


async def test_environment_comes_from_secret_fields_and_references(bench: Bench) -> None:
    await bench.api.create(
        f"/api/v1/namespaces/{bench.namespace}/secrets",
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub"}, "stringData": {"token": "s3cret"}},
    )
    env = [
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
        {"name": "WHERE", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "RANK", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['bayplan.dev/rank']"}}},
        {"name": "ALL", "value": "$(RANK) $(WHERE) $(TOKEN)"},
    ]
    source = "import os; print(os.environ['ALL'], '$(RANK)'); raise SystemExit(1)"
    container = bench.script(source, env=env, terminationMessagePolicy="FallbackToLogsOnError")
    await bench.create(bench.pod("reader", labels={"bayplan.dev/rank": "7"}, container=container))
    ended = await bench.until("reader", lambda pod: pod["status"].get("phase") == "Failed")
    assert terminated(ended)["message"] == f"7 {ended['status']['podIP']} s3cret 7"


async def test_missing_secret_holds_the_container_until_it_exists(bench: Bench) -> None:
    env = [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "late", "key": "token"}}}]
    await bench.create(bench.pod("patient", container={"env": env}))
    held = await bench.until("patient", lambda pod: waiting_reason(pod) == "CreateContainerConfigError")
    assert main_state(held)["state"]["waiting"]["message"] == 'secret "late" not found'
    assert held["status"]["phase"] == "Pending"
    await bench.api.create(
        f"/api/v1/namespaces/{bench.namespace}/secrets",
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "late"}, "stringData": {"token": "x"}},
    )
    await bench.until("patient", lambda pod: pod["status"].get("phase") == "Running")


async def test_failing_pull_is_shown_backs_off_and_heals(bench: Bench) -> None:
    bench.agent.fail_pulls("test/pause:1")
    await bench.create(bench.pod("puller"))
    await bench.until("puller", lambda pod: waiting_reason(pod) == "ErrImagePull")
    held = await bench.until("puller", lambda pod: waiting_reason(pod) == "ImagePullBackOff")
    assert "test/pause:1" in main_state(held)["state"]["waiting"]["message"]
    bench.agent.heal_pulls("test/pause:1")
    await bench.until("puller", lambda pod: pod["status"].get("phase") == "Running")


async def test_image_that_does_not_exist_never_runs_and_its_pod_can_be_deleted(bench: Bench) -> None:
    await bench.create(bench.pod("wrong", container={"image": "registry.example/no-such-image:1"}))
    await bench.until("wrong", lambda pod: waiting_reason(pod) == "ImagePullBackOff")
    await bench.api.delete(f"{bench.pods}/wrong")
    await bench.until_gone("wrong")


async def test_command_that_this_node_cannot_run_says_so(bench: Bench) -> None:
    await bench.create(bench.pod("shell", container={"image": "vllm/vllm-openai:1", "command": ["bash", "-c", "true"]}))
    held = await bench.until("shell", lambda pod: waiting_reason(pod) == "CreateContainerError")
    assert '"bash"' in main_state(held)["state"]["waiting"]["message"]


async def test_unsupported_probe_says_so(bench: Bench) -> None:
    probe = {"exec": {"command": ["true"]}}
    await bench.create(bench.pod("prober", container={"readinessProbe": probe}))
    held = await bench.until("prober", lambda pod: waiting_reason(pod) == "CreateContainerConfigError")
    assert "exec" in main_state(held)["state"]["waiting"]["message"]


async def test_name_of_a_later_pod_is_waited_for_and_becomes_its_address(bench: Bench) -> None:
    source = "import sys, os; print(os.environ['HEAD']); raise SystemExit(1)"
    env = [{"name": "HEAD", "value": f"http://head.group.{bench.namespace}.svc:8000"}]
    container = bench.script(source, env=env, terminationMessagePolicy="FallbackToLogsOnError")
    await bench.create(bench.pod("worker", hostname="worker", subdomain="group", container=container))
    await bench.state(lambda state: state.pod(bench.namespace, "worker") is not None)
    # One that is admitted later, on another node, and is running while the worker still waits for its name.
    await bench.create(bench.pod("other", node=bench.node(2)))
    await bench.until("other", lambda pod: pod["status"].get("phase") == "Running")
    assert (await bench.until("worker", lambda _: True))["status"]["phase"] == "Pending"

    await bench.create(bench.pod("head-0", hostname="head", subdomain="group", node=bench.node(2)))
    head = await bench.until("head-0", lambda pod: pod["status"].get("phase") == "Running")
    ended = await bench.until("worker", lambda pod: pod["status"].get("phase") == "Failed")
    assert terminated(ended)["message"] == f"http://{head['status']['podIP']}:8000"


async def test_pod_finds_its_own_name(bench: Bench) -> None:
    source = "import sys; print(sys.argv[1]); raise SystemExit(1)"
    container = bench.script(source, terminationMessagePolicy="FallbackToLogsOnError")
    container["args"] = [source, "head.group:29500"]
    await bench.create(bench.pod("head-0", hostname="head", subdomain="group", container=container))
    ended = await bench.until("head-0", lambda pod: pod["status"].get("phase") == "Failed")
    assert terminated(ended)["message"] == f"{ended['status']['podIP']}:29500"


async def test_simulator_serves_on_the_pods_address_and_makes_it_ready(bench: Bench) -> None:
    probe = {"httpGet": {"path": "/v1/models", "port": 8000}, "periodSeconds": 1, "failureThreshold": 60}
    # People write --host 0.0.0.0, which must not take the port of every other pod.
    args = ["org/tiny", "--max-model-len", "512", "--host", "0.0.0.0"]
    container = {"image": "vllm/vllm-openai:v0.32.0", "args": args}
    await bench.create(bench.pod("engine", container=container | {"startupProbe": probe, "readinessProbe": probe}))
    ready = await bench.until("engine", lambda pod: condition(pod, "Ready").get("status") == "True", seconds=40)
    address = ready["status"]["podIP"]
    async with bench.agent.services.session.get(f"http://{address}:8000/v1/models") as answer:
        assert (await answer.json())["data"][0]["id"] == "org/tiny"
    with socket.socket() as other:
        other.bind((bench.agent.state().node(bench.node()).address, 8000))
    log = bench.agent.log_dir / bench.namespace / "engine" / "main.log"
    assert log.exists()


def writes(cluster: Cluster, bench: Bench) -> int:
    """Return how many writes to the pods and nodes of this test the API server has been asked for."""
    assert cluster.audit_log_path is not None
    found = 0
    for line in cluster.audit_log_path.read_text().splitlines():
        event = json.loads(line)
        about = event.get("requestURI", "")
        ours = bench.pods in about or f"/nodes/{bench.prefix}" in about
        found += ours and event["verb"] not in {"get", "list", "watch"} and event["stage"] == "ResponseComplete"
    return found


async def test_nothing_is_written_at_rest_but_leases(cluster: Cluster, bench: Bench) -> None:
    container = bench.serving(readinessProbe={"httpGet": {"path": "/ready", "port": "http"}, "periodSeconds": 1})
    (bench.state_dir / "ready").touch()
    await bench.create(bench.pod("calm", readinessGates=WARM_GATE, container=container))
    await bench.until("calm", lambda pod: condition(pod, "ContainersReady").get("status") == "True")
    node_path = f"/api/v1/nodes/{bench.node()}"
    await bench.until_node(bench.node(), lambda node: not node["spec"].get("taints"))

    async def versions() -> tuple[str, str]:
        pod, node = await bench.api.get(f"{bench.pods}/calm"), await bench.api.get(node_path)
        return pod["metadata"]["resourceVersion"], node["metadata"]["resourceVersion"]

    lease = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{bench.node()}"
    before = await versions()
    written = writes(cluster, bench)
    assert written > 0
    renewed = set()

    async def renewed_four_times() -> bool:
        renewed.add((await bench.api.get(lease))["spec"]["renewTime"])
        return len(renewed) >= 4

    await bench.api.wait_until(renewed_four_times, what="four Lease renewals")
    assert await versions() == before
    assert writes(cluster, bench) == written


async def test_ready_is_corrected_when_somebody_else_overwrites_it(bench: Bench) -> None:
    await bench.create(bench.pod("stable"))
    await bench.until("stable", lambda pod: condition(pod, "Ready").get("status") == "True")
    body = {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "ByTest"}]}}
    answer = await bench.api.patch(f"{bench.pods}/stable/status", body, content_type=STRATEGIC)
    assert condition(answer, "Ready")["status"] == "False"
    await bench.until("stable", lambda pod: condition(pod, "Ready").get("status") == "True")


async def test_many_pods_get_addresses_of_their_own(bench: Bench) -> None:
    await asyncio.gather(*(bench.create(bench.pod(f"many-{n}", node=bench.node(1 + n % 2))) for n in range(20)))
    state = await bench.state(lambda state: sum(pod.phase == "Running" for pod in state.pods) == 20)
    assert len({pod.pod_ip for pod in state.pods}) == 20


async def test_label_changes_do_not_disturb_a_running_pod(bench: Bench) -> None:
    await bench.create(bench.pod("labelled"))
    before = await bench.until("labelled", lambda pod: condition(pod, "Ready").get("status") == "True")
    await bench.api.patch(f"{bench.pods}/labelled", {"metadata": {"labels": {"a": "b"}}}, content_type=MERGE_PATCH)
    after = await bench.until("labelled", lambda pod: pod["metadata"].get("labels", {}).get("a") == "b")
    assert after["status"] == before["status"]
