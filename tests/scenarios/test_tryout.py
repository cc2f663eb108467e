"""`make tryout`: nodes and an operator on a running cluster, until Ctrl-C."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.localcluster import Cluster, KubeApi
from e2e.localcluster.background import ClusterRecord
from e2e.scenarios.tryout import READY

REPOSITORY = Path(__file__).parents[2]
ONE_NODE = REPOSITORY / "e2e" / "inventories" / "demo.yaml"


@pytest.mark.scenario
@pytest.mark.timeout(240)
async def test_nodes_and_operator_come_and_go(
    cluster: Cluster, api: KubeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = tmp_path / "bayplan" / "clusters" / "shown"
    folder.mkdir(parents=True)
    record = ClusterRecord(name="shown", provider="existing", kubeconfig=str(cluster.kubeconfig_path), processes=())
    record.write(folder)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "e2e.scenarios.tryout", "--name", "shown"),
        cwd=REPOSITORY,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    try:
        shown = await asyncio.wait_for(process.stdout.readuntil(READY.encode()), timeout=120)
        assert b"6 nodes; operator on http://" in shown

        async def are_ready() -> bool:
            nodes = (await api.get("/api/v1/nodes"))["items"]
            ready = [c["status"] for node in nodes for c in node["status"]["conditions"] if c["type"] == "Ready"]
            return ready == ["True"] * 6

        await api.wait_until(are_ready, what="six ready nodes", timeout_seconds=60)
        process.send_signal(signal.SIGINT)
        rest = await asyncio.wait_for(process.stdout.read(), timeout=60)
        assert await process.wait() == 0
        assert b"Traceback" not in rest
        lines = [line.strip() for line in rest.decode().splitlines()]
        (shell,) = [line.partition("#")[0] for line in lines if line.startswith("export PATH=")]
        found = subprocess.run(["sh", "-c", f"{shell}\ncommand -v bayplan"], capture_output=True, text=True, check=True)
        assert Path(found.stdout.strip()) == Path(sys.executable).with_name("bayplan")
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
        for node in (await api.get("/api/v1/nodes"))["items"]:
            await api.delete(f"/api/v1/nodes/{node['metadata']['name']}")


async def test_a_cluster_that_is_not_up_is_named(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "e2e.scenarios.tryout", "--name", "absent"),
        cwd=REPOSITORY,
        env={"XDG_STATE_HOME": str(tmp_path), "PATH": ""},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 1
    start = b".venv/bin/python -m e2e.localcluster up --name absent"
    assert output == b"no cluster absent is up; start it with: " + start + b"\n"
