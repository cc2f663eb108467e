from decimal import Decimal
from typing import Any

import pytest

from bayplan.planning.capacity.inputs import inventory_digest
from bayplan.planning.capacity.plan import decide_capacity, next_change_seconds
from bayplan.planning.placement.inventory import Claim, Inventory
from bayplan.planning.placement.quota import Quota
from tests.planning.capacity.plans import given, message, model, plan_spec, status_of, two_zones, unproven, verdict
from tests.planning.fleets import L4, L4_MIB, node


def reasons(inputs: Any) -> list[str]:
    return [conflict.reason.value for conflict in decide_capacity(inputs).conflicts]


def test_the_chapters_workload_needs_four_replicas_and_everything_is_proven() -> None:
    status = status_of(given())

    assert {(c.type, c.status) for c in status.conditions} == {
        (kind, "True")
        for kind in (
            "InputsComplete",
            "Sized",
            "Placeable",
            "WithinQuota",
            "WithinBudget",
            "EvidenceCurrent",
            "Ready",
        )
    }
    assert (status.replicas, status.gpus, status.placeable_replicas, status.floor) == (4, 4, 4, 4)
    assert status.cost is not None
    assert status.cost.per_hour == 17
    assert status.cost.per_million_output_tokens == Decimal("5.723906")
    assert [d.name for d in status.dimensions if d.bottleneck] == ["decode"]
    assert status.conflicts == ()
    assert {claim.state for claim in status.evidence} == {"Earned"}
    assert len(status.evidence) == 10


def test_a_budget_that_is_too_small_is_a_conflict_and_replicas_stay() -> None:
    inputs = given(limits__maxHourlyCost=16)

    assert verdict(inputs, "WithinBudget") == ("False", "BudgetExceeded")
    assert verdict(inputs, "Ready") == ("False", "BudgetExceeded")
    assert status_of(inputs).replicas == 4
    assert status_of(inputs).floor == 4
    assert unproven(inputs) == {"capacity-plan": "Failed"}
    assert verdict(given(limits__maxHourlyCost=17), "WithinBudget") == ("True", "WithinBudget")


def test_every_breach_has_its_own_reason_and_all_are_shown() -> None:
    quota = Quota("gpus", {"requests.nvidia.com/gpu": "3"}, {"requests.nvidia.com/gpu": "0"})
    inputs = given(limits={"maxReplicas": 3, "maxGpus": 2, "maxHourlyCost": 1}, more={"quotas": [quota]})

    assert reasons(inputs) == ["AboveMaxReplicas", "QuotaExceeded", "QuotaExceeded", "BudgetExceeded"]
    assert verdict(inputs, "Sized") == ("False", "AboveMaxReplicas")
    assert verdict(inputs, "WithinQuota") == ("False", "QuotaExceeded")
    assert verdict(inputs, "WithinBudget") == ("False", "BudgetExceeded")
    assert status_of(inputs).replicas == 4


@pytest.mark.parametrize(
    ("hard", "own_pods", "within"), [("4", 0, True), ("3", 0, False), ("5", 2, False), ("6", 2, True)]
)
def test_quota_counts_only_pods_that_do_not_run_yet(hard: str, own_pods: int, within: bool) -> None:
    used = "4" if own_pods else "0"
    quota = Quota("gpus", {"requests.nvidia.com/gpu": hard}, {"requests.nvidia.com/gpu": used})
    named = model()
    named = type(named)(named.name, named.spec, named.revision, own_pods)

    assert (verdict(given(named, more={"quotas": [quota]}), "WithinQuota")[0] == "True") is within


def test_a_plan_above_the_models_maximum_is_a_conflict_and_the_number_stays() -> None:
    inputs = given(model(autoscaling__maxReplicas=3))

    assert verdict(inputs, "Sized") == ("False", "PlanExceedsModel")
    assert "autoscaling.maxReplicas of InferenceModel llama is 3" in message(inputs, "Sized")
    assert unproven(inputs) == {"queue-scaling": "Failed"}
    assert (status_of(inputs).replicas, status_of(inputs).floor) == (4, 4)


def test_all_replicas_are_placed_beside_everybody_elses_pods_and_none_is_reserved() -> None:
    crowded = two_zones().with_claims([Claim("a0", gpus=4, owner="other/pod")])
    assert verdict(given(inventory=crowded), "Placeable") == ("True", "Placeable")
    full = crowded.with_claims([Claim("b0", gpus=1, owner="other/pod")])

    inputs = given(inventory=full)

    assert verdict(inputs, "Placeable") == ("False", "InsufficientGPU")
    assert status_of(inputs).placeable_replicas == 3
    assert unproven(inputs) == {"gpu-placement": "Failed"}
    assert status_of(inputs).replicas == 4
    assert len(inputs.inventory.claims) == 2


def test_the_loss_of_a_zone_is_sized_where_replicas_would_be() -> None:
    covered = given(inventory=two_zones(8), resilience__surviveLossOf="zone", limits=None, price=None)
    assert status_of(covered).replicas == 8
    assert {need.name: need.replicas for need in status_of(covered).needs} == {"load": 4, "domain-loss": 8}

    one_zone = Inventory(nodes=(node("a0", zone="a"), node("a1", zone="a")))
    inputs = given(inventory=one_zone, resilience__surviveLossOf="zone", limits=None, price=None)
    assert verdict(inputs, "Placeable") == ("False", "DomainLossNotCovered")
    assert status_of(inputs).at_least
    assert unproven(inputs)["gpu-placement"] == "Failed"


def test_kv_tokens_of_the_memory_plan_are_a_dimension() -> None:
    assert "kv-tokens" in {d.name for d in status_of(given()).dimensions}


class TestModel:
    def test_without_any_model_nothing_is_sized_and_that_is_said(self) -> None:
        inputs = given(more={"models": ()}, canary=None)

        assert verdict(inputs, "InputsComplete") == ("False", "ModelMissing")
        assert verdict(inputs, "Sized") == ("Unknown", "Blocked")
        assert verdict(inputs, "Ready") == ("False", "ModelMissing")
        assert status_of(inputs).floor is None

    def test_a_model_whose_own_spec_is_refused_is_named(self) -> None:
        inputs = given(more={"models": (), "refused": ("llama",)}, canary=None)

        assert verdict(inputs, "InputsComplete") == ("False", "ModelMissing")
        assert "spec of InferenceModel llama" in message(inputs, "InputsComplete")

    def test_two_models_that_name_one_plan_are_a_conflict_with_their_names(self) -> None:
        inputs = given(model("a"), model("b"))

        assert verdict(inputs, "InputsComplete") == ("False", "ModelConflict")
        assert "a, b" in message(inputs, "InputsComplete")

    def test_a_model_inside_the_plan_stands_alone(self) -> None:
        inside = model().spec.to_wire()
        inputs = given(more={"models": ()}, canary=None, model=inside["model"], engine=inside["engine"])

        assert verdict(inputs, "InputsComplete") == ("True", "Complete")
        assert status_of(inputs).replicas == 4
        assert set(unproven(inputs)) == {"canary-gate", "queue-scaling"}

    def test_the_same_model_inside_and_outside_agree_and_a_difference_is_named(self) -> None:
        inside = model().spec.to_wire()
        same = given(model=inside["model"], engine=inside["engine"])
        assert verdict(same, "InputsComplete") == ("True", "Complete")

        inputs = given(
            model(placement={"gpuProducts": [L4]}),
            model=inside["model"],
            engine=inside["engine"],
            placement={"gpuProducts": ["NVIDIA-H100-80GB-HBM3"]},
        )
        assert verdict(inputs, "InputsComplete") == ("False", "ModelConflict")
        text = message(inputs, "InputsComplete")
        assert "spec.placement" in text
        assert L4 in text

    @pytest.mark.parametrize(
        ("changes", "named"),
        [
            (
                {"placement": {"tolerations": [{"key": "gpu", "operator": "Exists"}]}},
                "the plan in spec.placement.tolerations ({key: gpu, operator: Exists} there, nothing here)",
            ),
            (
                {"placement": {"nodeSelector": {"pool": "a"}, "spread": {"level": "host"}}},
                "spec.placement.nodeSelector (pool: a there, nothing here); spec.placement.spread.level (host there, ",
            ),
            ({"engine__maxModelLen": 1024}, "spec.engine.maxModelLen (1024 there, "),
            ({"engine__args": ["--seed=1"]}, "spec.engine.args (--seed=1 there, nothing here)"),
            ({"engine__env": [{"name": "A", "value": "x" * 200}]}, "differs from the plan in spec.engine.env"),
            (
                {"parallelism": {"tensor": 2}},
                "the plan in spec.parallelism.tensor (2 there, nothing here)",
            ),
        ],
    )
    def test_fields_that_differ_are_named_each_by_its_whole_path(self, changes: dict[str, Any], named: str) -> None:
        inside = model().spec.to_wire()
        inputs = given(model(**changes), model=inside["model"], engine=inside["engine"], placement={})

        assert verdict(inputs, "InputsComplete") == ("False", "ModelConflict")
        assert named in message(inputs, "InputsComplete")

    def test_more_differences_than_can_be_read_are_counted(self) -> None:
        inside = model().spec.to_wire()
        engine = {
            "maxModelLen": 1024,
            "maxNumSeqs": 3,
            "memoryOverheadGib": 2,
            "gpuMemoryUtilization": 0.5,
            "kvCacheDtype": "fp8",
            "args": ["--seed=1"],
        }
        changes: dict[str, Any] = {f"engine__{name}": value for name, value in engine.items()}
        changes |= {"placement": {"nodeSelector": {"pool": "a"}}, "parallelism": {"tensor": 2, "pipeline": 2}}
        inputs = given(model(**changes), model=inside["model"], engine=inside["engine"], placement={})

        assert "spec.parallelism.pipeline (2 there, nothing here); and 1 more" in message(inputs, "InputsComplete")

    def test_the_floor_needs_measurements_about_this_model(self) -> None:
        inputs = given(benchmark__modelRevision="another")

        assert status_of(inputs).replicas == 4
        assert status_of(inputs).floor is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"benchmark__modelRevision": "other"}, "benchmark.modelRevision is other, model.revision is 0123abc"),
        ({"benchmark__engineImage": "vllm/vllm-openai:v0.31.0"}, "engine.image is vllm/vllm-openai:v0.32.0"),
        ({"benchmark__tensor": 2}, "benchmark was measured with tensor=2"),
        ({"benchmark__pipeline": 2}, "tensor=1 pipeline=2"),
        ({"workloadClasses__0__promptTokens": 9000}, "class interactive has 9100 tokens, engine.maxModelLen is 8192"),
    ],
)
def test_what_contradicts_the_model_is_a_conflict_and_nothing_measured_counts(
    changes: dict[str, Any], says: str
) -> None:
    inputs = given(**changes)

    assert verdict(inputs, "InputsComplete") == ("False", "Contradiction")
    assert says in message(inputs, "InputsComplete")
    assert verdict(inputs, "EvidenceCurrent") == ("False", "EvidenceContradicted")
    assert {state for name, state in unproven(inputs).items() if name.startswith("workload")} == {"Contradicted"}
    assert "parallel-layout" in unproven(inputs)
    assert "gpu-placement" in unproven(inputs)


def test_a_plan_and_a_model_that_name_different_gpus_are_a_conflict() -> None:
    inputs = given(model(placement={"gpuProducts": [L4]}))

    assert verdict(inputs, "InputsComplete") == ("False", "Contradiction")
    assert "benchmark.gpuProduct is NVIDIA-H100-80GB-HBM3, placement.gpuProducts has NVIDIA-L4" in message(
        inputs, "InputsComplete"
    )


def test_more_concurrency_than_the_engine_admits_is_a_contradiction() -> None:
    inputs = given(model(engine__maxNumSeqs=4))

    assert "benchmark.maxConcurrentRequests is 8, engine.maxNumSeqs is 4" in message(inputs, "InputsComplete")


def test_a_fleet_without_the_measured_gpu_places_nothing_and_the_count_stands() -> None:
    inputs = given(inventory=Inventory(nodes=(node("a0", product=L4, memory_mib=L4_MIB),)))

    assert verdict(inputs, "Placeable")[0] == "False"
    assert status_of(inputs).replicas == 4
    assert status_of(inputs).cost is None
    assert verdict(inputs, "WithinBudget") == ("Unknown", "Blocked")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"benchmark__observedTime": "2026-13-01T00:00:00Z"}, "spec.benchmark.observedTime"),
        ({"price__date": "2026-02-30T00:00:00Z"}, "spec.price.date"),
        ({"workloadClasses__0__outputTokens": 0, "workloadClasses__1__outputTokens": 0}, "output_demand"),
    ],
)
def test_what_no_schema_refuses_is_invalid_with_its_field(changes: dict[str, Any], field: str) -> None:
    inputs = given(**changes)

    assert verdict(inputs, "InputsComplete") == ("False", "InvalidSpec")
    assert verdict(inputs, "Stalled") == ("True", "InvalidSpec")
    assert message(inputs, "InputsComplete").startswith(field)


def test_an_unknown_topology_level_is_invalid() -> None:
    inputs = given(resilience__surviveLossOf="hall", more={"levels": frozenset({"zone"})})

    assert verdict(inputs, "InputsComplete") == ("False", "InvalidSpec")
    assert "unknown level 'hall'; configured are zone" in message(inputs, "InputsComplete")


class TestTime:
    def test_a_stale_benchmark_is_named_and_gives_no_floor(self) -> None:
        inputs = given(evidence__greatestAges={"benchmark": 86_399})

        assert verdict(inputs, "EvidenceCurrent") == ("False", "EvidenceStale")
        assert "benchmark" in message(inputs, "EvidenceCurrent")
        assert status_of(inputs).floor is None
        assert status_of(inputs).replicas == 4
        assert verdict(given(evidence__greatestAges={"benchmark": 86_400}), "EvidenceCurrent")[0] == "True"

    def test_a_benchmark_from_the_future_proves_nothing(self) -> None:
        inputs = given(benchmark__observedTime="2026-03-02T00:00:01Z")

        assert verdict(inputs, "EvidenceCurrent") == ("False", "EvidenceContradicted")
        assert status_of(inputs).floor is None

    def test_the_next_look_is_when_the_first_input_becomes_too_old(self) -> None:
        decision = decide_capacity(given(evidence__greatestAges={"benchmark": 86_400 + 100}))

        assert next_change_seconds(decision) == 100

    def test_an_old_saved_inventory_is_stale_and_a_live_one_never(self) -> None:
        inputs = given()
        old = given(more={"inventory_at_seconds": inputs.now_seconds - 601})

        assert set(unproven(old).values()) == {"Stale"}
        assert unproven(given(more={"inventory_at_seconds": inputs.now_seconds - 600})) == {}

    def test_time_that_changes_no_verdict_changes_no_byte(self) -> None:
        later = given(now="2026-03-02T06:00:00Z")

        assert status_of(later) == status_of(given())


class TestDigest:
    def test_equal_inputs_give_equal_statuses(self) -> None:
        assert status_of(given()).to_wire() == status_of(given()).to_wire()

    @pytest.mark.parametrize(
        "other",
        [
            lambda: given(benchmark__source="another run"),
            lambda: given(benchmark__observedTime="2026-03-01T00:00:01Z"),
            lambda: given(price__date="2026-02-28T00:00:00Z"),
            lambda: given(price__hourlyCost=4.26),
            lambda: given(evidence__greatestAges={"price": 90 * 86_400 + 1}),
            lambda: given(workloadClasses__0__requestsPerSecond=1.49),
            lambda: given(limits__maxReplicas=9),
            lambda: given(evidence__requiredClasses=["interactive"]),
            lambda: given(model(engine__maxModelLen=4096)),
            lambda: given(inventory=two_zones(5)),
            lambda: given(inventory=two_zones().with_claims([Claim("a0", cpu_millis=1)])),
            lambda: given(canary=None),
        ],
    )
    def test_any_changed_input_changes_the_digest_of_the_report(self, other: Any) -> None:
        assert status_of(other()).report_digest != status_of(given()).report_digest

    def test_who_holds_what_and_nodes_without_gpus_are_not_in_the_inventory_digest(self) -> None:
        one, two = (two_zones().with_claims([Claim("a0", gpus=1, owner=owner)]) for owner in ("x", "y"))
        bigger = Inventory(nodes=(*two_zones().nodes, node("cpu", 0, product="")))

        assert inventory_digest(one) == inventory_digest(two)
        assert inventory_digest(bigger) == inventory_digest(two_zones())


def test_more_replicas_than_are_placed_one_by_one_are_unknown_and_never_proven() -> None:
    roomy = Inventory(nodes=(node("a0", 10_000, pods=10_000),))
    inputs = given(inventory=roomy, limits=None, price=None, workloadClasses__0__requestsPerSecond=10**6)

    assert verdict(inputs, "Placeable") == ("Unknown", "TooManyToPlace")
    assert unproven(inputs)["gpu-placement"] == "Missing"
    assert status_of(inputs).replicas > 500_000


def test_without_a_price_no_cost_is_claimed_and_the_plan_can_be_proven() -> None:
    inputs = given(price=None, limits={"maxReplicas": 8})

    assert verdict(inputs, "WithinBudget") == ("True", "NoBudget")
    assert status_of(inputs).cost is None
    assert unproven(inputs) == {}


def test_doubling_the_price_doubles_the_cost_and_nothing_else() -> None:
    one, two = status_of(given()), status_of(given(price__hourlyCost=8.5))

    assert one.cost is not None
    assert two.cost is not None
    assert two.cost.per_hour == 2 * one.cost.per_hour
    assert (two.replicas, two.dimensions, two.floor) == (one.replicas, one.dimensions, one.floor)


def test_parsed_plan_is_what_was_written() -> None:
    assert plan_spec().limits.max_replicas == 8
