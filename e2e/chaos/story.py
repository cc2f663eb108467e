"""Stories: what a user does, step by step. After each step the world comes to rest."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from e2e.localcluster.client import KubeApi
from e2e.scenarios.restart import model

MODELS = "/apis/bayplan.dev/v1alpha1/namespaces/{}/inferencemodels"
Act = Callable[[KubeApi, str], Awaitable[object]]


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


STORIES = {story.name: story for story in (replicas_story(), groups_story())}
