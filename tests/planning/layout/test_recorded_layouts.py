"""A revision's layout is remembered, kept while it is possible, and moved by no better estimate."""

from dataclasses import replace
from fractions import Fraction

import pytest

from bayplan.api.conditions import Reason
from bayplan.planning.layout.decision import plan_layout, records_of
from bayplan.planning.layout.pools import GpuPool, gpu_pools
from bayplan.planning.layout.records import RecordedLayout, read_layouts, write_layouts
from bayplan.planning.layout.split import Split
from bayplan.planning.memory.gpucatalogue import Gpu, Link
from bayplan.planning.memory.replica import ReplicaMemory
from bayplan.planning.memory.terms import Source
from bayplan.planning.modelplan import fit_model
from bayplan.planning.placement.inventory import Inventory
from tests.planning.fleets import H100, H100_MIB, node
from tests.planning.layout.test_known_models import spec

POOL = GpuPool(gpu_product=H100, node_sizes=(8, 8), gpu_memory_mib=H100_MIB)
LLAMA_70B = spec({"name": "Llama-3.3-70B-Instruct"})


def test_records_are_read_back() -> None:
    records = {
        "L4": RecordedLayout(Split(2)),
        "H100": RecordedLayout(Split(1, data=8, expert=True), concurrency=16, gpu_memory_mib=81559, blocks=4711),
        "H200": RecordedLayout(Split(8, decode_context=8)),
    }

    assert read_layouts(write_layouts(records)) == records
    assert write_layouts({"L4": RecordedLayout(Split(2))}) == '{"L4":{"pipeline":1,"tensor":2}}'


@pytest.mark.parametrize(
    "text",
    [
        *(None, 7, "", "{", "[]", "null", '{"L4": 2}', '{"L4": {"tensor": 2}}'),
        *('{"L4": {"tensor": true, "pipeline": 1}}', '{"L4": {"tensor": 0, "pipeline": 1}}'),
    ],
)
def test_unreadable_records_count_as_none(text: object) -> None:
    assert read_layouts(text) == {}


def test_one_unreadable_record_does_not_hide_the_others() -> None:
    assert read_layouts('{"L4": {"tensor": 2, "pipeline": 1}, "T4": {}}') == {"L4": RecordedLayout(Split(2))}


def test_what_was_decided_is_recorded_with_its_load_and_memory() -> None:
    fit = fit_model(LLAMA_70B, Inventory((node("a"),)))
    records = records_of(LLAMA_70B, fit.placeable, {"gone": RecordedLayout(Split(4))})

    assert records["gone"] == RecordedLayout(Split(4))
    assert records[H100] == RecordedLayout(Split(4), concurrency=1, gpu_memory_mib=H100_MIB)


def test_a_layout_of_unknown_memory_is_recorded_without_a_proof() -> None:
    fit = fit_model(LLAMA_70B, Inventory((node("a", product="Abacus", memory_mib=None),)))
    (record,) = records_of(LLAMA_70B, fit.placeable, {}).values()

    assert record == RecordedLayout(Split(1))


def test_a_newer_estimate_moves_nothing_that_runs() -> None:
    """One GPU does not hold 70B in bf16 by today's figures; a record says that it was decided for this very load."""
    record = RecordedLayout(Split(1), concurrency=1, gpu_memory_mib=H100_MIB)
    decision = plan_layout(LLAMA_70B, POOL, recorded=record)

    assert decision.reason is Reason.LAYOUT_KEPT
    assert decision.layout is not None
    assert decision.layout.tensor == 1
    assert "only the estimate has changed since" in decision.message
    assert records_of(LLAMA_70B, (decision,), {H100: record}) == {H100: record}


@pytest.mark.parametrize(
    "record",
    [
        RecordedLayout(Split(1), concurrency=2, gpu_memory_mib=H100_MIB),
        RecordedLayout(Split(1), concurrency=1, gpu_memory_mib=H100_MIB + 1),
        RecordedLayout(Split(1)),
    ],
)
def test_another_load_or_a_smaller_gpu_is_a_new_question(record: RecordedLayout) -> None:
    decision = plan_layout(LLAMA_70B, POOL, recorded=record)

    assert decision.reason is Reason.FITS
    assert decision.layout is not None
    assert decision.layout.gpus == 4


def test_a_recorded_layout_that_the_rules_forbid_is_replaced() -> None:
    decision = plan_layout(LLAMA_70B, POOL, recorded=RecordedLayout(Split(3), concurrency=1, gpu_memory_mib=H100_MIB))

    assert decision.layout is not None
    assert decision.layout.gpus == 4


def test_an_engines_own_report_replaces_the_estimate() -> None:
    estimated = plan_layout(LLAMA_70B, POOL)
    assert isinstance(estimated.memory, ReplicaMemory)
    blocks = estimated.memory.verdict.plan.blocks * 9 // 10
    measured = plan_layout(LLAMA_70B, POOL, recorded=RecordedLayout(Split(4), 1, H100_MIB, blocks))

    assert isinstance(measured.memory, ReplicaMemory)
    assert measured.memory.verdict.plan.blocks == blocks
    (difference,) = measured.memory.verdict.stage.extras
    assert difference.source is Source.MEASURED
    assert difference.bytes_per_gpu > 0
    assert measured.memory.usable_gib == estimated.memory.usable_gib
    assert measured.memory.headroom_gib < estimated.memory.headroom_gib


def test_evidence_of_one_layout_says_nothing_about_another() -> None:
    record = RecordedLayout(Split(8), 1, H100_MIB, blocks=10)
    fresh = plan_layout(LLAMA_70B.model_copy(update={"concurrency": 2}), POOL, recorded=replace(record, blocks=None))
    asked = plan_layout(LLAMA_70B.model_copy(update={"concurrency": 2}), POOL, recorded=record)

    assert fresh.layout is not None
    assert fresh.layout.tensor == 8
    assert asked.layout is not None
    assert asked.layout.gpus == 4
    assert isinstance(asked.memory, ReplicaMemory)
    assert asked.memory.verdict.stage.extras == ()


def test_the_needed_memory_of_a_gpu_is_what_the_fit_proved() -> None:
    decision = plan_layout(LLAMA_70B, POOL)

    assert isinstance(decision.memory, ReplicaMemory)
    assert decision.memory.least_gpu_gib * Fraction("0.9") == decision.memory.required_gib


ABACUS = Gpu(
    "Abacus-9",
    "nvidia",
    Fraction(90),
    visible_source=Source.DECLARED,
    link=Link.NVLINK,
    link_gb_s=100,
    fast_domain_gpus=8,
)


def test_stated_figures_win_over_label_and_catalogue() -> None:
    nodes = (node("a", product="Abacus-9", memory_mib=None), node("b", product=H100))
    plain, stated = Inventory(nodes), Inventory(nodes, gpus=(ABACUS, replace(ABACUS, name=H100)))
    small = spec({"name": "Llama-3.1-8B"})

    before = {pool.gpu_product: pool for pool in gpu_pools(small, plain)}
    after = {pool.gpu_product: pool for pool in gpu_pools(small, stated)}

    assert before["Abacus-9"].gpu is None
    assert not before["Abacus-9"].links_known
    assert after["Abacus-9"].gpu == ABACUS
    assert after[H100].gpu == replace(ABACUS, name=H100)
    assert after[H100].gpu_memory_gib == 90
    assert [plan_layout(small, pool).reason for pool in after.values()] == [Reason.FITS, Reason.FITS]
    assert stated.with_claims(()).gpus == stated.without_owners(()).gpus == stated.gpus


def test_an_unknown_gpu_is_a_reported_fact() -> None:
    unknown = replace(POOL, gpu_product="Abacus-9")

    assert "the GPU catalogue does not know Abacus-9" in plan_layout(LLAMA_70B, unknown).why
    assert "catalogue" not in plan_layout(LLAMA_70B, POOL).why


def test_a_stated_link_keeps_the_memory_that_the_label_states() -> None:
    linked = replace(ABACUS, visible_source=Source.ESTIMATED)
    (pool,) = gpu_pools(LLAMA_70B, Inventory((node("a", product="Abacus-9", memory_mib=40_960),), gpus=(linked,)))

    assert pool.gpu is not None
    assert pool.gpu.visible_gib < 40
    assert (pool.gpu.link, pool.links_known) == (Link.NVLINK, True)
