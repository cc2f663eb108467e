"""`bayplan gateway` as a Pod of the local system: on its own loopback address, with the administrator's access."""

from pathlib import Path
from typing import Any

import aiohttp

from bayplan.api import names
from e2e.localcluster import KubeApi

Json = dict[str, Any]
PODS = "/api/v1/namespaces/{}/pods"
READY_SECONDS = 60.0


def gateway_pod(kubeconfig: Path, *, name: str = "gateway-0", environment: dict[str, str] | None = None) -> Json:
    """Return the Pod. `environment` overrides the gateway's configuration (`BAYPLAN_GATEWAY__…`)."""

    def field(variable: str, path: str) -> Json:
        return {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": path}}}

    literal = {"KUBECONFIG": str(kubeconfig), "BAYPLAN_LOGGING__FORMAT": "console", **(environment or {})}
    container = {
        "name": "gateway",
        "image": "bayplan/bayplan:local",
        "args": ["gateway"],
        "env": [
            field("POD_NAME", "metadata.name"),
            field("POD_NAMESPACE", "metadata.namespace"),
            field("POD_UID", "metadata.uid"),
            # 0.0.0.0 would take the ports on every pod's address.
            field("BAYPLAN_GATEWAY__LISTEN__ADDRESS", "status.podIP"),
            *({"name": key, "value": value} for key, value in literal.items()),
        ],
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": names.GATEWAY_PORT}, "periodSeconds": 1},
    }
    tolerations = [{"operator": "Exists"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], "tolerations": tolerations, "terminationGracePeriodSeconds": 5},
    }


async def start_gateway(api: KubeApi, pod: Json, *, namespace: str = "default") -> str:
    """Create the Pod, wait until it is ready, and return the address that it answers clients at."""
    name = pod["metadata"]["name"]
    await api.apply([pod], namespace=namespace)

    async def ready() -> bool:
        found = await api.get(f"{PODS.format(namespace)}/{name}")
        conditions = (found.get("status") or {}).get("conditions") or ()
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    await api.wait_until(ready, what=f"gateway {name}", timeout_seconds=READY_SECONDS)
    found = await api.get(f"{PODS.format(namespace)}/{name}")
    return f"http://{found['status']['podIP']}:{names.GATEWAY_CLIENT_PORT}"


async def complete(
    session: aiohttp.ClientSession, url: str, *, model: str, prompt: str, max_tokens: int
) -> tuple[int, str]:
    """Stream one completion of exactly `max_tokens` to its end; return the status and the whole text of the answer."""
    body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "stream": True, "ignore_eos": True}
    async with session.post(f"{url}/v1/completions", json=body) as answer:
        return answer.status, (await answer.read()).decode(errors="replace")
