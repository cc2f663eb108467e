"""Answers that say less than they seem to: a 409 that is not about the uid, a list that is older than what was seen."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from bayplan.cluster.errors import Conflict
from bayplan.cluster.port import Json
from bayplan.cluster.resources import INFERENCE_MODELS, PDBS, PODS, Key, Resource
from tests.reconcile.operators import Operator
from tests.reconcile.world import World, foreign_pod, pinned_node

MODIFIED = Conflict("the object has been modified", status=409, reason="Conflict")


def operator_behind(port: Any, cluster: World) -> Operator:
    operator = Operator(cluster.api, cluster.clock, cluster.engine, now=cluster.now, port=port)
    operator.load()
    return operator


@pytest.mark.parametrize("plural", ["pods", "poddisruptionbudgets"])
async def test_a_conflict_on_deletion_does_not_hide_what_is_still_there(plural: str) -> None:
    cluster = World()
    cluster.add_node("n1")
    key = cluster.add_model()
    await cluster.run()
    cluster.api.fail_next("delete", plural, MODIFIED)
    cluster.edit_spec(key, replicas=0)
    await cluster.advance(10)

    assert cluster.objects(PODS) == []
    assert cluster.objects(PDBS) == []
    assert cluster.reason(key, "Ready") == ("True", "ScaledToZero")


class RobbedPort:
    """Somebody else deletes the pod first, and gives its name away, before our deletion arrives."""

    def __init__(self, cluster: World) -> None:
        self._api = cluster.api

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._api, verb)

    async def delete(self, resource: Resource, namespace: str, name: str, **options: Any) -> Json:
        if resource is PODS:
            self._api.remove(PODS, Key(namespace, name))
            stranger = foreign_pod(name, "n1")
            stranger["metadata"]["namespace"] = namespace
            self._api.seed(PODS, stranger)
        return await self._api.delete(resource, namespace, name, **options)


async def test_a_conflict_on_deletion_of_what_is_gone_means_that_it_is_gone() -> None:
    cluster = World()
    cluster.add_node("n1")
    cluster.operator = operator_behind(RobbedPort(cluster), cluster)
    key = cluster.add_model()
    await cluster.run()
    (name,) = cluster.pod_names()
    cluster.edit_spec(key, replicas=0)
    await cluster.advance(10, run=False)

    assert [pod["metadata"]["name"] for pod in cluster.objects(PODS)] == [name]
    assert cluster.pods() == []
    assert cluster.reason(key, "Ready") == ("True", "ScaledToZero")


async def test_a_status_refused_with_a_conflict_is_written_without_anybody_touching_the_model() -> None:
    cluster = World()
    cluster.add_node("n1")
    cluster.api.fail_next("apply", "inferencemodels/status", MODIFIED)
    key = cluster.add_model(replicas=0)
    await cluster.advance(2)

    assert cluster.reason(key, "Ready") == ("True", "ScaledToZero")


async def test_a_model_whose_pods_are_collected_before_its_deletion_is_heard_of_gets_no_new_ones() -> None:
    cluster = World()
    cluster.add_node("n1")
    key = cluster.add_model()
    await cluster.run()
    (name,) = cluster.pod_names()
    cluster.api.remove(INFERENCE_MODELS, key)
    cluster.api.remove(PODS, Key(key.namespace, name))
    cluster.operator.deliver(PODS)
    await cluster.operator.reconcile(key)

    assert cluster.objects(PODS) == []
    assert cluster.operator.requeue_after[key] == 0.5, "until the deletion is heard of"
    await cluster.advance(5)
    assert cluster.objects(PODS) == []
    assert cluster.operator.errors == []


async def test_nothing_is_reserved_for_a_spec_that_has_just_changed() -> None:
    cluster = World()
    cluster.add_node("n1", gpus=4)
    key = cluster.add_model()
    cluster.operator.deliver()
    cluster.edit_spec(key, replicas=0)
    await cluster.operator.reconcile(key)
    assert cluster.objects(PODS) == []

    await cluster.run()
    assert cluster.objects(PODS) == []
    assert cluster.reason(key, "Ready") == ("True", "ScaledToZero")


class LaggingPort:
    """Answers lists of a node's pods, or of unbound ones, from a replica that knows nothing of the last changes."""

    def __init__(self, cluster: World, *, selector: str) -> None:
        self.lagging = True
        self.asked = 0
        self._api = cluster.api
        self._selector = selector
        self._version = cluster.api.version
        self._pods = cluster.api.objects(PODS)

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._api, verb)

    async def list_pages(self, resource: Resource, **query: Any) -> AsyncGenerator[tuple[list[Json], str], None]:
        if self.lagging and str(query.get("field_selector")).startswith(self._selector):
            self.asked += 1
            yield [pod for pod in self._pods if pod["spec"].get("nodeName")], str(self._version)
            return
        async for page in self._api.list_pages(resource, **query):
            yield page


@pytest.mark.parametrize("selector", ["spec.nodeName=", "spec.nodeName=n1"])
async def test_nothing_is_released_on_a_list_older_than_the_reservation(selector: str) -> None:
    cluster = World()
    cluster.add_node("n1", gpus=1)
    port = LaggingPort(cluster, selector=selector)
    cluster.operator = operator_behind(port, cluster)
    key = cluster.add_model()
    cluster.operator.deliver()
    cluster.api.seed(PODS, foreign_pod("other", "n1"))  # the only GPU is taken, and only a live read can tell
    await cluster.operator.reconcile(key)

    assert port.asked == 1
    (pod,) = cluster.pods()
    assert pinned_node(pod) is None
    assert "was seen before" in str(cluster.operator.errors[-1])
    port.lagging = False
    await cluster.advance(5)
    assert [pinned_node(pod) for pod in cluster.pods()] in ([], [None])
