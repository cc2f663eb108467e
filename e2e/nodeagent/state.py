"""The agent's state as plain records: what the control API answers and what tests wait on."""

from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from e2e.nodeagent.node import Node
from e2e.nodeagent.nodecondition import NodeCondition
from e2e.nodeagent.podstatus import pod_phase
from e2e.nodeagent.podworker import PodWorker
from e2e.nodeagent.services import Services


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, alias_generator=to_camel, validate_by_name=True)


class DeviceState(_Record):
    """The devices of one resource on a node, as indexes."""

    total: int
    allocatable: int
    lost: tuple[int, ...]
    held: dict[str, tuple[int, ...]]
    """Devices by pod (`namespace/name`, or the uid of a pod that is gone)."""


class NodeState(_Record):
    """One node."""

    name: str
    condition: NodeCondition
    address: str
    lease_renewed_at: str | None
    devices: dict[str, DeviceState]


class ContainerStatus(_Record):
    """One container: `state` is waiting, running or terminated, with its reason and exit code."""

    name: str
    state: str
    reason: str | None
    exit_code: int | None
    pid: int | None
    started: bool
    ready: bool
    restart_count: int
    container_id: str | None
    log: str


class PodState(_Record):
    """One pod on these nodes."""

    namespace: str
    name: str
    uid: str
    node: str
    phase: str
    pod_ip: str | None
    terminating: bool
    containers: tuple[ContainerStatus, ...]


class AgentState(_Record):
    """Everything at once. `revision` grows with every change."""

    revision: int
    nodes: tuple[NodeState, ...]
    pods: tuple[PodState, ...]
    failing_images: tuple[str, ...]

    def pod(self, namespace: str, name: str) -> PodState | None:
        """Return the newest pod of that name, or None."""
        found = [pod for pod in self.pods if (pod.namespace, pod.name) == (namespace, name)]
        return found[-1] if found else None

    def node(self, name: str) -> NodeState:
        """Return a node. Raises KeyError."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)


def _containers(worker: PodWorker) -> tuple[ContainerStatus, ...]:
    found = []
    for container in worker.containers:
        state = container.state
        reason, code = None, None
        if state.waiting is not None:
            kind, reason = "waiting", state.waiting[0]
        elif state.terminated is not None:
            kind, reason, code = "terminated", str(state.terminated.get("reason")), state.terminated["exitCode"]
        else:
            kind = "running"
        found.append(
            ContainerStatus(
                name=state.name,
                state=kind,
                reason=reason,
                exit_code=code,
                pid=container.process.pid if container.process is not None else None,
                started=state.started,
                ready=state.ready,
                restart_count=state.restart_count,
                container_id=state.container_id,
                log=str(container.log),
            )
        )
    return tuple(found)


def describe(services: Services, nodes: Iterable[Node], workers: Iterable[PodWorker]) -> AgentState:
    """Return the state of an agent's parts."""
    pods = [
        PodState(
            namespace=worker.pod["metadata"]["namespace"],
            name=worker.pod["metadata"]["name"],
            uid=worker.uid,
            node=worker.pod["spec"]["nodeName"],
            phase=pod_phase(worker.view()),
            pod_ip=worker.ip or None,
            terminating=worker.terminating,
            containers=_containers(worker),
        )
        for worker in workers
    ]
    names = {pod.uid: f"{pod.namespace}/{pod.name}" for pod in pods}
    return AgentState(
        revision=services.pulse.revision,
        nodes=tuple(
            NodeState(
                name=node.name,
                condition=node.condition,
                address=node.address,
                lease_renewed_at=node.lease_renewed_at,
                devices={
                    resource: DeviceState(
                        total=ledger.total,
                        allocatable=ledger.allocatable,
                        lost=tuple(sorted(ledger.lost)),
                        held={names.get(uid, uid): tuple(sorted(held)) for uid, held in ledger.held.items()},
                    )
                    for resource, ledger in node.devices.items()
                },
            )
            for node in nodes
        ),
        pods=tuple(pods),
        failing_images=tuple(sorted(services.failing_images)),
    )
