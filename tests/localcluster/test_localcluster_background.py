"""`up`, `down`, `status` and `env`, as a shell sees them."""

import dataclasses
import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from localcluster_support import child_pids, runs, wait_for

from e2e.localcluster import ClusterError, KubeApi
from e2e.localcluster.__main__ import typed
from e2e.localcluster.background import ClusterRecord, ProcessRecord, down
from e2e.localcluster.processes import SupervisedProcess

REPOSITORY = Path(__file__).parents[2]


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "e2e.localcluster", *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def programs_of(record: ClusterRecord) -> list[int]:
    supervisors = [process.identity.pid for process in record.processes]
    return [*supervisors, *(pid for supervisor in supervisors for pid in child_pids(supervisor))]


# `cluster` stands for the built control plane here: these clusters are of their own.
@pytest.mark.usefixtures("cluster")
async def test_up_leaves_a_cluster_running_and_down_leaves_no_process(own_state: Path) -> None:
    first = call("up", "--name", "one")
    assert first.returncode == 0, first.stderr
    record = ClusterRecord.read(own_state / "one")
    assert record is not None
    assert shlex.split(first.stdout) == ["export", f"KUBECONFIG={record.kubeconfig}"]
    assert f"end it with: {typed('down', 'one')}\n" in first.stderr
    pids = programs_of(record)
    try:
        assert len(pids) == 8
        assert all(map(runs, pids))
        async with KubeApi.open(Path(record.kubeconfig)) as api:
            definitions = await api.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
        expected = sorted(path.stem for path in (REPOSITORY / "crds").glob("*.yaml"))
        assert len(definitions["items"]) == len(expected)

        again = call("up", "--name", "one")
        assert (again.returncode, again.stdout) == (0, first.stdout)
        assert "already running" in again.stderr
        assert programs_of(record) == pids
        assert call("env", "--name", "one").stdout == first.stdout
        assert "one  embedded  up" in call("status").stdout
        other = call("up", "--name", "one", "--provider", "existing")
        assert other.returncode == 1
        assert "runs with provider embedded" in other.stderr

        scheduler = next(process.identity for process in record.processes if process.name == "kube-scheduler")
        scheduler.send(signal.SIGTERM)
        wait_for(lambda: not scheduler.is_alive(), what="the scheduler to end")
        assert "broken: kube-scheduler ended" in call("status").stdout
        assert call("env", "--name", "one").returncode == 1
    finally:
        ended = call("down", "--name", "one")
    assert ended.returncode == 0, ended.stderr
    assert not any(map(runs, pids))
    assert not (own_state / "one").exists()
    repeated = call("down", "--name", "one")
    assert (repeated.returncode, repeated.stderr) == (0, "no cluster one is up\n")
    assert call("status").stdout == "no cluster is up\n"


@pytest.mark.usefixtures("cluster")
def test_a_killed_up_leaves_no_process_and_the_next_one_works(own_state: Path) -> None:
    command = [sys.executable, "-m", "e2e.localcluster", "up", "--name", "two"]
    caller = subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def started() -> list[int]:
        supervisors = child_pids(caller.pid)
        found = [*supervisors, *(pid for supervisor in supervisors for pid in child_pids(supervisor))]
        return found if len(found) >= 4 else []

    try:
        pids = wait_for(started, what="etcd and the API server to start", seconds=60)
        caller.send_signal(signal.SIGKILL)
        caller.wait(20)
        wait_for(lambda: not any(map(runs, pids)), what="the processes to end", seconds=60)
        second = call("up", "--name", "two")
        assert second.returncode == 0, second.stderr
        assert (own_state / "two.previous" / "logs" / "kube-apiserver.log").exists()
    finally:
        caller.kill()
        assert call("down", "--name", "two").returncode == 0


def record_for(process: SupervisedProcess, *, shift: int) -> ClusterRecord:
    identity = dataclasses.replace(process.identity, start_ticks=process.identity.start_ticks + shift)
    entry = ProcessRecord(name="etcd", log=str(process.log_path), identity=identity)
    return ClusterRecord(name="old", provider="embedded", kubeconfig="none", processes=(entry,))


@pytest.mark.parametrize(("shift", "survives"), [(0, False), (1, True)])
async def test_down_ends_the_recorded_process_but_never_one_that_got_its_pid(
    own_state: Path, tmp_path: Path, shift: int, *, survives: bool
) -> None:
    process = SupervisedProcess.start(["sleep", "600"], name="sleep", log_path=tmp_path / "log")
    (own_state / "old").mkdir(parents=True)
    record_for(process, shift=shift).write(own_state / "old")
    try:
        await down(name="old", say=lambda _: None)
        assert (process.exit_code() is None) == survives
        assert not (own_state / "old").exists()
    finally:
        await process.stop()


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    process = SupervisedProcess.start(["true"], name="true", log_path=tmp_path / "log")
    record = record_for(process, shift=0)
    record.write(tmp_path)
    assert ClusterRecord.read(tmp_path) == record
    assert ClusterRecord.read(tmp_path / "nowhere") is None


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({"name": "x", "processes": [{"name": "etcd"}]})])
def test_a_damaged_record_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(ClusterError, match=r"cluster\.json is damaged"):
        ClusterRecord.read(tmp_path)


def test_what_is_said_to_be_typed_starts_or_ends_that_very_cluster() -> None:
    targets = (REPOSITORY / "Makefile").read_text()
    assert (typed("up", "bayplan"), typed("down", "bayplan")) == ("make up", "make down")
    assert "\nup: " in targets
    assert "\ndown: " in targets
    assert typed("down", "one") == ".venv/bin/python -m e2e.localcluster down --name one"


def test_a_foreseen_failure_is_one_message_without_a_trace(own_state: Path) -> None:
    failed = call("up", "--name", "Bad Name")
    assert failed.returncode == 1
    assert failed.stdout == ""
    assert failed.stderr.startswith("name: must be 1 to 40")
    assert failed.stderr.count("\n") == 1


async def test_down_removes_what_a_killed_up_has_left(own_state: Path) -> None:
    said: list[str] = []
    for left in (own_state / "three", own_state / "three.previous"):
        (left / "logs").mkdir(parents=True)
    await down(name="three", say=said.append)
    assert not (own_state / "three").exists()
    assert not (own_state / "three.previous").exists()
    assert said == ["no cluster three is up; removed what a start that was cut off had left"]
    await down(name="three", say=said.append)
    assert said[1:] == ["no cluster three is up"]
