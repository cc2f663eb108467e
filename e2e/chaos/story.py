"""Stories: what a user does, step by step. After each step the world comes to rest."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from e2e.hollownodes.gateway import POD, QUEUED, gateway_pod
from e2e.localcluster.client import KubeApi
from e2e.scenarios.restart import model

MODELS = "/apis/bayplan.dev/v1alpha1/namespaces/{}/inferencemodels"
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


def change(name: str, **spec: Any) -> Act:
    """Merge into the spec of a model."""

    async def act(api: KubeApi, namespace: str) -> object:
        return await api.patch(f"{MODELS.format(namespace)}/{name}", {"spec": spec})

    return act


def delete(name: str) -> Act:
    """Delete a model."""

    async def act(api: KubeApi, namespace: str) -> object:
        return await api.delete(f"{MODELS.format(namespace)}/{name}")

    return act


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
    """Wait until autoscaling has come to this number; what is wrong otherwise shows when the step is compared."""

    async def reached(api: KubeApi, namespace: str) -> bool:
        status = (await api.get(f"{MODELS.format(namespace)}/{name}")).get("status") or {}
        scaling = status.get("scaling") or {}
        return (scaling.get("desiredReplicas"), scaling.get("reason")) == (replicas, "Steady")

    async def act(api: KubeApi, namespace: str) -> object:
        with suppress(TimeoutError):
            await api.wait_until(lambda: reached(api, namespace), what="autoscaling", timeout_seconds=SCALING_SECONDS)
        return None

    return act


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


def scaling_story() -> Story:
    """One replica behind a gateway, a second one while tokens wait, and back. What waits is exact, rates never are."""
    elastic = model("elastic", replicas=0)
    del elastic["spec"]["replicas"]
    elastic["spec"]["autoscaling"] = {
        "minReplicas": 1,
        "maxReplicas": 2,
        "serviceTokensPerSecond": 100,
        "queueDrainSeconds": 10,
        "scaleUpCooldownSeconds": 0,
        "scaleDownStabilizationSeconds": 3,
        "sampleSeconds": 1,
    }
    return Story(
        "scaling",
        (
            Step("create", together(create(gateway_pod(), elastic), settled("elastic", replicas=1))),
            Step("demand rises", together(queue(1500), settled("elastic", replicas=2))),
            Step("demand falls", together(queue(0), settled("elastic", replicas=1))),
            Step("delete", together(delete("elastic"), delete_gateway())),
        ),
    )


STORIES = {story.name: story for story in (replicas_story(), groups_story(), scaling_story())}
