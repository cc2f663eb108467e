"""The operator under test: how one is started and killed, and what keeps one running as a Deployment does."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import yaml

from e2e.chaos.proxy import ChaosProxy, Door
from e2e.chaos.scope import Scope
from e2e.localcluster.kubeconfig import write_kubeconfig
from e2e.localcluster.processes import SupervisedProcess
from e2e.scenarios.stack import LISTENING, StackError, kill_operator, start_operator, wait_for_line

Json = dict[str, Any]
PAUSE_SECONDS = 0.05
START_SECONDS = 60.0
CONFIGURATION: Json = {
    "limits": {"lostNodeSeconds": 2, "firstBackoffSeconds": 0.5, "longestBackoffSeconds": 4},
    "leaderElection": {"durationSeconds": 60, "renewDeadlineSeconds": 40, "retrySeconds": 2},
    "apiServer": {"requestSeconds": 15, "watchSeconds": 300, "idleSeconds": 70, "resyncSeconds": 300},
    "listen": {"address": "127.0.0.1", "port": 0},
    "logging": {"format": "console", "level": "INFO"},
}
"""For operators that are killed and started again with the same identity: the Lease is never what decides."""
SHORT_LEASE: Json = {"leaderElection": {"durationSeconds": 6, "renewDeadlineSeconds": 4, "retrySeconds": 1}}
"""For operators with an identity of their own, which wait for the end of the Lease of the one before."""
IMPATIENT: Json = {"apiServer": {"requestSeconds": 3, "watchSeconds": 300, "idleSeconds": 3, "resyncSeconds": 300}}
"""For faults that are silence: what takes a minute in production takes seconds here."""


class Operator(Protocol):
    """One running operator."""

    async def ended(self) -> None:
        """Return when it ends by itself."""
        ...

    async def kill(self) -> None:
        """End it at once, without giving it a chance to write anything."""
        ...


class OperatorFactory(Protocol):
    """Starts operators. One that is started again has the identity of the one before, where that can be chosen."""

    async def start(self, door: Door, configuration: Json) -> Operator:
        """Start an operator that reaches the API server through `door`."""
        ...


@dataclass(eq=False)
class Keeper:
    """Keeps one operator running behind a proxy. Run `run()` as a task."""

    proxy: ChaosProxy
    factory: OperatorFactory
    scope: Scope
    name: str = "operator"
    configuration: Json = field(default_factory=lambda: CONFIGURATION)
    starts: int = 0
    crashes: int = 0
    """Operators that a fault or `crash` killed."""
    ends: int = 0
    """Operators that ended by themselves, with their Lease lost, say."""
    door: Door | None = None
    operator: Operator | None = None
    _crashed: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Start, wait for its end, start the next, until cancelled; then kill it."""
        try:
            while True:
                self.starts += 1
                self._crashed = asyncio.Event()
                self.door = await self.proxy.open_door(
                    f"{self.name}-{self.starts}", scope=self.scope, on_crash=lambda _: self._crashed.set()
                )
                self.operator = await self.factory.start(self.door, self.configuration)
                await self._until_its_end(self.operator)
        finally:
            if self.door is not None:
                self.door.sever()
            if self.operator is not None:
                await self.operator.kill()

    def crash(self) -> None:
        """Kill the operator now."""
        if self.door is not None:
            self.door.crash()

    async def _until_its_end(self, operator: Operator) -> None:
        crashed = asyncio.create_task(self._crashed.wait())
        ended = asyncio.create_task(operator.ended())
        try:
            await asyncio.wait({crashed, ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            crashed.cancel()
            ended.cancel()
            await asyncio.gather(crashed, ended, return_exceptions=True)
        if self._crashed.is_set():
            self.crashes += 1
        else:
            self.ends += 1
            assert self.door is not None
            self.door.sever()
            await asyncio.sleep(PAUSE_SECONDS)
        await operator.kill()


@dataclass(eq=False)
class Process:
    """`bayplan operator` in a process of its own."""

    process: SupervisedProcess

    async def ended(self) -> None:
        """Return when it ends by itself."""
        await self.process.wait()

    async def kill(self) -> None:
        """SIGKILL."""
        await kill_operator(self.process)

    def pid(self) -> int:
        """Return the pid of its supervisor, whose child it is."""
        return self.process.identity.pid


@dataclass(eq=False)
class Processes:
    """Starts `bayplan operator` processes whose files lie in `folder`, with a ServiceAccount's token."""

    folder: Path
    token: str
    started: int = 0

    async def start(self, door: Door, configuration: Json) -> Process:
        """Start a process; one that cannot start (a fault at its start) ends by itself like any other."""
        self.started += 1
        name = f"{door.name}-{self.started}"
        kubeconfig = write_kubeconfig(
            self.folder / f"{name}.kubeconfig", server=door.url, ca=b"", user="operator", token=self.token
        )
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(configuration | SHORT_LEASE))
        process = start_operator(name=name, folder=self.folder, kubeconfig=kubeconfig, configuration=path)
        with suppress(StackError):
            await wait_for_line(process, LISTENING, START_SECONDS)
        return Process(process)
