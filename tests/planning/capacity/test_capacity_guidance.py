"""What scaling takes from a plan: the numbers that the plan was sized by, and nothing is lost on the way."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.api.autoscaling import Autoscaling
from bayplan.api.capacityplan_status import CapacityPlanStatus
from bayplan.api.conditions import Condition
from bayplan.api.inferencemodel_status import CapacityGuidanceStatus
from bayplan.planning.capacity.guidance import Guidance, guided, rate
from bayplan.planning.evidencecontract.scalingloop import run_scaling_loop
from bayplan.planning.scaling.policy import policy_of
from bayplan.planning.sizing.load import fleet_demand, size_load
from bayplan.planning.sizing.records import ReplicaCapacity, Resilience, WorkloadClass
from bayplan.reconcile.capacityplan.guidance import guide
from tests.planning.capacity.plans import model

AUTOSCALING = Autoscaling(max_replicas=10_000, service_tokens_per_second=Decimal(1))
NUMBERS = CapacityGuidanceStatus(
    plan="peak", floor=4, service_tokens_per_second=Decimal(500), target_utilization=Decimal("0.75")
)


def condition(status: str, reason: str) -> Condition:
    time = "2026-03-01T00:00:00Z"
    return Condition(type="EvidenceCurrent", status=status, reason=reason, message="m", last_transition_time=time)


@pytest.mark.property
@given(
    prompt=st.integers(0, 5000),
    output=st.integers(1, 2000),
    per_second=st.decimals("0.1", 500, places=1),
    prefill=st.integers(100, 9999),
    decode=st.integers(100, 9999),
    reserved=st.sampled_from(["0", "0.1", "0.25", "0.3"]),
)
def test_demand_alone_asks_for_exactly_what_was_sized(
    *, prompt: int, output: int, per_second: Decimal, prefill: int, decode: int, reserved: str
) -> None:
    demand = fleet_demand([WorkloadClass("a", per_second, prompt, output, 1)])
    sizing = size_load(demand, ReplicaCapacity(prefill, decode, 10**6), Resilience(1, Fraction(reserved)))
    wide = AUTOSCALING.model_copy(update={"max_replicas": 10**6})
    policy = policy_of(guided(wide, Guidance(1, sizing.service_tokens_per_second, 1 - Decimal(reserved))))

    loop = run_scaling_loop(
        policy,
        planned_replicas=sizing.demand_replicas,
        arriving_tokens_per_second=demand.tokens_per_second,
        sample_seconds=Fraction(15),
    )

    assert loop.reached == sizing.demand_replicas


@given(st.fractions(min_value=Fraction(1, 10**6), max_value=10**9))
@pytest.mark.property
def test_a_rate_is_never_below_the_exact_one_and_survives_json(number: Fraction) -> None:
    rounded = rate(number)

    assert Fraction(rounded) >= number
    assert Fraction(rounded) - number <= number / 10**14
    assert Decimal(repr(float(rounded))) == rounded


def test_a_floor_lies_within_the_models_own_bounds() -> None:
    narrow = AUTOSCALING.model_copy(update={"min_replicas": 2, "max_replicas": 5})
    for floor, kept in ((1, 2), (3, 3), (9, 5)):
        assert guided(narrow, Guidance(floor, Fraction(10), Decimal(1))).min_replicas == kept


class TestTheModelsSide:
    def test_without_a_reference_nothing_is_taken_and_what_stood_is_dropped(self) -> None:
        spec = model(capacityPlanRef=None).spec
        found = guide(spec, NUMBERS, None)

        assert found.spec is spec
        assert (found.word.numbers, found.word.verdict, found.word.evidence) == (None, None, None)

    def test_a_plan_that_has_not_looked_at_its_present_spec_changes_nothing(self) -> None:
        plan = CapacityPlanStatus(observed_generation=1, floor=9, conditions=(condition("True", "EvidenceCurrent"),))
        found = guide(model().spec, NUMBERS, plan, plan_generation=2)

        assert found.word.numbers == NUMBERS
        assert found.word.verdict is not None
        assert found.word.verdict[1:3] == ("Unknown", "PlanMissing")

    def test_numbers_of_another_plan_do_not_stand(self) -> None:
        assert guide(model(capacityPlanRef={"name": "other"}).spec, NUMBERS, None).word.numbers is None

    def test_fixed_replicas_are_not_touched(self) -> None:
        spec = model(autoscaling=None, replicas=2).spec
        plan = CapacityPlanStatus(observed_generation=1, floor=9, conditions=(condition("True", "EvidenceCurrent"),))
        found = guide(spec, None, plan, plan_generation=1)

        assert found.spec.wanted_replicas == 2
        assert found.word.numbers is not None
        assert found.word.numbers.floor == 9

    def test_a_reason_of_a_newer_operator_is_told_as_a_plan_that_is_not_understood(self) -> None:
        plan = CapacityPlanStatus(observed_generation=1, conditions=(condition("False", "SignatureMissing"),))
        found = guide(model().spec, NUMBERS, plan, plan_generation=1)

        assert found.word.verdict is not None
        assert found.word.verdict[1:3] == ("False", "PlanMissing")
        assert found.word.numbers == NUMBERS
