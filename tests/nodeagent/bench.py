"""What the tests on a real API server share: an agent in the test's own process, its pods, and waiting."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e.localcluster import ApiError, KubeApi
from e2e.nodeagent.agent import NodeAgent
from e2e.nodeagent.images import ContainerRequest, ImageRule, base_environment, build_pause, default_rules
from e2e.nodeagent.processes import Launch
from e2e.nodeagent.settings import AgentSettings
from e2e.nodeagent.state import AgentState

FAST = AgentSettings(
    lease_interval_seconds=1.0,
    lease_duration_seconds=4,
    restart_backoff_seconds=0.1,
    restart_backoff_cap_seconds=0.2,
    image_backoff_seconds=0.5,
    image_backoff_cap_seconds=1.0,
    config_retry_seconds=0.1,
    remove_nodes_on_stop=True,
)
SERVE = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        state = os.path.join(os.environ["STATE"], self.path.strip("/").replace("/", "_"))
        self.send_response(200 if os.path.exists(state) else 503)
        self.end_headers()
    def log_message(self, *a): pass
print("serving", flush=True)
http.server.ThreadingHTTPServer((os.environ["POD_IP"], 8000), Handler).serve_forever()
"""
"""An HTTP server whose paths answer 200 while a file of their name exists in the folder STATE."""


def build_script(request: ContainerRequest) -> Launch:
    """Run the first argument as a Python program."""
    environment = base_environment(request) | {"POD_IP": request.pod_ip}
    return Launch(argv=[sys.executable, "-I", "-S", "-c", *request.args], environment=environment)


RULES = (ImageRule("test/script", build_script), ImageRule("test/pause", build_pause), *default_rules())


@dataclass
class Bench:
    """One agent with its nodes (names start with `prefix`) and a namespace."""

    agent: NodeAgent
    api: KubeApi
    namespace: str
    prefix: str
    state_dir: Path

    def node(self, number: int = 1) -> str:
        return f"{self.prefix}-{number}"

    def pod(self, name: str, **spec: Any) -> dict[str, Any]:
        """Return a pod that the scheduler can only bind to the first node, or to `node`."""
        labels = spec.pop("labels", {})
        annotations = spec.pop("annotations", {})
        node = spec.pop("node", self.node())
        container = {"name": "main", "image": "test/pause:1"} | spec.pop("container", {})
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.namespace, "labels": labels, "annotations": annotations},
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 5,
                "nodeSelector": {"kubernetes.io/hostname": node},
                # A new node is tainted for seconds until the node controller has seen it; few tests are about that.
                "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}],
                "containers": [container],
            }
            | spec,
        }

    def script(self, source: str, **container: Any) -> dict[str, Any]:
        return {"image": "test/script:1", "args": [source]} | container

    def serving(self, **container: Any) -> dict[str, Any]:
        environment = [{"name": "STATE", "value": str(self.state_dir)}]
        return self.script(SERVE, env=environment, ports=[{"name": "http", "containerPort": 8000}]) | container

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    async def create(self, pod: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = await self.api.create(self.pods, pod)
        return found

    async def get(self, name: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = await self.api.get(f"{self.pods}/{name}")
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return found

    async def until(
        self, name: str, check: Callable[[dict[str, Any]], object], *, seconds: float = 20
    ) -> dict[str, Any]:
        """Return the pod as the API server shows it once `check` holds for it."""
        seen: dict[str, Any] = {}

        async def holds() -> bool:
            seen.clear()
            seen.update(await self.get(name) or {})
            return bool(seen and check(seen))

        try:
            await self.api.wait_until(holds, what=f"pod {name}", timeout_seconds=seconds)
        except TimeoutError:
            pytest.fail(f"pod {name} did not get there; its status: {seen.get('status')}")
        return dict(seen)

    async def until_gone(self, name: str, *, seconds: float = 20) -> None:
        async def gone() -> bool:
            return await self.get(name) is None

        await self.api.wait_until(gone, what=f"pod {name} to be gone", timeout_seconds=seconds)

    async def until_node(self, name: str, check: Callable[[dict[str, Any]], object], *, seconds: float = 30) -> None:
        async def holds() -> bool:
            return bool(check(await self.api.get(f"/api/v1/nodes/{name}")))

        await self.api.wait_until(holds, what=f"node {name}", timeout_seconds=seconds)

    async def state(self, check: Callable[[AgentState], bool], *, seconds: float = 20) -> AgentState:
        return await self.agent.wait_for(check, timeout_seconds=seconds)


def condition(item: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return a condition of a pod or node, empty when it has none of that type."""
    found = [entry for entry in item.get("status", {}).get("conditions", ()) if entry["type"] == kind]
    return found[0] if found else {}


def main_state(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the first container's status entry, empty before there is one."""
    statuses = pod.get("status", {}).get("containerStatuses") or [{}]
    found: Mapping[str, Any] = statuses[0]
    return found


def alive(pid: int) -> bool:
    """Return whether a process runs; one that only waits for its parent's notice does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
