"""Lost nodes, lost GPUs, an agent that starts again: what the cluster sees and what becomes of processes."""

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from e2e.localcluster import Cluster
from e2e.nodeagent.agent import AgentError, NodeAgent
from e2e.nodeagent.inventory import parse_inventory
from e2e.nodeagent.nodecondition import NodeCondition
from tests.nodeagent.bench import FAST, RULES, Bench, alive, condition, main_state

pytestmark = pytest.mark.apiserver
IGNORES_SIGTERM = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: signal.pause()"


def ready_is(status: str) -> Callable[[dict[str, Any]], bool]:
    return lambda item: condition(item, "Ready").get("status") == status


async def running_pid(bench: Bench, name: str, **spec: Any) -> int:
    """Create a pod with a process, wait until it is Running, return its pid."""
    await bench.create(bench.pod(name, container=bench.script(IGNORES_SIGTERM), **spec))
    await bench.until(name, lambda pod: pod["status"].get("phase") == "Running")
    found = bench.agent.state().pod(bench.namespace, name)
    assert found is not None
    pid = found.containers[0].pid
    assert pid is not None
    return pid


async def test_dead_node_goes_silent_and_finishes_deleted_pods_when_it_returns(bench: Bench) -> None:
    await bench.until_node(bench.node(), ready_is("True"))
    pid = await running_pid(bench, "stale")
    await bench.agent.lose_node(bench.node())
    assert not alive(pid)
    await bench.until_node(bench.node(), ready_is("Unknown"))
    # The node controller cannot know better than this.
    await bench.until("stale", ready_is("False"))
    await bench.api.delete(f"{bench.pods}/stale")
    seen = await bench.until("stale", lambda pod: pod["metadata"].get("deletionTimestamp"))
    assert (main_state(seen)["state"].get("running") or {}).get("startedAt")

    await bench.agent.return_node(bench.node())
    await bench.until_gone("stale")
    await bench.until_node(bench.node(), ready_is("True"))
    await bench.state(lambda state: not state.pods)


async def test_pod_that_was_on_a_dead_node_has_failed_when_the_node_returns(bench: Bench) -> None:
    await running_pid(bench, "lost")
    await bench.agent.lose_node(bench.node())
    await bench.agent.return_node(bench.node())
    ended = await bench.until("lost", lambda pod: pod["status"].get("phase") == "Failed")
    state = main_state(ended)["state"]["terminated"]
    assert (state["exitCode"], state["reason"]) == (137, "ContainerStatusUnknown")
    assert not bench.agent.state().node(bench.node()).devices["nvidia.com/gpu"].held


async def test_pod_that_restarts_comes_up_again_on_a_returned_node_at_a_new_address(bench: Bench) -> None:
    await running_pid(bench, "phoenix", restartPolicy="Always")
    before = await bench.until("phoenix", ready_is("True"))
    await bench.agent.lose_node(bench.node())
    await bench.agent.return_node(bench.node())
    after = await bench.until("phoenix", lambda pod: main_state(pod).get("restartCount") == 1 and ready_is("True")(pod))
    assert after["status"]["podIP"] != before["status"]["podIP"]
    assert after["status"]["podIPs"] == [{"ip": after["status"]["podIP"]}]
    assert main_state(after)["lastState"]["terminated"]["reason"] == "ContainerStatusUnknown"


async def test_partitioned_node_runs_on_unreported_and_obeys_deletions_on_return(bench: Bench) -> None:
    kept, removed = await running_pid(bench, "kept"), await running_pid(bench, "removed")
    await bench.agent.lose_node(bench.node(), NodeCondition.PARTITIONED)
    await bench.api.delete(f"{bench.pods}/removed", gracePeriodSeconds="0")
    await bench.until_gone("removed")
    await bench.until_node(bench.node(), ready_is("Unknown"))
    await bench.until("kept", ready_is("False"))
    assert alive(kept)
    assert alive(removed)

    await bench.agent.return_node(bench.node())
    await bench.until("kept", ready_is("True"))
    await bench.state(lambda state: [pod.name for pod in state.pods] == ["kept"])
    assert alive(kept)
    assert not alive(removed)


async def test_crash_on_a_partitioned_node_is_reported_only_when_it_returns(bench: Bench) -> None:
    await running_pid(bench, "crasher")
    await bench.agent.lose_node(bench.node(), NodeCondition.PARTITIONED)
    bench.agent.kill_pod(bench.namespace, "crasher", exit_code=9)
    await bench.state(lambda state: [pod.phase for pod in state.pods] == ["Failed"])
    # A whole pod life on the other node leaves time for a report that should not be.
    await bench.create(bench.pod("other", node=bench.node(2)))
    await bench.until("other", ready_is("True"))
    assert (await bench.until("crasher", lambda _: True))["status"]["phase"] == "Running"
    await bench.agent.return_node(bench.node())
    ended = await bench.until("crasher", lambda pod: pod["status"]["phase"] == "Failed")
    assert main_state(ended)["state"]["terminated"]["exitCode"] == 9


async def test_connections_to_a_frozen_node_hang_until_it_returns(bench: Bench) -> None:
    (bench.state_dir / "health").touch()
    await bench.create(
        bench.pod(
            "engine",
            container=bench.serving(readinessProbe={"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 1}),
        )
    )
    pod = await bench.until("engine", ready_is("True"))
    url = f"http://{pod['status']['podIP']}:8000/health"
    async with aiohttp.ClientSession() as session:
        await bench.agent.lose_node(bench.node(), NodeCondition.FROZEN)
        with pytest.raises(TimeoutError):
            await session.get(url, timeout=aiohttp.ClientTimeout(total=0.5))
        await bench.agent.return_node(bench.node())
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=10)) as answer:
            assert answer.status == 200


async def test_nothing_starts_on_a_lost_node_until_it_returns(bench: Bench) -> None:
    await bench.agent.lose_node(bench.node())
    await bench.create(bench.pod("late", nodeName=bench.node()))
    # The other node has taken up a pod that came after it, so this one has been seen.
    await bench.create(bench.pod("other", nodeName=bench.node(2)))
    await bench.until("other", lambda pod: pod["status"].get("phase") == "Running")
    assert bench.agent.state().pod(bench.namespace, "late") is None
    await bench.agent.return_node(bench.node())
    await bench.until("late", lambda pod: pod["status"].get("phase") == "Running")


async def test_deleted_node_registers_again_unless_it_is_lost(bench: Bench) -> None:
    async def node_names() -> set[str]:
        return {item["metadata"]["name"] for item in (await bench.api.get("/api/v1/nodes"))["items"]}

    await bench.agent.lose_node(bench.node(1))
    for number in (1, 2):
        await bench.api.delete(f"/api/v1/nodes/{bench.node(number)}")

    async def second_is_back() -> bool:
        return bench.node(2) in await node_names()

    await bench.api.wait_until(second_is_back, what="the live node to register again")
    assert bench.node(1) not in await node_names()
    await bench.agent.return_node(bench.node(1))
    assert bench.node(1) in await node_names()


async def test_cordon_and_labels_of_people_survive_a_new_start_of_the_agent(bench: Bench) -> None:
    path = f"/api/v1/nodes/{bench.node()}"
    await bench.api.patch(path, {"spec": {"unschedulable": True}, "metadata": {"labels": {"team": "a"}}})
    await bench.agent.lose_node(bench.node())
    await bench.agent.return_node(bench.node())
    node = await bench.api.get(path)
    assert node["spec"]["unschedulable"] is True
    assert node["metadata"]["labels"]["team"] == "a"
    assert node["metadata"]["labels"]["nvidia.com/gpu.product"] == "NVIDIA-L40S"


async def test_losing_a_node_twice_or_returning_a_live_one_is_refused(bench: Bench) -> None:
    with pytest.raises(AgentError, match="is not lost"):
        await bench.agent.return_node(bench.node())
    await bench.agent.lose_node(bench.node())
    with pytest.raises(AgentError, match="is already dead"):
        await bench.agent.lose_node(bench.node())
    with pytest.raises(AgentError, match="no node 'x'"):
        await bench.agent.lose_node("x")


async def test_lost_gpus_lower_allocatable_but_not_capacity(bench: Bench) -> None:
    def gpus(node: dict[str, Any]) -> tuple[str, str]:
        return node["status"]["allocatable"]["nvidia.com/gpu"], node["status"]["capacity"]["nvidia.com/gpu"]

    path = f"/api/v1/nodes/{bench.node()}"
    assert gpus(await bench.api.get(path)) == ("4", "4")
    assert await bench.agent.lose_gpus(bench.node(), 3) == []
    assert gpus(await bench.api.get(path)) == ("1", "4")
    await bench.agent.restore_gpus(bench.node(), 1)
    assert gpus(await bench.api.get(path)) == ("2", "4")
    await bench.agent.restore_gpus(bench.node())
    assert gpus(await bench.api.get(path)) == ("4", "4")


async def test_crash_with_a_gpu_fails_the_pod_that_held_it_and_no_other(bench: Bench) -> None:
    limits = {"resources": {"limits": {"nvidia.com/gpu": 2}}}
    for name in ("first", "second"):
        await bench.create(bench.pod(name, container=bench.script(IGNORES_SIGTERM) | limits))
        await bench.until(name, lambda pod: pod["status"].get("phase") == "Running")
    hit = await bench.agent.lose_gpus(bench.node(), 1, crash=True)
    assert len(hit) == 1
    name = hit[0].removeprefix(f"{bench.namespace}/")
    ended = await bench.until(name, lambda pod: pod["status"].get("phase") == "Failed")
    assert main_state(ended)["state"]["terminated"]["exitCode"] == 1
    other = "second" if name == "first" else "first"
    assert (await bench.until(other, lambda _: True))["status"]["phase"] == "Running"


async def test_new_agent_takes_up_the_pods_of_the_one_before(cluster: Cluster, bench: Bench) -> None:
    inventory = parse_inventory({"pools": [{"nodeNames": f"{bench.prefix}-r"}]})
    node = f"{bench.prefix}-r"
    settings = type(FAST)(**{**vars(FAST), "remove_nodes_on_stop": False})
    first = NodeAgent(kubeconfig=cluster.kubeconfig_path, inventory=inventory, settings=settings, rules=RULES)
    async with first:
        for name in ("stays", "leaves"):
            await bench.create(bench.pod(name, node=node, container=bench.script(IGNORES_SIGTERM)))
            await bench.until(name, lambda pod: pod["status"].get("phase") == "Running")
        pids = [container.pid for pod in first.state().pods for container in pod.containers]
        assert all(pid is not None and alive(pid) for pid in pids)
    assert not any(pid is not None and alive(pid) for pid in pids)
    assert (await bench.until("stays", lambda _: True))["status"]["phase"] == "Running"
    await bench.api.delete(f"{bench.pods}/leaves")

    async with NodeAgent(kubeconfig=cluster.kubeconfig_path, inventory=inventory, settings=FAST, rules=RULES):
        ended = await bench.until("stays", lambda pod: pod["status"].get("phase") == "Failed")
        assert main_state(ended)["state"]["terminated"]["reason"] == "ContainerStatusUnknown"
        await bench.until_gone("leaves")


async def test_two_agents_side_by_side_use_different_addresses(cluster: Cluster, bench: Bench) -> None:
    inventory = parse_inventory({"pools": [{"nodeNames": f"{bench.prefix}-s"}]})
    async with NodeAgent(kubeconfig=cluster.kubeconfig_path, inventory=inventory, settings=FAST) as other:
        assert other.network != bench.agent.network
        taken = NodeAgent(
            kubeconfig=cluster.kubeconfig_path, inventory=inventory, settings=FAST, address_base=other.network
        )
        with pytest.raises(AgentError, match="no block of loopback addresses is free"):
            await taken.start()


async def test_stopped_agent_takes_its_nodes_and_their_pods_along_when_asked_to(cluster: Cluster, bench: Bench) -> None:
    node = f"{bench.prefix}-t"
    inventory = parse_inventory({"pools": [{"nodeNames": node}]})
    async with NodeAgent(kubeconfig=cluster.kubeconfig_path, inventory=inventory, settings=FAST, rules=RULES):
        await bench.create(bench.pod("guest", node=node))
        await bench.until("guest", lambda pod: pod["status"].get("phase") == "Running")
    assert await bench.get("guest") is None
    names = {item["metadata"]["name"] for item in (await bench.api.get("/api/v1/nodes"))["items"]}
    assert node not in names


async def test_waiting_for_a_state_that_never_comes_times_out(bench: Bench) -> None:
    with pytest.raises(TimeoutError):
        await bench.agent.wait_for(lambda state: len(state.nodes) == 3, timeout_seconds=0.05)
    waits = asyncio.create_task(bench.agent.wait_for(lambda state: state.failing_images == ("x",)))
    bench.agent.fail_pulls("x")
    assert (await waits).failing_images == ("x",)
