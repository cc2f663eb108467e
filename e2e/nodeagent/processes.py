"""Container processes: own session, ended with the agent, awaited without threads or polling."""

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What to start for a container: a command line, or a wait inside the agent when `argv` is None.

    `sleep_seconds` is how long such a wait lasts; None is for ever.
    """

    argv: Sequence[str] | None
    environment: Mapping[str, str] = field(default_factory=dict)
    sleep_seconds: float | None = None


class ContainerProcess(Protocol):
    """A running container as the agent sees it."""

    @property
    def pid(self) -> int | None:
        """Process id of its main process, None when it runs inside the agent."""

    async def wait(self) -> int:
        """Return the exit code (128 + signal number when killed) once it has ended; may be called repeatedly."""

    def signal(self, number: int) -> None:
        """SIGTERM goes to the main process, SIGKILL, SIGSTOP and SIGCONT to all; an ended container is fine."""


class Watchdog:
    """The helper process that kills the containers' process groups when this process ends in whatever way."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("watchdog.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Process id of the helper."""
        return self._process.pid

    def _write(self, line: str) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError, ValueError):
                self._process.stdin.write(line.encode())
                self._process.stdin.flush()

    def add(self, group: int) -> None:
        """Watch a process group."""
        self._write(f"+{group}\n")

    def remove(self, group: int) -> None:
        """Forget a process group that has ended."""
        self._write(f"-{group}\n")

    def close(self) -> None:
        """End the helper; groups still on its list are killed."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()


def _die_with(parent: int) -> None:
    """Run in the child before exec: be killed when `parent` dies, also if that has happened already."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(127)


class SubprocessContainer:
    """A container as an operating system process in a session of its own."""

    def __init__(self, launch: Launch, *, directory: Path, log: Path, watchdog: Watchdog) -> None:
        """Start it. Raises OSError when the command cannot be executed."""
        if not launch.argv:
            raise ValueError("a subprocess needs a command line")
        parent = os.getpid()
        with log.open("ab") as output:
            # PLW1509: the hook makes two system calls; the agent starts containers from its main thread.
            self._process = subprocess.Popen(
                list(launch.argv),
                env=dict(launch.environment),
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: _die_with(parent),  # noqa: PLW1509
            )
        watchdog.add(self._process.pid)
        self._watchdog = watchdog
        loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[int] = loop.create_future()
        self._pidfd = os.pidfd_open(self._process.pid)
        loop.add_reader(self._pidfd, self._ended)

    @property
    def pid(self) -> int | None:
        """Process id of the main process."""
        return self._process.pid

    def _ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        # A container ends with its main process: take the rest of the group along while the id is still ours.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        code = self._process.wait()
        self._watchdog.remove(self._process.pid)
        if not self._exit.done():
            self._exit.set_result(128 - code if code < 0 else code)

    async def wait(self) -> int:
        """Return the exit code once the process has ended."""
        return await asyncio.shield(self._exit)

    def signal(self, number: int) -> None:
        """Send a signal: SIGTERM to the main process, others to the whole group."""
        if self._exit.done():
            return
        with contextlib.suppress(ProcessLookupError):
            if number == signal.SIGTERM:
                os.kill(self._process.pid, number)
            else:
                os.killpg(self._process.pid, number)


class WaitingContainer:
    """A container that only waits, inside the agent: pause images and `sleep`."""

    def __init__(self, seconds: float | None) -> None:
        loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[int] = loop.create_future()
        self._timer = loop.call_later(seconds, self._finish, 0) if seconds is not None else None

    @property
    def pid(self) -> int | None:
        """None: there is no process."""
        return None

    def _finish(self, code: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._exit.done():
            self._exit.set_result(code)

    async def wait(self) -> int:
        """Return the exit code once the wait has ended."""
        return await asyncio.shield(self._exit)

    def signal(self, number: int) -> None:
        """End with 0 on SIGTERM, as the pause image does, and with 137 on SIGKILL."""
        if number == signal.SIGTERM:
            self._finish(0)
        elif number == signal.SIGKILL:
            self._finish(128 + signal.SIGKILL)


def start_container(launch: Launch, *, directory: Path, log: Path, watchdog: Watchdog) -> ContainerProcess:
    """Start what `launch` describes. Raises OSError when its command cannot be executed."""
    if launch.argv is None:
        return WaitingContainer(launch.sleep_seconds)
    return SubprocessContainer(launch, directory=directory, log=log, watchdog=watchdog)
