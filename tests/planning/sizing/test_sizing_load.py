from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.api.capacityplan import MAX_CLASSES
from bayplan.api.capacitywords import Dimension, PricedUnit
from bayplan.planning.numbers import InvalidInput
from bayplan.planning.sizing.cost import fleet_cost
from bayplan.planning.sizing.limits import Bound, find_breaches
from bayplan.planning.sizing.load import fleet_demand, size_load
from bayplan.planning.sizing.records import Limits, Price, ReplicaCapacity, Resilience, WorkloadClass, check_bounds

CHAT = WorkloadClass("chat", 1, 100, 200, 2, 2)
CAPACITY = ReplicaCapacity(200, 200, 10)


def test_demand_counts_bursts_and_keeps_prompt_output_requests_and_tokens_apart() -> None:
    demand = fleet_demand([CHAT, WorkloadClass("batch", Fraction(1, 2), 1000, 10, 4)])

    assert demand.prompt_tokens_per_second == 2 * 100 + Fraction(1, 2) * 1000
    assert demand.output_tokens_per_second == 2 * 200 + Fraction(1, 2) * 10
    assert demand.concurrent_requests == 2 * 2 + Fraction(1, 2) * 4
    assert demand.kv_tokens == 2 * 2 * 300 + Fraction(1, 2) * 4 * 1010


def test_every_dimension_is_rounded_by_itself_and_ties_are_ties() -> None:
    # prefill 1.25, decode 1.25 and nothing else above 1
    sizing = size_load(
        fleet_demand([WorkloadClass("chat", 1, 100, 100, 1, 2)]), CAPACITY, Resilience(1, Fraction(1, 5))
    )

    assert sizing.rounded == {"prefill": 2, "decode": 2, "concurrency": 1, "replica-floor": 1}
    assert sizing.binding == (Dimension.DECODE, Dimension.PREFILL)
    assert sizing.bottlenecks == (Dimension.DECODE, Dimension.PREFILL)


def test_dimensions_that_tie_only_after_rounding_bind_together_and_the_bottleneck_is_the_larger_unrounded_one() -> None:
    sizing = size_load(fleet_demand([WorkloadClass("chat", 1, 380, 350, 1)]), CAPACITY, Resilience())

    assert sizing.unrounded[Dimension.PREFILL] == Fraction(19, 10)
    assert sizing.binding == (Dimension.DECODE, Dimension.PREFILL)
    assert sizing.bottlenecks == (Dimension.PREFILL,)


@pytest.mark.parametrize(("output", "replicas"), [(980, 4), (981, 5)])
def test_an_exact_multiple_buys_no_replica_more(output: int, replicas: int) -> None:
    capacity = ReplicaCapacity(10**6, 350, 1000)
    resilience = Resilience(1, 0.3)

    sizing = size_load(fleet_demand([WorkloadClass("chat", 1, 1, output, 1)]), capacity, resilience)

    assert sizing.replicas == replicas


@pytest.mark.parametrize(("kv_tokens", "replicas"), [(600, 2), (599, 3)])
def test_kv_tokens_of_requests_at_work_are_a_dimension_of_their_own(kv_tokens: int, replicas: int) -> None:
    # 2 requests/s × 2 s × 300 tokens = 1200 tokens at the same time
    capacity = ReplicaCapacity(10**6, 10**6, 1000, kv_tokens=kv_tokens)

    sizing = size_load(fleet_demand([CHAT]), capacity, Resilience())

    assert sizing.replicas == replicas
    assert sizing.binding == (Dimension.KV_TOKENS,)


def test_without_known_kv_tokens_the_dimension_is_left_out() -> None:
    assert Dimension.KV_TOKENS not in size_load(fleet_demand([CHAT]), CAPACITY, Resilience()).unrounded


def test_what_demand_alone_asks_for_leaves_the_floor_out() -> None:
    sizing = size_load(fleet_demand([WorkloadClass("trickle", 0.1, 10, 10, 0.5)]), CAPACITY, Resilience(3))

    assert (sizing.replicas, sizing.demand_replicas) == (3, 1)
    assert sizing.binding == (Dimension.FLOOR,)


def test_service_rate_fills_exactly_the_replicas_of_the_tightest_dimension() -> None:
    demand = fleet_demand([CHAT])
    sizing = size_load(demand, CAPACITY, Resilience())

    assert demand.tokens_per_second / sizing.service_tokens_per_second == sizing.unrounded[Dimension.DECODE]


@pytest.mark.property
@given(rate=st.integers(1, 10**4), price=st.fractions(0, 100), ceiling=st.integers(1, 5), budget=st.integers(0, 50))
def test_no_price_ceiling_or_budget_changes_the_number(rate: int, price: Fraction, ceiling: int, budget: int) -> None:
    demand = fleet_demand([WorkloadClass("chat", rate, 100, 100, 1)])
    replicas = size_load(demand, CAPACITY, Resilience()).replicas

    cost = fleet_cost(Price(price, "EUR", "list", 0), demand, replicas=replicas, gpus_per_replica=2)
    breaches = find_breaches(Limits(ceiling, max_hourly_cost=budget), replicas=replicas, gpus=0, cost=cost)

    assert replicas == -(-rate * 100 // 200)
    assert cost.per_hour == replicas * 2 * price
    assert {breach.bound for breach in breaches} == {
        bound
        for bound, over in ((Bound.MAX_REPLICAS, replicas > ceiling), (Bound.BUDGET, cost.per_hour > budget))
        if over
    }


def test_every_breach_is_told_and_equality_passes() -> None:
    demand = fleet_demand([CHAT])
    cost = fleet_cost(Price(5, "EUR", "list", 0), demand, replicas=4, gpus_per_replica=2)

    assert find_breaches(Limits(4, 8, 40), replicas=4, gpus=8, cost=cost) == ()
    found = find_breaches(Limits(3, 7, 39), replicas=4, gpus=8, cost=cost, quota_shortfall="quota q is short")
    assert [breach.bound for breach in found] == [Bound.MAX_REPLICAS, Bound.QUOTA, Bound.QUOTA, Bound.BUDGET]


def test_price_is_per_gpu_or_per_replica_and_tokens_are_those_of_the_peak() -> None:
    demand = fleet_demand([CHAT])  # 200 prompt and 400 output tokens/s
    by_gpu = fleet_cost(Price(2, "EUR", "list", 0), demand, replicas=3, gpus_per_replica=4)
    by_replica = fleet_cost(Price(2, "EUR", "list", 0, PricedUnit.REPLICA), demand, replicas=3, gpus_per_replica=4)

    assert (by_gpu.per_hour, by_replica.per_hour) == (24, 6)
    assert by_gpu.per_million_output_tokens == Fraction(24 * 10**6, 400 * 3600)
    assert by_gpu.per_million_tokens == Fraction(24 * 10**6, 600 * 3600)


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (lambda: WorkloadClass(" ", 1, 1, 1, 1), "name"),
        (lambda: WorkloadClass("a", float("nan"), 1, 1, 1), "requests_per_second"),
        (lambda: WorkloadClass("a", 1, 1.5, 1, 1), "prompt_tokens"),
        (lambda: WorkloadClass("a", 1, True, 1, 1), "prompt_tokens"),
        (lambda: WorkloadClass("a", 1, 1, 1, 0), "mean_service_seconds"),
        (lambda: WorkloadClass("a", 1, 1, 1, 1, Fraction(9, 10)), "burst_multiplier"),
        (lambda: ReplicaCapacity(0, 1, 1), "prefill_tokens_per_second"),
        (lambda: ReplicaCapacity(1, 0, 1), "output_tokens_per_second"),
        (lambda: ReplicaCapacity(1, 1, 0), "max_concurrent_requests"),
        (lambda: Resilience(0), "min_replicas"),
        (lambda: Resilience(1, 1), "reserved_fraction"),
        (lambda: Price(1, "EUR", " ", 0), "source"),
        (lambda: Price(float("nan"), "EUR", "list", 0), "hourly_cost"),
        (lambda: check_bounds(Resilience(5), Limits(4)), "max_replicas"),
        (lambda: fleet_demand([]), "workload_classes"),
        (lambda: fleet_demand([CHAT, CHAT]), "class_names"),
        (lambda: fleet_demand([WorkloadClass("a", 1, 1, 0, 1)]), "output_demand"),
    ],
)
def test_invalid_input_names_its_field(build: object, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        build()  # type: ignore[operator]
    assert caught.value.field == field


def test_a_million_classes_are_refused_at_once() -> None:
    with pytest.raises(InvalidInput, match=f"at most {MAX_CLASSES}, not 1000000"):
        fleet_demand([CHAT] * 10**6)
