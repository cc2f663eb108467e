"""The agent as a process of its own: control API, command line, and what is left when it is killed."""

import asyncio
import json
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from e2e.localcluster import Cluster, KubeApi
from e2e.nodeagent.agent import AgentError, NodeAgent
from e2e.nodeagent.server import ControlServer
from tests.nodeagent.bench import Bench, alive

ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def agent_process(
    cluster: Cluster, folder: Path, node: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Run an agent with one node; gives the process and its control address."""
    inventory = folder / "nodes.yaml"
    inventory.write_text(yaml.safe_dump({"pools": [{"nodeNames": node, "allocatable": {"nvidia.com/gpu": 4}}]}))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "e2e.nodeagent", "--kubeconfig", str(cluster.kubeconfig_path)),
        *("--inventory", str(inventory), "--control", "127.0.0.1:0", "--log-dir", str(folder / "logs")),
        *("--lease-interval-seconds", "1"),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(30):
            line = (await process.stdout.readline()).decode()
        assert "control http://127.0.0.1:" in line
        yield process, line.strip().rpartition("http://")[2]
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


async def control(address: str, *words: str) -> tuple[int, str, str]:
    """Run the control command; return its exit code, output and errors."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "e2e.nodeagent.control", "--control", address, *words),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def until_dead(pids: Iterable[int]) -> None:
    """Wait for processes that are nobody's children here."""
    async with asyncio.timeout(10):
        while any(alive(pid) for pid in pids):  # noqa: ASYNC110 - the kernel tells only their parent
            await asyncio.sleep(0.02)


SUPERVISOR = """
import asyncio, os, pathlib, sys
from e2e.nodeagent.processes import Launch, SubprocessContainer, Watchdog

SOURCE = "import os, subprocess, sys, time; " \\
    "c = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); " \\
    "print(c.pid, flush=True); time.sleep(600)"

async def main():
    folder, watchdog = pathlib.Path(sys.argv[1]), Watchdog()
    launch = Launch(argv=[sys.executable, "-u", "-c", SOURCE], environment=dict(os.environ))
    container = SubprocessContainer(launch, directory=folder, log=folder / "log", watchdog=watchdog)
    print(container.pid, watchdog.pid, flush=True)
    await container.wait()

asyncio.run(main())
"""


@asynccontextmanager
async def supervised_container(folder: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, int, int, int]]:
    """Run a process with one container that has a child; gives the process, and pids of container, child, watchdog."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SUPERVISOR, str(folder)), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            container, watchdog = map(int, (await process.stdout.readline()).split())
            log = folder / "log"
            while not (text := log.read_text()).endswith("\n"):  # noqa: ASYNC110 - a file is all there is to watch
                await asyncio.sleep(0.02)
        yield process, container, int(text), watchdog
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_children_of_containers_end_with_a_killed_agent_too(tmp_path: Path) -> None:
    async with supervised_container(tmp_path) as (process, container, child, watchdog):
        assert alive(container)
        assert alive(child)
        process.kill()
        await process.wait()
        await until_dead([container, child, watchdog])


async def test_containers_end_with_a_killed_agent_even_without_the_watchdog(tmp_path: Path) -> None:
    async with supervised_container(tmp_path) as (process, container, child, watchdog):
        os.kill(watchdog, signal.SIGKILL)
        process.kill()
        await process.wait()
        await until_dead([container])
        os.kill(child, signal.SIGKILL)


def engine_pod(namespace: str, node: str) -> dict[str, Any]:
    # The simulator of a group waits for its other node, and so does not end by itself.
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "engine", "namespace": namespace},
        "spec": {
            "nodeName": node,
            "restartPolicy": "Never",
            "containers": [{"name": "engine", "image": "vllm/vllm-openai:v0.32.0", "args": ["org/tiny"]}],
        },
    }


@pytest.mark.apiserver
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_no_container_outlives_the_agent(
    cluster: Cluster, api: KubeApi, namespace: str, tmp_path: Path, number: signal.Signals
) -> None:
    node = f"p{secrets.token_hex(3)}"
    try:
        async with agent_process(cluster, tmp_path, node) as (process, address), aiohttp.ClientSession() as session:
            await api.create(f"/api/v1/namespaces/{namespace}/pods", engine_pod(namespace, node))
            pids: list[int] = []
            revision = -1
            async with asyncio.timeout(30):
                while not pids:
                    async with session.get(f"http://{address}/state?after={revision}&timeout=10") as answer:
                        state = await answer.json()
                    revision = state["revision"]
                    pids = [item["pid"] for pod in state["pods"] for item in pod["containers"] if item["pid"]]
            assert all(alive(pid) for pid in pids)
            os.kill(process.pid, number)
            await process.wait()
            await until_dead(pids)
    finally:
        await api.delete(f"/api/v1/nodes/{node}")


@pytest.mark.apiserver
async def test_command_line_tells_a_running_agent_what_to_lose(
    cluster: Cluster, api: KubeApi, namespace: str, tmp_path: Path
) -> None:
    node = f"p{secrets.token_hex(3)}"
    try:
        async with agent_process(cluster, tmp_path, node) as (_, address):
            assert (await control(address, "lose-gpu", node, "3"))[0] == 0
            assert (await control(address, "lose-node", node, "--mode", "partitioned"))[0] == 0
            code, out, _ = await control(address, "state")
            assert code == 0
            shown = json.loads(out)["nodes"][0]
            assert (shown["condition"], shown["devices"]["nvidia.com/gpu"]["allocatable"]) == ("partitioned", 1)
            code, _, err = await control(address, "return-node", "nowhere")
            assert (code, err.strip()) == (1, f"no node 'nowhere'; there are: {node}")
    finally:
        await api.delete(f"/api/v1/nodes/{node}")


async def test_command_line_says_when_no_agent_answers() -> None:
    code, _, err = await control("127.0.0.1:1", "state")
    assert code == 1
    assert "no node agent answers at http://127.0.0.1:1" in err


async def test_agent_says_what_is_wrong_with_its_inventory(tmp_path: Path) -> None:
    inventory = tmp_path / "nodes.yaml"
    inventory.write_text("pools: []")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "e2e.nodeagent", "--kubeconfig", "absent", "--inventory", str(inventory)),
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
    )
    _, err = await process.communicate()
    assert process.returncode == 1
    assert "pools: Tuple should have at least 1 item" in err.decode()


@pytest.mark.apiserver
class TestControlApi:
    """The control API of an agent in this process."""

    @pytest.fixture
    async def url(self, bench: Bench) -> AsyncIterator[str]:
        server = ControlServer(bench.agent)
        yield await server.start("127.0.0.1", 0)
        await server.stop()

    async def post(self, url: str, body: Any) -> tuple[int, Any]:
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
            return answer.status, await answer.json()

    async def test_every_fault_can_be_caused_and_undone(self, bench: Bench, url: str) -> None:
        node = bench.node()
        await bench.create(bench.pod("victim"))
        await bench.until("victim", lambda pod: pod["status"].get("phase") == "Running")
        kill = {"namespace": bench.namespace, "name": "victim", "exitCode": 5}
        assert await self.post(f"{url}/kill-pod", kill) == (200, {"result": None})
        await bench.state(lambda state: [pod.phase for pod in state.pods] == ["Failed"])
        assert (await self.post(f"{url}/lose-gpu", {"node": node, "count": 2}))[1] == {"result": []}
        assert bench.agent.state().node(node).devices["nvidia.com/gpu"].allocatable == 2
        assert (await self.post(f"{url}/restore-gpu", {"node": node}))[0] == 200
        assert bench.agent.state().node(node).devices["nvidia.com/gpu"].allocatable == 4
        assert (await self.post(f"{url}/lose-node", {"node": node, "mode": "frozen"}))[0] == 200
        assert bench.agent.state().node(node).condition == "frozen"
        assert (await self.post(f"{url}/return-node", {"node": node}))[0] == 200
        assert bench.agent.state().node(node).condition == "live"
        assert (await self.post(f"{url}/fail-pulls", {"image": "a:1"}))[0] == 200
        assert bench.agent.state().failing_images == ("a:1",)
        assert (await self.post(f"{url}/heal-pulls", {"image": "a:1"}))[0] == 200
        assert bench.agent.state().failing_images == ()

    @pytest.mark.parametrize(
        ("path", "body", "message"),
        [
            ("lose-node", {}, "node: Field required"),
            ("lose-node", {"node": "x", "mode": "gone"}, "mode: Input should be"),
            ("lose-node", {"node": "x", "mode": "live"}, "no node 'x'"),
            ("lose-gpu", {"node": "x", "count": 0}, "count: Input should be greater than or equal to 1"),
            ("kill-pod", {"namespace": "a", "name": "b"}, "no pod a/b on these nodes"),
            ("kill-pod", {"namespace": "a", "name": "b", "exitCode": 256}, "exitCode: Input should be less than"),
            ("fail-pulls", {"image": "a", "tag": "b"}, "tag: Extra inputs are not permitted"),
        ],
    )
    async def test_mistakes_are_answered_with_the_field(self, url: str, path: str, body: Any, message: str) -> None:
        status, answer = await self.post(f"{url}/{path}", body)
        assert status == 400
        assert message in answer["error"]

    async def test_more_gpus_than_there_are_cannot_be_lost(self, bench: Bench, url: str) -> None:
        status, answer = await self.post(f"{url}/lose-gpu", {"node": bench.node(), "count": 5})
        assert (status, answer) == (400, {"error": "5 of nvidia.com/gpu: between 1 and 4 can be lost now"})

    async def test_state_can_be_waited_for(self, bench: Bench, url: str) -> None:
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{url}/state") as answer:
                revision = (await answer.json())["revision"]
            waits = asyncio.create_task(session.get(f"{url}/state?after={revision}&timeout=20"))
            bench.agent.fail_pulls("b:1")
            later = await (await waits).json()
            assert later["revision"] > revision
            async with session.get(f"{url}/state?after={later['revision']}&timeout=0") as answer:
                assert answer.status == 200
            async with session.get(f"{url}/healthz") as answer:
                assert answer.status == 200


async def test_control_address_must_be_loopback() -> None:
    agent = object.__new__(NodeAgent)
    with pytest.raises(AgentError, match="must be a loopback address"):
        await ControlServer(agent).start("10.0.0.1", 0)
