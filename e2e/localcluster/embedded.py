"""One real control plane in four local processes: etcd, kube-apiserver, kube-controller-manager, kube-scheduler."""

import asyncio
import contextlib
import dataclasses
import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import aiohttp

from e2e.localcluster import components
from e2e.localcluster.certificates import Authority, signing_key
from e2e.localcluster.cluster import BaseCluster, ClusterError
from e2e.localcluster.components import Layout, Ports
from e2e.localcluster.files import write_whole
from e2e.localcluster.kubeconfig import read_kubeconfig, write_kubeconfig
from e2e.localcluster.ports import ADDRESS, BIND_FAILURE, free_ports
from e2e.localcluster.processes import SupervisedProcess, log_tail

START_ATTEMPTS = 5
READY_TIMEOUT_SECONDS = 120.0
POLL_SECONDS = 0.05
PORT_NAMES = tuple(field.name for field in dataclasses.fields(Ports))
CLIENTS = ("kube-controller-manager", "kube-scheduler")


class PortTakenError(ClusterError):
    """A process could not listen because its port was taken after it had been found free."""


class EmbeddedCluster(BaseCluster):
    """A running control plane. Processes and files are its own: several clusters live side by side."""

    provider = "embedded"

    def __init__(self, *, name: str, folder: Path, binaries: Path, node_monitor_grace_seconds: int) -> None:
        super().__init__(name=name, folder=folder)
        self.layout = Layout(folder=folder)
        self.kubeconfig_path = self.layout.admin_kubeconfig
        self.audit_log_path = self.layout.audit_log
        self.processes: list[SupervisedProcess] = []
        self.ports: Ports | None = None
        self._binaries = binaries
        self._node_monitor_grace_seconds = node_monitor_grace_seconds
        self._authority = Authority(f"bayplan-{name}"[:64])

    @classmethod
    async def start(
        cls,
        *,
        name: str,
        folder: Path,
        binaries: Path,
        node_monitor_grace_seconds: int = components.NODE_MONITOR_GRACE_SECONDS,
        choose_ports: Callable[[int], Sequence[int]] = free_ports,
    ) -> Self:
        """Start all four and return when they are ready and a first pod could be created.

        `folder` must not exist yet. It is kept when the start fails; the error names it. `choose_ports` is asked again
        when one of its ports was taken meanwhile. Raises ClusterError.
        """
        if node_monitor_grace_seconds < 1:
            raise ClusterError(f"node_monitor_grace_seconds: must be 1 or more, got {node_monitor_grace_seconds}")
        cluster = cls(
            name=name, folder=folder, binaries=binaries, node_monitor_grace_seconds=node_monitor_grace_seconds
        )
        cluster._write_fixed_files()
        for attempt in range(1, START_ATTEMPTS + 1):
            try:
                await cluster._start_on(choose_ports(len(PORT_NAMES)))
            except PortTakenError:
                await cluster._end_processes()
                if attempt == START_ATTEMPTS:
                    raise
                shutil.rmtree(cluster.layout.etcd_data, ignore_errors=True)
            except BaseException:
                await cluster._end_processes()
                raise
            else:
                break
        return cluster

    def kubeconfig_for(self, user: str, groups: tuple[str, ...] = ()) -> Path:
        """Write a kubeconfig with a client certificate for `user` in `groups`."""
        return self._kubeconfig(self.identity_path(user, groups), user=user, groups=groups)

    def release(self) -> None:
        """Let the cluster outlive this process."""
        for process in self.processes:
            process.release()

    async def stop(self) -> None:
        """End all processes, the API server before etcd, and wait until they are gone."""
        await self._end_processes()

    def _write_fixed_files(self) -> None:
        layout = self.layout
        layout.folder.mkdir(parents=True, mode=0o700)
        layout.pki.mkdir()
        layout.logs.mkdir()
        self._authority.pair.write(layout.pki, "ca")
        Authority("bayplan-front-proxy").pair.write(layout.pki, "front-proxy-ca")
        names = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
        server = self._authority.issue_server(dns_names=names, addresses=(ADDRESS, components.SERVICE_ADDRESS))
        server.write(layout.pki, "server")
        signing_key().write(layout.pki, "service-account")
        write_whole(layout.audit_policy, json.dumps(components.audit_policy(), indent=1))

    def _kubeconfig(self, path: Path, *, user: str, groups: tuple[str, ...] = ()) -> Path:
        if self.ports is None:
            raise ClusterError(f"cluster {self.name} is not started")
        return write_kubeconfig(
            path,
            server=f"https://{ADDRESS}:{self.ports.apiserver}",
            ca=self._authority.pair.certificate,
            user=user,
            client=self._authority.issue_client(user=user, groups=groups),
        )

    async def _start_on(self, numbers: Sequence[int]) -> None:
        layout = self.layout
        ports = Ports(**dict(zip(PORT_NAMES, numbers, strict=True)))
        self.ports = ports
        self._kubeconfig(layout.admin_kubeconfig, user="kubernetes-admin", groups=("system:masters",))
        for component in CLIENTS:
            self._kubeconfig(layout.component_kubeconfig(component), user=f"system:{component}")
        access = read_kubeconfig(layout.admin_kubeconfig)
        url = f"https://{ADDRESS}"
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=access.tls or True)) as session:
            self._launch("etcd", components.etcd_command(self._binary("etcd"), layout, ports))
            self._launch("kube-apiserver", components.apiserver_command(self._binary("kube-apiserver"), layout, ports))
            await self._wait_for(session, f"{url}:{ports.apiserver}/readyz")
            # Only now: before the API server is ready the bootstrap roles are missing, and both would exit.
            self._launch(
                "kube-controller-manager",
                components.controller_manager_command(
                    self._binary("kube-controller-manager"),
                    layout,
                    ports,
                    node_monitor_grace_seconds=self._node_monitor_grace_seconds,
                ),
            )
            self._launch("kube-scheduler", components.scheduler_command(self._binary("kube-scheduler"), layout, ports))
            await self._wait_for(session, f"{url}:{ports.controller_manager}/healthz")
            await self._wait_for(session, f"{url}:{ports.scheduler}/readyz")
            default_account = "api/v1/namespaces/default/serviceaccounts/default"
            await self._wait_for(session, f"{url}:{ports.apiserver}/{default_account}")

    def _binary(self, name: str) -> Path:
        return self._binaries / name

    def _launch(self, name: str, command: list[str]) -> None:
        log = self.layout.logs / f"{name}.log"
        environment = {**components.GO_RUNTIME, **os.environ}
        process = SupervisedProcess.start(command, name=name, log_path=log, folder=self.folder, environment=environment)
        self.processes.append(process)

    async def _wait_for(self, session: aiohttp.ClientSession, url: str) -> None:
        """Wait for a 200. Only the status counts: the text of a failing check contains the word "ok" as well."""
        deadline = time.monotonic() + READY_TIMEOUT_SECONDS
        last = "no answer"
        while time.monotonic() < deadline:
            self._require_running()
            try:
                async with session.get(url, timeout=aiohttp.ClientTimeout(total=5)) as response:
                    if response.status == 200:
                        return
                    last = f"{response.status} {(await response.text())[-300:]}"
            except (aiohttp.ClientError, TimeoutError) as error:
                last = str(error)
            await asyncio.sleep(POLL_SECONDS)
        raise ClusterError(
            f"{url} was not ready within {READY_TIMEOUT_SECONDS:g} s; last: {last}; logs: {self.layout.logs}"
        )

    def _require_running(self) -> None:
        for process in self.processes:
            code = process.exit_code()
            if code is None:
                continue
            tail = log_tail(process.log_path)
            failure = PortTakenError if BIND_FAILURE in tail else ClusterError
            raise failure(f"{process.name} ended with code {code}; log: {process.log_path}\n{tail}")

    async def _end_processes(self) -> None:
        while self.processes:
            with contextlib.suppress(ProcessLookupError):
                await self.processes[-1].stop()
            self.processes.pop()
