"""A cluster in memory with one gateway that does what a Rollout's plan says, and requests that flow through it."""

from collections.abc import Callable
from typing import Any

from bayplan.api import names
from bayplan.api.acknowledgements import write_epochs, write_uids
from bayplan.cluster.resources import CONFIG_MAPS, LEASES, PODS, ROLLOUTS, Key
from bayplan.planning.gates.counts import Arm
from bayplan.reconcile.inferencemodel.reconciler import ReconcileSettings
from tests.fakes.merging import copy_json
from tests.reconcile.operators import HOME
from tests.reconcile.world import World

Json = dict[str, Any]
OLD, NEW, THIRD = "v0.32.0", "v0.33.0", "v0.34.0"
"""Tags of the images that serve, come, and come after that."""
OLD_ENGINE: Json = {"image": f"vllm/vllm-openai:{OLD}", "maxModelLen": 8192}
NEW_ENGINE: Json = {"image": f"vllm/vllm-openai:{NEW}", "maxModelLen": 8192}
THIRD_ENGINE: Json = {"image": f"vllm/vllm-openai:{THIRD}", "maxModelLen": 8192}
GATEWAY = "g0"
PACE = 5.0
STAGES: list[Json] = [
    {"kind": "Warm", "bakeSeconds": 10, "deadlineSeconds": 300},
    {"kind": "Shadow", "weight": 50, "bakeSeconds": 10, "deadlineSeconds": 300},
    {"kind": "Canary", "weight": 20, "bakeSeconds": 10, "deadlineSeconds": 300},
    {"kind": "Promote", "deadlineSeconds": 300},
]
SPEC: Json = {
    "modelRef": {"name": "llama"},
    "stages": STAGES,
    "gates": [
        {"name": "ttft", "limit": 1},
        {"name": "tpot", "limit": 0.05},
        {"name": "error-rate", "limit": 0.02},
    ],
    "samples": {"requests": 40, "prompts": 2},
}


class Staging(World):
    """`flow` lets time pass with requests; what goes wrong with a candidate are attributes to set."""

    def __init__(self, *, nodes: int = 4, gpus: int = 2) -> None:
        super().__init__(settings=ReconcileSettings(rollout_seconds=PACE))
        for number in range(1, nodes + 1):
            self.add_node(f"n{number}", gpus=gpus, zone=f"zone-{number % 2}")
        self.requests_per_pod = 20
        """In each pace, at each pod of both cohorts."""
        self.bad_images: dict[str, str] = {}
        """Image → what its engines do wrong: ttft, tpot or errors."""
        self.acknowledging = True
        self.weights: list[int] = []
        """Every weight that the gateway was told."""
        self.outside: list[str] = []
        """Pods that the plan did not name when they were to get a request."""
        self._start_gateway()

    def _start_gateway(self) -> None:
        meta: Json = {"namespace": HOME, "name": "gateway-0", "uid": GATEWAY, "labels": {}, "annotations": {}}
        status = {"phase": "Running", "podIP": "10.9.0.1"}
        self.api.seed(PODS, {"metadata": meta, "spec": {"containers": [{"name": "gateway"}]}, "status": status})
        labels = {names.LABEL_GATEWAY: GATEWAY}
        lease_meta = {"namespace": HOME, "name": "gateway-0", "labels": labels, "annotations": {}}
        spec = {"holderIdentity": "gateway-0", "leaseDurationSeconds": 60, "renewTime": 0}
        self.api.seed(LEASES, {"metadata": lease_meta, "spec": spec})
        self.operator.deliver()

    # --- objects ---------------------------------------------------------------------------------------------------

    def add_rollout(self, name: str = "llama", **changes: Any) -> Key:
        spec = {**copy_json(SPEC), **changes}
        self.api.seed(ROLLOUTS, {"metadata": {"namespace": "team", "name": name}, "spec": spec})
        return Key("team", name)

    def edit_rollout(self, key: Key, **changes: Any) -> None:
        self.api.edit(ROLLOUTS, key, lambda rollout: rollout["spec"].update(changes))

    def add_config_map(self, name: str, **data: str) -> None:
        self.api.seed(CONFIG_MAPS, {"metadata": {"namespace": "team", "name": name}, "data": data})

    def rollout(self, key: Key) -> Json:
        found = next(obj for obj in self.api.objects(ROLLOUTS) if obj["metadata"]["name"] == key.name)
        status: Json = found.get("status", {})
        return status

    def rollout_condition(self, key: Key, kind: str) -> tuple[str, str]:
        found = (c for c in self.rollout(key).get("conditions", ()) if c["type"] == kind)
        return next(((c["status"], c["reason"]) for c in found), ("", ""))

    def rollout_message(self, key: Key, kind: str) -> str:
        found = (c for c in self.rollout(key).get("conditions", ()) if c["type"] == kind)
        return next((str(c["message"]) for c in found), "")

    def by_image(self, tag: str) -> list[Json]:
        """Pods of that image that are not leaving."""
        pods = [pod for pod in self.pods() if pod["spec"]["containers"][0]["image"].endswith(tag)]
        return [pod for pod in pods if names.ANNOTATION_DRAINING not in pod["metadata"]["annotations"]]

    def uids(self, tag: str) -> set[str]:
        return {pod["metadata"]["uid"] for pod in self.by_image(tag)}

    def ready(self) -> list[Json]:
        """Pods that a gateway may route to, whatever the plan says."""
        found = []
        for pod in self.pods():
            conditions = {c["type"]: c["status"] for c in pod["status"].get("conditions", ())}
            warm = conditions.get("Ready") == conditions.get(names.CONDITION_WARM) == "True"
            if warm and names.ANNOTATION_DRAINING not in pod["metadata"]["annotations"]:
                found.append(pod)
        return found

    # --- the gateway and its clients -------------------------------------------------------------------------------

    async def flow(self, seconds: float, *, until: Callable[[], bool] | None = None) -> bool:
        """Let everybody work while requests flow; stops early, with True, once `until` holds."""
        end = self.clock.time() + seconds
        while self.clock.time() < end:
            self.gateway()
            await self.run()
            self.gateway()
            self.send()
            if until is not None and until():
                return True
            await self.advance(PACE)
        return until is not None and until()

    def gateway(self) -> None:
        """Renew the Lease, and acknowledge the plan."""
        plans = {
            obj["metadata"]["uid"]: obj["status"]["plan"]["epoch"]
            for obj in self.api.objects(ROLLOUTS)
            if obj.get("status", {}).get("plan")
        }

        leaving = [
            pod["metadata"]["uid"] for pod in self.pods() if names.ANNOTATION_DRAINING in pod["metadata"]["annotations"]
        ]

        def renew(lease: Json) -> None:
            lease["spec"]["renewTime"] += 1
            annotations = lease["metadata"]["annotations"]
            annotations[names.ANNOTATION_DRAINING_PODS] = write_uids(leaving)
            if self.acknowledging:
                annotations[names.ANNOTATION_PLAN_EPOCHS] = write_epochs(plans)

        self.api.edit(LEASES, Key(HOME, "gateway-0"), renew)
        self.operator.deliver(LEASES)

    def send(self) -> None:
        """One pace of requests, as the plan spreads them."""
        rollouts = [obj for obj in self.api.objects(ROLLOUTS) if obj.get("status", {}).get("plan")]
        plan = rollouts[0]["status"]["plan"] if rollouts and self.acknowledging else None
        if plan is not None and plan["weight"] not in self.weights[-1:]:
            self.weights.append(plan["weight"])
        for pod in self.ready():
            revision = pod["metadata"]["labels"][names.LABEL_REVISION]
            for arm in self._arms_of(pod["metadata"]["uid"], revision, plan):
                self._serve(pod, arm)

    @staticmethod
    def _arms_of(uid: str, revision: str, plan: Json | None) -> list[Arm]:
        if plan is None:
            return [Arm.SERVING]
        if revision == plan.get("candidate"):
            return [Arm.CANDIDATE] if plan["weight"] else [Arm.SHADOW] if plan["shadowShare"] else []
        if revision not in (plan["serving"], plan.get("previous")):
            return []
        return [Arm.BASELINE, Arm.SERVING] if uid in plan["baseline"] else [Arm.SERVING]

    def _serve(self, pod: Json, arm: Arm) -> None:
        counts = self.counts.rows[GATEWAY][pod["metadata"]["uid"], arm]
        number = self.requests_per_pod
        # What the baseline's pods serve beside their cohort keeps the candidate's share at its weight.
        number = number * 3 if arm is Arm.SERVING else number
        counts.requests += number
        counts.seconds += int(PACE)
        trouble = self.bad_images.get(pod["spec"]["containers"][0]["image"], "")
        if trouble == "errors":
            counts.errors += number // 5
        elif trouble == "ttft":
            counts.slow_ttft += number // 2
        elif trouble == "tpot":
            counts.slow_tpot += number // 2


async def staged(*, replicas: int = 3, nodes: int = 4, gpus: int = 2, **rollout: Any) -> tuple[Staging, Key, Key]:
    """A model that serves and its Rollout, at rest; with the key of each."""
    cluster = Staging(nodes=nodes, gpus=gpus)
    model = cluster.add_model(replicas=replicas, update="Rollout", drain={"deadlineSeconds": 60})
    key = cluster.add_rollout(**rollout)
    await cluster.flow(15)
    assert cluster.status(model)["readyReplicas"] == replicas
    assert cluster.rollout_condition(key, "Ready") == ("True", "Current")
    return cluster, model, key


def delete_rollout(cluster: Staging, key: Key) -> None:
    cluster.api.remove(ROLLOUTS, key)


def phase(cluster: Staging, key: Key) -> str:
    return str(cluster.rollout(key).get("phase", ""))


def at_phase(cluster: Staging, key: Key, *wanted: str) -> Callable[[], bool]:
    return lambda: phase(cluster, key) in wanted


async def begun(phase_name: str, **rollout: Any) -> tuple[Staging, Key, Key]:
    """A candidate that has just come to a phase."""
    cluster, model, key = await staged(**rollout)
    cluster.edit_spec(model, engine=NEW_ENGINE)
    assert await cluster.flow(200, until=at_phase(cluster, key, phase_name)), cluster.rollout(key)
    return cluster, model, key
