"""A good candidate: through every stage to full size with the same pods, and what is kept or at rest afterwards."""

import pytest

from bayplan.api import names
from bayplan.cluster.resources import PODS, Key
from tests.reconcile.staging import NEW, NEW_ENGINE, OLD, at_phase, begun, phase, staged

pytestmark = pytest.mark.slow


async def test_the_first_revision_serves_as_not_proven() -> None:
    cluster, model, key = await staged()
    status = cluster.rollout(key)
    target = cluster.status(model)["revisions"]["target"]
    assert status["plan"] == {
        "epoch": 1,
        "serving": target,
        "weight": 0,
        "shadowShare": 0,
        "cohortSalt": "",
        "stableMin": 0,
        "candidateReplicas": 0,
        "baseline": [],
    }
    assert cluster.rollout_message(key, "Ready") == f"{target} serves, not proven"
    assert cluster.status(model)["revisions"]["serving"] == [target]


async def test_a_good_candidate_goes_through_all_stages_and_its_pods_stay() -> None:
    cluster, model, key = await begun("Canary")
    old, candidates = cluster.uids(OLD), cluster.uids(NEW)
    assert (len(old), len(candidates)) == (3, 2)
    assert cluster.reason(model, "Current") == ("False", "RolloutInProgress")
    assert cluster.status(model)["revisions"]["candidate"] == cluster.status(model)["revisions"]["target"]

    least = 99
    for _ in range(60):
        await cluster.flow(5)
        least = min(least, len(cluster.ready()))
        if phase(cluster, key) == "Steady":
            break
    assert phase(cluster, key) == "Steady"
    assert candidates < cluster.uids(NEW)
    assert (len(cluster.uids(NEW)), cluster.uids(OLD)) == (3, set())
    assert least >= 3, "the floor held while the rest was replaced"
    target = cluster.status(model)["revisions"]["target"]
    assert cluster.rollout(key)["proven"] == [target]
    assert cluster.status(model)["revisions"] == {
        "target": target,
        "serving": [target],
        "proven": [target],
        "rejected": [],
    }
    assert cluster.reason(model, "Current") == ("True", "Current")
    assert cluster.rollout_condition(key, "Ready") == ("True", "Current")
    assert [entry["to"] for entry in cluster.rollout(key)["history"]] == [
        "Paper",
        "warm",
        "shadow",
        "canary-20",
        "promote",
        "Steady",
    ]


async def test_a_candidate_gets_no_request_before_it_is_warm_and_none_above_its_weight() -> None:
    cluster, _, key = await staged()
    cluster.edit_spec(Key("team", "llama"), engine=NEW_ENGINE)
    assert await cluster.flow(200, until=at_phase(cluster, key, "Canary"))
    assert set(cluster.weights[:-1]) == {0}
    assert await cluster.flow(200, until=at_phase(cluster, key, "Steady"))
    assert cluster.weights == [0, 20, 0]


async def test_the_replaced_revision_is_kept_without_traffic_as_long_as_asked() -> None:
    cluster, model, key = await begun("Retained", retainSeconds=120, maxSurge=2)
    kept = cluster.uids(OLD)
    assert len(kept) == 2
    assert len(cluster.uids(NEW)) == 3
    assert cluster.rollout(key)["plan"].get("previous") is None
    assert cluster.status(model)["revisions"]["serving"] == [cluster.status(model)["revisions"]["target"]]
    await cluster.flow(100)
    assert cluster.uids(OLD) == kept
    await cluster.flow(40)
    assert cluster.uids(OLD) == set()
    assert phase(cluster, key) == "Steady"


async def test_at_rest_nothing_is_measured_and_nothing_written() -> None:
    cluster, _, key = await begun("Steady")
    await cluster.flow(20)
    reads, writes = cluster.counts.reads, cluster.api.write_count()
    await cluster.advance(120)
    assert phase(cluster, key) == "Steady"
    assert (cluster.counts.reads, cluster.api.write_count()) == (reads, writes)


async def test_pods_of_a_revision_that_the_plan_does_not_name_leave() -> None:
    cluster, _, key = await begun("Canary")
    names_seen = {pod["metadata"]["labels"][names.LABEL_REVISION] for pod in cluster.pods()}
    plan = cluster.rollout(key)["plan"]
    assert names_seen == {plan["serving"], plan["candidate"]}
    assert {obj["metadata"]["namespace"] for obj in cluster.api.objects(PODS)} == {"team", "system"}
