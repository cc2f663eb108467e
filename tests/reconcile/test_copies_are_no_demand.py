"""Autoscaling beside a trial: what copies cost a candidate is nobody's demand, what its users ask of it is."""

from typing import Any

from bayplan.cluster.resources import Key
from tests.reconcile.staging import NEW, NEW_ENGINE, OLD, STAGES, Staging, at_phase

AUTOSCALING = {
    "minReplicas": 1,
    "maxReplicas": 4,
    "serviceTokensPerSecond": 100,
    "targetUtilization": 0.8,
    "queueDrainSeconds": 60,
    "scaleUpCooldownSeconds": 0,
    "scaleDownStabilizationSeconds": 60,
    "sampleSeconds": 10,
}
LONG: Any = [stage | {"bakeSeconds": 100} for stage in STAGES[:3]] + [STAGES[3]]


async def on_trial(phase: str) -> tuple[Staging, Key, Key]:
    """One replica at 60 tokens a second, of 80 that it is good for, and a candidate that is in this phase."""
    cluster = Staging()
    model = cluster.add_model(update="Rollout", drain={"deadlineSeconds": 60}, autoscaling=AUTOSCALING)
    key = cluster.add_rollout(stages=LONG)
    await cluster.flow(60)
    set_rates(cluster, OLD, 60)
    await cluster.flow(40)
    assert cluster.status(model)["desiredReplicas"] == cluster.status(model)["readyReplicas"] == 1
    cluster.edit_spec(model, engine=NEW_ENGINE)
    assert await cluster.flow(500, until=at_phase(cluster, key, phase)), cluster.rollout(key)
    return cluster, model, key


def set_rates(cluster: Staging, tag: str, tokens_per_second: float) -> None:
    for pod in cluster.by_image(tag):
        cluster.metrics.engines[pod["status"]["podIP"]].rate = tokens_per_second


async def test_copies_raise_no_replicas() -> None:
    cluster, model, _ = await on_trial("Shadow")
    set_rates(cluster, NEW, 60)
    await cluster.flow(60)
    assert cluster.rollout(Key("team", "llama"))["phase"] == "Shadow"
    assert cluster.status(model)["desiredReplicas"] == 1


async def test_requests_of_users_at_the_candidate_are_demand() -> None:
    cluster, model, _ = await on_trial("Canary")
    set_rates(cluster, NEW, 60)
    await cluster.flow(60)
    assert cluster.rollout(Key("team", "llama"))["phase"] == "Canary"
    assert cluster.status(model)["desiredReplicas"] == 3, "180 tokens a second over 80 a replica"
