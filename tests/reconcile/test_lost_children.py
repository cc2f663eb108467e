"""Services, budgets and snapshots that others delete or change while a model serves."""

from typing import Any

import pytest

from bayplan.cluster.resources import CONTROLLER_REVISIONS, PDBS, SERVICES, Key, Resource
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
