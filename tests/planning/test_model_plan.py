from fractions import Fraction

import pytest

from bayplan.api.conditions import Reason
from bayplan.planning.layout.records import RecordedLayout
from bayplan.planning.layout.split import Split
from bayplan.planning.modelplan import fit_model, group_shapes
from bayplan.planning.placement.inventory import Inventory
from tests.planning.fleets import H100, L4, L4_MIB, LLAMA_70B, node, spec

MIXED = Inventory((node("h"), node("l", 4, product=L4, memory_mib=L4_MIB)))


def test_one_product_that_fits_makes_the_model_fit_and_the_others_are_named() -> None:
    fit = fit_model(spec(architecture=LLAMA_70B), MIXED)

    assert (fit.status, fit.reason) == ("True", Reason.FITS)
    assert fit.message.startswith(f"{H100} with tensor=2 pipeline=1: needs 71.1 GiB of 71.7 GiB")
    assert fit.message.endswith(f"(other products: {L4}: InsufficientMemory)")
    assert [decision.pool.gpu_product for decision in fit.placeable] == [H100]


def test_a_model_is_refused_when_every_product_is_and_the_nearest_one_explains() -> None:
    fit = fit_model(spec(architecture=LLAMA_70B, concurrency=10_000), MIXED)

    assert (fit.status, fit.reason) == ("False", Reason.INSUFFICIENT_MEMORY)
    assert fit.message.startswith(f"{L4} with") or fit.message.startswith(f"{H100} with")
    shortfalls = [decision.memory.headroom_gib for decision in fit.layouts if decision.memory is not None]
    named = next(d for d in fit.layouts if fit.message.startswith(d.pool.gpu_product))
    assert named.memory is not None
    assert named.memory.headroom_gib == max(s for s in shortfalls if s is not None)
    assert group_shapes(spec(), fit) == ()


def test_no_matching_gpu_is_unknown_and_says_what_there_is() -> None:
    fit = fit_model(spec(placement={"gpuProducts": ["NVIDIA-B200"]}), MIXED)

    assert (fit.status, fit.reason) == ("Unknown", Reason.NO_MATCHING_GPU)
    assert fit.message == (f"no node has NVIDIA-B200; the cluster has {H100}, {L4}; add nodes or widen spec.placement")
    assert "no GPUs" in fit_model(spec(), Inventory()).message


def test_unknown_memory_is_unknown_and_placed_behind_every_proven_product() -> None:
    fleet = Inventory((node("h"), node("x", product="Some-GPU", memory_mib=None)))
    asked = spec(placement={"gpuProducts": ["Some-GPU", H100]})

    fit = fit_model(asked, fleet)
    shapes = {shape.gpu_product: shape for shape in group_shapes(asked, fit)}

    assert fit.reason is Reason.FITS
    assert shapes[H100].preference < shapes["Some-GPU"].preference
    only = fit_model(spec(placement={"gpuProducts": ["Some-GPU"]}), fleet)
    assert (only.status, only.reason) == ("Unknown", Reason.UNKNOWN_GPU_MEMORY)
    assert len(only.placeable) == 1


def test_warn_is_false_and_placed() -> None:
    asked = spec(architecture=LLAMA_70B, placement={"gpuProducts": [L4]}, memoryPolicy="Warn")
    fit = fit_model(asked, MIXED)
    (shape,) = group_shapes(asked, fit)

    assert (fit.status, fit.reason) == ("False", Reason.OVERRIDDEN)
    assert shape.least_gpu_memory_mib is None


def test_a_rule_that_no_product_satisfies_is_no_layout() -> None:
    fit = fit_model(spec(parallelism={"tensor": 3}), MIXED)

    assert (fit.status, fit.reason) == ("False", Reason.NO_LAYOUT)


def test_the_users_order_of_products_becomes_the_preference() -> None:
    ordered = spec(placement={"gpuProducts": [L4, H100]})

    assert [(s.gpu_product, s.preference) for s in group_shapes(ordered, fit_model(ordered, MIXED))] == [
        (L4, 0),
        (H100, 1),
    ]
    assert [s.preference for s in group_shapes(spec(), fit_model(spec(), MIXED))] == [0, 0]


@pytest.mark.parametrize(
    ("resources", "cpu_millis", "memory_bytes"),
    [
        (None, 0, 0),
        ({"requests": {"cpu": "1500m", "memory": "1Gi"}}, 1500, 2**30),
        ({"limits": {"cpu": "4"}}, 4000, 0),
        ({"requests": {"cpu": "2"}, "limits": {"cpu": "4", "memory": "2Gi"}}, 2000, 2**31),
    ],
)
def test_shapes_carry_what_the_pod_will_request(
    resources: dict[str, dict[str, str]] | None, cpu_millis: int, memory_bytes: int
) -> None:
    asked = spec(template={"resources": resources} if resources else {})
    shape = group_shapes(asked, fit_model(asked, MIXED))[0]

    assert (shape.cpu_millis, shape.memory_bytes) == (cpu_millis, memory_bytes)


def test_shapes_ask_for_gpus_of_the_memory_that_the_fit_proved() -> None:
    asked = spec(engine={"memoryOverheadGib": 1, "gpuMemoryUtilization": 0.5}, architecture={"parameters": 2**30})
    shape = group_shapes(asked, fit_model(asked, MIXED))[0]

    assert shape.least_gpu_memory_mib == Fraction(2 + 1 + 1) / Fraction(1, 2) * 1024


def test_recorded_layouts_are_kept_per_product() -> None:
    fit = fit_model(spec(), MIXED, recorded={H100: RecordedLayout(Split(2))})

    tensor = {decision.pool.gpu_product: decision.layout.tensor for decision in fit.placeable if decision.layout}
    assert tensor.pop(H100) == 2
    assert set(tensor.values()) == {1}
