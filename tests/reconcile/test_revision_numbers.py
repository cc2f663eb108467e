"""Numbers of snapshots: by the model's generation, whatever of the other snapshots is seen."""

from bayplan.cluster.resources import CONTROLLER_REVISIONS
from tests.reconcile.test_model_changes import serving as serving_replicas


async def test_a_new_revision_has_a_higher_number_also_where_the_old_one_is_not_seen() -> None:
    cluster, key = await serving_replicas(1, nodes=2)
    (first,) = cluster.objects(CONTROLLER_REVISIONS)
    cluster.api.remove(CONTROLLER_REVISIONS, type(key)(key.namespace, first["metadata"]["name"]))
    cluster.edit_spec(key, engine={"image": "vllm/vllm-openai:v0.32.0", "maxModelLen": 4096})
    await cluster.advance(120)
    numbers = [body["revision"] for body in cluster.objects(CONTROLLER_REVISIONS)]
    assert len(numbers) == 1
    assert numbers[0] > first["revision"]
