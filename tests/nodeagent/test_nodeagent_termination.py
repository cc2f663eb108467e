"""Probes and terminations on a real API server: who is ended, when, and with what."""

import time
from typing import Any

import pytest

from tests.nodeagent.bench import Bench, alive, condition, main_state

pytestmark = pytest.mark.apiserver

OBEYS = """
import os, pathlib, signal, sys, time
def end(number, frame):
    pathlib.Path(os.environ["STATE"], "termed").write_text(str(time.time()))
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
pathlib.Path(os.environ["STATE"], "up").touch()
while True: signal.pause()
"""
STUBBORN = OBEYS.replace("sys.exit(0)", "pass")


def probe(path: str, **fields: Any) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": "http"}, "periodSeconds": 1, "failureThreshold": 2, **fields}


def terminated(pod: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = (main_state(pod).get("state") or {}).get("terminated") or {}
    return found


async def up(bench: Bench, name: str) -> int:
    """Wait until the pod's process is ready for signals; return its pid."""
    await bench.until(name, lambda _: (bench.state_dir / "up").exists())
    found = bench.agent.state().pod(bench.namespace, name)
    assert found is not None
    pid = found.containers[0].pid
    assert pid is not None
    return pid


async def test_startup_probe_holds_readiness_which_then_follows_the_engine(bench: Bench) -> None:
    container = bench.serving(
        startupProbe=probe("/started", failureThreshold=60), readinessProbe=probe("/ready", failureThreshold=1)
    )
    (bench.state_dir / "ready").touch()
    await bench.create(bench.pod("engine", container=container))
    running = await bench.until("engine", lambda pod: pod["status"].get("phase") == "Running")
    assert (main_state(running)["started"], main_state(running)["ready"]) == (False, False)
    assert condition(running, "Ready")["reason"] == "ContainersNotReady"

    (bench.state_dir / "started").touch()
    ready = await bench.until("engine", lambda pod: main_state(pod).get("ready"))
    assert main_state(ready)["started"] is True
    (bench.state_dir / "ready").unlink()
    await bench.until("engine", lambda pod: not main_state(pod).get("ready"))
    (bench.state_dir / "ready").touch()
    await bench.until("engine", lambda pod: condition(pod, "Ready").get("status") == "True")


@pytest.mark.parametrize("kind", ["startupProbe", "livenessProbe"])
async def test_failing_probe_fails_a_pod_that_never_restarts(bench: Bench, kind: str) -> None:
    await bench.create(bench.pod("sick", container=bench.serving(**{kind: probe("/never")})))
    ended = await bench.until("sick", lambda pod: pod["status"].get("phase") == "Failed")
    assert (terminated(ended)["exitCode"], terminated(ended)["reason"]) == (143, "Error")


async def test_failing_liveness_restarts_where_the_policy_says_so(bench: Bench) -> None:
    container = bench.serving(livenessProbe=probe("/alive"))
    await bench.create(bench.pod("sick", restartPolicy="Always", container=container))
    await bench.until("sick", lambda pod: main_state(pod).get("restartCount", 0) >= 1)
    (bench.state_dir / "alive").touch()
    await bench.until("sick", lambda pod: (main_state(pod).get("state") or {}).get("running"))


async def test_deleted_pod_gets_sigterm_at_once_and_leaves_when_its_process_does(bench: Bench) -> None:
    env = [{"name": "STATE", "value": str(bench.state_dir)}]
    await bench.create(bench.pod("obeys", terminationGracePeriodSeconds=60, container=bench.script(OBEYS, env=env)))
    pid = await up(bench, "obeys")
    await bench.api.delete(f"{bench.pods}/obeys")
    await bench.until_gone("obeys")
    assert (bench.state_dir / "termed").exists()
    assert not alive(pid)


async def test_process_that_ignores_sigterm_is_killed_when_the_grace_period_is_over(bench: Bench) -> None:
    env = [{"name": "STATE", "value": str(bench.state_dir)}]
    pod = bench.pod("stubborn", terminationGracePeriodSeconds=3, container=bench.script(STUBBORN, env=env))
    pod["metadata"]["finalizers"] = ["bayplan.test/hold"]
    await bench.create(pod)
    pid = await up(bench, "stubborn")
    deleted = time.time()
    await bench.api.delete(f"{bench.pods}/stubborn")
    ended = await bench.until("stubborn", terminated)
    assert time.time() - deleted >= 3
    assert float((bench.state_dir / "termed").read_text()) - deleted < 2
    assert (terminated(ended)["exitCode"], terminated(ended)["reason"]) == (137, "Error")
    assert ended["status"]["phase"] == "Failed"
    assert not alive(pid)
    await bench.api.patch(f"{bench.pods}/stubborn", {"metadata": {"finalizers": None}})
    await bench.until_gone("stubborn")


@pytest.mark.parametrize(
    "hook",
    [
        {"sleep": {"seconds": 2}},
        {"exec": {"command": ["sleep", "2"]}},
        {"exec": {"command": ["/bin/sh", "-c", "sleep 2"]}},
    ],
)
async def test_pre_stop_sleep_comes_before_sigterm(bench: Bench, hook: dict[str, Any]) -> None:
    env = [{"name": "STATE", "value": str(bench.state_dir)}]
    container = bench.script(OBEYS, env=env, lifecycle={"preStop": hook})
    await bench.create(bench.pod("polite", terminationGracePeriodSeconds=30, container=container))
    await up(bench, "polite")
    deleted = time.time()
    await bench.api.delete(f"{bench.pods}/polite")
    await bench.until_gone("polite")
    assert 2 <= float((bench.state_dir / "termed").read_text()) - deleted < 10


async def test_pre_stop_counts_into_the_grace_period(bench: Bench) -> None:
    env = [{"name": "STATE", "value": str(bench.state_dir)}]
    container = bench.script(OBEYS, env=env, lifecycle={"preStop": {"sleep": {"seconds": 2}}})
    await bench.create(bench.pod("slow", terminationGracePeriodSeconds=2, container=container))
    await up(bench, "slow")
    await bench.api.delete(f"{bench.pods}/slow")
    await bench.until_gone("slow", seconds=15)
    assert (bench.state_dir / "termed").exists()


async def test_pre_stop_get_reaches_the_engine(bench: Bench) -> None:
    hook = {"httpGet": {"path": "/drain", "port": 8000}}
    source_log = bench.agent.log_dir / bench.namespace / "drains" / "main.log"
    container = bench.serving(lifecycle={"preStop": hook}, readinessProbe=probe("/ready"))
    container["args"] = [container["args"][0].replace("def log_message(self, *a): pass", "")]
    (bench.state_dir / "ready").touch()
    await bench.create(bench.pod("drains", container=container))
    await bench.until("drains", lambda pod: main_state(pod).get("ready"))
    await bench.api.delete(f"{bench.pods}/drains")
    await bench.until_gone("drains")
    assert "GET /drain" in source_log.read_text()


async def test_second_delete_shortens_the_grace_period(bench: Bench) -> None:
    env = [{"name": "STATE", "value": str(bench.state_dir)}]
    await bench.create(bench.pod("hurry", terminationGracePeriodSeconds=600, container=bench.script(STUBBORN, env=env)))
    pid = await up(bench, "hurry")
    await bench.api.delete(f"{bench.pods}/hurry")
    await bench.until("hurry", lambda _: (bench.state_dir / "termed").exists())
    assert alive(pid)
    await bench.api.delete(f"{bench.pods}/hurry", gracePeriodSeconds="1")
    await bench.until_gone("hurry")
    assert not alive(pid)


async def test_forced_delete_ends_the_process_soon(bench: Bench) -> None:
    env = [{"name": "STATE", "value": str(bench.state_dir)}]
    pod = bench.pod("forced", terminationGracePeriodSeconds=600, container=bench.script(STUBBORN, env=env))
    await bench.create(pod)
    pid = await up(bench, "forced")
    await bench.api.delete(f"{bench.pods}/forced", gracePeriodSeconds="0")
    await bench.state(lambda state: not state.pods)
    assert not alive(pid)


async def test_pod_of_the_same_name_is_another_pod(bench: Bench) -> None:
    env = [{"name": "STATE", "value": str(bench.state_dir)}]
    pod = bench.pod("twin", terminationGracePeriodSeconds=600, container=bench.script(STUBBORN, env=env))
    await bench.create(pod)
    first = await up(bench, "twin")
    await bench.api.delete(f"{bench.pods}/twin", gracePeriodSeconds="0")
    await bench.create(bench.pod("twin"))
    second = await bench.until("twin", lambda pod: condition(pod, "Ready").get("status") == "True")
    await bench.state(lambda state: len(state.pods) == 1)
    assert not alive(first)
    assert (await bench.until("twin", lambda _: True))["metadata"]["uid"] == second["metadata"]["uid"]


async def test_restarting_pod_can_be_deleted_between_two_starts(bench: Bench) -> None:
    container = bench.script("raise SystemExit(1)")
    await bench.create(bench.pod("loop", restartPolicy="Always", container=container))
    await bench.until("loop", lambda pod: main_state(pod).get("restartCount", 0) >= 1)
    await bench.api.delete(f"{bench.pods}/loop")
    await bench.until_gone("loop")


async def test_what_the_main_process_started_ends_with_it(bench: Bench) -> None:
    source = f"""
import pathlib, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path({str(bench.state_dir)!r}, "child").write_text(str(child.pid))
"""
    await bench.create(bench.pod("parent", container=bench.script(source)))
    await bench.until("parent", lambda pod: pod["status"].get("phase") == "Succeeded")
    child = int((bench.state_dir / "child").read_text())
    assert not alive(child)
