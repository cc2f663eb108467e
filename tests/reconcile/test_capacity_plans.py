"""The CapacityPlan reconciler beside the model's: numbers on the live fleet, a floor for scaling, quiet at rest."""

import threading
from typing import Any

import pytest

from bayplan.api.meta import rfc3339
from bayplan.cluster.cache import Store
from bayplan.cluster.resources import CAPACITY_PLANS, INFERENCE_MODELS, PODS, RESOURCE_QUOTAS, Key
from bayplan.planning.capacity.decide import CapacityDecision
from bayplan.planning.capacity.inputs import CapacityInputs
from bayplan.planning.groups.members import GroupLimits
from bayplan.planning.placement.topology import DEFAULT_TOPOLOGY
from bayplan.reconcile.capacityplan import reconciler
from bayplan.reconcile.capacityplan.reconciler import CapacityPlanReconciler
from tests.planning.capacity.plans import PLAN, changed
from tests.reconcile.world import NAMESPACE, Json, World, foreign_pod

PEAK = Key(NAMESPACE, "peak")
AUTOSCALING = {"minReplicas": 1, "maxReplicas": 8, "serviceTokensPerSecond": 100}
REF = {"name": "peak"}


def world(*, zones: int = 2, gpus: int = 4) -> World:
    made = World()
    for index in range(zones):
        made.add_node(f"n{index}", zone=f"zone-{index}", gpus=gpus)
    return made


def add_plan(made: World, name: str = "peak", **changes: Any) -> Key:
    dated = {
        "benchmark__observedTime": rfc3339(made.now()),
        "price__date": rfc3339(made.now()),
        "evidence__controls": ["memory-fit", "capacity-plan", "parallel-layout", "gpu-placement", "queue-scaling"],
    }
    every = {path.replace("__", "."): value for path, value in (dated | changes).items()}
    spec = changed(PLAN, every)
    made.api.seed(CAPACITY_PLANS, {"metadata": {"namespace": NAMESPACE, "name": name}, "spec": spec})
    return Key(NAMESPACE, name)


def edit_plan(made: World, **changes: Any) -> None:
    every = {path.replace("__", "."): value for path, value in changes.items()}
    made.api.edit(CAPACITY_PLANS, PEAK, lambda obj: obj.update(spec=changed(obj["spec"], every)))


def status(made: World, key: Key = PEAK) -> Json:
    found = next(o for o in made.api.objects(CAPACITY_PLANS) if o["metadata"]["name"] == key.name)
    result: Json = found.get("status", {})
    return result


def verdict(made: World, kind: str, key: Key = PEAK) -> tuple[str, str]:
    found = next(c for c in status(made, key)["conditions"] if c["type"] == kind)
    return found["status"], found["reason"]


def plan_writes(made: World) -> int:
    return sum(1 for verb, plural, _ in made.api.log if verb == "apply" and plural == "capacityplans/status")


async def test_a_plan_is_sized_placed_and_ready_and_reserves_nothing() -> None:
    made = world()
    add_plan(made)
    made.add_model(autoscaling=AUTOSCALING, capacityPlanRef=REF, suspend=True)

    await made.run()

    assert verdict(made, "Ready") == ("True", "Ready")
    assert (status(made)["replicas"], status(made)["placeableReplicas"], status(made)["floor"]) == (4, 4, 4)
    assert status(made)["model"] == "llama"
    assert made.pods() == []


async def test_the_models_own_pods_are_not_in_the_way_of_its_plan() -> None:
    made = world()
    add_plan(made)
    key = made.add_model(autoscaling=AUTOSCALING, capacityPlanRef=REF)

    await made.advance(5)

    assert made.status(key)["readyReplicas"] == 4
    assert verdict(made, "Placeable") == ("True", "Placeable")
    made.api.seed(PODS, foreign_pod("thief", "n0", gpus=1))
    await made.advance(5)
    assert verdict(made, "Placeable")[0] == "True"  # 8 GPUs, 4 needed, 1 taken

    for name in ("b", "c", "d", "e"):
        made.api.seed(PODS, foreign_pod(name, "n1", gpus=1))
    await made.advance(5)
    assert verdict(made, "Placeable") == ("False", "InsufficientGPU")
    assert status(made)["replicas"] == 4


async def test_the_floor_and_rates_of_a_plan_reach_scaling() -> None:
    made = world()
    add_plan(made)
    key = made.add_model(autoscaling=AUTOSCALING, capacityPlanRef=REF)

    await made.advance(5)

    assert made.status(key)["desiredReplicas"] == 4
    assert made.status(key)["capacity"] == {
        "plan": "peak",
        "floor": 4,
        "serviceTokensPerSecond": status(made)["serviceTokensPerSecond"],
        "targetUtilization": 0.75,
    }
    assert made.reason(key, "EvidenceCurrent") == ("True", "EvidenceCurrent")


async def test_the_last_floor_stands_while_evidence_is_stale_and_after_a_restart() -> None:
    made = world()
    add_plan(made, evidence__greatestAges={"benchmark": 600})
    key = made.add_model(autoscaling=AUTOSCALING, capacityPlanRef=REF)
    await made.advance(5)
    assert verdict(made, "EvidenceCurrent") == ("True", "EvidenceCurrent")

    await made.advance(700)

    assert verdict(made, "EvidenceCurrent") == ("False", "EvidenceStale")
    assert "floor" not in status(made)
    assert made.reason(key, "EvidenceCurrent") == ("False", "EvidenceStale")
    assert made.status(key)["capacity"]["floor"] == 4
    await made.restart()
    await made.advance(400)
    assert made.status(key)["desiredReplicas"] == 4
    assert made.status(key)["readyReplicas"] == 4


async def test_a_deleted_plan_leaves_its_last_floor_and_says_that_it_is_gone() -> None:
    made = world()
    plan = add_plan(made)
    key = made.add_model(autoscaling=AUTOSCALING, capacityPlanRef=REF)
    await made.advance(5)

    made.api.remove(CAPACITY_PLANS, plan)
    await made.advance(400)

    assert made.reason(key, "EvidenceCurrent") == ("Unknown", "PlanMissing")
    assert made.status(key)["desiredReplicas"] == 4
    assert "the floor of 4 stands" in (made.condition(key, "EvidenceCurrent") or {})["message"]


async def test_only_editing_the_reference_removes_the_floor() -> None:
    made = world()
    add_plan(made)
    key = made.add_model(autoscaling=AUTOSCALING, capacityPlanRef=REF)
    await made.advance(5)

    made.edit_spec(key, capacityPlanRef={"name": "another"})
    await made.advance(5)
    assert "capacity" not in made.status(key)
    made.api.edit(INFERENCE_MODELS, key, lambda obj: obj["spec"].pop("capacityPlanRef"))
    await made.advance(5)

    assert made.condition(key, "EvidenceCurrent") is None
    assert verdict(made, "InputsComplete") == ("False", "ModelMissing")


async def test_a_floor_above_the_maximum_stops_there_and_is_a_conflict_on_both_objects() -> None:
    made = world()
    add_plan(made)
    key = made.add_model(autoscaling={**AUTOSCALING, "maxReplicas": 3}, capacityPlanRef=REF)

    await made.advance(5)

    assert made.status(key)["desiredReplicas"] == 3
    assert made.reason(key, "ScalingActive") == ("False", "PlanExceedsModel")
    assert verdict(made, "Sized") == ("False", "PlanExceedsModel")
    assert verdict(made, "Ready")[0] == "False"
    assert status(made)["replicas"] == 4


async def test_a_budget_that_becomes_too_small_changes_no_replica() -> None:
    made = world()
    add_plan(made)
    key = made.add_model(autoscaling=AUTOSCALING, capacityPlanRef=REF)
    await made.advance(5)

    edit_plan(made, limits__maxHourlyCost=1)
    await made.advance(5)

    assert verdict(made, "WithinBudget") == ("False", "BudgetExceeded")
    assert (status(made)["replicas"], status(made)["floor"]) == (4, 4)
    assert made.status(key)["readyReplicas"] == 4


async def test_a_deleted_class_keeps_its_requirement() -> None:
    made = world()
    add_plan(made, workloadClasses__1=None)
    made.add_model(autoscaling=AUTOSCALING, capacityPlanRef=REF, suspend=True)

    await made.advance(5)

    assert verdict(made, "EvidenceCurrent") == ("False", "EvidenceMissing")
    (claim,) = (one for one in status(made)["evidence"] if one["name"] == "workload:generation")
    assert (claim["required"], claim["state"]) == (True, "Missing")


async def test_nothing_is_written_at_rest_and_heartbeats_wake_nobody() -> None:
    made = world()
    add_plan(made)
    made.add_model(autoscaling=AUTOSCALING, capacityPlanRef=REF, suspend=True)
    await made.advance(30)
    before = made.api.write_count()

    made.edit_node("n0", lambda obj: obj["status"].update(heartbeat="1"))
    await made.advance(600)

    assert made.api.write_count() == before


@pytest.mark.parametrize("what", ["inventory", "model", "price", "age", "quota"])
async def test_a_change_of_what_decides_is_decided_anew_once(what: str) -> None:
    made = world()
    add_plan(made)
    key = made.add_model(autoscaling=AUTOSCALING, capacityPlanRef=REF, suspend=True)
    await made.advance(30)
    before, digest = plan_writes(made), status(made)["reportDigest"]

    if what == "inventory":
        made.add_node("n9", zone="zone-9")
    elif what == "model":
        made.edit_spec(key, concurrency=2)
    elif what == "price":
        edit_plan(made, price__hourlyCost=5)
    elif what == "age":
        edit_plan(made, evidence__greatestAges={"price": 1000})
    else:
        quota = {"hard": {"requests.nvidia.com/gpu": "2"}}
        meta = {"namespace": NAMESPACE, "name": "q"}
        made.api.seed(RESOURCE_QUOTAS, {"metadata": meta, "spec": quota, "status": quota})
    await made.advance(5)

    assert status(made)["reportDigest"] != digest
    assert plan_writes(made) == before + 1
    if what == "quota":
        assert verdict(made, "WithinQuota") == ("False", "QuotaExceeded")


async def test_two_models_that_name_one_plan_are_a_conflict_and_neither_gets_a_floor() -> None:
    made = world()
    add_plan(made)
    first = made.add_model("one", autoscaling=AUTOSCALING, capacityPlanRef=REF)
    made.add_model("two", autoscaling=AUTOSCALING, capacityPlanRef=REF)

    await made.advance(5)

    assert verdict(made, "InputsComplete") == ("False", "ModelConflict")
    assert made.status(first)["desiredReplicas"] == 1


async def test_a_spec_that_no_schema_refused_is_stalled_and_others_go_on() -> None:
    made = world()
    made.api.seed(CAPACITY_PLANS, {"metadata": {"namespace": NAMESPACE, "name": "odd"}, "spec": {"benchmark": 1}})
    add_plan(made)
    made.add_model(autoscaling=AUTOSCALING, capacityPlanRef=REF, suspend=True)

    await made.advance(5)

    odd = Key(NAMESPACE, "odd")
    assert verdict(made, "Stalled", odd) == ("True", "InvalidSpec")
    assert verdict(made, "Ready", odd) == ("False", "InvalidSpec")
    assert verdict(made, "Ready") == ("True", "Ready")


async def test_one_event_tells_what_ready_says_and_none_repeats_it() -> None:
    made = world()
    add_plan(made)
    made.add_model(autoscaling=AUTOSCALING, capacityPlanRef=REF, suspend=True)
    await made.advance(30)
    edit_plan(made, limits__maxHourlyCost=1)
    await made.advance(30)
    edit_plan(made, limits__maxHourlyCost=2)
    await made.advance(30)

    assert [reason for reason, _ in made.operator.plan_events] == ["Ready", "BudgetExceeded"]


async def test_a_large_decision_holds_up_no_event_loop() -> None:
    """The reconciler decides in a thread by itself; other work goes on meanwhile."""
    made = world()
    add_plan(made)
    made.add_model(autoscaling=AUTOSCALING, capacityPlanRef=REF, suspend=True)
    operator = made.operator
    planner = CapacityPlanReconciler(
        made.api,
        plans=operator.plans,
        models=operator.models,
        rollouts=operator.rollouts,
        fleet=operator.fleet,
        quotas=Store(RESOURCE_QUOTAS),
        topology=DEFAULT_TOPOLOGY,
        group_limits=GroupLimits(),
        events=operator,
        now=made.now,
    )
    operator.deliver()
    seen: list[int] = []
    decide = reconciler.decide_capacity

    def recorded(inputs: CapacityInputs) -> CapacityDecision:
        seen.append(threading.get_ident())
        return decide(inputs)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(reconciler, "decide_capacity", recorded)
        await planner.reconcile(PEAK)

    assert seen
    assert seen[0] != threading.get_ident()
    assert verdict(made, "Ready") == ("True", "Ready")


async def test_a_fleet_in_motion_wakes_a_plan_once_and_a_costly_one_less_often() -> None:
    made = world()
    add_plan(made)
    made.add_model(autoscaling=AUTOSCALING, capacityPlanRef=REF, suspend=True)
    await made.advance(30)
    queued: list[float] = []

    class Queue:
        def enqueue(self, key: Key) -> None:
            raise AssertionError("a change of the fleet is never looked at on the spot")

        def enqueue_after(self, key: Key, seconds: float) -> None:
            queued.append(seconds)

    made.operator.planner.queue = Queue()
    for name in ("a", "b", "c"):
        made.api.seed(PODS, foreign_pod(name, "n0", gpus=0))
        made.operator.deliver(PODS)
    assert queued == [reconciler.FLEET_DELAY_SECONDS]

    def slow(inputs: CapacityInputs) -> reconciler.Timed:
        return reconciler.decide_capacity(inputs), 2.0

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(reconciler, "_timed", slow)
        await made.operator.planner.reconcile(PEAK)
    made.api.seed(PODS, foreign_pod("d", "n0", gpus=0))
    made.operator.deliver(PODS)
    assert queued[1:] == [100.0]
