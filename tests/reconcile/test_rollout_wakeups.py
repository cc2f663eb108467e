"""How often a Rollout is looked at while it holds: as often as something can have changed, and no more."""

from collections import Counter
from typing import Any

import pytest

from bayplan.api.rolloutwords import Phase
from bayplan.cluster.clock import sleep
from bayplan.cluster.controller import Result
from bayplan.cluster.resources import INFERENCE_MODELS, LEASES, PODS, Key
from bayplan.reconcile.rollout.sampling import RolloutSampler, Round
from bayplan.reconcile.rollout.stored import seconds_of
from bayplan.telemetry.rolloutcounts import CountedModel
from tests.reconcile.operators import HOME
from tests.reconcile.staging import NEW, NEW_ENGINE, OLD, PACE, STAGES, Staging, at_phase, begun, phase, staged

pytestmark = pytest.mark.slow


def lasting(kind: str) -> list[Any]:
    """The stages, of which one lasts."""
    return [stage | {"bakeSeconds": 250} if stage["kind"] == kind else stage for stage in STAGES]


class Looks:
    """Counts the reconciles of each Rollout."""

    def __init__(self, cluster: Staging) -> None:
        self.counts: Counter[Key] = Counter()
        self._reconcile = cluster.operator.promoter.reconcile
        cluster.operator.promoter.reconcile = self

    async def __call__(self, key: Key) -> Result:
        self.counts[key] += 1
        return await self._reconcile(key)


async def test_a_warm_up_that_holds_is_looked_at_when_something_changes() -> None:
    cluster, model, key = await staged()
    cluster.dead_nodes |= {"n1", "n2", "n3", "n4"}
    cluster.edit_spec(model, engine=NEW_ENGINE)
    assert await cluster.flow(60, until=at_phase(cluster, key, "Warm"))
    await cluster.flow(15)
    looks, measured = Looks(cluster), cluster.counts.reads

    for second in range(40):
        tell_progress(cluster, model, second)
        await cluster.advance(1)

    assert cluster.counts.reads >= measured + 40 / PACE - 1, "it went on being measured"
    assert phase(cluster, key) == "Warm"
    assert looks.counts[key] == 0


async def test_a_start_is_looked_at_when_a_replica_comes_and_when_it_is_ready_and_no_more() -> None:
    cluster, model, key = await staged()
    cluster.dead_nodes |= {"n1", "n2", "n3", "n4"}
    cluster.edit_spec(model, engine=NEW_ENGINE)
    assert await cluster.flow(60, until=at_phase(cluster, key, "Warm"))
    await cluster.flow(15)
    looks, before = Looks(cluster), cluster.api.version
    for number in range(8):
        for pod in cluster.by_image(NEW):
            change_waiting(cluster, pod["metadata"]["name"], number)
        await cluster.run()
    assert cluster.api.version >= before + 16
    assert looks.counts[key] == 0

    for pod in cluster.by_image(NEW):
        cluster.api.edit(PODS, Key("team", pod["metadata"]["name"]), lambda pod: pod["status"].pop("containerStatuses"))
    cluster.dead_nodes.clear()
    await cluster.flow(10)
    assert looks.counts[key] >= 1
    assert cluster.rollout_condition(key, "CandidateWarm") == ("True", "Warm")


def change_waiting(cluster: Staging, name: str, number: int) -> None:
    """What a kubelet says of an image that it is still pulling."""

    def write(pod: Any) -> None:
        waiting = {"reason": "ContainerCreating", "message": f"{number} of 8 layers"}
        pod["status"]["containerStatuses"] = [{"name": "engine", "state": {"waiting": waiting}}]

    cluster.api.edit(PODS, Key("team", name), write)


def tell_progress(cluster: Staging, model: Key, number: int) -> None:
    """The model's status tells of a step of a start, as it does every second."""

    def write(found: Any) -> None:
        found["status"]["warmingReplicas"] = number

    cluster.api.edit(INFERENCE_MODELS, model, write)


class Woken:
    """The queue of CapacityPlans; counts what is put there."""

    def __init__(self) -> None:
        self.woken = 0

    def enqueue(self, key: Key) -> None:
        self.woken += 1

    def enqueue_after(self, key: Key, seconds: float) -> None:
        self.woken += 1


async def name_plan(cluster: Staging, model: Key) -> Woken:
    """Let the model name a CapacityPlan, and count what wakes that from now on."""
    cluster.edit_spec(model, capacityPlanRef={"name": "plan"})
    await cluster.flow(5)
    cluster.operator.planner.queue = queue = Woken()
    return queue


async def test_a_canary_that_holds_is_looked_at_once_a_measurement() -> None:
    cluster, model, key = await begun("Canary", stages=lasting("Canary"))
    await cluster.flow(20)
    plan = await name_plan(cluster, model)
    looks = Looks(cluster)
    await cluster.flow(100)

    assert plan.woken == 0, "nothing that ended"
    assert phase(cluster, key) == "Canary"
    assert 0.9 * 100 / PACE <= looks.counts[key] <= 100 / PACE + 1


async def test_a_rollback_that_waits_for_an_answer_is_looked_at_when_something_changes() -> None:
    cluster, model, key = await begun("Canary")
    cluster.requests_per_pod = 0
    for pod in cluster.by_image(OLD):
        cluster.engine.at[pod["status"]["podIP"]].generation_error = "no answer"
    cluster.edit_rollout(key, abort=cluster.status(model)["revisions"]["target"])
    await cluster.flow(60)
    assert cluster.rollout(key)["proof"]["missing"] == ["serving has answered no request since"]
    looks = Looks(cluster)
    await cluster.flow(60)
    assert looks.counts[key] == 0

    for pod in cluster.by_image(OLD):
        cluster.engine.at[pod["status"]["podIP"]].generation_error = ""
    assert await cluster.flow(60, until=at_phase(cluster, key, Phase.ROLLED_BACK.value))


@pytest.mark.parametrize("stage", ["Warm", "Canary"])
async def test_a_gateway_whose_lease_runs_out_is_noticed_although_nobody_tells_of_it(stage: str) -> None:
    cluster, model, key = await begun(stage, stages=lasting(stage))
    cluster.acknowledging = False
    cluster.edit_rollout(key, abort=cluster.status(model)["revisions"]["target"])
    await cluster.flow(30)
    assert "acknowledgedTime" not in cluster.rollout(key)["proof"]

    await cluster.advance(70)
    assert cluster.rollout(key)["proof"]["acknowledgedTime"]


async def test_an_acknowledgement_wakes_the_rollout_that_it_is_of() -> None:
    cluster, _, key = await staged()
    other = cluster.add_rollout("other", modelRef={"name": "elsewhere"})
    await cluster.flow(10)
    looks = Looks(cluster)

    def acknowledge(lease: Any) -> None:
        annotation = lease["metadata"]["annotations"]
        uid = next(view.uid for view in cluster.operator.rollouts.values() if view.key == key)
        annotation["bayplan.dev/plan-epochs"] = f'{{"{uid}":99}}'

    cluster.api.edit(LEASES, Key(HOME, "gateway-0"), acknowledge)
    await cluster.run()
    assert (looks.counts[key], looks.counts[other]) == (1, 0)


async def test_a_capacity_plan_is_woken_by_the_end_of_a_trial() -> None:
    cluster, model, key = await begun("Canary", stages=lasting("Canary"))
    plan = await name_plan(cluster, model)
    cluster.edit_rollout(key, abort=cluster.status(model)["revisions"]["target"])
    await cluster.flow(5)
    assert phase(cluster, key) in ("RollingBack", "RolledBack")
    assert plan.woken >= 1


@pytest.mark.parametrize(("pace", "least", "most"), [(0.5, 39, 41), (1.0, 29, 31), (5.0, 12, 13)])
async def test_decisions_are_asked_for_less_often_than_a_hot_loop_however_often_is_measured(
    pace: float, least: int, most: int
) -> None:
    cluster = Staging()
    sampler = RolloutSampler(
        cluster.counts,
        cluster.engine,
        cluster.api,
        now_seconds=lambda: seconds_of(cluster.now()),
        sleep=lambda seconds: sleep(cluster.clock, seconds),
        pace_seconds=pace,
    )
    asked: list[str] = []
    round_ = Round(CountedModel("team", "llama", "u"), "llama", [], serving=frozenset)
    sampler.ensure(Key("team", "llama"), "u", ask=lambda: round_, changed=lambda: asked.append("again"))
    await cluster.clock.advance(60)
    await sampler.close()

    assert cluster.counts.reads >= 60 / pace
    assert least <= len(asked) <= most
