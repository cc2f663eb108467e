"""Services, budgets and snapshots that others delete or change while a model serves."""

from collections.abc import Callable
from typing import Any

import pytest

from bayplan.cluster.resources import CONTROLLER_REVISIONS, INFERENCE_MODELS, PDBS, SERVICES, Key, Resource
from tests.reconcile.test_model_changes import serving as serving_replicas
from tests.reconcile.world import World


def keys(cluster: World, resource: Resource) -> list[Key]:
    return [Key(o["metadata"]["namespace"], o["metadata"]["name"]) for o in cluster.objects(resource)]


@pytest.mark.parametrize("resource", [SERVICES, PDBS, CONTROLLER_REVISIONS], ids=str)
async def test_a_child_that_somebody_deletes_is_made_again_at_once(resource: Resource) -> None:
    cluster, key = await serving_replicas(1, nodes=1)
    (child,) = keys(cluster, resource)
    before = cluster.status(key)
    cluster.api.remove(resource, child)
    await cluster.run()
    assert keys(cluster, resource) == [child]
    assert cluster.status(key) == before


@pytest.mark.parametrize("resource", [SERVICES, PDBS, CONTROLLER_REVISIONS], ids=str)
async def test_what_the_garbage_collector_takes_of_a_deleted_model_is_not_made_again(resource: Resource) -> None:
    cluster, key = await serving_replicas(1, nodes=1)
    (child,) = keys(cluster, resource)
    cluster.api.remove(resource, child)
    cluster.operator.deliver()
    # The model's own deletion comes on another stream, and later.
    cluster.api.remove(INFERENCE_MODELS, key)
    await cluster.operator.reconcile(key)
    assert keys(cluster, resource) == []


def _selector(body: dict[str, Any]) -> None:
    body["spec"]["selector"] = {"app": "another"}


def _narrower(body: dict[str, Any]) -> None:
    body["spec"]["selector"] = {**body["spec"]["selector"], "zone": "b"}


def _port(body: dict[str, Any]) -> None:
    body["spec"]["ports"] = [{"name": "http", "port": 80, "targetPort": 8000, "protocol": "TCP"}]


def _no_budget(body: dict[str, Any]) -> None:
    body["spec"]["minAvailable"] = 0


@pytest.mark.parametrize(
    ("resource", "edit", "field"),
    [
        (SERVICES, _selector, "selector"),
        (SERVICES, _narrower, "selector"),
        (SERVICES, _port, "ports"),
        (PDBS, _no_budget, "minAvailable"),
    ],
)
async def test_what_somebody_changes_of_a_child_is_put_back_at_once(
    resource: Resource, edit: Callable[[dict[str, Any]], None], field: str
) -> None:
    cluster, _ = await serving_replicas(1, nodes=1)
    (child,) = keys(cluster, resource)
    before = cluster.objects(resource)[0]
    cluster.api.edit(resource, child, edit)
    await cluster.run()
    (after,) = cluster.objects(resource)
    assert after["spec"][field] == before["spec"][field]
    assert after["metadata"]["uid"] == before["metadata"]["uid"]


async def test_what_others_add_to_a_child_stays() -> None:
    cluster, _ = await serving_replicas(1, nodes=1)
    (service,) = keys(cluster, SERVICES)

    def filled_in(body: dict[str, Any]) -> None:
        body["metadata"].setdefault("annotations", {})["example.com/mesh"] = "yes"
        body["spec"] |= {"clusterIP": "10.0.0.7", "internalTrafficPolicy": "Local"}
        body["spec"]["ports"][0] |= {"protocol": "TCP", "nodePort": 30007}

    cluster.api.edit(SERVICES, service, filled_in)
    writes = cluster.api.write_count()
    await cluster.run()
    (after,) = cluster.objects(SERVICES)
    assert after["spec"]["internalTrafficPolicy"] == "Local"
    assert after["metadata"]["annotations"]["example.com/mesh"] == "yes"
    assert cluster.api.write_count() == writes


async def test_a_webhook_that_changes_a_child_again_is_no_endless_fight() -> None:
    cluster, _ = await serving_replicas(1, nodes=1)
    (service,) = keys(cluster, SERVICES)

    def webhook(verb: str, resource: Resource, obj: dict[str, Any]) -> None:
        if resource == SERVICES:
            _narrower(obj)

    cluster.api.refuse = webhook
    cluster.api.edit(SERVICES, service, _selector)
    writes = cluster.api.write_count()
    await cluster.run()
    assert cluster.api.write_count() == writes + 1


async def test_a_budget_whose_status_its_controller_writes_wakes_nobody() -> None:
    cluster, key = await serving_replicas(1, nodes=1)
    (budget,) = keys(cluster, PDBS)

    def counted(body: dict[str, Any]) -> None:
        body["status"] = {"currentHealthy": 1, "desiredHealthy": 1, "disruptionsAllowed": 0, "expectedPods": 1}

    cluster.api.edit(PDBS, budget, counted)
    cluster.operator.deliver()
    assert list(cluster.operator.queued) == []
    cluster.api.remove(PDBS, budget)
    cluster.operator.deliver()
    assert list(cluster.operator.queued) == [key]


async def test_the_service_that_names_ranks_goes_with_the_last_group_over_several_nodes() -> None:
    cluster = World()
    for number in (1, 2, 3):
        cluster.add_node(f"n{number}")
    key = cluster.add_model(parallelism={"tensor": 2, "pipeline": 2})
    await cluster.run()
    wide = {service.name for service in keys(cluster, SERVICES)}
    assert len(wide) == 2
    cluster.edit_spec(key, parallelism={"tensor": 1, "pipeline": 1})
    await cluster.advance(120)
    assert cluster.reason(key, "Ready") == ("True", "Ready")
    assert {service.name for service in keys(cluster, SERVICES)} == {key.name} < wide
