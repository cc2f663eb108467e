"""The observer's own judgement: GPUs per node in each state, creations and deletions, rest."""

import asyncio
from typing import Any

import pytest

from e2e.chaos.observer import Observer
from tests.fakes.clock import until

Json = dict[str, Any]


def pod(
    name: str, node: str | None, *, gpus: int = 1, pinned: str | None = None, gated: bool = False, **meta: Any
) -> Json:
    spec: Json = {"containers": [{"name": "engine", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}]}
    if node is not None:
        spec["nodeName"] = node
    if gated:
        spec["schedulingGates"] = [{"name": "bayplan.dev/placement"}]
    if pinned is not None:
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [pinned]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        spec["affinity"] = {"nodeAffinity": required}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "uid": f"uid-{name}", **meta},
        "spec": spec,
        "status": {"phase": "Running"},
    }


def observing(**gpus: int) -> Observer:
    return Observer(allocatable=gpus)


def test_bound_and_released_pods_share_a_nodes_gpus() -> None:
    observer = observing(n1=2)
    observer.take("ADDED", pod("a", "n1"))
    observer.take("ADDED", pod("b", None, pinned="n1"))
    assert observer.violations == []

    observer.take("ADDED", pod("c", None, pinned="n1"))
    assert observer.violations == ["n1: 3 of 2 GPUs for a, b, c"]
    assert observer.states == 3


@pytest.mark.parametrize(
    "harmless", [pod("c", None, pinned="n1", gated=True), pod("c", "n2"), pod("c", None), pod("c", "n1", gpus=0)]
)
def test_who_holds_nothing_on_a_node_does_not_count(harmless: Json) -> None:
    observer = observing(n1=2, n2=2)
    for found in (pod("a", "n1", gpus=2), harmless):
        observer.take("ADDED", found)

    assert observer.violations == []


def test_ended_and_deleted_pods_give_their_gpus_back() -> None:
    observer = observing(n1=1)
    first, second = pod("a", "n1"), pod("b", "n1")
    observer.take("ADDED", first)
    observer.take("MODIFIED", {**first, "status": {"phase": "Failed"}})
    observer.take("ADDED", second)
    observer.take("DELETED", second)
    observer.take("ADDED", pod("c", "n1"))

    assert observer.violations == []


def test_creations_and_deletions_are_counted_per_object() -> None:
    observer = observing(n1=8)
    for number in range(2):
        again = pod("a", "n1", labels={"n": str(number)}) | {}
        again["metadata"]["uid"] = f"uid-{number}"
        observer.take("ADDED", again)
        observer.take("MODIFIED", again)
        observer.take("DELETED", again)

    assert observer.created == {("Pod", "a"): 2}
    assert observer.deleted == {("Pod", "a"): 2}
    assert list(observer.of_kind("Pod")) == []


def model(*, observed: int = 1, busy: str = "", **meta: Any) -> Json:
    condition = {"type": "Reconciling", "status": "True", "reason": busy, "message": "replicas are leaving"}
    conditions = [condition] if busy else []
    return {
        "apiVersion": "bayplan.dev/v1alpha1",
        "kind": "InferenceModel",
        "metadata": {"name": "small", "uid": "model", "generation": 1, **meta},
        "status": {"observedGeneration": observed, "conditions": conditions},
    }


@pytest.mark.parametrize(
    ("obj", "why"),
    [
        (model(), ""),
        (model(observed=0), "InferenceModel small: status is about an older spec"),
        (model(busy="NotReady"), "InferenceModel small: replicas are leaving"),
        (model(busy="RolloutInProgress"), ""),
        (model(busy="AwaitingApproval"), ""),
        (model(deletionTimestamp="2026-01-01T00:00:00Z"), "InferenceModel small is being deleted"),
        (pod("a", "n1"), ""),
        (pod("a", "n1", ownerReferences=[{"uid": "gone"}]), "Pod a waits for the garbage collector"),
    ],
)
def test_what_is_not_at_rest(obj: Json, why: str) -> None:
    observer = observing(n1=8)
    observer.take("ADDED", obj)

    assert observer.unsettled() == why


class FakeApi:
    """Lists one pod, then reports its deletion, then says nothing."""

    async def list_all(self, path: str, params: object) -> tuple[list[Json], str]:
        found = pod("a", "n1")
        del found["kind"], found["apiVersion"]
        return ([found] if path.endswith("/pods") else []), "5"

    async def watch(self, path: str, params: object, version: str) -> Any:
        assert version == "5"
        if path.endswith("/pods"):
            yield "DELETED", pod("a", "n1", resourceVersion="6")
        await asyncio.Event().wait()


async def test_it_begins_with_a_complete_view_and_follows() -> None:
    node = {"status": {"allocatable": {"nvidia.com/gpu": "4"}}}
    async with Observer.on(FakeApi(), namespace="team", nodes={"n1": node}) as observer:  # type: ignore[arg-type]
        assert observer.allocatable == {"n1": 4}
        assert observer.created == {("Pod", "a"): 1}
        await until(lambda: observer.deleted)
        assert observer.objects == {}
