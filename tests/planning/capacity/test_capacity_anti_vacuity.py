"""Each control weakened: its own claim falls, the others stand, and the reason says which."""

from dataclasses import replace

import pytest

from bayplan.planning.admission.core import AdmissionCore
from bayplan.planning.admission.records import Admitted, Footprint
from bayplan.planning.admission.sheds import ShedCode, build_shed
from bayplan.planning.capacity import evaluators
from bayplan.planning.capacity.plan import decide_capacity
from bayplan.planning.evidencecontract.canary import CanaryEnd
from bayplan.planning.placement.inventory import Inventory
from tests.planning.capacity.plans import given, message, model, passed_canary, status_of, two_zones, unproven, verdict
from tests.planning.fleets import node

ONE_GPU = {"tensor": 1, "pipeline": 1}
LOST_WITH_MEMORY = ("memory-fit", "parallel-layout", "gpu-placement")


def fail(name: str, inputs: object, state: str = "Failed") -> None:
    """Assert that one claim alone is not earned."""
    assert unproven(inputs) == {name: state}  # type: ignore[arg-type]
    assert verdict(inputs, "Ready")[0] == "False"  # type: ignore[arg-type]
    assert name in message(inputs, "EvidenceCurrent")  # type: ignore[arg-type]


def test_a_deleted_class_loses_its_evidence_and_keeps_its_requirement() -> None:
    fail("workload:generation", given(workloadClasses__1=None), "Missing")


def test_a_renamed_class_is_another_one() -> None:
    inputs = given(workloadClasses__1__name="other")

    fail("workload:generation", inputs, "Missing")
    assert "workload:other" in {claim.name for claim in status_of(inputs).evidence}


def test_gpus_with_too_little_memory_lose_memory_layout_and_placement() -> None:
    inputs = given(model(parallelism=ONE_GPU), inventory=two_zones(memory_mib=16_000))

    assert set(unproven(inputs)) == {*LOST_WITH_MEMORY, "benign-admission", "oversize-shedding"}
    assert "GiB per GPU" in message(inputs, "Placeable")


def test_gpus_between_weights_and_weights_with_cache_lose_placement() -> None:
    # weights and overhead of the 8B model take 15.0 + 2.5 GiB, the cache of 16 full requests 16 GiB more
    roomy = model(engine__memoryOverheadGib=2.5, concurrency=16, parallelism=ONE_GPU)
    assert unproven(given(roomy, inventory=two_zones(memory_mib=40_000))) == {}

    between = given(roomy, inventory=two_zones(memory_mib=24_000))
    assert set(unproven(between)) >= set(LOST_WITH_MEMORY)


def test_one_gpu_with_less_memory_takes_the_place_of_its_replica() -> None:
    nodes = (node("a0", 3, zone="a"), node("b0", 1, zone="b"))
    assert unproven(given(inventory=Inventory(nodes=nodes))) == {}

    shrunk = given(inventory=Inventory(nodes=(nodes[0],)))
    assert set(unproven(shrunk)) == {"gpu-placement", "parallel-layout"}


def test_another_width_than_measured_proves_neither_layout_nor_placement() -> None:
    inputs = given(benchmark__tensor=2)

    assert {"parallel-layout", "gpu-placement"} <= set(unproven(inputs))
    assert "tensor=2" in message(inputs, "InputsComplete")


def test_a_pipeline_of_the_same_width_is_not_the_tensor_layout_that_was_measured() -> None:
    two_gpus = model(parallelism={"tensor": 2, "pipeline": 1})
    assert unproven(given(two_gpus, benchmark__tensor=2)) == {}

    assert {"parallel-layout", "gpu-placement"} <= set(unproven(given(two_gpus, benchmark__pipeline=2)))


def test_a_budget_below_the_cost_loses_the_capacity_claim() -> None:
    fail("capacity-plan", given(limits__maxHourlyCost=1))


def test_one_class_measured_beyond_its_objective_loses_its_own_claim() -> None:
    objectives = {"maxP95TpotSeconds": 0.15}
    slow = given(workloadClasses__0__objectives=objectives, benchmark__p95TpotSeconds=0.3)

    fail("workload:interactive", slow)
    assert "TPOT" in message(slow, "EvidenceCurrent")
    fail("workload:interactive", given(workloadClasses__0__objectives=objectives), "Missing")
    at_the_limit = given(workloadClasses__0__objectives=objectives, benchmark__p95TpotSeconds=0.15)
    assert unproven(at_the_limit) == {}


def test_an_autoscaler_that_stops_below_the_plan_loses_the_scaling_claim() -> None:
    fail("queue-scaling", given(model(autoscaling__maxReplicas=3)))


def test_an_autoscaler_that_demand_brings_far_enough_must_hold_the_floor_as_well() -> None:
    # four for the load, eight to survive a zone: five are enough for demand and not for the plan
    spread = {"inventory": two_zones(8), "resilience__surviveLossOf": "zone", "limits": None, "price": None}
    assert unproven(given(**spread)) == {}

    fail("queue-scaling", given(model(autoscaling__maxReplicas=5), **spread))
    assert "from 5 it reaches 5 of 8" in message(given(model(autoscaling__maxReplicas=5), **spread), "EvidenceCurrent")


def test_without_an_autoscaler_nothing_follows_the_queue() -> None:
    fail("queue-scaling", given(model(autoscaling=None, replicas=4)), "Missing")


@pytest.mark.parametrize("end", [end for end in CanaryEnd if end is not CanaryEnd.PROMOTED])
def test_a_trial_that_was_not_promoted_loses_the_canary_claim(end: CanaryEnd) -> None:
    fail("canary-gate", given(canary=passed_canary(model().revision, end=end)))


def test_a_promotion_by_gates_that_were_not_enforced_earns_no_canary_claim() -> None:
    fail("canary-gate", given(canary=passed_canary(model().revision, enforce=False)))


def test_the_trial_of_another_revision_is_no_proof_of_this_one() -> None:
    fail("canary-gate", given(canary=passed_canary("another")), "Contradicted")


def test_no_trial_at_all_is_missing() -> None:
    fail("canary-gate", given(canary=None), "Missing")


def test_a_stale_trial_and_a_stale_price_each_fail_under_their_name() -> None:
    fail("canary-gate", given(evidence__greatestAges={"canary": 1}), "Stale")
    fail("capacity-plan", given(evidence__greatestAges={"price": 1}), "Stale")


def test_admission_that_lets_everything_in_loses_the_shedding_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluators, "_ask", lambda *_, **__: Admitted(1, "planned", Footprint(1, 1, 1)))

    fail("oversize-shedding", given())


def test_admission_that_blocks_everything_loses_both_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluators, "_ask", lambda *_, **__: build_shed(ShedCode.QUEUE_FULL, "no"))

    assert unproven(given()) == {"benign-admission": "Failed", "oversize-shedding": "Failed"}


def test_the_gateways_own_admission_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    real = AdmissionCore.decide

    def counted(self: AdmissionCore, *arguments: object) -> object:
        asked.append(arguments)
        return real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(AdmissionCore, "decide", counted)

    assert unproven(given()) == {}
    assert len(asked) == 3  # a request of each class, and one beyond the bound


@pytest.mark.parametrize(
    ("function", "claim"),
    [
        ("_memory", "memory-fit"),
        ("_layout", "parallel-layout"),
        ("_placement", "gpu-placement"),
        ("_benign", "benign-admission"),
        ("_oversize", "oversize-shedding"),
        ("_scaling", "queue-scaling"),
        ("_canary", "canary-gate"),
    ],
)
def test_a_fault_in_what_decides_a_claim_is_told_as_our_own(
    monkeypatch: pytest.MonkeyPatch, function: str, claim: str
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("injected")

    monkeypatch.setattr(evaluators, function, broken)

    fail(claim, given(), "EvaluatorFailed")
    assert verdict(given(), "EvidenceCurrent") == ("False", "EvaluatorFailed")


def test_layout_and_memory_are_one_decision_and_the_cache_is_in_it() -> None:
    sizing = decide_capacity(given()).sizing

    assert sizing is not None
    assert sizing.layout is not None
    assert sizing.layout.memory is not None
    cache = [term for term in sizing.layout.memory.terms if "KV" in term.name]
    assert cache[0].gib_per_gpu > 0
    assert sizing.shape is not None
    assert sizing.shape.least_gpu_memory_mib is not None


def test_requirements_of_a_plan_without_classes_in_common_are_all_missing() -> None:
    inputs = replace(given(evidence__requiredClasses=["x", "y"]))

    assert unproven(inputs) == {"workload:x": "Missing", "workload:y": "Missing"}


def test_claims_that_lack_the_same_thing_are_told_together_and_every_name_is_there() -> None:
    inputs = given(evidence__greatestAges={"benchmark": 1}, canary=None)

    text = message(inputs, "EvidenceCurrent")

    assert "workload:generation, workload:interactive Stale: benchmark: older than the 1 s that it may be" in text
    assert "canary-gate Missing" in text
    assert all(name in text for name in unproven(inputs))
    assert text.count("older than") == 1


def test_every_claim_has_a_reason() -> None:
    assert all(claim.message for claim in status_of(given()).evidence)
    assert all(claim.message for claim in status_of(given(canary=None, workloadClasses__1=None)).evidence)
