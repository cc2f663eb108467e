import re
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.api.conditions import Reason
from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.api.provenance import Provenance
from bayplan.planning.layout.decision import parallelism_status, plan_layout
from bayplan.planning.layout.pools import GpuPool, gpu_pools
from bayplan.planning.layout.records import RecordedLayout
from bayplan.planning.layout.rules import RuleFacts, broken_rule, valid_widths
from bayplan.planning.layout.split import Split
from bayplan.planning.placement.inventory import Inventory, Sharing
from tests.planning.fleets import H100, H100_MIB, L4, L4_MIB, LLAMA_70B, node, spec
from tests.planning.layout.memories import memory_of


def pool(gpus: int = 8, nodes: int = 4, memory_mib: int | None = H100_MIB, **more: Any) -> GpuPool:
    return GpuPool(gpu_product=H100, node_sizes=(gpus,) * nodes, gpu_memory_mib=memory_mib, **more)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "tensor", "accepted"),
    [
        (32, 8, 1, True),
        (32, 8, 2, True),
        (32, 8, 8, True),
        (32, 8, 16, True),
        (32, 8, 3, False),
        (32, 8, 5, False),
        (32, 8, 64, False),
        (40, 10, 2, True),
        (40, 10, 5, True),
        (40, 10, 4, False),
        (40, 10, 8, False),
        (52, 52, 4, True),
        (52, 52, 8, False),
        (25, 25, 5, True),
        (25, 25, 2, False),
        (64, 1, 8, True),
        (12, 3, 6, True),
        (12, 3, 4, False),
        (24, 6, 12, True),
        (24, 6, 8, False),
    ],
)
def test_tensor_widths_follow_the_engines_rules(heads: int, kv_heads: int, tensor: int, accepted: bool) -> None:
    facts = RuleFacts(layers=32, heads=heads, kv_heads=(kv_heads,))
    broken = broken_rule(facts, Split(tensor))

    assert (broken is None) == accepted
    assert broken is None or broken.message.startswith(f"tensor={tensor} ")
    assert (tensor in valid_widths(facts, up_to=64)) == accepted


def test_one_gpu_is_preferred_and_the_next_width_is_runner_up() -> None:
    decision = plan_layout(spec(), pool())

    assert decision.reason is Reason.FITS
    assert decision.layout is not None
    assert (decision.layout.tensor, decision.layout.pipeline, decision.layout.nodes) == (1, 1, 1)
    assert decision.why == "one GPU is enough; tensor=2 pipeline=1 fits too but takes 2 GPUs instead of 1"
    assert str(decision.runner_up) == "tensor=2 pipeline=1"


def test_a_70b_model_takes_four_gpus_of_one_node_rather_than_three_stages() -> None:
    decision = plan_layout(spec(architecture=LLAMA_70B, concurrency=8), pool())

    assert decision.layout is not None
    assert (decision.layout.tensor, decision.layout.pipeline, decision.layout.gpus_per_node) == (4, 1, 4)
    assert "tensor=2 pipeline=1 is short by 8.2 GiB per GPU" in decision.why


def test_pipeline_stages_come_only_when_no_width_inside_a_node_fits() -> None:
    decision = plan_layout(spec(architecture=LLAMA_70B, concurrency=200), pool(gpus=4))

    assert decision.layout is not None
    assert (decision.layout.tensor, decision.layout.pipeline) == (4, 3)
    assert (decision.layout.gpus_per_node, decision.layout.nodes) == (4, 3)
    assert decision.why.startswith("the fewest GPUs that fit; ")
    assert "over network, outside the fast domain" in decision.why


def test_the_memory_of_a_layout_is_the_fits_memory_for_that_layout() -> None:
    asked = spec(architecture=LLAMA_70B, concurrency=8)
    decision = plan_layout(asked, pool())

    assert decision.memory == memory_of(asked, gpu_memory_gib=Fraction(H100_MIB, 1024), tensor=4)


def test_a_width_need_not_divide_a_node_that_lost_a_gpu() -> None:
    decision = plan_layout(spec(architecture=LLAMA_70B, concurrency=8), pool(gpus=7))

    assert decision.layout is not None
    assert decision.layout.tensor == 4


class TestDeclared:
    def test_a_declared_layout_is_kept_although_a_smaller_one_fits(self) -> None:
        decision = plan_layout(spec(parallelism={"tensor": 4, "pipeline": 2}), pool())

        assert decision.layout is not None
        assert (decision.layout.tensor, decision.layout.pipeline, decision.layout.gpus_per_node) == (4, 2, 8)
        assert decision.provenance is Provenance.DECLARED
        assert decision.why == "declared"

    def test_a_declared_width_alone_gets_the_shortest_pipeline_that_fits(self) -> None:
        decision = plan_layout(spec(architecture=LLAMA_70B, concurrency=8, parallelism={"tensor": 2}), pool())

        assert decision.layout is not None
        assert (decision.layout.tensor, decision.layout.pipeline) == (2, 2)
        assert decision.provenance is Provenance.DERIVED
        assert decision.why.startswith("the fewest GPUs that fit with the declared tensor=2")

    def test_a_declared_pipeline_alone_gets_the_smallest_width_that_fits(self) -> None:
        decision = plan_layout(spec(architecture=LLAMA_70B, concurrency=16, parallelism={"pipeline": 2}), pool())

        assert decision.layout is not None
        assert (decision.layout.tensor, decision.layout.pipeline) == (2, 2)
        assert decision.why.startswith("the fewest GPUs that fit with the declared pipeline=2")

    @pytest.mark.parametrize(
        ("parallelism", "message"),
        [
            ({"tensor": 3}, "tensor=3 does not divide the 32 attention heads; the next valid size is tensor=4"),
            (
                {"tensor": 16},
                f"tensor=16 is wider than the 8 GPUs of a node with {H100}; the next valid size is tensor=8",
            ),
            ({"tensor": 64}, "tensor=64 does not divide the 32 attention heads; the next valid size is tensor=8"),
            ({"pipeline": 33}, "pipeline=33 exceeds the 32 layers; the next valid size is pipeline=32"),
        ],
    )
    def test_a_width_that_breaks_a_rule_is_refused_with_the_next_valid_one(
        self, parallelism: dict[str, int], message: str
    ) -> None:
        decision = plan_layout(spec(parallelism=parallelism), pool())

        assert decision.reason is Reason.NO_LAYOUT
        assert decision.layout is None
        assert decision.message == f"spec.parallelism: {message}"

    def test_a_pipeline_over_more_nodes_than_there_are_is_refused(self) -> None:
        asked = spec(parallelism={"tensor": 8, "pipeline": 4})

        assert plan_layout(asked, pool(nodes=4)).layout is not None
        refused = plan_layout(asked, pool(nodes=3))
        assert refused.reason is Reason.NO_LAYOUT
        assert refused.message == (
            f"spec.parallelism: tensor=8 pipeline=4 needs 4 nodes with 8 {H100} GPUs each, 3 exist; add 1, or use at "
            "most pipeline=3"
        )
        undeclared = plan_layout(spec(parallelism={"pipeline": 32}), replace(pool(gpus=1, nodes=1), gpu_product=""))
        assert undeclared.message == (
            "spec.parallelism: tensor=1 pipeline=32 needs 32 nodes with 1 GPU each, 1 exists; "
            "add 31, or use at most pipeline=1"
        )

    def test_a_declared_layout_that_does_not_fit_is_refused_with_what_would(self) -> None:
        asked = spec(architecture=LLAMA_70B, concurrency=16, parallelism={"tensor": 2, "pipeline": 1})
        decision = plan_layout(asked, pool())

        assert decision.reason is Reason.INSUFFICIENT_MEMORY
        assert decision.layout is None
        assert decision.message == (
            f"{H100} with tensor=2 pipeline=1: needs 89.9 GiB of 71.7 GiB per GPU (weights 65.7, KV 20.0 for "
            "16 × 8192 tokens, overhead 4.2 estimated): short by 18.2 GiB; fits with tensor=4, or concurrency ≤ 1, or "
            "maxModelLen ≤ 732"
        )


class TestRefused:
    def test_a_model_beyond_all_nodes_says_how_large_a_gpu_would_have_to_be(self) -> None:
        asked = spec(architecture={**LLAMA_70B, "parameters": 2_000_000_000_000})
        decision = plan_layout(asked, pool(nodes=1))

        assert decision.reason is Reason.INSUFFICIENT_MEMORY
        assert re.search(
            r"short by \d+\.\d GiB; fits with GPUs of \d+\.\d GiB or more, or more nodes$", decision.message
        )

    def test_warn_places_the_layout_with_the_least_shortfall_and_says_so(self) -> None:
        asked = spec(architecture=LLAMA_70B, concurrency=10_000, memoryPolicy="Warn")
        decision = plan_layout(asked, pool(gpus=4, nodes=2))

        assert decision.reason is Reason.OVERRIDDEN
        assert decision.memory is not None
        assert decision.memory.fits is False
        assert decision.layout is not None
        assert decision.layout.gpus == 8
        assert "memoryPolicy is Warn" in decision.message

    def test_unknown_memory_is_placed_with_a_reason(self) -> None:
        decision = plan_layout(spec(architecture=LLAMA_70B), pool(memory_mib=None))

        assert decision.reason is Reason.UNKNOWN_GPU_MEMORY
        assert decision.layout is not None
        assert decision.layout.gpus == 1
        assert "label the nodes with nvidia.com/gpu.memory" in decision.message

    def test_unknown_memory_keeps_a_declared_layout(self) -> None:
        decision = plan_layout(spec(parallelism={"tensor": 4, "pipeline": 1}), pool(memory_mib=None))

        assert decision.layout is not None
        assert decision.layout.tensor == 4


class TestRecorded:
    def test_a_recorded_layout_is_kept_although_a_smaller_one_fits_now(self) -> None:
        decision = plan_layout(spec(), pool(), recorded=RecordedLayout(Split(2)))

        assert decision.layout is not None
        assert decision.layout.tensor == 2
        assert decision.why == "the revision's layout, kept"

    @pytest.mark.parametrize("recorded", [Split(tensor=3, pipeline=1), Split(tensor=8, pipeline=1)])
    def test_a_recorded_layout_that_became_impossible_is_replaced(self, recorded: Split) -> None:
        decision = plan_layout(spec(), pool(gpus=4), recorded=RecordedLayout(recorded))

        assert decision.layout is not None
        assert decision.layout.tensor == 1

    def test_a_recorded_layout_that_no_longer_fits_is_replaced(self) -> None:
        decision = plan_layout(spec(architecture=LLAMA_70B), pool(), recorded=RecordedLayout(Split(1)))

        assert decision.layout is not None
        assert decision.layout.tensor == 2


class TestPools:
    def test_products_come_in_the_users_order_else_smallest_first(self) -> None:
        fleet = Inventory((node("a"), node("b", 1, product=L4, memory_mib=L4_MIB)))

        assert [p.gpu_product for p in gpu_pools(spec(), fleet)] == [L4, H100]
        asked = spec(placement={"gpuProducts": [L4, "H100-80GB-HBM3"]})
        assert [p.gpu_product for p in gpu_pools(asked, fleet)] == [L4, H100]
        assert [p.gpu_product for p in gpu_pools(spec(placement={"gpuProducts": [L4]}), fleet)] == [L4]

    def test_a_pool_counts_with_its_largest_node_and_its_smallest_gpu(self) -> None:
        fleet = Inventory((node("a", 4), node("b", 8, memory_mib=80_000), node("c", 0, gpus_expected=8)))
        (found,) = gpu_pools(spec(), fleet)

        assert found.node_sizes == (8, 8, 4)
        assert found.gpu_memory_mib == 80_000
        assert found.nodes_of(8) == 2
        assert found.nodes_of(4) == 3

    def test_one_unlabelled_gpu_makes_the_pools_memory_unknown(self) -> None:
        (found,) = gpu_pools(spec(), Inventory((node("a"), node("b", memory_mib=None))))

        assert found.gpu_memory_mib is None
        assert found.memory_provenance is Provenance.UNKNOWN

    def test_a_node_outside_the_selector_is_in_no_pool(self) -> None:
        fleet = Inventory((node("a", labels={"pool": "x"}), node("b", 4, labels={"pool": "y"})))

        (found,) = gpu_pools(spec(placement={"nodeSelector": {"pool": "y"}}), fleet)
        assert found.node_sizes == (4,)

    def test_shared_gpus_count_only_where_the_user_names_them(self) -> None:
        product = f"{H100}-SHARED"
        fleet = Inventory((node("a", 32, product=product, sharing=Sharing.SHARED),))

        assert gpu_pools(spec(), fleet) == ()
        assert len(gpu_pools(spec(placement={"gpuProducts": [product]}), fleet)) == 1

    @pytest.mark.parametrize("sharing", [Sharing.SHARED, Sharing.PARTITIONED])
    def test_shared_or_partitioned_gpus_never_form_a_group(self, sharing: Sharing) -> None:
        whole = pool()
        parts = replace(whole, sharing=sharing)
        asked = spec(architecture=LLAMA_70B, concurrency=8)

        assert plan_layout(asked, whole).layout is not None
        assert plan_layout(asked, parts).layout is None
        assert "use 1" in plan_layout(spec(parallelism={"tensor": 2}), parts).message

    def test_invalid_mig_layouts_are_no_product(self) -> None:
        assert gpu_pools(spec(), Inventory((node("a", product=f"{H100}-MIG-INVALID"),))) == ()


def test_status_shows_the_layout_and_why() -> None:
    status = parallelism_status(plan_layout(spec(architecture=LLAMA_70B, concurrency=8), pool()))

    assert status is not None
    assert (status.gpu_product, status.tensor, status.pipeline) == (H100, 4, 1)
    assert (status.gpus_per_replica, status.nodes_per_replica) == (4, 1)
    assert status.provenance is Provenance.DERIVED
    assert parallelism_status(plan_layout(spec(parallelism={"tensor": 3}), pool())) is None


pools = st.builds(
    GpuPool,
    gpu_product=st.just(H100),
    node_sizes=st.lists(st.integers(1, 8), min_size=1, max_size=5).map(
        lambda sizes: tuple(sorted(sizes, reverse=True))
    ),
    gpu_memory_mib=st.integers(8_000, 180_000),
)
specs = st.builds(
    lambda heads, per_kv, parameters, layers, length, concurrency: spec(
        architecture={
            "attentionHeads": heads * per_kv,
            "kvHeads": heads,
            "parameters": parameters,
            "layers": layers,
        },
        engine={"maxModelLen": length},
        concurrency=concurrency,
    ),
    st.integers(1, 16),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(10**9, 5 * 10**11),
    st.integers(1, 100),
    st.integers(128, 131_072),
    st.integers(1, 64),
)


@pytest.mark.property
@given(specs, pools)
def test_a_derived_layout_keeps_every_rule(asked: InferenceModelSpec, there: GpuPool) -> None:
    decision = plan_layout(asked, there)
    layout, shape = decision.layout, asked.model.architecture
    if layout is None:
        return
    assert decision.memory is not None
    assert decision.memory.fits
    assert shape.attention_heads % layout.tensor == 0
    assert max(layout.tensor, shape.kv_heads) % min(layout.tensor, shape.kv_heads) == 0
    assert layout.pipeline <= shape.layers
    assert layout.tensor <= there.node_sizes[0]
    assert sum(size >= layout.gpus_per_node for size in there.node_sizes) >= layout.nodes


@pytest.mark.property
@given(specs, pools)
def test_what_a_refusal_offers_would_be_accepted(asked: InferenceModelSpec, there: GpuPool) -> None:
    decision = plan_layout(asked, there)
    if decision.reason is not Reason.INSUFFICIENT_MEMORY:
        return
    concurrency = re.search(r"concurrency ≤ (\d+)", decision.message)
    length = re.search(r"maxModelLen ≤ (\d+)", decision.message)
    for found, change in (
        (concurrency, lambda n: {"concurrency": n}),
        (length, lambda n: {"engine": asked.engine.model_copy(update={"max_model_len": n})}),
    ):
        limit = int(found[1]) if found else 0
        if limit:
            assert plan_layout(asked.model_copy(update=change(limit)), there).reason is Reason.FITS
        assert plan_layout(asked.model_copy(update=change(limit + 1)), there).reason is not Reason.FITS


@pytest.mark.property
@given(specs, pools)
def test_another_node_never_loses_a_fit(asked: InferenceModelSpec, there: GpuPool) -> None:
    largest = replace(there, node_sizes=(there.node_sizes[0], *there.node_sizes))

    assert plan_layout(asked, there).layout is None or plan_layout(asked, largest).layout is not None
