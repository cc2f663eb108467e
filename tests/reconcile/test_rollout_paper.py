"""What a candidate changes that wants measurements first, and whether those it brings are about it."""

from fractions import Fraction
from typing import Any

import pytest
import yaml

from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.api.validation import parse_spec
from bayplan.planning.rollout.paper import PaperOutcome, PaperSubject, PaperVerdict
from bayplan.reconcile.rollout.paper import changes_of, model_identity, paper_verdict
from tests.reconcile.world import model_spec

NOW = Fraction(1_770_000_000)
IMAGE = "vllm/vllm-openai:v0.32.0"


def spec(**engine: Any) -> InferenceModelSpec:
    parsed = parse_spec(model_spec(engine=engine))
    assert isinstance(parsed, InferenceModelSpec)
    return parsed


BEFORE, FP8 = spec(), spec(kvCacheDtype="fp8")


@pytest.mark.parametrize(
    ("engine", "changed"),
    [
        ({"kvCacheDtype": "fp8"}, {PaperSubject.QUANTIZATION}),
        ({"args": ["--quantization=fp8"]}, {PaperSubject.QUANTIZATION}),
        ({"args": ["--quantization", "awq"]}, {PaperSubject.QUANTIZATION}),
        ({"args": ["-q", "awq"]}, {PaperSubject.QUANTIZATION}),
        ({"args": ['--speculative_config={"num_speculative_tokens": 3}']}, {PaperSubject.SPECULATION}),
        ({"args": ["--quantization=fp8", "--speculative-config={}"]}, set(PaperSubject)),
        ({"image": "vllm/vllm-openai:v0.33.0", "maxModelLen": 4096, "args": ["--seed=1"]}, set()),
    ],
)
def test_only_quantization_and_speculation_want_measurements(
    engine: dict[str, Any], changed: set[PaperSubject]
) -> None:
    assert changes_of(BEFORE, spec(**engine)) == changed


def test_another_value_of_the_same_flag_is_a_change() -> None:
    assert changes_of(spec(args=["--quantization", "awq"]), spec(args=["--quantization", "gptq"]))


def record(side: InferenceModelSpec, **of: Any) -> dict[str, Any]:
    return {
        "model": model_identity(side),
        "runtime": IMAGE,
        "hardware": "H100",
        "source": "bench 7",
        "observedTime": "2026-01-01T00:00:00Z",
        "expiryTime": "2027-01-01T00:00:00Z",
        "values": {
            "weightBits": 16,
            "hardwareSupported": True,
            "qualityScore": 0.9,
            "weightMemoryGib": 15,
            "p95TtftSeconds": 0.4,
            "outputTokensPerSecond": 1000,
        },
        **of,
    }


def text(**sides: Any) -> str:
    papers = {
        "baseline": record(BEFORE),
        "candidate": record(FP8),
        "requirements": {
            "minQualityScore": 0.8,
            "maxQualityDrop": 0.05,
            "maxWeightMemoryGib": 20,
            "maxP95TtftSeconds": 1,
            "minRelativeThroughput": 1,
        },
    }
    return yaml.safe_dump({**papers, **sides})


def verdict(measurements: Any) -> PaperVerdict:
    return paper_verdict(BEFORE, FP8, measurements, now_seconds=NOW)


def test_measurements_of_both_sides_let_it_be_staged() -> None:
    assert verdict({"quantization": text()}).outcome is PaperOutcome.STAGED


def test_a_failed_gate_is_rejected_before_a_gpu_is_touched() -> None:
    slow = record(FP8)
    slow["values"] = {**slow["values"], "outputTokensPerSecond": 700}

    found = verdict({"quantization": text(candidate=slow)})

    assert found.outcome is PaperOutcome.REJECTED
    assert found.messages == ("quantization: throughput: 0.7 of the baseline's tokens/s, at least 1",)


@pytest.mark.parametrize(
    ("measurements", "says"),
    [
        (None, "the measurements are not read yet"),
        ("ConfigMap measured does not exist", "quantization: ConfigMap measured does not exist"),
        ({}, "the candidate changes it and brings no measurements"),
        ({"quantization": "{"}, "quantization: is not readable"),
        ({"quantization": text(candidate=record(FP8, model="hf://org/other@1"))}, "candidate.model: must be "),
        ({"quantization": text(baseline=record(BEFORE, model="hf://org/other@1"))}, "baseline.model: must be "),
        (
            {"quantization": text(baseline=record(BEFORE, runtime="v1"), candidate=record(FP8, runtime="v1"))},
            f"candidate.runtime: must be {IMAGE}, not v1",
        ),
        ({"quantization": text(candidate=record(FP8, expiryTime="2026-01-02T00:00:00Z"))}, "expired"),
        ({"quantization": text(candidate={"model": "a"})}, "candidate.expiryTime: is missing"),
    ],
)
def test_what_is_missing_is_named_and_waited_for(measurements: Any, says: str) -> None:
    found = verdict(measurements)

    assert found.outcome is PaperOutcome.MISSING
    assert says in found.messages[0]


def test_a_candidate_that_changes_neither_needs_none() -> None:
    assert paper_verdict(BEFORE, spec(maxModelLen=4096), None, now_seconds=NOW).passes
    assert paper_verdict(None, FP8, None, now_seconds=NOW).passes
