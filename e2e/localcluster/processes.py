"""Child processes that surely end, and identities that never name a stranger.

Every child runs under `supervisor.py`: it ends with its tree on `stop`, on Ctrl-C, and when the caller is killed or
crashes, because the pipe that the caller holds closes. `release` lets it live on (for `up`); from then on it is known
by its identity: pid, start time and boot, so a pid that the kernel gave to another process is never signalled.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

SUPERVISOR = Path(__file__).with_name("supervisor.py")
STOP_MARGIN_SECONDS = 8.0
"""How much longer than the grace period a supervisor may take before it is killed itself."""


@dataclass(frozen=True)
class ProcessIdentity:
    """One process of one boot: `start_ticks` is field 22 of /proc/PID/stat, in clock ticks since boot."""

    pid: int
    start_ticks: int
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """Return the identity of the process that has `pid` now; None when there is none (a zombie has ended)."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        if fields[0] in (b"Z", b"X"):
            return None
        return cls(pid, int(fields[19]), Path("/proc/sys/kernel/random/boot_id").read_text().strip())

    def is_alive(self) -> bool:
        """Return whether this very process still runs."""
        return ProcessIdentity.of(self.pid) == self

    def open(self) -> int | None:
        """Return a pidfd that names this process and no later one, or None when it has ended."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        if self.is_alive():
            return descriptor
        os.close(descriptor)
        return None

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; return False when the process has ended."""
        descriptor = self.open()
        if descriptor is None:
            return False
        try:
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True

    async def wait_ended(self, timeout_seconds: float) -> bool:
        """Wait until the process has ended; return False when it still runs after `timeout_seconds`."""
        descriptor = self.open()
        if descriptor is None:
            return True
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(descriptor, ended.set)
        try:
            await asyncio.wait_for(ended.wait(), timeout_seconds)
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        return True


async def end_process(identity: ProcessIdentity, *, grace_seconds: float) -> None:
    """Ask a supervisor to end its tree; kill it (the command dies with it) when it does not within the grace period."""
    if identity.send(signal.SIGTERM) and not await identity.wait_ended(grace_seconds + STOP_MARGIN_SECONDS):
        identity.send(signal.SIGKILL)
        await identity.wait_ended(STOP_MARGIN_SECONDS)


class SupervisedProcess:
    """A running command under its supervisor. `identity` and the exit code are the supervisor's, which mirrors it."""

    def __init__(self, *, name: str, popen: subprocess.Popen[bytes], lifeline: int, log: Path, grace: float) -> None:
        identity = ProcessIdentity.of(popen.pid)
        self.name = name
        self.log_path = log
        self.grace_seconds = grace
        self._popen = popen
        self._lifeline: int | None = lifeline
        # A supervisor that ended at once leaves no start time to compare; nothing can then be signalled by mistake.
        self.identity = identity or ProcessIdentity(popen.pid, -1, "")

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        *,
        name: str,
        log_path: Path,
        stdout_path: Path | None = None,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        grace_seconds: float = 5.0,
    ) -> Self:
        """Start `command`; its output is appended to `log_path` (standard output to `stdout_path` when given)."""
        supervisor = [sys.executable, "-I", "-S", str(SUPERVISOR)]
        reader, writer = os.pipe()
        try:
            with contextlib.ExitStack() as files:
                log = files.enter_context(log_path.open("ab"))
                out = files.enter_context(stdout_path.open("ab")) if stdout_path else log
                popen = subprocess.Popen(
                    [*supervisor, str(reader), str(os.getpid()), str(grace_seconds), *command],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=log,
                    env=dict(environment) if environment is not None else None,
                    cwd=folder,
                    pass_fds=(reader,),
                    start_new_session=True,
                )
        except BaseException:
            os.close(writer)
            raise
        finally:
            os.close(reader)
        return cls(name=name, popen=popen, lifeline=writer, log=log_path, grace=grace_seconds)

    def exit_code(self) -> int | None:
        """Return the command's exit code (128 + signal when one ended it), or None while it runs."""
        return self._popen.poll()

    def release(self) -> None:
        """Let the process outlive this one; from now on only its recorded identity ends it."""
        if self._lifeline is not None:
            os.write(self._lifeline, b"r")
            os.close(self._lifeline)
            self._lifeline = None

    async def wait(self) -> int:
        """Wait for the command's own end and return its exit code."""
        while (code := self.exit_code()) is None:
            await self.identity.wait_ended(60.0)
        return code

    async def stop(self) -> None:
        """End the command with its tree and wait until it is gone. Stopping twice is harmless."""
        if self.exit_code() is None:
            await end_process(self.identity, grace_seconds=self.grace_seconds)
        self._popen.wait(STOP_MARGIN_SECONDS)
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None


def log_tail(path: Path, *, lines: int = 20) -> str:
    """Return the last lines of a log, empty when there is none."""
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return ""
