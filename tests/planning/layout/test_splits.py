from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.api.provenance import Provenance
from bayplan.planning.layout.choice import choose
from bayplan.planning.layout.split import Layout, Split, arranged
from bayplan.planning.memory import Fit, Term
from bayplan.planning.numbers import InvalidInput


def fit(required: int | Fraction, usable: int | None = 10) -> Fit:
    return Fit(
        terms=(Term("all", Fraction(required), Provenance.DECLARED),),
        usable_gib=None if usable is None else Fraction(usable),
    )


@pytest.mark.parametrize(
    ("tensor", "pipeline", "gpus_of_node", "gpus_per_node", "nodes"),
    [
        (1, 1, 8, 1, 1),
        (8, 1, 8, 8, 1),
        (4, 2, 8, 8, 1),
        (4, 2, 4, 4, 2),
        (8, 2, 8, 8, 2),
        (4, 3, 8, 4, 3),
        (2, 6, 8, 6, 2),
        (3, 2, 8, 6, 1),
        (1, 64, 8, 8, 8),
    ],
)
def test_pods_are_equal_and_tensor_groups_stay_inside_a_node(
    tensor: int, pipeline: int, gpus_of_node: int, gpus_per_node: int, nodes: int
) -> None:
    assert arranged(Split(tensor, pipeline), gpus_of_node=gpus_of_node) == Layout(
        tensor=tensor, pipeline=pipeline, gpus_per_node=gpus_per_node, nodes=nodes
    )


def test_a_tensor_group_wider_than_a_node_has_no_arrangement() -> None:
    assert arranged(Split(8), gpus_of_node=8) is not None
    assert arranged(Split(9), gpus_of_node=8) is None


def test_a_layout_holds_exactly_its_gpus() -> None:
    with pytest.raises(InvalidInput, match="2 pods must hold 4 GPUs together"):
        Layout(tensor=4, pipeline=1, gpus_per_node=4, nodes=2)
    with pytest.raises(InvalidInput):
        Layout(tensor=0, pipeline=1, gpus_per_node=1, nodes=1)
    with pytest.raises(InvalidInput):
        Split(tensor=1, pipeline=0)


@pytest.mark.parametrize(
    ("split", "gpus_of_node", "gpus_per_node", "nodes"),
    [
        (Split(1, data=8, expert=True), 8, 8, 1),
        (Split(1, data=16, expert=True), 8, 8, 2),
        (Split(2, data=4), 4, 4, 2),
        (Split(2, 2, 2), 8, 8, 1),
        (Split(2, 2, 2), 4, 4, 2),
    ],
)
def test_a_data_rank_stays_whole_on_one_node(split: Split, gpus_of_node: int, gpus_per_node: int, nodes: int) -> None:
    found = arranged(split, gpus_of_node=gpus_of_node)

    assert found is not None
    assert (found.gpus_per_node, found.nodes) == (gpus_per_node, nodes)
    assert found.sizes == split.sizes


def test_a_data_rank_wider_than_a_node_has_no_arrangement() -> None:
    assert arranged(Split(4, 2, 2), gpus_of_node=4) is None


def test_a_split_names_only_the_sizes_that_it_has() -> None:
    assert str(Split(4)) == "tensor=4 pipeline=1"
    text = "tensor=8 pipeline=1 data=2 expert=true decodeContext=4"
    assert str(Split(8, data=2, expert=True, decode_context=4)) == text
    assert str(arranged(Split(8, 2), gpus_of_node=8)) == "tensor=8 pipeline=2"


def test_the_first_candidate_that_fits_is_chosen_and_the_next_one_is_runner_up() -> None:
    needs = {1: 30, 2: 12, 4: 9, 8: 8}

    choice = choose([Split(t, 1) for t in needs], lambda split: fit(needs[split.tensor]))

    assert choice.chosen is not None
    assert choice.chosen.split.tensor == 4
    assert choice.runner_up is not None
    assert choice.runner_up.split.tensor == 8
    assert choice.closest is not None
    assert choice.closest.split.tensor == 2


def test_when_nothing_fits_the_closest_is_named() -> None:
    needs = {1: 30, 2: 12, 4: 13}

    choice = choose([Split(t, 1) for t in needs], lambda split: fit(needs[split.tensor]))

    assert choice.chosen is None
    assert choice.runner_up is None
    assert choice.closest is not None
    assert choice.closest.split.tensor == 2


def test_unknown_memory_chooses_nothing() -> None:
    assert choose([Split(1, 1)], lambda _: fit(1, usable=None)).chosen is None


def test_candidates_beyond_the_runner_up_are_not_weighed() -> None:
    weighed = []

    def weigh(split: Split) -> Fit:
        weighed.append(split.tensor)
        return fit(1)

    choose([Split(t, 1) for t in range(1, 100)], weigh)

    assert weighed == [1, 2]


@pytest.mark.property
@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 16))
def test_an_arrangement_keeps_every_tensor_group_whole_on_the_fewest_equal_nodes(
    tensor: int, pipeline: int, gpus_of_node: int
) -> None:
    found = arranged(Split(tensor, pipeline), gpus_of_node=gpus_of_node)

    possible = [
        nodes
        for nodes in range(1, pipeline + 1)
        if pipeline % nodes == 0 and pipeline // nodes * tensor <= gpus_of_node
    ]
    if found is None:
        assert not possible
    else:
        assert found.nodes == min(possible)
        assert found.gpus_per_node % tensor == 0
        assert found.gpus_per_node <= gpus_of_node
