"""Run one command so that it and all it starts surely end: `supervisor.py LIFELINE_FD CALLER GRACE_SECONDS COMMAND...`.

A script of its own, standard library only, because it must outlive a caller that crashed. It ends the command's
process tree when its lifeline (the reading end of a pipe whose only writer is the caller) reports end of file, when its
parent is no longer CALLER (a forked child of the caller may hold the pipe open), or on SIGTERM, SIGINT or SIGHUP. A
byte on the lifeline releases it: from then on only a signal ends it. On Linux it is a
child subreaper, so grandchildren that detached are found too, and the command dies with it (PR_SET_PDEATHSIG) should
the supervisor itself be killed. The death signal is not used between caller and supervisor: it fires when the starting
*thread* ends, which a caller with worker threads cannot rule out.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
KILL_SECONDS = 5.0
CALLER_POLL_MILLISECONDS = 1000


def _prctl(option: int, argument: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, argument, 0, 0, 0)


def _die_with_supervisor() -> None:
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _descendants(root: int) -> list[int]:
    """Return the pids below `root`, parents first, from /proc; empty where /proc is missing."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc") if os.path.isdir("/proc/self") else ():  # noqa: PTH112, PTH208
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError), open(f"/proc/{entry}/stat", "rb") as stat:  # noqa: PTH123
                fields = stat.read().rpartition(b")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry))
    found: list[int] = []
    pending = [root]
    while pending:
        below = children.get(pending.pop(), [])
        found += below
        pending += below
    return found


class Supervisor:
    """One supervised command. `run` returns the exit code to leave with: the command's own, or 128 + signal."""

    def __init__(self, *, lifeline: int, caller: int, grace_seconds: float, command: list[str]) -> None:
        self.lifeline = lifeline
        self.caller = caller
        self.released = False
        self.grace_seconds = grace_seconds
        self.command = command
        self.status: int | None = None
        self.pid = 0
        self.asked_to_end = False

    def run(self) -> int:
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        wake_reader, wake_writer = os.pipe()
        os.set_blocking(wake_writer, False)
        os.set_blocking(wake_reader, False)
        signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_end_signal)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        try:
            child = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                process_group=0,
                preexec_fn=_die_with_supervisor,  # noqa: PLW1509 - this process has one thread
            )
        except OSError as error:
            print(f"cannot start {self.command[0]}: {error}", file=sys.stderr)
            return 127
        self.pid = child.pid
        self._watch(wake_reader)
        self._end_tree()
        status = self.status if self.status is not None else 0
        child.returncode = status
        return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)

    def _on_end_signal(self, *_: object) -> None:
        self.asked_to_end = True

    def _watch(self, wake_reader: int) -> None:
        """Return when the command ended, an end was asked for, or the caller is gone."""
        poll = select.poll()
        poll.register(wake_reader, select.POLLIN)
        poll.register(self.lifeline, select.POLLIN | select.POLLHUP)
        while not self.asked_to_end:
            self._reap()
            if self.status is not None:
                return
            if not self.released and os.getppid() != self.caller:
                return
            for descriptor, _ in poll.poll(None if self.released else CALLER_POLL_MILLISECONDS):
                data = os.read(descriptor, 512)
                if descriptor == self.lifeline:
                    if not data:
                        return
                    self.released = True
                    poll.unregister(self.lifeline)

    def _reap(self) -> bool:
        """Collect every ended child; return False when none is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.pid:
                self.status = status

    def _end_tree(self) -> None:
        if self._reap():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGTERM)
            self._wait_for_none(self.grace_seconds)
        deadline = time.monotonic() + KILL_SECONDS
        while self._reap() and time.monotonic() < deadline:
            for pid in _descendants(os.getpid()) or [self.pid]:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            self._wait_for_none(0.1)

    def _wait_for_none(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._reap() and time.monotonic() < deadline:
            time.sleep(0.01)


if __name__ == "__main__":
    lifeline_argument, caller_argument, grace_argument, *command_line = sys.argv[1:]
    supervisor = Supervisor(
        lifeline=int(lifeline_argument),
        caller=int(caller_argument),
        grace_seconds=float(grace_argument),
        command=command_line,
    )
    sys.exit(supervisor.run())
