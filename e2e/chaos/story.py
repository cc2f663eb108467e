"""Stories: what a user does, step by step. After each step the world comes to rest."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bayplan.api import names
from e2e.hollownodes.gateway import POD, QUEUED, gateway_pod
from e2e.localcluster.client import KubeApi
from e2e.scenarios.restart import model

OURS = f"/apis/{names.API_VERSION}/namespaces/{{}}"
MODELS = f"{OURS}/{names.INFERENCEMODEL_PLURAL}"
ROLLOUTS = f"{OURS}/{names.ROLLOUT_PLURAL}"
PLANS = f"{OURS}/{names.CAPACITYPLAN_PLURAL}"
Act = Callable[[KubeApi, str], Awaitable[object]]
SCALING_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that a user does in a namespace."""

    name: str
    act: Act


@dataclass(frozen=True, slots=True)
class Story:
    """Steps that begin and end with an empty namespace."""

    name: str
    steps: tuple[Step, ...]


def create(*manifests: dict[str, Any]) -> Act:
    """Apply manifests."""

    async def act(api: KubeApi, namespace: str) -> object:
        return await api.apply(list(manifests), namespace=namespace)

    return act


def change(name: str, *, of: str = MODELS, **spec: Any) -> Act:
    """Merge into the spec of a model, or of another kind's object."""

    async def act(api: KubeApi, namespace: str) -> object:
        return await api.patch(f"{of.format(namespace)}/{name}", {"spec": spec})

    return act


def delete(name: str, *, of: str = MODELS) -> Act:
    """Delete a model, or another kind's object."""

    async def act(api: KubeApi, namespace: str) -> object:
        return await api.delete(f"{of.format(namespace)}/{name}")

    return act


def say_of_candidate(name: str, say: Callable[[str], dict[str, Any]]) -> Act:
    """Merge into the spec of a Rollout what somebody says of the revision that its model, of the same name, wants."""

    async def act(api: KubeApi, namespace: str) -> object:
        status = (await api.get(f"{MODELS.format(namespace)}/{name}"))["status"]
        return await api.patch(f"{ROLLOUTS.format(namespace)}/{name}", {"spec": say(status["revisions"]["target"])})

    return act


def reached(path: str, what: Callable[[dict[str, Any]], object]) -> Act:
    """Wait until `what` of an object's status is true; what is wrong otherwise shows when the step is compared."""

    async def act(api: KubeApi, namespace: str) -> object:
        async def is_there() -> bool:
            return bool(what((await api.get(path.format(namespace))).get("status") or {}))

        with suppress(TimeoutError):
            await api.wait_until(is_there, what="a status", timeout_seconds=SCALING_SECONDS)
        return None

    return act


def in_phase(name: str, phase: str, *, hold: str = "") -> Act:
    """Wait until a Rollout is in a phase, and kept there by this hold alone."""
    return reached(
        f"{ROLLOUTS}/{name}",
        lambda status: (
            status.get("phase") == phase
            and [found["reason"] for found in status.get("holds") or ()] == ([hold] if hold else [])
        ),
    )


def together(*acts: Act) -> Act:
    """Do several things, one after the other."""

    async def act(api: KubeApi, namespace: str) -> object:
        return [await each(api, namespace) for each in acts]

    return act


def queue(tokens: int) -> Act:
    """Let tokens wait at the gateway from now on."""

    async def act(api: KubeApi, namespace: str) -> object:
        annotations = {QUEUED: str(tokens)}
        return await api.patch(f"/api/v1/namespaces/{namespace}/pods/{POD}", {"metadata": {"annotations": annotations}})

    return act


def settled(name: str, *, replicas: int) -> Act:
    """Wait until autoscaling has come to this number."""

    def is_settled(status: dict[str, Any]) -> bool:
        scaling = status.get("scaling") or {}
        return (scaling.get("desiredReplicas"), scaling.get("reason")) == (replicas, "Steady")

    return reached(f"{MODELS}/{name}", is_settled)


def delete_gateway() -> Act:
    """Delete the gateway's Pod."""

    async def act(api: KubeApi, namespace: str) -> object:
        return await api.delete(f"/api/v1/namespaces/{namespace}/pods/{POD}")

    return act


def replicas_story() -> Story:
    """Two replicas of one GPU each: create, replace by a new revision, scale down, delete."""
    return Story(
        "replicas",
        (
            Step("create", create(model("small", replicas=2))),
            Step("change", change("small", engine={"maxModelLen": 4096})),
            Step("scale down", change("small", replicas=1)),
            Step("delete", delete("small")),
        ),
    )


def groups_story() -> Story:
    """One replica over two nodes of two GPUs each: create, replace, suspend, delete."""
    group = model("wide", replicas=1)
    group["spec"]["parallelism"] = {"tensor": 2, "pipeline": 2}
    return Story(
        "groups",
        (
            Step("create", create(group)),
            Step("change", change("wide", engine={"maxModelLen": 4096})),
            Step("suspend", change("wide", suspend=True)),
            Step("delete", delete("wide")),
        ),
    )


def elastic_model(name: str, **members: Any) -> dict[str, Any]:
    """A model that follows demand within one and two replicas."""
    found = model(name, replicas=0)
    del found["spec"]["replicas"]
    found["spec"]["autoscaling"] = {
        "minReplicas": 1,
        "maxReplicas": 2,
        "serviceTokensPerSecond": 100,
        "queueDrainSeconds": 10,
        "scaleUpCooldownSeconds": 0,
        "scaleDownStabilizationSeconds": 3,
        "sampleSeconds": 1,
    }
    found["spec"] |= members
    return found


def scaling_story() -> Story:
    """One replica behind a gateway, a second one while tokens wait, and back. What waits is exact, rates never are."""
    elastic = elastic_model("elastic")
    return Story(
        "scaling",
        (
            Step("create", together(create(gateway_pod(), elastic), settled("elastic", replicas=1))),
            Step("demand rises", together(queue(1500), settled("elastic", replicas=2))),
            Step("demand falls", together(queue(0), settled("elastic", replicas=1))),
            Step("delete", together(delete("elastic"), delete_gateway())),
        ),
    )


def rollout_story() -> Story:
    """A candidate that is held for approval and aborted, and one that no request reaches in its canary: both go back.

    Without requests nothing is promoted; what is proven is the way back.
    """
    tried = model("tried", replicas=1)
    tried["spec"]["update"] = "Rollout"
    policy = {
        "modelRef": {"name": "tried"},
        "stages": [
            {"kind": "Warm"},
            {"kind": "Canary", "weight": 50, "deadlineSeconds": 2, "approval": True},
            {"kind": "Promote"},
        ],
        "onDeadline": "Rollback",
        "waivers": ["SingleReplica"],
        "maxSurge": 1,
    }
    rollout = {
        "apiVersion": names.API_VERSION,
        "kind": names.ROLLOUT_KIND,
        "metadata": {"name": "tried"},
        "spec": policy,
    }
    return Story(
        "rollout",
        (
            Step("create", together(create(gateway_pod(), tried, rollout), in_phase("tried", "Steady"))),
            Step(
                "change",
                together(
                    change("tried", engine={"maxModelLen": 4096}),
                    in_phase("tried", "Warm", hold="AwaitingApproval"),
                ),
            ),
            Step(
                "abort",
                together(
                    say_of_candidate("tried", lambda revision: {"abort": revision}), in_phase("tried", "RolledBack")
                ),
            ),
            Step(
                "change again",
                together(
                    change("tried", engine={"maxModelLen": 2048}),
                    in_phase("tried", "Warm", hold="AwaitingApproval"),
                ),
            ),
            Step(
                "approve",
                together(
                    say_of_candidate(
                        "tried", lambda revision: {"approvals": [{"revision": revision, "stage": "canary-50"}]}
                    ),
                    in_phase("tried", "RolledBack"),
                ),
            ),
            Step("delete", together(delete("tried", of=ROLLOUTS), delete("tried"), delete_gateway())),
        ),
    )


def plan_story() -> Story:
    """A model whose CapacityPlan asks for one replica, for two, and for one again; its floor outlives the plan."""
    planned = elastic_model("planned", capacityPlanRef={"name": "peak"})
    spec = {
        "workloadClasses": [_planned_class(requests_per_second=1)],
        "benchmark": {
            "source": "story",
            "observedTime": datetime.now(UTC).strftime("%Y-%m-%dT00:00:00Z"),
            "modelRevision": planned["spec"]["model"]["revision"],
            "engineImage": planned["spec"]["engine"]["image"],
            "gpuProduct": "NVIDIA-L40S",
            "prefillTokensPerSecond": 1000,
            "outputTokensPerSecond": 100,
            "maxConcurrentRequests": 16,
        },
        "evidence": {
            "requiredClasses": ["all"],
            "controls": ["memory-fit", "capacity-plan", "parallel-layout", "gpu-placement"],
        },
    }
    plan = {
        "apiVersion": names.API_VERSION,
        "kind": names.CAPACITYPLAN_KIND,
        "metadata": {"name": "peak"},
        "spec": spec,
    }

    def planned_for(requests_per_second: float) -> Act:
        return change("peak", of=PLANS, workloadClasses=[_planned_class(requests_per_second=requests_per_second)])

    return Story(
        "plan",
        (
            Step("create", together(create(gateway_pod(), planned, plan), settled("planned", replicas=1))),
            Step("plan for more", together(planned_for(3), settled("planned", replicas=2))),
            Step("plan for less", together(planned_for(1), settled("planned", replicas=1))),
            Step("delete the plan", delete("peak", of=PLANS)),
            Step("delete", together(delete("planned"), delete_gateway())),
        ),
    )


def _planned_class(*, requests_per_second: float) -> dict[str, Any]:
    """Requests of which one replica of the story's benchmark carries two a second."""
    return {
        "name": "all",
        "requestsPerSecond": requests_per_second,
        "promptTokens": 100,
        "outputTokens": 50,
        "meanServiceSeconds": 1,
    }


STORIES = {
    story.name: story for story in (replicas_story(), groups_story(), scaling_story(), rollout_story(), plan_story())
}
