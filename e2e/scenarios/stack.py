"""Everything that a scenario runs on: control plane, Bayplan's definitions and roles, nodes, and the operator.

The operator is the `bayplan` command in a process of its own, as the identity and under the very rules that the chart
ships. Scenarios use public surfaces only: the Kubernetes API, HTTP, and process signals.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import yaml

from e2e.localcluster import Cluster, KubeApi, local_cluster
from e2e.localcluster.processes import SupervisedProcess, log_tail

REPOSITORY = Path(__file__).resolve().parents[2]
INVENTORIES = REPOSITORY / "e2e" / "inventories"
CHART = REPOSITORY / "charts" / "bayplan"
NAMESPACE = "bayplan-system"
ACCOUNT = "bayplan-operator"
START_SECONDS = 60.0
QUICK_ELECTION = {"durationSeconds": 6, "renewDeadlineSeconds": 4, "retrySeconds": 1}
"""A killed leader is replaced after 6 s instead of 15; the failover benchmark measures the real times."""
QUICK_LIMITS = {
    "lostNodeSeconds": 2,
    "firstBackoffSeconds": 1,
    "longestBackoffSeconds": 20,
}
"""Operator limits for scenarios: the same rules, with less waiting."""
QUICK_TELEMETRY = {"rolloutSeconds": 1}
"""A trial is measured each second instead of every five."""
LISTENING = "probes and metrics on "


class StackError(Exception):
    """A part did not start or ended early; the message holds the end of its log."""


@dataclass
class Stack:
    """A running system. `api` acts as the cluster's administrator, as the person at the keyboard would."""

    cluster: Cluster
    api: KubeApi
    agent: SupervisedProcess
    control_url: str
    operator_kubeconfig: Path
    configuration: Path
    operators: list[SupervisedProcess] = field(default_factory=list)
    started: int = 0
    restarts: int = 0
    """Operators that ended by themselves (a lost Lease, say) and were started again, as a Deployment does."""

    async def start_operator(self) -> SupervisedProcess:
        """Start one more operator process (the first leads, the next stand by) and wait until it answers."""
        self.started += 1
        process = start_operator(
            name=f"operator-{self.started}",
            folder=self.cluster.folder,
            kubeconfig=self.operator_kubeconfig,
            configuration=self.configuration,
        )
        self.operators.append(process)
        await wait_for_line(process, LISTENING, START_SECONDS)
        return process

    def operator_url(self, process: SupervisedProcess) -> str:
        """Return the address of an operator's probes and metrics."""
        return operator_url(process)

    async def stop_operator(self, process: SupervisedProcess) -> None:
        """Stop cleanly, as a rolling update would."""
        self.operators.remove(process)
        await process.stop()

    async def kill_operator(self, process: SupervisedProcess) -> None:
        """SIGKILL the operator itself, as the kernel's out-of-memory killer would."""
        self.operators.remove(process)
        await kill_operator(process)

    async def control(self, path: str, **body: Any) -> Any:
        """Tell the node agent to lose something."""
        async with (
            aiohttp.ClientSession() as session,
            session.post(self.control_url + path, json=body) as answer,
        ):
            text = await answer.text()
            if answer.status != 200:
                raise StackError(f"node agent: {path}: {text}")
            return json.loads(text) if text else None

    async def keep_operators(self) -> None:
        """Start again what ends by itself; runs until cancelled."""
        while True:
            for process in [p for p in self.operators if p.exit_code() is not None]:
                self.operators.remove(process)
                await process.stop()
                self.restarts += 1
                await self.start_operator()
            await asyncio.sleep(0.5)

    async def stop(self) -> None:
        """End operators and nodes; the cluster is the caller's."""
        for process in [*self.operators]:
            await self.stop_operator(process)
        await self.agent.stop()


def read_line(path: Path, mark: str) -> str:
    """Return the first line of a log that contains `mark`, or an empty string."""
    with suppress(FileNotFoundError):
        for line in path.read_text(errors="replace").splitlines():
            if mark in line:
                return line
    return ""


async def wait_for_line(process: SupervisedProcess, mark: str, timeout_seconds: float) -> str:
    """Wait until a process logs `mark`; raises StackError with its last lines when it ends or takes too long."""
    try:
        async with asyncio.timeout(timeout_seconds):
            while not (line := read_line(process.log_path, mark)):
                if process.exit_code() is not None:
                    raise StackError(f"{process.name} ended with {process.exit_code()}:\n{log_tail(process.log_path)}")
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise StackError(
            f"{process.name} did not say '{mark}' in {timeout_seconds:g} s:\n{log_tail(process.log_path)}"
        ) from None
    return line


def start_operator(*, name: str, folder: Path, kubeconfig: Path, configuration: Path) -> SupervisedProcess:
    """Start `bayplan operator` with its log in `folder`."""
    return SupervisedProcess.start(
        [sys.executable, "-m", "bayplan", "operator", "--config", str(configuration)],
        name=name,
        log_path=folder / f"{name}.log",
        environment={
            **os.environ,
            "KUBECONFIG": str(kubeconfig),
            "POD_NAMESPACE": NAMESPACE,
            "POD_NAME": name,
        },
        folder=REPOSITORY,
    )


def operator_url(process: SupervisedProcess) -> str:
    """Return the address of an operator's probes and metrics, which it logs once it listens."""
    return read_line(process.log_path, LISTENING).split(LISTENING)[1].strip()


async def kill_operator(process: SupervisedProcess) -> None:
    """SIGKILL the operator itself, without its supervisor telling it first, and wait for its end."""
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.identity.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
    await process.wait()
    await process.stop()


def roles() -> list[dict[str, Any]]:
    """Return the operator's namespace, account and rights, from the chart's own rule files."""
    metadata = {"name": ACCOUNT}
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}
    rbac = "rbac.authorization.k8s.io"

    def rules(file: str) -> Any:
        return yaml.safe_load((CHART / "files" / file).read_text())

    def binding(kind: str, extra: dict[str, str]) -> dict[str, Any]:
        return {
            "apiVersion": f"{rbac}/v1",
            "kind": f"{kind}Binding",
            "metadata": metadata | extra,
            "roleRef": {"apiGroup": rbac, "kind": kind, "name": ACCOUNT},
            "subjects": [subject],
        }

    inside = {"namespace": NAMESPACE}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata | inside},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRole",
            "metadata": metadata,
            "rules": rules("operator-rules.yaml"),
        },
        binding("ClusterRole", {}),
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "Role",
            "metadata": metadata | inside,
            "rules": rules("operator-lease-rules.yaml"),
        },
        binding("Role", inside),
    ]


@asynccontextmanager
async def stack_on(
    cluster: Cluster,
    *,
    inventory: Path,
    limits: Mapping[str, float] | None = None,
    telemetry: Mapping[str, Any] | None = None,
    operators: int = 1,
) -> AsyncIterator[Stack]:
    """Run nodes and operators on an existing cluster for the length of the block."""
    await cluster.apply(REPOSITORY / "crds")
    await cluster.apply(roles())
    configuration = cluster.folder / "bayplan.yaml"
    configuration.write_text(
        yaml.safe_dump(
            {
                "limits": {**QUICK_LIMITS, **(limits or {})},
                "telemetry": {**QUICK_TELEMETRY, **(telemetry or {})},
                "leaderElection": QUICK_ELECTION,
                "listen": {"address": "127.0.0.1", "port": 0},
                "logging": {"format": "console", "level": "INFO"},
            }
        )
    )
    agent_log = cluster.folder / "nodeagent.log"
    agent = SupervisedProcess.start(
        [
            *(sys.executable, "-m", "e2e.nodeagent", "--kubeconfig", str(cluster.kubeconfig_path)),
            *("--inventory", str(inventory), "--control", "127.0.0.1:0"),
            *("--log-dir", str(cluster.folder / "pods"), "--lease-interval-seconds", "1", "--verbose"),
        ],
        name="node agent",
        log_path=agent_log,
        folder=REPOSITORY,
    )
    try:
        line = await wait_for_line(agent, "control http", START_SECONDS)
        async with cluster.api() as api:
            stack = Stack(
                cluster=cluster,
                api=api,
                agent=agent,
                control_url=line.rsplit("control ", 1)[1].strip(),
                operator_kubeconfig=await cluster.service_account_kubeconfig(NAMESPACE, ACCOUNT),
                configuration=configuration,
            )
            try:
                for _ in range(operators):
                    await stack.start_operator()
                keeper = asyncio.create_task(stack.keep_operators(), name="keep operators")
                try:
                    yield stack
                finally:
                    keeper.cancel()
                    await asyncio.gather(keeper, return_exceptions=True)
            finally:
                await stack.stop()
    finally:
        await agent.stop()


@asynccontextmanager
async def stack(
    *,
    name: str,
    inventory: Path,
    limits: Mapping[str, float] | None = None,
    telemetry: Mapping[str, Any] | None = None,
    operators: int = 1,
) -> AsyncIterator[Stack]:
    """Run a whole system of its own for the length of the block; nodes count as lost after 4 s of silence."""
    async with (
        local_cluster(name=name, node_monitor_grace_seconds=4) as cluster,
        stack_on(cluster, inventory=inventory, limits=limits, telemetry=telemetry, operators=operators) as running,
    ):
        yield running
