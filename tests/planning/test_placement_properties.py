from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.api.conditions import Reason
from bayplan.planning.placement.inventory import Inventory
from bayplan.planning.placement.place import place
from tests.planning.exhaustive import ranked_groups, violations
from tests.planning.fleets import node
from tests.planning.worlds import SELECTED, random_inventory, random_request

pytestmark = pytest.mark.property

randoms = st.integers(0, 2**63).map(Random)


@settings(max_examples=1000)
@given(randoms)
def test_the_decision_is_the_best_of_all_groups_and_a_refusal_means_that_there_is_none(random: Random) -> None:
    request, inventory = random_request(random), random_inventory(random)
    decision = place(request, inventory)
    groups = ranked_groups(request, inventory)

    assert decision.placed == bool(groups)
    if not groups:
        assert decision.reason is not Reason.PLACED
        assert decision.message
        return
    assert decision.shape is not None
    assert violations(request, decision.shape, inventory, decision.nodes) == []
    best = groups[0]
    assert decision.nodes == best[-1]
    assert (decision.shape.preference, decision.shape.layout.gpus) == (best[0], best[4])
    assert (decision.resident, decision.gpus_left) == (len(best[-1]) - best[3], best[5])
    assert decision.gpu_memory_left_mib == best[6]


@settings(max_examples=500)
@given(randoms)
def test_the_runner_up_is_the_second_best_group(random: Random) -> None:
    request, inventory = random_request(random, most_shapes=1), random_inventory(random)
    decision = place(request, inventory)
    groups = ranked_groups(request, inventory)

    if len(groups) > 1:
        assert decision.runner_up is not None
        assert decision.runner_up.nodes == groups[1][-1]
    else:
        assert decision.runner_up is None


@given(randoms)
def test_the_order_of_nodes_and_claims_decides_nothing(random: Random) -> None:
    request, inventory = random_request(random), random_inventory(random)
    shuffled_nodes, shuffled_claims = list(inventory.nodes), list(inventory.claims)
    random.shuffle(shuffled_nodes)
    random.shuffle(shuffled_claims)
    shuffled = Inventory(tuple(shuffled_nodes), tuple(shuffled_claims))

    assert place(request, shuffled) == place(request, inventory)


@given(randoms)
def test_a_sequence_of_groups_never_takes_more_than_is_free(random: Random) -> None:
    inventory = random_inventory(random)
    before = inventory.free
    for index in range(8):
        decision = place(replace(random_request(random), kept_nodes=frozenset()), inventory)
        inventory = inventory.with_claims(decision.claims(f"group-{index}"))

    for name, free in inventory.free.items():
        used = before[name]
        if free != used:
            assert free.gpus >= 0
            assert free.cpu_millis >= 0
            assert free.memory_bytes >= 0
            assert free.pods >= 0


@given(randoms, st.integers(0, 6))
def test_another_free_node_never_loses_a_placement(random: Random, gpus: int) -> None:
    request, inventory = random_request(random), random_inventory(random)
    richer = Inventory((*inventory.nodes, node("new", gpus, labels=SELECTED)), inventory.claims)

    assert place(request, richer).placed or not place(request, inventory).placed


@settings(max_examples=300)
@given(randoms)
def test_a_refusal_names_the_numbers_that_decided(random: Random) -> None:
    request, inventory = random_request(random), random_inventory(random)
    decision = place(request, inventory)
    if decision.placed:
        return
    assert decision.shape is not None
    need = decision.shape.layout.gpus
    assert decision.needed_gpus == need
    match decision.reason:
        case Reason.INSUFFICIENT_GPU:
            assert decision.free_gpus < need
        case Reason.FRAGMENTED_CAPACITY | Reason.NO_NODE_MATCHES_TOPOLOGY:
            assert decision.free_gpus >= need
        case Reason.NO_NODE_MATCHES:
            matching = len(inventory.nodes) - sum(
                number for obstacle, number in decision.obstacles.items() if not obstacle.is_room
            )
            assert matching < decision.shape.layout.nodes
        case _:
            raise AssertionError(decision.reason)
