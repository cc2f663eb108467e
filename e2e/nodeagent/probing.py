"""Sends the probes of a running container when they are due."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp

from e2e.nodeagent.probes import ContainerProbes, ProbeKind, ProbeSpec


class HttpTarget:
    """Where probes and hooks of a container go: its pod's address, port names, and the shared session."""

    def __init__(self, container: Mapping[str, Any], address: str, session: aiohttp.ClientSession) -> None:
        self._ports = {port.get("name"): port["containerPort"] for port in container.get("ports") or ()}
        self._address = address
        self._session = session

    def port(self, port: int | str) -> int:
        """Return the number of a port that may be given by name; an unknown name is 0, which nothing listens on."""
        return int(port) if isinstance(port, int) or port.isdigit() else int(self._ports.get(port, 0))

    async def get(
        self,
        *,
        scheme: str,
        host: str,
        port: int | str,
        path: str,
        headers: tuple[tuple[str, str], ...],
        timeout: float,
    ) -> bool:
        """Send a GET as a kubelet does: no kept connection, no certificate check; 200 to 399 is success."""
        url = f"{scheme}://{host or self._address}:{self.port(port)}{path}"
        try:
            async with self._session.get(
                url,
                headers=[("Connection", "close"), ("User-Agent", "kube-probe/1.37"), *headers],
                timeout=aiohttp.ClientTimeout(total=timeout),
                allow_redirects=False,
                ssl=False,
            ) as answer:
                return 200 <= answer.status < 400
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return False

    async def connect(self, *, host: str, port: int | str, timeout: float) -> bool:
        """Return whether a TCP connection can be made."""
        try:
            async with asyncio.timeout(timeout):
                _, writer = await asyncio.open_connection(host or self._address, self.port(port))
        except (TimeoutError, OSError):
            return False
        writer.close()
        return True

    async def check(self, spec: ProbeSpec) -> bool:
        """Send one probe."""
        if spec.action == "tcp":
            return await self.connect(host=spec.host, port=spec.port, timeout=spec.timeout)
        return await self.get(
            scheme=spec.scheme,
            host=spec.host,
            port=spec.port,
            path=spec.path,
            headers=spec.headers,
            timeout=spec.timeout,
        )


async def run_probes(probes: ContainerProbes, target: HttpTarget, changed: Callable[[], None]) -> ProbeKind | None:
    """Probe until a probe asks for the container's death (returned), or there is nothing left to probe (None).

    `changed` is called after every answer; cancel this when the container has ended.
    """
    loop = asyncio.get_running_loop()
    answered = asyncio.Event()
    in_flight: set[asyncio.Task[None]] = set()

    async def send(kind: ProbeKind) -> None:
        success = await target.check(probes.specs[kind])
        probes.record(kind, success=success, now=loop.time())
        answered.set()
        changed()

    try:
        while probes.unhealthy is None:
            for kind in probes.begin(loop.time()):
                task = asyncio.create_task(send(kind))
                in_flight.add(task)
                task.add_done_callback(in_flight.discard)
            due = probes.next_due()
            if due is None and not in_flight:
                return None
            answered.clear()
            try:
                async with asyncio.timeout_at(due):
                    await answered.wait()
            except TimeoutError:
                continue
        return probes.unhealthy
    finally:
        for task in in_flight:
            task.cancel()
