"""A gateway process on a real API server, in front of engine processes, for the length of a block."""

import asyncio
import contextlib
import os
import secrets
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import yaml

from e2e.localcluster import Cluster, local_cluster
from e2e.localcluster.processes import SupervisedProcess
from e2e.scenarios.heads import create_ready_head, create_serving_model
from e2e.scenarios.stack import REPOSITORY, wait_for_line

NAMESPACE = "default"
START_SECONDS = 60.0


@dataclass(frozen=True)
class Replica:
    """One engine process and what it has. The address goes behind its command, in which `{model}` is the model."""

    command: Sequence[str]
    environment: Mapping[str, str]
    kv_blocks: int
    max_num_seqs: int
    max_model_len: int = 8192


@dataclass
class Host:
    """A running gateway."""

    url: str
    admin_url: str
    model: str
    """What the model is called in a body."""
    process: psutil.Process
    engines: tuple[str, ...]
    """Addresses of the engines."""

    def cpu_seconds(self) -> float:
        """CPU time of the gateway so far."""
        times = self.process.cpu_times()
        return float(times.user + times.system)

    async def evidence(self) -> Any:
        """What the gateway says about itself."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.admin_url}/evidence") as response:
            return await response.json()

    async def until_idle(self, *, seconds: float = 30.0) -> bool:
        """Wait until nothing is reserved and nothing waits; False when that takes too long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    models = (await self.evidence())["models"].values()
                    if not any(model["reservedTokens"] or model["queuedTokens"] for model in models):
                        return True
                    await asyncio.sleep(0.1)
        return False


def loopback() -> str:
    """An address of its own."""
    return f"127.{1 + secrets.randbelow(254)}.{secrets.randbelow(256)}.{1 + secrets.randbelow(254)}"


@asynccontextmanager
async def control_plane() -> AsyncIterator[Cluster]:
    """A control plane with Bayplan's definitions."""
    async with local_cluster(name="gateway-bench", provider="embedded") as cluster:
        await cluster.apply(REPOSITORY / "crds")
        yield cluster


@asynccontextmanager
async def gateway_host(
    cluster: Cluster, replicas: Sequence[Replica], *, section: Mapping[str, Any] | None = None
) -> AsyncIterator[Host]:
    """Run engines and a gateway in front of them."""
    folder = Path(cluster.folder) / secrets.token_hex(4)
    folder.mkdir()
    processes: list[SupervisedProcess] = []
    name = f"tiny-{secrets.token_hex(3)}"
    try:
        async with cluster.api() as api:
            model = await create_serving_model(api, NAMESPACE, name)
            hosts = [loopback() for _ in replicas]
            for number, (replica, host) in enumerate(zip(replicas, hosts, strict=True)):
                engine = SupervisedProcess.start(
                    [sys.executable, *(part.format(model=name) for part in replica.command), host],
                    name=f"engine-{number}",
                    log_path=folder / f"engine-{number}.log",
                    environment={**os.environ, **replica.environment},
                    folder=REPOSITORY,
                )
                processes.append(engine)
                await wait_for_line(engine, "listening", START_SECONDS)
                await create_ready_head(
                    api,
                    NAMESPACE,
                    model,
                    host,
                    name=f"{name}-{number}",
                    kv_blocks=replica.kv_blocks,
                    max_num_seqs=replica.max_num_seqs,
                    max_model_len=replica.max_model_len,
                )
            gateway = _start_gateway(folder, cluster.kubeconfig_path, section or {})
            processes.append(gateway)
            line = await wait_for_line(gateway, "clients on ", START_SECONDS)
            admin = await wait_for_line(gateway, "the cluster on ", START_SECONDS)
            yield Host(
                url=f"{line.split('clients on ')[1].strip()}/v1",
                admin_url=admin.split("the cluster on ")[1].strip(),
                model=f"{NAMESPACE}/{name}",
                process=_find(gateway),
                engines=tuple(hosts),
            )
            await api.delete(f"/apis/bayplan.dev/v1alpha1/namespaces/{NAMESPACE}/inferencemodels/{name}")
    finally:
        for process in reversed(processes):
            await process.stop()


def _start_gateway(folder: Path, kubeconfig: Path, section: Mapping[str, Any]) -> SupervisedProcess:
    configuration = folder / "bayplan.yaml"
    listen = {"address": "127.0.0.1", "port": 0, "adminPort": 0}
    configuration.write_text(
        yaml.safe_dump({"gateway": {"listen": listen, **section}, "logging": {"format": "console"}})
    )
    return SupervisedProcess.start(
        [sys.executable, "-m", "bayplan", "gateway", "--config", str(configuration)],
        name="gateway",
        log_path=folder / "gateway.log",
        environment={**os.environ, "KUBECONFIG": str(kubeconfig), "POD_NAME": "gateway", "POD_NAMESPACE": NAMESPACE},
        folder=REPOSITORY,
    )


def _find(process: SupervisedProcess) -> psutil.Process:
    """The gateway itself, under its supervisor."""
    family = [psutil.Process(process.identity.pid)]
    family += family[0].children(recursive=True)
    return next(one for one in reversed(family) if "gateway" in one.cmdline())
