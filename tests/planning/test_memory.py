from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.api.provenance import Provenance
from bayplan.planning.memory import Fit, MemoryRequest, ModelShape, Term, decide_memory
from bayplan.planning.numbers import GIB, InvalidInput

ONE_GIB_OF_WEIGHTS = ModelShape(
    parameters=GIB, weight_bits=Fraction(8), layers=1, kv_heads=1, head_dim=1, kv_element_bytes=Fraction(1)
)
"""2 bytes of KV per token: half a GiB of tokens is one GiB of cache."""


def request(**changes: Any) -> MemoryRequest:
    fields: dict[str, Any] = {
        "shape": ONE_GIB_OF_WEIGHTS,
        "max_live_tokens_per_request": GIB // 8,
        "target_concurrency": 2,
        "gpu_memory_gib": Fraction(2),
        "usable_fraction": Fraction(1),
        "runtime_overhead_gib": Fraction(1, 4),
    }
    return MemoryRequest(**{**fields, **changes})


def test_terms_stay_separate_and_sum_up() -> None:
    decision = decide_memory(request())

    assert [(term.name, term.gib_per_gpu) for term in decision.terms] == [
        ("weights", 1),
        ("KV cache", Fraction(1, 2)),
        ("overhead", Fraction(1, 4)),
    ]
    assert decision.required_gib == Fraction(7, 4)
    assert decision.headroom_gib == Fraction(1, 4)
    assert decision.fits


def test_equal_to_the_limit_fits_and_one_token_more_does_not() -> None:
    exactly = request(max_live_tokens_per_request=3 * GIB // 16)
    above = replace(exactly, max_live_tokens_per_request=3 * GIB // 16 + 1)

    assert decide_memory(exactly).headroom_gib == 0
    assert decide_memory(exactly).fits
    assert not decide_memory(above).fits


def test_binary_rounding_does_not_decide() -> None:
    """24 GiB × 0.85 − 8 − 0.4 is 12.0 exactly: 12 requests fit, and the answer says 12 in both places."""
    shape = ModelShape(
        parameters=8 * GIB, weight_bits=Fraction(8), layers=1, kv_heads=1, head_dim=1, kv_element_bytes=Fraction(1)
    )
    decision = decide_memory(
        request(
            shape=shape,
            max_live_tokens_per_request=GIB // 2,
            target_concurrency=12,
            gpu_memory_gib=24,
            usable_fraction=0.85,
            runtime_overhead_gib=0.4,
        )
    )

    assert decision.fits
    assert decision.max_concurrency == 12
    assert decision.headroom_gib == 0


def test_weights_alone_beyond_memory_leave_no_concurrency_and_no_length() -> None:
    decision = decide_memory(request(gpu_memory_gib=Fraction(1)))

    assert not decision.fits
    assert decision.max_concurrency == 0
    assert decision.max_tokens_per_request == 0


def test_unknown_memory_is_neither_yes_nor_no() -> None:
    decision = decide_memory(request(gpu_memory_gib=None))

    assert decision.fits is None
    assert decision.headroom_gib is None
    assert decision.max_concurrency is None
    assert decision.max_tokens_per_request is None
    assert decision.required_gib == Fraction(7, 4)


def test_the_stage_with_the_most_layers_counts() -> None:
    shape = replace(ONE_GIB_OF_WEIGHTS, layers=80)
    terms = {term.name: term.gib_per_gpu for term in decide_memory(request(shape=shape, pipeline=3)).terms}

    assert terms["weights"] == Fraction(27, 80)
    assert terms["KV cache"] == Fraction(27, 80) * 80 * Fraction(1, 2)


def test_tensor_width_and_kv_shards_are_independent() -> None:
    copied = decide_memory(request(tensor=2, kv_shards=1, gpu_memory_gib=1))
    sharded = decide_memory(request(tensor=2, kv_shards=2, gpu_memory_gib=1))

    assert not copied.fits
    assert sharded.headroom_gib == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_live_tokens_per_request", 0),
        ("max_live_tokens_per_request", 8192.5),
        ("target_concurrency", True),
        ("gpu_memory_gib", 0),
        ("gpu_memory_gib", float("inf")),
        ("usable_fraction", 0),
        ("usable_fraction", 1.01),
        ("usable_fraction", float("nan")),
        ("runtime_overhead_gib", -0.5),
        ("tensor", 0),
        ("pipeline", 0),
        ("kv_shards", -1),
    ],
)
def test_invalid_requests_name_their_field(field: str, value: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        request(**{field: value})

    assert caught.value.field == field


@pytest.mark.parametrize("field", ["parameters", "weight_bits", "layers", "kv_heads", "head_dim", "kv_element_bytes"])
def test_invalid_shapes_name_their_field(field: str) -> None:
    for value in (0, -1, float("nan")):
        with pytest.raises(InvalidInput) as caught:
            replace(ONE_GIB_OF_WEIGHTS, **{field: value})
        assert caught.value.field == field


def test_a_fit_compares_any_terms() -> None:
    terms = (Term("weights", Fraction(1, 3), Provenance.DECLARED), Term("graphs", Fraction(2, 3), Provenance.MEASURED))

    assert Fit(terms, usable_gib=Fraction(1)).fits
    assert not Fit(terms, usable_gib=Fraction(1) - Fraction(1, 10**30)).fits


requests = st.builds(
    MemoryRequest,
    shape=st.builds(
        ModelShape,
        parameters=st.integers(1, 10**12),
        weight_bits=st.sampled_from([Fraction(4), Fraction(9, 2), Fraction(8), Fraction(16)]),
        layers=st.integers(1, 120),
        kv_heads=st.integers(1, 64),
        head_dim=st.integers(1, 256),
        kv_element_bytes=st.sampled_from([Fraction(1), Fraction(2), Fraction(4)]),
    ),
    max_live_tokens_per_request=st.integers(1, 200_000),
    target_concurrency=st.integers(1, 500),
    gpu_memory_gib=st.fractions(Fraction(1), Fraction(300), max_denominator=1024),
    usable_fraction=st.fractions(Fraction(1, 100), Fraction(1), max_denominator=100),
    runtime_overhead_gib=st.fractions(Fraction(0), Fraction(20), max_denominator=100),
    tensor=st.integers(1, 16),
    pipeline=st.integers(1, 16),
    kv_shards=st.integers(1, 8),
)


@pytest.mark.property
@given(requests)
def test_fit_and_largest_concurrency_never_contradict_each_other(asked: MemoryRequest) -> None:
    decision = decide_memory(asked)
    assert decision.max_concurrency is not None

    assert decision.fits == (asked.target_concurrency <= decision.max_concurrency)
    if decision.max_concurrency:
        assert decide_memory(replace(asked, target_concurrency=decision.max_concurrency)).fits
    assert not decide_memory(replace(asked, target_concurrency=decision.max_concurrency + 1)).fits


@pytest.mark.property
@given(requests)
def test_longest_length_fits_and_one_token_more_does_not(asked: MemoryRequest) -> None:
    longest = decide_memory(asked).max_tokens_per_request
    assert longest is not None

    if longest:
        assert decide_memory(replace(asked, max_live_tokens_per_request=longest)).fits
    assert not decide_memory(replace(asked, max_live_tokens_per_request=longest + 1)).fits


@pytest.mark.property
@given(requests, st.integers(1, 100_000))
def test_a_longer_context_never_gains_a_fit(asked: MemoryRequest, more: int) -> None:
    longer = replace(asked, max_live_tokens_per_request=asked.max_live_tokens_per_request + more)

    assert decide_memory(asked).fits or not decide_memory(longer).fits
    assert decide_memory(longer).required_gib > decide_memory(asked).required_gib


@pytest.mark.property
@given(requests, st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_more_gpus_never_lose_a_fit(asked: MemoryRequest, tensor: int, stages: int, shards: int) -> None:
    wider = replace(
        asked,
        tensor=asked.tensor * tensor,
        pipeline=asked.pipeline + stages,
        kv_shards=asked.kv_shards * shards,
    )

    assert decide_memory(wider).required_gib <= decide_memory(asked).required_gib
