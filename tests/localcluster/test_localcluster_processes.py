"""Processes end with whoever started them, and identities never name a stranger."""

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from localcluster_support import child_pids, runs, wait_for

from e2e.localcluster.processes import ProcessIdentity, SupervisedProcess, end_process, log_tail

REPOSITORY = Path(__file__).parents[2]
TREE = """
echo $$ > {folder}/shell
sleep 600 &
echo $! > {folder}/child
setsid sleep 600 &
echo $! > {folder}/daemon
wait
"""


def start(script: str, folder: Path, *, grace_seconds: float = 2.0) -> SupervisedProcess:
    return SupervisedProcess.start(
        ["/bin/sh", "-c", script], name="script", log_path=folder / "log", grace_seconds=grace_seconds
    )


def pid_in(path: Path) -> int:
    return int(wait_for(lambda: path.exists() and path.read_text().strip(), what=str(path)))


def start_tree(folder: Path) -> tuple[SupervisedProcess, list[int]]:
    process = start(TREE.format(folder=folder), folder)
    return process, [pid_in(folder / name) for name in ("shell", "child", "daemon")]


async def test_stop_ends_the_whole_tree_also_what_left_the_session(tmp_path: Path) -> None:
    process, pids = start_tree(tmp_path)
    assert all(map(runs, pids))
    await process.stop()
    assert not any(map(runs, pids))
    await process.stop()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_tree_ends_when_its_caller_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from e2e.localcluster.processes import SupervisedProcess\n"
        "command = ['/bin/sh', '-c', sys.argv[1]]\n"
        "SupervisedProcess.start(command, name='x', log_path=Path(sys.argv[2]), grace_seconds=0.5)\n"
        "time.sleep(600)\n"
    )
    script = TREE.format(folder=tmp_path)
    caller = subprocess.Popen(
        [sys.executable, "-c", code, script, str(tmp_path / "log")], cwd=REPOSITORY, stderr=subprocess.DEVNULL
    )
    pids = [pid_in(tmp_path / name) for name in ("shell", "child", "daemon")]
    assert all(map(runs, pids))
    caller.send_signal(number)
    caller.wait(20)
    wait_for(lambda: not any(map(runs, pids)), what="the tree to end")


def test_the_tree_ends_with_its_caller_although_a_forked_child_holds_the_pipe(tmp_path: Path) -> None:
    code = (
        "import os, sys, time; from pathlib import Path\n"
        "from e2e.localcluster.processes import SupervisedProcess\n"
        "command = ['/bin/sh', '-c', sys.argv[1]]\n"
        "SupervisedProcess.start(command, name='x', log_path=Path(sys.argv[2]), grace_seconds=0.5)\n"
        "if child := os.fork():\n"
        "    print(child, flush=True)\n"
        "time.sleep(600)\n"
    )
    caller = subprocess.Popen(
        [sys.executable, "-c", code, TREE.format(folder=tmp_path), str(tmp_path / "log")],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert caller.stdout is not None
    forked = int(caller.stdout.readline())
    pids = [pid_in(tmp_path / name) for name in ("shell", "child", "daemon")]
    try:
        caller.kill()
        caller.wait(20)
        assert runs(forked)
        wait_for(lambda: not any(map(runs, pids)), what="the tree to end")
    finally:
        os.kill(forked, signal.SIGKILL)
        caller.stdout.close()


async def test_the_command_dies_with_a_killed_supervisor(tmp_path: Path) -> None:
    process = start(f"echo $$ > {tmp_path}/shell; exec sleep 600", tmp_path)
    pid = pid_in(tmp_path / "shell")
    assert process.identity.send(signal.SIGKILL)
    wait_for(lambda: not runs(pid), what="the command to end")
    await process.stop()


async def test_what_ignores_the_polite_signal_is_killed_after_the_grace_period(tmp_path: Path) -> None:
    process = start(
        f"trap '' TERM; echo $$ > {tmp_path}/shell; while :; do sleep 600; done", tmp_path, grace_seconds=0.3
    )
    pid = pid_in(tmp_path / "shell")
    started = time.monotonic()
    await process.stop()
    assert not runs(pid)
    assert time.monotonic() - started >= 0.3


async def test_what_ends_politely_is_given_the_time(tmp_path: Path) -> None:
    script = (
        f"trap 'echo saved > {tmp_path}/saved; exit 0' TERM; echo $$ > {tmp_path}/shell; while :; do sleep 0.05; done"
    )
    process = start(script, tmp_path, grace_seconds=10)
    pid_in(tmp_path / "shell")
    await process.stop()
    assert (tmp_path / "saved").read_text() == "saved\n"


async def test_a_released_process_outlives_its_caller_and_is_ended_by_its_identity(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from e2e.localcluster.processes import SupervisedProcess\n"
        "command = ['/bin/sh', '-c', sys.argv[1]]\n"
        "process = SupervisedProcess.start(command, name='x', log_path=Path(sys.argv[2]))\n"
        "process.release()\n"
        "print(process.identity.pid, flush=True)\n"
    )
    script = f"echo $$ > {tmp_path}/shell; exec sleep 600"
    caller = subprocess.run(
        [sys.executable, "-c", code, script, str(tmp_path / "log")],
        cwd=REPOSITORY,
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=30,
    )
    pid = pid_in(tmp_path / "shell")
    identity = ProcessIdentity.of(int(caller.stdout))
    assert identity is not None
    assert pid in child_pids(identity.pid)
    await end_process(identity, grace_seconds=2)
    assert not runs(pid)


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)])
async def test_the_exit_code_is_the_commands_own(tmp_path: Path, script: str, code: int) -> None:
    process = start(script, tmp_path)
    assert await process.wait() == code
    assert process.exit_code() == code
    await process.stop()


async def test_a_command_that_does_not_exist_says_so_in_the_log(tmp_path: Path) -> None:
    process = SupervisedProcess.start(["/no/such/program"], name="none", log_path=tmp_path / "log")
    assert await process.wait() == 127
    assert "cannot start /no/such/program" in log_tail(tmp_path / "log")
    await process.stop()


async def test_an_identity_with_another_start_time_is_never_signalled(tmp_path: Path) -> None:
    process = start("exec sleep 600", tmp_path)
    stranger = dataclasses.replace(process.identity, start_ticks=process.identity.start_ticks + 1)
    assert not stranger.is_alive()
    assert not stranger.send(signal.SIGKILL)
    await end_process(stranger, grace_seconds=1)
    assert process.identity.is_alive()
    assert process.exit_code() is None
    await process.stop()


async def test_an_identity_of_another_boot_is_never_signalled(tmp_path: Path) -> None:
    process = start("exec sleep 600", tmp_path)
    before_reboot = dataclasses.replace(process.identity, boot_id="0" * 36)
    assert not before_reboot.send(signal.SIGKILL)
    assert process.identity.is_alive()
    await process.stop()


async def test_waiting_for_a_process_that_stays_times_out(tmp_path: Path) -> None:
    process = start("exec sleep 600", tmp_path)
    assert not await process.identity.wait_ended(0.05)
    await process.stop()
    assert await process.identity.wait_ended(0.05)


def test_a_zombie_has_ended() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    try:
        wait_for(lambda: ProcessIdentity.of(child) is None, what="the child to end")
    finally:
        os.waitpid(child, 0)


async def test_many_processes_end_together(tmp_path: Path) -> None:
    trees = []
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        trees.append(start_tree(folder))
    await asyncio.gather(*(process.stop() for process, _ in trees))
    assert not any(runs(pid) for _, pids in trees for pid in pids)
