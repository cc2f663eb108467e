import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.api.capacitywords import Need
from bayplan.planning.layout.split import Layout
from bayplan.planning.placement.group import GroupRequest, GroupShape
from bayplan.planning.placement.inventory import Inventory, Node
from bayplan.planning.sizing.records import Resilience
from bayplan.planning.sizing.resilience import MOST_PLACED, FleetSizing, size_fleet

ONE_GPU = GroupShape(layout=Layout(tensor=1, pipeline=1, gpus_per_node=1, nodes=1))


def zones(*gpus: int) -> Inventory:
    """One node per zone with that many GPUs."""
    return Inventory(
        nodes=tuple(
            Node(name=f"n{i}", gpus=size, pods=100, domains={"zone": f"z{i}", "host": f"n{i}"})
            for i, size in enumerate(gpus)
        )
    )


def sized(load: int, inventory: Inventory, *, level: str | None = "zone", away: int = 0) -> FleetSizing:
    resilience = Resilience(domain_level=level, maintenance_replicas=away)
    return size_fleet(load, resilience, GroupRequest(name="m", revision="r", shapes=(ONE_GPU,)), inventory)


def test_without_a_level_only_load_and_maintenance_count() -> None:
    found = sized(4, zones(8, 8), level=None, away=1)

    assert (found.replicas, found.placement.replicas) == (5, 5)
    assert found.needs == {Need.LOAD: 4, Need.MAINTENANCE: 5}
    assert found.binding == (Need.MAINTENANCE,)


def test_the_loss_of_the_largest_domain_sets_the_size_and_not_the_mean_load() -> None:
    # three zones: 6 replicas are 2 each, and 4 are left
    assert sized(4, zones(8, 8, 8)).replicas == 6
    # two zones: 8 replicas, 4 each
    assert sized(4, zones(8, 8)).replicas == 8


def test_the_placement_that_is_really_there_decides() -> None:
    # the third zone has one GPU: 4 + 4 + 1 leave 5, 4 + 3 + 1 leave 4
    found = sized(4, zones(8, 8, 1))

    assert found.replicas == 7
    assert found.largest_domain_replicas == 3
    assert sorted(found.placement.in_domains("zone").values()) == [1, 3, 3]


def test_maintenance_comes_on_top_of_a_lost_domain_and_each_need_is_shown_alone() -> None:
    found = sized(4, zones(8, 8, 8), away=1)

    assert found.needs == {Need.LOAD: 4, Need.MAINTENANCE: 5, Need.DOMAIN_LOSS: 6}
    lost = max(found.placement.in_domains("zone").values())
    assert found.replicas - lost - 1 == 4
    assert not found.at_least


def test_one_domain_alone_survives_nothing_and_the_count_is_a_lower_bound() -> None:
    found = sized(4, zones(100))

    assert found.at_least
    assert found.replicas == 8
    assert "zone z0" in found.message


def test_too_little_room_elsewhere_is_said_with_the_refusal() -> None:
    found = sized(4, zones(4, 2))

    assert found.at_least
    assert found.replicas >= 6
    assert "finds no place" in found.message


def test_a_node_without_the_level_is_a_domain_of_its_own() -> None:
    nodes = tuple(Node(name=f"n{i}", gpus=4, pods=100, domains={"host": f"n{i}"}) for i in range(2))

    # nothing spreads over nodes that name no zone: the first is filled with four, and two must be elsewhere
    assert sized(2, Inventory(nodes=nodes)).replicas == 6


def test_a_replica_over_two_domains_is_lost_with_either() -> None:
    shape = GroupShape(layout=Layout(tensor=1, pipeline=2, gpus_per_node=1, nodes=2))
    request = GroupRequest(name="m", revision="r", shapes=(shape,))

    found = size_fleet(1, Resilience(domain_level="zone"), request, zones(1, 1, 1, 1))

    assert found.replicas == 2
    assert all(count == 1 for count in found.placement.in_domains("zone").values())


@given(gpus=st.lists(st.integers(0, 6), min_size=1, max_size=5), load=st.integers(1, 6), away=st.integers(0, 2))
@pytest.mark.property
def test_the_size_is_the_smallest_that_survives_and_a_refusal_is_none_that_does(
    gpus: list[int], load: int, away: int
) -> None:
    """Counted again from the places alone, with nothing of the search."""
    found = sized(load, zones(*gpus), away=away)
    nodes = [decision.nodes for decision in found.placement.placed]

    def left(replicas: int) -> int:
        domains = [name for group in nodes[:replicas] for name in set(group)]
        return replicas - max((domains.count(name) for name in domains), default=0) - away

    if found.at_least:
        assert all(left(replicas) < load for replicas in range(load, len(nodes) + 1))
    else:
        assert len(nodes) == found.replicas
        assert left(found.replicas) >= load
        assert all(left(replicas) < load for replicas in range(load, found.replicas))
    assert found.replicas > load + away or found.at_least


def test_a_plan_of_millions_is_bounded_and_says_nothing_of_the_rest() -> None:
    roomy = Inventory(nodes=(Node(name="n0", gpus=10**5, pods=10**5, domains={"zone": "z0", "host": "n0"}),))
    for level in (None, "zone"):
        found = sized(10**6, roomy, level=level)
        assert found.bounded
        assert found.placement.replicas == MOST_PLACED
        assert found.replicas >= 10**6


def test_a_refusal_is_a_proof_however_many_are_asked_for() -> None:
    for level in (None, "zone"):
        found = sized(10**6, zones(8, 8), level=level)
        assert not found.bounded
        assert found.placement.refusal is not None


def test_nothing_is_taken_from_the_inventory_that_was_given() -> None:
    inventory = zones(8, 8)
    before = dict(inventory.free)

    sized(4, inventory)

    assert dict(inventory.free) == before
