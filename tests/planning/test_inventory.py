import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.planning.numbers import InvalidInput
from bayplan.planning.placement.inventory import Claim, ClaimState, Free, Inventory
from tests.planning.fleets import TIB, node


def test_free_is_allocatable_less_every_claim_whatever_its_state() -> None:
    claims = tuple(
        Claim(node="a", gpus=1, cpu_millis=1000, memory_bytes=10, owner=state.value, state=state)
        for state in ClaimState
    )
    free = Inventory((node("a"), node("b")), claims).free

    assert free["a"] == Free(gpus=5, cpu_millis=93_000, memory_bytes=TIB - 30, pods=107)
    assert free["b"] == Free(gpus=8, cpu_millis=96_000, memory_bytes=TIB, pods=110)


def test_an_over_assigned_node_shows_by_how_much() -> None:
    assert Inventory((node("a", 4),), (Claim("a", gpus=6),)).free["a"].gpus == -2


def test_claims_on_unknown_nodes_count_nowhere() -> None:
    assert Inventory((node("a"),), (Claim("gone", gpus=8),)).free.keys() == {"a"}


def test_repeated_names_are_refused() -> None:
    with pytest.raises(InvalidInput, match="a is listed twice"):
        Inventory((node("a"), node("b"), node("a")))


@pytest.mark.parametrize("field", ["gpus", "cpu_millis", "memory_bytes"])
def test_negative_amounts_are_refused(field: str) -> None:
    with pytest.raises(InvalidInput) as of_claim:
        Claim(node="a", **{field: -1})
    with pytest.raises(InvalidInput) as of_node:
        node("a", **{"gpus": 8, field: -1}) if field != "gpus" else node("a", -1)

    assert of_claim.value.field == of_node.value.field == field


def test_owners_can_be_thought_away() -> None:
    inventory = Inventory((node("a"),), (Claim("a", gpus=2, owner="x"), Claim("a", gpus=3, owner="y")), version="7")
    without = inventory.without_owners(["x"])

    assert without.free["a"].gpus == 5
    assert without.version == "7"
    assert inventory.free["a"].gpus == 3


claim_lists = st.lists(
    st.builds(
        Claim, node=st.sampled_from(["a", "b", "gone"]), gpus=st.integers(0, 9), cpu_millis=st.integers(0, 10**5)
    ),
    max_size=6,
)


@pytest.mark.property
@given(claim_lists, claim_lists)
def test_claims_added_later_count_like_claims_known_from_the_start(first: list[Claim], later: list[Claim]) -> None:
    nodes = (node("a"), node("b", 4))
    stepwise = Inventory(nodes, tuple(first)).with_claims(later)
    at_once = Inventory(nodes, (*first, *later))

    assert stepwise.free == at_once.free
    assert stepwise == at_once
