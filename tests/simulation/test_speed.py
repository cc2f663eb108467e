"""The linear step time and its factors."""

import pytest

from bayplan.simulation.speed import SpeedModel


def test_default_step_is_12_ms_plus_60_us_per_sequence_plus_prefill_at_14000_tokens_a_second():
    speed = SpeedModel()
    assert speed.step_seconds(sequences=0, prefill_tokens=0, kv_tokens=10**6) == pytest.approx(0.012)
    assert speed.step_seconds(sequences=100, prefill_tokens=0, kv_tokens=0) == pytest.approx(0.018)
    assert speed.step_seconds(sequences=1, prefill_tokens=1400, kv_tokens=0) == pytest.approx(0.01206 + 0.1)


def test_context_costs_time_only_where_it_is_priced():
    speed = SpeedModel(seconds_per_kv_token=1e-6)
    assert speed.step_seconds(sequences=0, prefill_tokens=0, kv_tokens=1000) == pytest.approx(0.013)


def test_decode_factor_slows_decoding_and_prefill_factor_the_prompt():
    load = {"sequences": 100, "prefill_tokens": 1400, "kv_tokens": 0}
    assert SpeedModel(decode_factor=2).step_seconds(**load) == pytest.approx(2 * 0.018 + 0.1)
    assert SpeedModel(prefill_factor=3).step_seconds(**load) == pytest.approx(0.018 + 3 * 0.1)


@pytest.mark.parametrize("value", [-1e-9, float("nan"), float("inf")])
def test_a_number_that_is_no_duration_is_refused_by_name(value):
    with pytest.raises(ValueError, match="seconds_per_sequence"):
        SpeedModel(seconds_per_sequence=value)


def test_a_step_must_take_time():
    with pytest.raises(ValueError, match="no time"):
        SpeedModel(seconds_per_step=0, seconds_per_sequence=0, seconds_per_prefill_token=0)
    SpeedModel(seconds_per_step=0, seconds_per_sequence=1e-9, seconds_per_prefill_token=0)
