"""A control plane with hollow nodes, and the operator processes that are measured on it."""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import yaml
from prometheus_client.parser import text_string_to_metric_families

from bench import KOPF_SERVES, workload
from bench.measure import MODELS, STATUS, Key
from e2e.hollownodes import HollowKubelets, hollow_nodes
from e2e.localcluster import Cluster, local_cluster
from e2e.localcluster.auditlog import AuditTail, Request
from e2e.localcluster.kubeconfig import read_kubeconfig
from e2e.localcluster.processes import SupervisedProcess
from e2e.nodeagent.kubeapi import KubeApi
from e2e.scenarios.audit import OPERATOR, UNCOUNTED, audit_tail
from e2e.scenarios.stack import (
    ACCOUNT,
    LISTENING,
    NAMESPACE,
    REPOSITORY,
    kill_operator,
    operator_url,
    read_line,
    roles,
    start_operator,
    wait_for_line,
)

START_SECONDS = 120.0
POLL_SECONDS = 0.1
WARM_PERIOD_SECONDS = 1.0
WARM_SHARE = 0.05
"""A standby that uses less of a processor than this has taken in all that there is."""
NEVER_SECONDS = 86400
"""Nobody renews the Leases of hollow nodes, so none is ever given up."""
BARRIER = "caches complete after "
LEADS = " leads by lease "
KOPF_USER = "bench-kopf"
CONFIGURATION: Mapping[str, Any] = {
    "listen": {"address": "127.0.0.1", "port": 0},
    "logging": {"format": "console", "level": "INFO"},
}
"""Everything else, the times of leader election above all, is as it is shipped."""
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class BenchError(Exception):
    """A phase did not end in the state that it waits for."""


class Recording:
    """What the audit log says since its start, as far as figures are made of it: models, pods, and `user`'s writes."""

    def __init__(self, tail: AuditTail, user: str) -> None:
        self.requests: list[Request] = []
        self.writes: list[Request] = []
        """Writes of `user`; Leases and Events are apart."""
        self.apart: Counter[str] = Counter()
        """Requests of `user` that are counted apart, by verb and resource: reads, and writes of Leases and Events."""
        self.with_status: set[Key] = set()
        self.bound = 0
        self._tail = tail
        self._user = user
        self._last_write = time.monotonic()
        tail.skip()

    @property
    def reads(self) -> int:
        """Requests of `user` that only read, watches left out."""
        return sum(count for what, count in self.apart.items() if what.partition(" ")[0] in ("get", "list"))

    def pull(self) -> None:
        """Take in what the log has by now."""
        for request in self._tail.read():
            if request.resource in (MODELS, STATUS, "pods", "pods/binding") and request.writes:
                self.requests.append(request)
            self.bound += request.resource == "pods/binding" and request.done
            if request.user == self._user:
                if not request.writes or request.resource.partition("/")[0] in UNCOUNTED:
                    self.apart[f"{request.verb} {request.resource}"] += 1
                    continue
                self.writes.append(request)
                self._last_write = time.monotonic()
                if request.resource == STATUS and request.done:
                    self.with_status.add((request.namespace, request.name))

    async def until(self, check: Callable[[], bool], *, what: str, seconds: float) -> None:
        """Wait until `check` holds; raises BenchError that says what was waited for."""
        try:
            async with asyncio.timeout(seconds):
                while not check():
                    await asyncio.sleep(POLL_SECONDS)
                    self.pull()
        except TimeoutError:
            raise BenchError(f"waited {seconds:g} s for {what}") from None

    async def until_quiet(self, seconds: float, *, limit_seconds: float = 120.0) -> None:
        """Wait until `user` has written nothing for `seconds`."""
        await self.until(
            lambda: time.monotonic() - self._last_write >= seconds, what="the writes to end", seconds=limit_seconds
        )


@dataclass
class Measured:
    """One process under measurement and the user that it writes as."""

    process: SupervisedProcess
    user: str

    @property
    def _child(self) -> psutil.Process:
        """The process itself, below its supervisor."""
        return psutil.Process(self.process.identity.pid).children()[0]

    def rss_mb(self) -> float:
        """Resident memory in MB (10^6 bytes)."""
        return float(self._child.memory_info().rss) / 1e6

    def cpu_seconds(self) -> float:
        """Processor time used so far."""
        times = self._child.cpu_times()
        return float(times.user + times.system)

    async def samples(self) -> Samples:
        """Scrape `/metrics`: (name, labels) → value."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{operator_url(self.process)}/metrics") as answer,
        ):
            text = await answer.text()
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


@dataclass
class System:
    """What the phases work on."""

    cluster: Cluster
    api: KubeApi
    nodes: Sequence[str]
    kubelets: HollowKubelets
    kubeconfig: Path
    configuration: Path
    running: list[Measured] = field(default_factory=list)
    started: int = 0

    def record(self, user: str = OPERATOR) -> Recording:
        """Start a recording."""
        return Recording(audit_tail(self.cluster), user)

    async def start_operator(self) -> Measured:
        """Start one more operator and wait until its caches are complete."""
        self.started += 1
        process = start_operator(
            name=f"operator-{self.started}",
            folder=self.cluster.folder,
            kubeconfig=self.kubeconfig,
            configuration=self.configuration,
        )
        return await self._started(process, OPERATOR, LISTENING, BARRIER)

    async def start_kopf(self) -> Measured:
        """Start the operator that is written with Kopf's own handlers."""
        process = SupervisedProcess.start(
            [
                sys.executable,
                "-m",
                "bench.kopfhandlers",
                str(self.cluster.kubeconfig_for(KOPF_USER, ("system:masters",))),
            ],
            name="kopf",
            log_path=self.cluster.folder / "kopf.log",
            folder=REPOSITORY,
        )
        return await self._started(process, KOPF_USER, KOPF_SERVES)

    async def _started(self, process: SupervisedProcess, user: str, *marks: str) -> Measured:
        measured = Measured(process, user)
        self.running.append(measured)
        for mark in marks:
            await wait_for_line(process, mark, START_SECONDS)
        return measured

    async def leads(self, operator: Measured) -> None:
        """Wait until an operator is the leader."""
        await wait_for_line(operator.process, LEADS, START_SECONDS)

    async def warm(self, operator: Measured) -> None:
        """Wait until a standby has taken in everything and only follows: its processor time stands still."""
        loop = asyncio.get_running_loop()
        until = loop.time() + START_SECONDS
        before = operator.cpu_seconds()
        while loop.time() < until:
            await asyncio.sleep(WARM_PERIOD_SECONDS)
            now = operator.cpu_seconds()
            if now - before < WARM_SHARE * WARM_PERIOD_SECONDS:
                return
            before = now
        raise BenchError(f"{operator.process.name} does not come to rest")

    def barrier_seconds(self, operator: Measured) -> float:
        """How long an operator took to list everything, as it says itself."""
        return float(read_line(operator.process.log_path, BARRIER).split(BARRIER)[1].split(" s")[0])

    async def stop(self, measured: Measured) -> None:
        """Stop cleanly."""
        self.running.remove(measured)
        await measured.process.stop()

    async def kill(self, measured: Measured) -> None:
        """End without warning."""
        self.running.remove(measured)
        await kill_operator(measured.process)

    async def close(self) -> None:
        """End all processes."""
        for measured in [*self.running]:
            await self.stop(measured)


@asynccontextmanager
async def system(*, nodes: int, foreign_pods: int, advance: Callable[[str, int], object]) -> AsyncIterator[System]:
    """Run a control plane with its nodes and foreign pods; no operator runs yet.

    `advance` is called with what is being made and how many there will be, once for each.
    """
    bodies = workload.nodes(nodes)
    async with local_cluster(name="bench", node_monitor_grace_seconds=NEVER_SECONDS) as cluster:
        await cluster.apply(REPOSITORY / "crds")
        namespaces = (
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            for name in (workload.NAMESPACE, workload.FOREIGN)
        )
        await cluster.apply([*roles(), *namespaces])
        configuration = cluster.folder / "bayplan.yaml"
        configuration.write_text(yaml.safe_dump(dict(CONFIGURATION)))
        access = read_kubeconfig(cluster.kubeconfig_path)
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=64)) as session,
            hollow_nodes(
                cluster.kubeconfig_path,
                bodies,
                label_selector=workload.OWN_PODS,
                advance=lambda: advance("nodes", nodes),
            ) as kubelets,
        ):
            api = KubeApi(access, session)
            await _default_accounts(api)
            names = [body["metadata"]["name"] for body in bodies]
            await workload.create_foreign_pods(api, foreign_pods, names, lambda: advance("foreign pods", foreign_pods))
            running = System(
                cluster=cluster,
                api=api,
                nodes=names,
                kubelets=kubelets,
                kubeconfig=await cluster.service_account_kubeconfig(NAMESPACE, ACCOUNT),
                configuration=configuration,
            )
            try:
                yield running
            finally:
                await running.close()


async def _default_accounts(api: KubeApi) -> None:
    for namespace in (workload.NAMESPACE, workload.FOREIGN):
        while True:
            items, _ = await api.list_all(f"/api/v1/namespaces/{namespace}/serviceaccounts", {})
            if items:
                break
            await asyncio.sleep(POLL_SECONDS)
