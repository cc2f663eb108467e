"""One Prometheus server with targets of its own, as long as a block runs."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from e2e.localcluster.ports import ADDRESS, free_ports
from e2e.localcluster.processes import SupervisedProcess, log_tail
from e2e.prometheus.program import ensure_prometheus

START_SECONDS = 60.0
POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Target:
    """One scraped address, `host:port`, with the labels that its series carry."""

    address: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PrometheusServer:
    """A running server. Use `PrometheusServer.run(...)`."""

    url: str

    @classmethod
    @asynccontextmanager
    async def run(
        cls,
        folder: Path,
        targets: Sequence[Target],
        *,
        port: int | None = None,
        scrape_seconds: float = 1.0,
        honor_labels: bool = False,
    ) -> AsyncIterator["PrometheusServer"]:
        """Start a server whose files lie in `folder`, at a free port unless it is given, and wait until it is ready.

        Raises MissingPrometheusError.
        """
        program = await ensure_prometheus()
        port = free_ports(1)[0] if port is None else port
        server = cls(url=f"http://{ADDRESS}:{port}")
        configuration = folder / "prometheus.yaml"
        every = f"{round(scrape_seconds * 1000)}ms"
        job: dict[str, Any] = {
            "job_name": "pods",
            "honor_labels": honor_labels,
            "static_configs": [{"targets": [target.address], "labels": dict(target.labels)} for target in targets],
        }
        times = {"scrape_interval": every, "scrape_timeout": every}
        configuration.write_text(yaml.safe_dump({"global": times, "scrape_configs": [job]}))
        process = SupervisedProcess.start(
            [
                str(program),
                f"--config.file={configuration}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={ADDRESS}:{port}",
            ],
            name="prometheus",
            log_path=folder / "prometheus.log",
        )
        try:
            await _until_ready(server.url, process)
            yield server
        finally:
            await process.stop()


async def _until_ready(url: str, process: SupervisedProcess) -> None:
    try:
        async with asyncio.timeout(START_SECONDS), aiohttp.ClientSession() as session:
            while True:
                try:
                    async with session.get(f"{url}/-/ready") as answer:
                        if answer.status == 200:
                            return
                except aiohttp.ClientError:
                    pass
                if process.exit_code() is not None:
                    raise RuntimeError(f"prometheus ended with {process.exit_code()}:\n{log_tail(process.log_path)}")
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        raise RuntimeError(
            f"prometheus is not ready after {START_SECONDS:g} s:\n{log_tail(process.log_path)}"
        ) from None
