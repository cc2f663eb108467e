"""A cluster in memory around one operator: nodes, a scheduler and kubelets that do what the test lets them do."""

from collections.abc import Callable, Mapping
from typing import Any

from bayplan.api import names
from bayplan.api.conditions import ConditionType, Reason
from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.api.meta import rfc3339
from bayplan.api.reasons import REASON_HELP
from bayplan.api.reference import SUMMARIES
from bayplan.api.revision import revision_hash
from bayplan.api.validation import parse_spec
from bayplan.cluster.resources import INFERENCE_MODELS, NODES, PODS, Key, Resource
from bayplan.planning.groups.members import group_name
from bayplan.reconcile.inferencemodel.reconciler import ReconcileSettings
from tests.api.specs import MINIMAL_SPEC
from tests.fakes.api import FakeApi
from tests.fakes.clock import FakeClock, settle
from tests.fakes.merging import copy_json
from tests.reconcile.engines import FakeCounts, FakeEngine, FakeMetrics, FakePrompts
from tests.reconcile.operators import Operator, wall_clock

Json = dict[str, Any]
H100, H100_MIB = "NVIDIA-H100-80GB-HBM3", "81559"
NAMESPACE = "team"
MAX_ROUNDS = 60
TURNS = 8
"""Turns of the loop that background work needs between two calls of the engine."""
TWO_NODES: Json = {"parallelism": {"tensor": 2, "pipeline": 2}}
"""Spec changes for groups over two nodes of two GPUs each."""


def node(name: str, *, gpus: int = 2, zone: str = "zone-a", labels: Mapping[str, str] | None = None) -> Json:
    """A healthy node of H100s."""
    return {
        "metadata": {
            "name": name,
            "labels": {
                "topology.kubernetes.io/zone": zone,
                "nvidia.com/gpu.product": H100,
                "nvidia.com/gpu.memory": H100_MIB,
                "nvidia.com/gpu.count": str(gpus),
                **(labels or {}),
            },
        },
        "spec": {},
        "status": {
            "allocatable": {"cpu": "32", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": str(gpus)},
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        },
    }


def foreign_pod(name: str, node_name: str | None, *, gpus: int = 1, labels: Mapping[str, str] | None = None) -> Json:
    """Somebody else's pod, bound to a node or waiting."""
    resources = {"requests": {"nvidia.com/gpu": str(gpus)}, "limits": {"nvidia.com/gpu": str(gpus)}}
    spec: Json = {"containers": [{"name": "work", "resources": resources}]}
    if node_name is not None:
        spec["nodeName"] = node_name
    meta: Json = {"namespace": "other", "name": name, "labels": dict(labels or {})}
    return {"metadata": meta, "spec": spec, "status": {"phase": "Running" if node_name else "Pending"}}


def model_spec(**changes: Any) -> Json:
    """A small valid spec; `engine` is merged, everything else replaces."""
    spec = copy_json(MINIMAL_SPEC)
    spec["engine"] |= changes.pop("engine", {})
    return {**spec, **changes}


def pinned_node(pod: Json) -> str | None:
    """The one node that a released pod may go to, read from its affinity."""
    required = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    terms = required.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [])
    places = {value for term in terms for field in term.get("matchFields", ()) for value in field["values"]}
    return places.pop() if len(places) == 1 else None


def gpus_of(pod: Json) -> int:
    return sum(
        int(c.get("resources", {}).get("requests", {}).get("nvidia.com/gpu", 0)) for c in pod["spec"]["containers"]
    )


class World:
    """`settle` runs the operator until it rests; `run` also lets scheduler and kubelets work until all rest."""

    def __init__(self, *, settings: ReconcileSettings | None = None) -> None:
        self.clock = FakeClock()
        self.now = wall_clock(self.clock)
        self.api = FakeApi(now=self.now)
        self.engine = FakeEngine()
        self.metrics = FakeMetrics(self.clock.time)
        self.counts = FakeCounts(self.now)
        self.prompts = FakePrompts()
        self.settings = settings
        self.dead_nodes: set[str] = set()
        """Nodes whose kubelet does nothing."""
        self.crashing_images: set[str] = set()
        """Images whose engine ends with code 3 as soon as it starts."""
        self.operator = self.new_operator()
        self._addresses: dict[str, str] = {}

    # --- operator --------------------------------------------------------------------------------------------------

    def new_operator(self, *, seed: int = 0) -> Operator:
        operator = Operator(
            self.api,
            self.clock,
            self.engine,
            now=self.now,
            metrics=self.metrics,
            seed=seed,
            settings=self.settings,
            counts=self.counts,
            prompts=self.prompts,
        )
        operator.load()
        return operator

    async def restart(self) -> None:
        """Replace the operator by a fresh process that knows only what the API server holds."""
        await self.operator.close()
        self.operator = self.new_operator()

    async def settle(self) -> None:
        """Run the operator until nothing is queued and nothing waits to be delivered."""
        for _ in range(MAX_ROUNDS):
            await settle(TURNS)
            if not await self.operator.step():
                await settle(TURNS)
                if not (self.operator.queued or self.operator.queued_rollouts or self.operator.queued_plans):
                    return
        raise AssertionError(f"the operator does not come to rest; last writes: {self.writes()[-12:]}")

    async def run(self) -> None:
        """Let operator, scheduler and kubelets work until all of them rest."""
        for _ in range(MAX_ROUNDS):
            version = self.api.version
            await self.settle()
            self.schedule()
            self.kubelets()
            if self.api.version == version:
                return
        raise AssertionError("the cluster does not come to rest")

    async def advance(self, seconds: float, *, run: bool = True) -> None:
        """Let time pass, timer by timer, with everybody at work (or the operator alone)."""
        work = self.run if run else self.settle
        until = self.clock.time() + seconds
        await work()
        while (due := self.clock.next_due) is not None and due <= until:
            await self.clock.advance(max(0.0, due - self.clock.time()))
            await work()
        await self.clock.advance(until - self.clock.time())
        await work()

    def writes(self) -> list[tuple[str, str, Key]]:
        return [entry for entry in self.api.log if entry[0] not in ("get", "list", "watch")]

    # --- objects ---------------------------------------------------------------------------------------------------

    def add_node(self, name: str, **details: Any) -> Json:
        return self.api.seed(NODES, node(name, **details))

    def add_model(self, name: str = "llama", *, namespace: str = NAMESPACE, **changes: Any) -> Key:
        meta = {"namespace": namespace, "name": name}
        self.api.seed(INFERENCE_MODELS, {"metadata": meta, "spec": model_spec(**changes)})
        return Key(namespace, name)

    def edit_spec(self, key: Key, **changes: Any) -> None:
        self.api.edit(INFERENCE_MODELS, key, lambda model: model["spec"].update(changes))

    def edit_node(self, name: str, change: Callable[[Json], None]) -> None:
        self.api.edit(NODES, Key("", name), change)

    def cordon(self, name: str, *, on: bool = True) -> None:
        self.edit_node(name, lambda obj: obj["spec"].update(unschedulable=on))

    def lose_node(self, name: str) -> None:
        """The node's kubelet falls silent and the node controller notices."""
        self.dead_nodes.add(name)
        self._set_ready(name, "Unknown")

    def find_node(self, name: str) -> None:
        """The lost node is heard of again."""
        self.dead_nodes.discard(name)
        self._set_ready(name, "True")

    def _set_ready(self, name: str, status: str) -> None:
        condition = {"type": "Ready", "status": status, "lastTransitionTime": rfc3339(self.now())}
        self.edit_node(name, lambda obj: obj["status"].update(conditions=[condition]))

    def objects(self, resource: Resource) -> list[Json]:
        return sorted(self.api.objects(resource), key=lambda obj: obj["metadata"]["name"])

    def pods(self, model: str = "llama") -> list[Json]:
        return [p for p in self.objects(PODS) if p["metadata"]["labels"].get(names.LABEL_MODEL) == model]

    def pod_names(self, model: str = "llama") -> list[str]:
        return [pod["metadata"]["name"] for pod in self.pods(model)]

    def pod(self, name: str) -> Json:
        return next(pod for pod in self.api.objects(PODS) if pod["metadata"]["name"] == name)

    def address(self, pod_name: str) -> str:
        return str(self.pod(pod_name)["status"]["podIP"])

    def head_name(self, key: Key, *, ordinal: int = 0, attempt: int = 0) -> str:
        """Name that the head of a group of the present spec has."""
        spec = parse_spec(next(m for m in self.api.objects(INFERENCE_MODELS) if _key(m) == key)["spec"])
        assert isinstance(spec, InferenceModelSpec)
        group = group_name(model=key.name, revision=revision_hash(spec), ordinal=ordinal, attempt=attempt)
        return f"{group}-0"

    def status(self, key: Key) -> Json:
        found = next(model for model in self.api.objects(INFERENCE_MODELS) if _key(model) == key)
        status: Json = found.get("status", {})
        for shown in status.get("conditions", ()):
            kind, reason = ConditionType(shown["type"]), Reason(shown["reason"])
            assert kind in (*SUMMARIES, *REASON_HELP[reason].conditions), f"docs/reasons.md: {kind} lacks {reason}"
        return status

    def condition(self, key: Key, kind: str) -> Json | None:
        return next((c for c in self.status(key).get("conditions", ()) if c["type"] == kind), None)

    def reason(self, key: Key, kind: str) -> tuple[str, str]:
        """Status and reason of one condition, ("", "") while it is absent."""
        found = self.condition(key, kind)
        return (found["status"], found["reason"]) if found else ("", "")

    # --- kube-scheduler and kubelets -------------------------------------------------------------------------------

    def schedule(self) -> None:
        """Bind every released pod whose node has room."""
        for pod in self.objects(PODS):
            self.schedule_pod(pod)

    def schedule_pod(self, pod: Json) -> None:
        """Bind a released pod if its node is open and has room, as far as bound pods go."""
        place = pinned_node(pod)
        target = next((obj for obj in self.api.objects(NODES) if obj["metadata"]["name"] == place), None)
        if pod["spec"].get("nodeName") or pod["spec"].get("schedulingGates") or target is None:
            return
        if gpus_of(pod) <= self.room(target) and not target["spec"].get("unschedulable"):
            self.edit_pod(pod, lambda obj: obj["spec"].update(nodeName=place))

    def room(self, target: Json) -> int:
        """GPUs of a node that no bound pod holds."""
        bound = [p for p in self.api.objects(PODS) if p["spec"].get("nodeName") == target["metadata"]["name"]]
        held = sum(gpus_of(pod) for pod in bound if not _ended(pod))
        return int(target["status"]["allocatable"]["nvidia.com/gpu"]) - held

    def kubelets(self) -> None:
        """Start bound pods, keep their Ready condition, end those that are to be deleted."""
        for pod in self.objects(PODS):
            self.kubelet(pod)

    def kubelet(self, pod: Json) -> None:
        """Bring one bound pod of an engine a step on."""
        place = pod["spec"].get("nodeName")
        if place is None or place in self.dead_nodes or "image" not in pod["spec"]["containers"][0]:
            return
        if pod["metadata"].get("deletionTimestamp"):
            self.api.remove(PODS, _key(pod))
        elif not _ended(pod):
            self.edit_pod(pod, self._run_pod)

    def _run_pod(self, pod: Json) -> None:
        status, uid = pod["status"], pod["metadata"]["uid"]
        if "containerStatuses" not in status:
            status["podIP"] = self._addresses.setdefault(uid, f"10.0.0.{len(self._addresses) + 1}")
            running = {"running": {"startedAt": rfc3339(self.now())}}
            status["containerStatuses"] = [{"name": "engine", "containerID": f"containerd://{uid}", "state": running}]
            status["phase"] = "Running"
        if pod["spec"]["containers"][0]["image"] in self.crashing_images:
            self._end(pod, code=3)
            return
        conditions = {condition["type"]: condition for condition in status.get("conditions", ())}
        warm = conditions.get(names.CONDITION_WARM, {}).get("status") == "True"
        conditions["Ready"] = {"type": "Ready", "status": "True" if warm else "False"}
        status["conditions"] = list(conditions.values())

    def edit_pod(self, pod: Json | str, change: Callable[[Json], None]) -> None:
        """Change a pod where the change makes a difference."""
        found = self.pod(pod) if isinstance(pod, str) else pod
        changed = copy_json(found)
        change(changed)
        if changed != found:
            self.api.edit(PODS, _key(found), change)

    def exit_engine(self, pod_name: str, *, code: int = 1) -> None:
        """The engine container ends; with `restartPolicy: Never` the pod does too."""
        self.edit_pod(pod_name, lambda pod: self._end(pod, code=code))

    def _end(self, pod: Json, *, code: int) -> None:
        status = pod["status"]
        ended = {"exitCode": code, "reason": "Error", "finishedAt": rfc3339(self.now())}
        status["containerStatuses"][0]["state"] = {"terminated": ended}
        status["phase"] = "Failed" if code else "Succeeded"
        others = [condition for condition in status.get("conditions", ()) if condition["type"] != "Ready"]
        status["conditions"] = [*others, {"type": "Ready", "status": "False"}]


def _key(obj: Json) -> Key:
    return Key(obj["metadata"]["namespace"], obj["metadata"]["name"])


def _ended(pod: Json) -> bool:
    return pod["status"].get("phase") in ("Failed", "Succeeded")
