"""What scenes share: the running system, the narrator, and eyes for pods."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from bayplan.api import names
from e2e.scenarios.gatewaypod import gateway_pod, start_gateway
from e2e.scenarios.narration import Narrator
from e2e.scenarios.stack import NAMESPACE, Stack

MODELS = "e2e/scenarios/models"
FIRST_TOKEN_SECONDS = 1.5
"""The gateway's deadline of every request of the demo."""


@dataclass
class Stage:
    """Each scene leaves it in a state that the next one builds on."""

    system: Stack
    tell: Narrator
    _gateway_url: str = ""

    async def gateway(self) -> str:
        """Return the URL that a gateway answers clients at; the first scene that asks starts it."""
        if not self._gateway_url:
            classes = {"default": {"firstTokenSeconds": FIRST_TOKEN_SECONDS}}
            pod = gateway_pod(
                self.system.cluster.kubeconfig_path,
                environment={"BAYPLAN_GATEWAY__CLASSES": json.dumps(classes)},
            )
            self._gateway_url = await start_gateway(self.system.api, pod, namespace=NAMESPACE)
        return self._gateway_url

    async def heads(self, model: str) -> list[dict[str, Any]]:
        """Return the live head pods of a model."""
        selector = f"{names.LABEL_MODEL}={model},{names.LABEL_RANK}=0"
        found = await self.system.api.get("/api/v1/namespaces/default/pods", labelSelector=selector)
        return [pod for pod in found["items"] if "deletionTimestamp" not in pod["metadata"]]

    async def youngest(self, model: str) -> dict[str, Any]:
        """Return the head that became ready last: scale-down takes it first."""

        def warm_since(pod: dict[str, Any]) -> str:
            conditions = {c["type"]: c["lastTransitionTime"] for c in pod["status"]["conditions"]}
            return str(conditions[names.CONDITION_WARM])

        return max(await self.heads(model), key=warm_since)

    async def zones(self, model: str) -> list[str]:
        """Return the zone of each replica."""
        zones = []
        for pod in await self.heads(model):
            node = await self.system.api.get(f"/api/v1/nodes/{pod['spec']['nodeName']}")
            zones.append(node["metadata"]["labels"]["topology.kubernetes.io/zone"])
        return zones


Play = Callable[[Stage], Awaitable[None]]


@dataclass(frozen=True)
class Scene:
    """One scene. `always` plays it in `make demo` as well, not in `make demo-all` alone."""

    play: Play
    always: bool = True
