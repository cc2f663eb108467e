from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.planning.layout.fleet import FleetReason, ReplicaNeed, UniformFleet, plan_fleet_layout
from bayplan.planning.numbers import InvalidInput


def need(weights: float = 60, **changes: Any) -> ReplicaNeed:
    return ReplicaNeed(**{"weight_memory_gib": weights, "runtime_memory_gib_per_gpu": 4, **changes})


def fleet(**changes: Any) -> UniformFleet:
    fields = {"nodes": 2, "gpus_per_node": 4, "gpu_memory_gib": 40, "usable_fraction": 0.9}
    return UniformFleet(**{**fields, **changes})


@pytest.mark.parametrize(
    ("weights", "tensor", "pipeline", "reason"),
    [
        (32, 1, 1, FleetReason.SINGLE_GPU),
        (32.0001, 2, 1, FleetReason.TENSOR_SPLIT),
        (64, 2, 1, FleetReason.TENSOR_SPLIT),
        (64.0001, 1, 3, FleetReason.PIPELINE_SPLIT),
        (100, 4, 1, FleetReason.TENSOR_SPLIT),
        (256, 4, 2, FleetReason.TENSOR_SPLIT),
        (256.0001, 0, 0, FleetReason.NO_LAYOUT_FITS),
    ],
)
def test_fewest_gpus_win_and_the_limit_itself_fits(
    weights: float, tensor: int, pipeline: int, reason: FleetReason
) -> None:
    decision = plan_fleet_layout(need(weights), fleet())

    assert (decision.tensor, decision.pipeline, decision.reason) == (tensor, pipeline, reason)
    assert decision.feasible == (tensor > 0)


def test_without_fast_links_the_pipeline_carries_the_split() -> None:
    decision = plan_fleet_layout(need(100), fleet(fast_intra_node_collectives=False))

    assert (decision.tensor, decision.pipeline) == (1, 4)


def test_too_few_gpus_for_the_replicas_are_said_before_everything_else() -> None:
    decision = plan_fleet_layout(need(target_replicas=5), fleet())

    assert decision.reason is FleetReason.REPLICA_SHORTFALL
    assert decision.data == 4


def test_experts_are_split_by_a_divisor_of_their_number() -> None:
    assert plan_fleet_layout(need(100, experts=8), fleet()).expert == 4
    assert plan_fleet_layout(need(100, experts=6), fleet()).expert == 3
    assert plan_fleet_layout(need(100, experts=7), fleet()).expert == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weight_memory_gib", 0),
        ("runtime_memory_gib_per_gpu", -1),
        ("experts", 0),
        ("target_replicas", 0),
        ("target_replicas", 1.5),
        ("weight_memory_gib", float("nan")),
    ],
)
def test_an_invalid_need_names_its_field(field: str, value: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        replace(need(), **{field: value})
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("nodes", 0),
        ("gpus_per_node", 0),
        ("gpu_memory_gib", -1),
        ("gpu_memory_gib", float("inf")),
        ("usable_fraction", 0),
        ("usable_fraction", 1.1),
        ("fast_intra_node_collectives", 1),
    ],
)
def test_an_invalid_fleet_names_its_field(field: str, value: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        fleet(**{field: value})
    assert caught.value.field == field


needs = st.builds(
    ReplicaNeed,
    weight_memory_gib=st.fractions(Fraction(1), Fraction(900), max_denominator=10),
    runtime_memory_gib_per_gpu=st.fractions(Fraction(0), Fraction(40), max_denominator=10),
    experts=st.integers(1, 64),
    target_replicas=st.integers(1, 9),
)
fleets = st.builds(
    UniformFleet,
    nodes=st.integers(1, 5),
    gpus_per_node=st.integers(1, 8),
    gpu_memory_gib=st.integers(1, 80).map(Fraction),
    usable_fraction=st.fractions(Fraction(1, 10), Fraction(1), max_denominator=20),
    fast_intra_node_collectives=st.booleans(),
)


@pytest.mark.property
@given(needs, fleets)
def test_the_choice_equals_an_exhaustive_search(asked: ReplicaNeed, there: UniformFleet) -> None:
    decision = plan_fleet_layout(asked, there)

    widths = range(1, there.gpus_per_node + 1) if there.fast_intra_node_collectives else (1,)
    fitting = [
        (tensor * pipeline, pipeline, tensor)
        for tensor in widths
        if there.gpus_per_node % tensor == 0
        for pipeline in range(1, there.gpus // tensor + 1)
        if asked.weight_memory_gib / (tensor * pipeline) + asked.runtime_memory_gib_per_gpu
        <= there.gpu_memory_gib * there.usable_fraction
    ]
    if fitting:
        gpus, pipeline, tensor = min(fitting)
        assert (decision.tensor, decision.pipeline) == (tensor, pipeline)
        assert decision.data == min(asked.target_replicas, there.gpus // gpus)
        assert decision.expert == max(e for e in range(1, gpus + 1) if asked.experts % e == 0)
    else:
        assert not decision.feasible
        assert (decision.tensor, decision.pipeline, decision.data, decision.expert) == (0, 0, 0, 0)


@pytest.mark.property
@given(needs, fleets)
def test_another_node_never_loses_a_layout(asked: ReplicaNeed, there: UniformFleet) -> None:
    before = plan_fleet_layout(asked, there)
    after = plan_fleet_layout(asked, replace(there, nodes=there.nodes + 1))

    assert after.feasible or not before.feasible
    if before.feasible:
        assert after.gpus_per_replica == before.gpus_per_replica
        assert after.data >= before.data
