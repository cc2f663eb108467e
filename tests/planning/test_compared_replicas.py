"""Where the groups stand that are compared: each goes where it first finds room, and stays there."""

from bayplan.planning.placement.apart import ApartPlacer
from bayplan.planning.placement.inventory import Claim, Inventory
from tests.planning.fleets import node, request, shape

FLEET = Inventory((node("a", 4), node("b", 4)), (Claim("b", gpus=4, owner="serving"),))


def placed(placer: ApartPlacer, *inventories: Inventory) -> tuple[str, ...]:
    for inventory in inventories:
        placer.add(inventory, [])
    return placer.head_nodes


def test_groups_that_find_room_on_one_node_stay_there_whatever_is_freed_later() -> None:
    placer = ApartPlacer(request(shape(2)), 2)
    assert placed(placer, FLEET, FLEET.without_owners(["serving"])) == ("a",)
    assert "nodes left out: 1 set aside after a failure or for another replica" in placer.missing
    assert placed(ApartPlacer(request(shape(2)), 2), FLEET.without_owners(["serving"])) == ("a", "b")


def test_a_group_that_finds_no_room_goes_where_it_is_made() -> None:
    placer = ApartPlacer(request(shape(4)), 2)
    assert placed(placer, FLEET) == ("a",)
    assert (len(placer.placed), placer.missing) == (1, "")
    assert placed(placer, FLEET.without_owners(["serving"])) == ("a", "b")


def test_heads_of_groups_over_several_nodes_are_told_apart_by_their_own_nodes() -> None:
    fleet = Inventory(tuple(node(name, 2) for name in "abcd"))
    placer = ApartPlacer(request(shape(2, 2)), 2)
    placer.add(fleet, [])
    used = [name for decision in placer.placed for name in decision.nodes]
    assert sorted(used) == ["a", "b", "c", "d"]
    assert len(placer.head_nodes) == 2


def test_groups_that_stand_already_are_spread_from() -> None:
    fleet = Inventory((node("a", 2, zone="za"), node("b", 4, zone="zb")))
    placer = ApartPlacer(request(shape(2)), 1)
    placer.add(fleet, [["a"]])
    assert placer.head_nodes == ("b",)
