"""Where a candidate's replicas go: all on one node, they would be compared with that node, and held for it."""

from tests.reconcile.staging import NEW_ENGINE, Staging
from tests.reconcile.test_rollout_trials import NEW, at_phase


async def test_candidates_go_to_nodes_of_their_own_where_the_tightest_fit_is_one_node() -> None:
    cluster = Staging(nodes=0)
    for name in ("n1", "n2"):
        cluster.add_node(name, gpus=4, zone="zone-a")
    model = cluster.add_model(replicas=1, update="Rollout", drain={"deadlineSeconds": 60})
    key = cluster.add_rollout()
    await cluster.flow(15)
    cluster.edit_spec(model, engine=NEW_ENGINE)

    assert await cluster.flow(90, until=at_phase(cluster, key, "Canary"))
    assert {pod["spec"]["nodeName"] for pod in cluster.by_image(NEW)} == {"n1", "n2"}
