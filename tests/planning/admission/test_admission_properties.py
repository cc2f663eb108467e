"""What must hold in every life of a pool, judged by accounts that share no code with it."""

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.planning.admission.crowd import Crowd
from tests.planning.admission.walk import Walk

pytestmark = pytest.mark.property

SEEDS = st.integers(0, 2**32)
GENERATE = (Phase.explicit, Phase.reuse, Phase.generate)
"""A smaller seed is no simpler a life, so nothing is gained by shrinking."""


@given(seed=SEEDS)
@settings(max_examples=20, phases=GENERATE)
def test_nothing_is_leaked_and_nothing_held_twice_in_any_order_of_events(seed: int) -> None:
    walk = Walk(seed)

    walk.run(5000)

    walk.finish()


@given(seed=SEEDS, budgets=st.lists(st.integers(100, 400), min_size=1, max_size=4), size=st.integers(10, 100))
@settings(max_examples=30, phases=GENERATE)
def test_nothing_waits_while_there_is_room_for_it_when_all_are_alike(seed: int, budgets: list[int], size: int) -> None:
    crowd = Crowd(seed, sizes={tenant: lambda _: size for tenant in "abc"}, budgets=tuple(budgets))
    for _ in range(100):
        crowd.fill()
        assert crowd.roomy() == set()
        crowd.end_one()
        assert crowd.roomy() == set()


@given(seed=SEEDS, budgets=st.lists(st.integers(300, 600), min_size=1, max_size=4))
@settings(max_examples=30, phases=GENERATE)
def test_room_lies_idle_on_one_replica_at_most_and_only_for_a_large_request_that_was_passed(
    seed: int, budgets: list[int]
) -> None:
    sizes = {"a": lambda random: random.choice((1, 5, 20, 60, 150, min(budgets)))}
    crowd = Crowd(seed, sizes=sizes, budgets=tuple(budgets), backlog=6)
    for _ in range(200):
        crowd.fill()
        crowd.end_one()
        roomy = crowd.roomy()
        if roomy:
            oldest = crowd.oldest("a")
            assert oldest is not None
            assert len(roomy) == 1
            assert crowd.passed[oldest] >= crowd.waiting[oldest].tokens


@given(
    seed=SEEDS,
    sizes=st.tuples(st.integers(1, 300), st.integers(1, 300)),
    weights=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    budgets=st.lists(st.integers(300, 600), min_size=1, max_size=3),
    use=st.floats(0, 1),
)
@settings(max_examples=40, phases=GENERATE)
def test_tenants_that_both_wait_differ_by_at_most_three_times_what_the_pool_holds_and_one_request(
    seed: int, sizes: tuple[int, int], weights: tuple[int, int], budgets: list[int], use: float
) -> None:
    crowd = Crowd(
        seed,
        sizes={"a": lambda random: random.randint(1, sizes[0]), "b": lambda random: random.randint(1, sizes[1])},
        weights={"a": weights[0], "b": weights[1]},
        budgets=tuple(budgets),
        use=use,
        backlog=12,
    )
    crowd.fill()
    start = dict(crowd.given)
    for _ in range(300):
        crowd.end_one()
        if any(crowd.oldest(tenant) is None for tenant in "ab"):
            # Who has nothing waiting earns nothing meanwhile, so the account begins anew.
            crowd.fill()
            start = dict(crowd.given)
        crowd.fill()
        a, b = (
            (crowd.given[tenant] - start.get(tenant, 0)) / weight for tenant, weight in zip("ab", weights, strict=True)
        )
        assert abs(a - b) <= 3 * crowd.budget + max(sizes)


@given(seed=SEEDS, small=st.integers(1, 50), tenants=st.integers(1, 5), replicas=st.integers(1, 3))
@settings(max_examples=30, phases=GENERATE)
def test_a_request_as_large_as_a_replica_gets_in_among_any_number_of_small_ones(
    seed: int, small: int, tenants: int, replicas: int
) -> None:
    names = [f"t{number}" for number in range(tenants)]
    crowd = Crowd(
        seed, sizes={name: lambda random: random.randint(1, small) for name in names}, budgets=(600,) * replicas
    )
    crowd.fill()
    large = crowd.arrive("t0", 600)
    before = sum(crowd.given.values())
    while large in crowd.waiting:
        crowd.end_one(oldest=True)
        crowd.fill()
        # Those before it go in, at most its own size passes it, then a replica empties while the others turn over once.
        assert sum(crowd.given.values()) - before <= 600 + 600 + 5 * small + tenants * crowd.budget
