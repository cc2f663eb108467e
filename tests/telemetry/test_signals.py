"""Which of an engine's metrics mean what, in old and new versions, and what is said when one is not there."""

from fractions import Fraction
from pathlib import Path

import pytest

from bayplan.planning.measurements import Unknown
from bayplan.telemetry.aliases import NEEDED, VLLM, Aliases, Signal
from bayplan.telemetry.exposition import metric_names, nearest_name, read_samples, sums_of
from bayplan.telemetry.readings import engine_answer
from bayplan.telemetry.sources import EngineAnswer, EngineSource, TroubleKind

LISTED = Path(__file__).parents[1] / "enginesim" / "vllm_0_32_metrics.txt"
VALUES = {
    "vllm:num_requests_running": 3,
    "vllm:num_requests_waiting": 2,
    "vllm:prompt_tokens_total": 1000,
    "vllm:generation_tokens_total": 500,
    "vllm:request_prompt_tokens_sum": 900,
    "vllm:request_prompt_tokens_count": 9,
    "vllm:request_generation_tokens_sum": 450,
    "vllm:request_generation_tokens_count": 9,
    "vllm:request_params_max_tokens_sum": 4500,
    "vllm:kv_cache_usage_perc": 0.25,
    "process_start_time_seconds": 1234.5,
}


def text_of(values: dict[str, object]) -> str:
    return "".join(f'{name}{{engine="0"}} {value}\n' for name, value in values.items())


def answer(values: dict[str, object], *, kv_tokens: int | None = None, aliases: Aliases = VLLM) -> EngineAnswer:
    text = text_of(values)
    source = EngineSource("uid", "team", "llama-0", "10.0.0.1", "containerd://a", kv_tokens)
    sums = sums_of((sample.name, sample.value) for sample in read_samples(text, aliases.names))
    return engine_answer(source, sums, aliases=aliases, at_seconds=7.5, present=lambda: metric_names(text))


def test_served_waiting_and_remaining_tokens() -> None:
    found = answer(VALUES)

    assert found.trouble is None
    assert found.reading is not None
    assert (found.reading.at_seconds, found.reading.incarnation) == (Fraction(15, 2), "containerd://a 1234")
    assert (found.reading.served_tokens, found.reading.waiting_tokens) == (1500, 2 * 150)
    assert found.reading.remaining_tokens == 3 * 150 + 2 * 150
    assert (found.reading.ended_tokens, found.reading.promised_tokens) == (450, 4500)


def test_running_tokens_are_those_in_the_kv_cache_where_its_size_is_known() -> None:
    found = answer(VALUES, kv_tokens=4000)

    assert found.reading is not None
    assert found.reading.remaining_tokens == 1000 + 2 * 150


@pytest.mark.parametrize("names", VLLM.by_signal.values(), ids=VLLM.by_signal)
def test_every_alias_means_the_same(names: tuple[str, ...]) -> None:
    for name in names:
        renamed = {name if key in names else key: value for key, value in VALUES.items()}
        assert answer(renamed, kv_tokens=4000) == answer(VALUES, kv_tokens=4000)


def test_of_two_names_for_one_thing_the_newer_counts() -> None:
    both = answer(VALUES | {"vllm:gpu_cache_usage_perc": 0.9}, kv_tokens=4000)

    assert both == answer(VALUES, kv_tokens=4000)


def test_the_newest_names_are_those_of_a_running_engine() -> None:
    listed = LISTED.read_text()
    for signal, names in VLLM.by_signal.items():
        stem = names[0].removesuffix("_total").removesuffix("_sum").removesuffix("_count")
        assert signal is Signal.PROCESS_START or stem in listed, signal


@pytest.mark.parametrize("signal", NEEDED)
def test_a_missing_metric_is_named_with_the_nearest_that_is_there(signal: Signal) -> None:
    (name,) = (name for name in VLLM.by_signal[signal] if name in VALUES)
    values = {key: value for key, value in VALUES.items() if key != name} | {f"{name}_by_reason": 1}

    found = answer(values)

    assert found.trouble is not None
    assert found.trouble.kind is TroubleKind.MISSING
    assert name in found.trouble.message
    assert f"nearest that it has is {name}_by_reason" in found.trouble.message


def test_a_name_of_the_users_own_counts_before_the_known_ones() -> None:
    aliases = VLLM.preferring({Signal.WAITING: ["fork:queued"], Signal.OUTPUT_TOKENS: ["fork:generated"]})
    renamed = {key: value for key, value in VALUES.items() if key != "vllm:num_requests_waiting"} | {"fork:queued": 2}

    assert answer(renamed).reading != answer(VALUES).reading
    assert answer(renamed, aliases=aliases) == answer(VALUES)
    assert answer(VALUES, aliases=aliases) == answer(VALUES)
    both = answer(VALUES | {"fork:queued": 5}, aliases=aliases)
    assert both.reading is not None
    assert both.reading.waiting_tokens == 5 * 150
    missing = answer({}, aliases=aliases).trouble
    assert missing is not None
    assert missing.kind is TroubleKind.MISSING


def test_a_name_means_one_thing() -> None:
    with pytest.raises(ValueError, match="num_requests_waiting cannot be both running requests and waiting requests"):
        VLLM.preferring({Signal.RUNNING: ["vllm:num_requests_waiting"]})
    assert VLLM.preferring({Signal.RUNNING: ["vllm:num_requests_running"]}) == VLLM


def test_a_process_that_is_no_engine_has_nothing_near() -> None:
    found = answer({"up": 1})

    assert found.trouble is not None
    assert "none that is like it" in found.trouble.message


@pytest.mark.parametrize("bad", ["NaN", "+Inf", "-1"])
@pytest.mark.parametrize("name", [VLLM.by_signal[signal][0] for signal in NEEDED])
def test_a_value_that_is_no_number_is_unknown_and_named(name: str, bad: str) -> None:
    found = answer(VALUES | {name: bad})

    assert found.trouble is not None
    assert (found.trouble.kind, name in found.trouble.message) == (TroubleKind.INVALID, True)
    assert found.reading is not None
    known = [found.reading.served_tokens, found.reading.waiting_tokens, found.reading.remaining_tokens]
    assert any(isinstance(value, Unknown) for value in known)


def test_one_bad_rank_spoils_the_sum_of_its_engine() -> None:
    samples = [("a", 1.0), ("a", float("nan")), ("a", 2.0), ("b", 1.0), ("b", 2.0)]

    assert isinstance(sums_of(samples)["a"], Unknown)
    assert sums_of(samples)["b"] == 3


def test_nobody_waiting_needs_no_mean_length() -> None:
    fresh = dict.fromkeys(VALUES, 0)

    found = answer(fresh)

    assert found.trouble is None
    assert found.reading is not None
    assert (found.reading.waiting_tokens, found.reading.remaining_tokens) == (0, 0)


def test_somebody_waiting_before_any_request_has_ended_is_not_known() -> None:
    found = answer(dict.fromkeys(VALUES, 0) | {"vllm:num_requests_waiting": 4})

    assert found.reading is not None
    assert isinstance(found.reading.waiting_tokens, Unknown)


def test_nearest_name_prefers_the_closest_over_all_spellings() -> None:
    present = ["vllm:num_requests_waiting_by_reason", "vllm:num_requests_running"]

    assert nearest_name(VLLM.by_signal[Signal.WAITING], present) == "vllm:num_requests_waiting_by_reason"
    assert nearest_name(["abc"], []) == ""
