"""What GitOps tools and people read of a trial: kstatus, events, and fields that stay theirs."""

from typing import Any

import pytest

from bayplan.cluster.resources import INFERENCE_MODELS, ROLLOUTS
from tests.reconcile.staging import NEW_ENGINE, OLD_ENGINE, at_phase, begun, phase, staged

pytestmark = pytest.mark.slow


def kstatus(status: dict[str, Any], *, generation: int) -> str:
    """What kstatus and Argo CD make of a status."""
    conditions = {c["type"]: c["status"] for c in status.get("conditions", ())}
    if conditions.get("Stalled") == "True":
        return "Failed"
    behind = status.get("observedGeneration") != generation
    if behind or conditions.get("Reconciling") == "True" or conditions.get("Ready") == "False":
        return "InProgress"
    return "Current" if conditions.get("Ready") == "True" else "InProgress"


async def test_a_trial_is_in_progress_for_gitops_tools_until_it_is_over() -> None:
    cluster, model, key = await staged()
    cluster.edit_spec(model, engine=NEW_ENGINE)
    seen: list[tuple[str, str]] = []
    for _ in range(60):
        await cluster.flow(5)
        now = kstatus(cluster.status(model), generation=2), kstatus(cluster.rollout(key), generation=1)
        if seen[-1:] != [now]:
            seen.append(now)
        if phase(cluster, key) == "Steady":
            break
    await cluster.flow(5)
    assert seen[0] == ("InProgress", "InProgress")
    assert (kstatus(cluster.status(model), generation=2), kstatus(cluster.rollout(key), generation=1)) == (
        "Current",
        "Current",
    )
    assert all("Failed" not in pair for pair in seen)


async def test_a_rejected_revision_is_failed_for_gitops_tools_until_the_spec_changes() -> None:
    cluster, model, key = await staged()
    cluster.bad_images[NEW_ENGINE["image"]] = "errors"
    cluster.edit_spec(model, engine=NEW_ENGINE)
    assert await cluster.flow(300, until=at_phase(cluster, key, "RolledBack"))
    await cluster.flow(5)
    assert (kstatus(cluster.status(model), generation=2), kstatus(cluster.rollout(key), generation=1)) == (
        "Failed",
        "Failed",
    )
    cluster.edit_spec(model, engine=OLD_ENGINE)
    await cluster.flow(10)
    assert (kstatus(cluster.status(model), generation=3), kstatus(cluster.rollout(key), generation=1)) == (
        "Current",
        "Current",
    )


async def test_each_change_of_stage_is_one_event() -> None:
    cluster, _, key = await begun("Steady")
    events = [e for e in cluster.operator.events.emitted if e.reason == "Advanced"]
    assert [event.message.split(": ")[1] for event in events] == [
        entry["to"] for entry in cluster.rollout(key)["history"]
    ]
    assert not any(event.warning for event in events)


async def test_no_user_owned_field_is_changed_over_a_full_life() -> None:
    cluster, model, key = await staged()

    def owned() -> list[Any]:
        found = []
        for resource in (INFERENCE_MODELS, ROLLOUTS):
            for obj in cluster.api.objects(resource):
                meta = {name: obj["metadata"].get(name) for name in ("annotations", "labels", "finalizers")}
                found.append((obj["spec"], meta))
        return found

    cluster.edit_spec(model, engine=NEW_ENGINE)
    before = owned()
    assert await cluster.flow(400, until=at_phase(cluster, key, "Steady"))
    assert owned() == before
