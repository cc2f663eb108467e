from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.api.provenance import Provenance
from bayplan.planning.layout.memorytext import kv_shards, memory_status, need_text, verdict_text
from bayplan.planning.numbers import GIB
from bayplan.planning.words import size_text
from tests.planning.fleets import LLAMA_70B, spec
from tests.planning.layout.memories import memory_of


def test_every_term_of_a_known_model_is_computed_from_its_numbers() -> None:
    asked = spec(architecture=LLAMA_70B, concurrency=64, engine={"memoryOverheadGib": 4.5})
    decision = memory_of(asked, gpu_memory_gib=Fraction(81559, 1024), tensor=2, pipeline=1)
    weights, kv, overhead = decision.terms

    assert weights.gib_per_gpu == Fraction(70_553_706_496 * 2, 2 * GIB)
    assert kv.gib_per_gpu == Fraction(2 * 80 * 8 * 128 * 2 * 8192 * 64, 2 * GIB)
    assert overhead.gib_per_gpu == Fraction(9, 2)
    assert [term.provenance for term in decision.terms] == [
        Provenance.DERIVED,
        Provenance.DERIVED,
        Provenance.DECLARED,
    ]
    assert decision.usable_gib == Fraction(81559, 1024) * Fraction(9, 10)


def test_an_undeclared_overhead_is_an_estimate_and_says_so() -> None:
    decision = memory_of(spec(), gpu_memory_gib=Fraction(100), tensor=1, pipeline=1)
    overhead = decision.terms[-1]

    assert overhead.gib_per_gpu == 5
    assert overhead.provenance is Provenance.ESTIMATED
    assert "estimated" in need_text(decision)


@pytest.mark.parametrize(
    ("dtype", "weight_bits", "element_bytes"),
    [("auto", 16, 2), ("auto", 4, 2), ("auto", 32, 4), ("fp8", 16, 1), ("fp8_e5m2", 32, 1), ("bfloat16", 32, 2)],
)
def test_kv_precision_follows_its_own_setting(dtype: str, weight_bits: int, element_bytes: int) -> None:
    asked = spec(engine={"kvCacheDtype": dtype}, architecture={"weightBits": weight_bits})
    decision = memory_of(asked, gpu_memory_gib=Fraction(80), tensor=1, pipeline=1)

    assert decision.request.shape.kv_bytes_per_token == 2 * 32 * 8 * 128 * element_bytes


@pytest.mark.parametrize(
    ("kv_heads", "tensor", "shards"), [(8, 1, 1), (8, 4, 4), (8, 8, 8), (8, 16, 8), (1, 8, 1), (10, 4, 2), (6, 4, 3)]
)
def test_kv_heads_are_divided_only_as_far_as_they_divide(kv_heads: int, tensor: int, shards: int) -> None:
    assert kv_shards(kv_heads, tensor) == shards


@pytest.mark.property
@given(st.integers(1, 128), st.integers(1, 64))
def test_a_wider_tensor_group_never_holds_more_kv_per_gpu(kv_heads: int, tensor: int) -> None:
    assert kv_shards(kv_heads, tensor) <= kv_shards(kv_heads, tensor + 1)


def test_words_carry_the_numbers_that_decided() -> None:
    asked = spec(architecture=LLAMA_70B, concurrency=64, engine={"memoryOverheadGib": 4.5})
    decision = memory_of(asked, gpu_memory_gib=Fraction(81559, 1024), tensor=2, pipeline=1)

    assert need_text(decision) == (
        "needs 150.2 GiB of 71.7 GiB per GPU (weights 65.7, KV 80.0 for 64 × 8192 tokens, overhead 4.5)"
    )
    assert verdict_text(decision) == "short by 78.5 GiB"


def test_words_for_one_request_to_spare() -> None:
    asked = spec(engine={"memoryOverheadGib": 0, "gpuMemoryUtilization": 1})
    decision = memory_of(asked, gpu_memory_gib=Fraction(16), tensor=1, pipeline=1)

    assert verdict_text(decision) == "43.5 MiB to spare, room for 1 request of full length"


@pytest.mark.parametrize(
    ("gib", "text"),
    [
        (Fraction(0), "0.0 GiB"),
        (Fraction(1, 10), "0.1 GiB"),
        (Fraction(-3, 2), "-1.5 GiB"),
        (Fraction(1, 11), "93.1 MiB"),
        (Fraction(1, 1024), "1.0 MiB"),
        (Fraction(2, GIB), "2 bytes"),
        (Fraction(1, GIB), "1 byte"),
        (Fraction(1, 10 * GIB), "1 byte"),
    ],
)
def test_a_small_size_never_reads_as_nothing(gib: Fraction, text: str) -> None:
    assert size_text(gib) == text


def test_status_rounds_for_show_only() -> None:
    asked = spec(engine={"memoryOverheadGib": 1})
    status = memory_status("NVIDIA-L4", memory_of(asked, gpu_memory_gib=Fraction(24), tensor=1, pipeline=1))

    assert status.fits
    assert status.required_gib == Decimal("16.96")
    assert status.usable_gib == Decimal("21.60")
    assert status.headroom_gib == Decimal("4.64")
    assert status.max_concurrency == 5
    assert [term.gib_per_gpu for term in status.terms] == [Decimal("14.96"), Decimal("1.00"), Decimal("1.00")]


def test_status_of_unknown_memory_states_the_need_alone() -> None:
    status = memory_status("", memory_of(spec(), gpu_memory_gib=None, tensor=1, pipeline=1))

    assert status.fits is None
    assert status.usable_gib is None
    assert status.max_concurrency is None
    assert status.required_gib == Decimal("16.96")
