"""What the parts of one agent share: API client, sessions, the pods it knows, and a pulse on every change."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import aiohttp

from e2e.nodeagent.dns import PodName
from e2e.nodeagent.images import ImageRule
from e2e.nodeagent.kubeapi import KubeApi, Object
from e2e.nodeagent.processes import Watchdog
from e2e.nodeagent.settings import AgentSettings


class Pulse:
    """Tells waiters that something changed, without saying what: they look for themselves."""

    def __init__(self) -> None:
        self.revision = 0
        self._changed = asyncio.Event()

    def beat(self) -> None:
        """Wake everybody who waits."""
        self.revision += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def after(self, revision: int) -> None:
        """Return once `revision` is no longer the current one."""
        if revision == self.revision:
            await self._changed.wait()


@dataclass
class PodDirectory:
    """Every bound pod of the cluster by uid, as the API server last showed it."""

    pods: dict[str, Object] = field(default_factory=dict)

    def subdomains(self) -> set[tuple[str, str]]:
        """Return (subdomain, namespace) of all pods that have one."""
        return {
            (pod["spec"]["subdomain"], pod["metadata"]["namespace"])
            for pod in self.pods.values()
            if pod["spec"].get("subdomain")
        }

    def addresses(self) -> dict[PodName, str]:
        """Return the addresses of living pods with hostname and subdomain; of two alike, the newer one's."""
        found: dict[PodName, str] = {}
        for pod in sorted(self.pods.values(), key=lambda pod: str(pod["metadata"].get("creationTimestamp"))):
            spec, status, metadata = pod["spec"], pod.get("status") or {}, pod["metadata"]
            living = not metadata.get("deletionTimestamp") and status.get("phase") not in {"Succeeded", "Failed"}
            if living and status.get("podIP") and spec.get("hostname") and spec.get("subdomain"):
                found[PodName(spec["hostname"], spec["subdomain"], metadata["namespace"])] = status["podIP"]
        return found

    def used_addresses(self) -> set[str]:
        """Return the addresses that any pod's status shows."""
        return {pod["status"]["podIP"] for pod in self.pods.values() if (pod.get("status") or {}).get("podIP")}


@dataclass
class Services:
    """One agent's shared parts."""

    api: KubeApi
    session: aiohttp.ClientSession
    settings: AgentSettings
    rules: Sequence[ImageRule]
    watchdog: Watchdog
    log_dir: Path
    pulse: Pulse
    directory: PodDirectory
    failing_images: set[str] = field(default_factory=set)

    def image_fails(self, image: str) -> bool:
        """Return whether pulls of this image fail: by its name, or because somebody asked for it."""
        return "no-such-image" in image or image in self.failing_images


def now_text() -> str:
    """Return the current time as Kubernetes writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
