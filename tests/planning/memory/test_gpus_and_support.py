"""The GPU catalogue, node labels, and which formats a GPU runs."""

from fractions import Fraction

import pytest

from bayplan.planning.memory.gpucatalogue import (
    find_gpu,
    gpu_catalogue,
    gpus_named,
    gpus_spelt,
    unlisted_gpu,
    visible_memory_gib,
)
from bayplan.planning.memory.support import UnsupportedOnHardware, check_support
from bayplan.planning.memory.terms import Source
from bayplan.planning.memory.versions import EngineVersion
from bayplan.planning.numbers import InvalidInput
from tests.planning.memory.questions import gpu


def test_every_figure_has_a_source_and_every_name_is_found() -> None:
    for known in gpu_catalogue():
        named = dict(known.sources)
        assert {"visible_gib", "bandwidth_tb_s", "bf16_tflops", "link_gb_s"} <= set(named)
        assert all(named.values())
        for name in (known.name, *known.labels, *known.names):
            assert known in gpus_named(name)


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("NVIDIA-H100-80GB-HBM3", "H100-80GB-HBM3"),
        ("Tesla-T4", "T4"),
        ("AMD_Instinct_MI300X_OAM", "MI300X"),
        ("NVIDIA-GeForce-RTX-4090", "RTX 4090"),
    ],
)
def test_label_values_name_products(label: str, name: str) -> None:
    assert gpu(label).name == name


def test_an_unknown_gpu_is_none_and_an_unclear_one_the_smaller() -> None:
    assert find_gpu("Z9000") is None
    assert [found.marketed_gb for found in gpus_named("A100")] == [40, 80]
    assert gpu("A100").marketed_gb == 40


def test_a_label_is_more_than_a_program_sees() -> None:
    assert visible_memory_gib("NVIDIA-H100-80GB-HBM3", label_mib=81559) == (Fraction("79.19"), Source.MEASURED)
    unknown = visible_memory_gib("Z9000", label_mib=81920)
    assert unknown == (80 - Fraction(47, 100), Source.ESTIMATED)
    assert visible_memory_gib("Z9000", label_mib=None) is None
    assert visible_memory_gib("T4", label_mib=None) == (Fraction("14.6"), Source.ESTIMATED)


def test_a_partition_of_a_known_gpu_goes_by_its_label() -> None:
    found = visible_memory_gib("NVIDIA-H100-80GB-HBM3", label_mib=40960)

    assert found is not None
    assert found[0] == 40 - Fraction(47, 100)


def test_figures_can_be_overridden_by_name_only() -> None:
    assert gpu().overridden(visible_gib=Fraction(70)).visible_gib == 70
    with pytest.raises(InvalidInput, match="no figure"):
        gpu().overridden(colour="red")
    with pytest.raises(InvalidInput, match="visible_gib"):
        gpu().overridden(visible_gib=Fraction(0))


@pytest.mark.parametrize(
    ("name", "weights", "runs"),
    [
        ("T4", "bf16", False),
        ("A10", "bf16", True),
        ("V100", "awq-4bit", False),
        ("T4", "awq-4bit", True),
        ("T4", "mxfp4", False),
        ("A100", "mxfp4", True),
        ("MI300X", "nvfp4", False),
        ("MI300X", "fp8", True),
    ],
)
def test_formats_need_their_hardware(name: str, weights: str, runs: bool) -> None:
    if runs:
        check_support(gpu(name), weights=weights)
        return
    with pytest.raises(UnsupportedOnHardware) as refused:
        check_support(gpu(name), weights=weights)

    assert refused.value.products
    assert gpu(name).name not in refused.value.products


def test_formats_need_their_release() -> None:
    check_support(gpu(), weights="mxfp4", version=EngineVersion.parse("0.10.1"))
    with pytest.raises(InvalidInput, match=r"needs vLLM 0\.10\.1 or later"):
        check_support(gpu(), weights="mxfp4", version=EngineVersion.parse("0.10.0"))


def test_cache_types_are_checked_too() -> None:
    check_support(gpu("RTX 5090"), weights="bf16", kv_cache_dtype="nvfp4")
    with pytest.raises(UnsupportedOnHardware, match="nvfp4"):
        check_support(gpu("H100"), weights="bf16", kv_cache_dtype="nvfp4")
    with pytest.raises(UnsupportedOnHardware, match="fp8"):
        check_support(gpu("T4"), weights="fp16", kv_cache_dtype="fp8_e4m3")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("NVIDIA L4 24GB", ["L4"]),
        ("8x H100 80GB", ["H100-80GB-HBM3"]),
        ("H100 SXM5", ["H100-80GB-HBM3"]),
        ("2x RTX 3090", ["RTX 3090"]),
        ("3090 Ti", ["RTX 3090 Ti"]),
        ("DGX Spark (GB10)", ["GB10"]),
        ("A100-80G", ["A100-SXM4-80GB"]),
        ("A100 SXM", ["A100-SXM4-40GB", "A100-SXM4-80GB"]),
        ("GH200 480GB", ["GH200-96GB"]),
        ("A100 64GB", []),
        ("RTX 4090 48GB", []),
        ("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", []),
        ("banana", []),
    ],
)
def test_people_spell_a_gpu_in_many_ways(written: str, meant: list[str]) -> None:
    assert [gpu.name for gpu in gpus_spelt(written)] == meant


def test_the_vendor_of_an_unlisted_gpu_follows_from_its_name() -> None:
    vendors = [unlisted_gpu(name, Fraction(24)).vendor for name in ("RX 7900 XTX", "Instinct MI250", "RTX 3080", "Mig")]

    assert vendors == ["amd", "amd", "nvidia", "nvidia"]
