"""`bayplan gate`: files judged as a Rollout would judge them, told apart by the exit code."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from bayplan.cli.main import app

Write = Callable[[Any], Path]


def record(**values: Any) -> dict[str, Any]:
    return {
        "model": "hf://org/tiny@abc",
        "runtime": "vllm:0.32",
        "hardware": "L40S",
        "source": "bench run 7",
        "observedTime": "2020-01-01T00:00:00Z",
        "expiryTime": "2999-01-01T00:00:00Z",
        "values": values,
    }


def side(**changes: Any) -> dict[str, Any]:
    return record(
        **{
            "weightBits": 8,
            "hardwareSupported": True,
            "qualityScore": 0.90,
            "weightMemoryGib": 10,
            "p95TtftSeconds": 0.5,
            "outputTokensPerSecond": 100,
        }
        | changes
    )


def quantization(**candidate: Any) -> dict[str, Any]:
    return {
        "baseline": side(weightBits=16),
        "candidate": side(**candidate),
        "requirements": {
            "minQualityScore": 0.8,
            "maxQualityDrop": 0.03,
            "maxWeightMemoryGib": 12,
            "maxP95TtftSeconds": 1,
            "minRelativeThroughput": 1,
        },
    }


def speculation(**changes: Any) -> dict[str, Any]:
    return {
        "baseline": record(secondsPerToken=1),
        "candidate": record(draftSecondsPerToken=0.1, verificationSecondsPerRound=1),
        "rounds": [{"draft": [1, 2, 3, 4], "target": [1, 2, 3, 4, 5]}, {"draft": [1, 2], "target": [1, 9, 9]}],
        "minimumSpeedup": 1.5,
    } | changes


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to(what: Any) -> Path:
        path = tmp_path / "file.yaml"
        path.write_text(what if isinstance(what, str) else yaml.safe_dump(what))
        return path

    return to


def gate(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["gate", *map(str, arguments)])


def test_candidate_within_every_limit_may_be_staged(write: Write) -> None:
    answer = gate("quantization", write(quantization(qualityScore=0.87)))
    assert answer.exit_code == 0, answer.output
    assert answer.stdout.count("Passed") == 6


def test_every_failed_gate_is_named_with_its_numbers(write: Write) -> None:
    answer = gate("quantization", write(quantization(qualityScore=0.86, outputTokensPerSecond=70)))
    assert answer.exit_code == 1
    assert answer.stdout.count("Failed") == 2
    assert "quality drops by 0.04, at most 0.03" in answer.stdout
    assert "0.7 of the baseline's tokens/s, at least 1" in answer.stdout


def test_decision_is_printed_as_json(write: Write) -> None:
    answer = gate("quantization", write(quantization(outputTokensPerSecond=70)), "--json")
    assert answer.exit_code == 1
    assert json.loads(answer.stdout) == {
        "outcome": "StagingRejected",
        "messages": ["throughput: 0.7 of the baseline's tokens/s, at least 1"],
        "failedGates": ["throughput"],
        "qualityDrop": 0.0,
        "relativeThroughput": 0.7,
    }


def test_speculation_shows_acceptance_by_position_and_counts_the_bonus_token(write: Write) -> None:
    answer = gate("speculation", write(speculation()), "--json")
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.stdout)
    assert found["outcome"] == "Staged"
    assert (found["acceptedTokens"], found["draftedTokens"], found["emittedTokens"]) == (5, 6, 7)
    assert found["byPosition"][:2] == [{"drafted": 2, "accepted": 2}, {"drafted": 2, "accepted": 1}]
    table = gate("speculation", write(speculation()))
    assert "50%" in table.stdout
    assert "times as fast" in table.stdout


def test_speculation_that_does_not_pay_fails(write: Write) -> None:
    answer = gate("speculation", write(speculation(minimumSpeedup=4)))
    assert answer.exit_code == 1
    assert "Failed" in answer.stdout


@pytest.mark.parametrize(
    ("what", "named"),
    [
        ("[", "file: is not readable"),
        ("text", "paper"),
        ({k: v for k, v in quantization().items() if k != "requirements"}, "requirements: is missing"),
        (quantization(p95TtftSeconds=None), "candidate.values.p95TtftSeconds"),
        (quantization(qualityScore=float("nan")), "candidate.values.qualityScore"),
        (quantization() | {"baseline": side() | {"hardware": "H100"}}, "hardware: must be the same"),
        (quantization() | {"candidate": side() | {"expiryTime": "2020-01-02T00:00:00Z"}}, "expired"),
        (quantization() | {"candidate": side() | {"observedTime": "2998-01-01T00:00:00Z"}}, "later"),
    ],
)
def test_unusable_file_names_what_is_wrong_and_is_no_failed_gate(what: Any, named: str, write: Write) -> None:
    answer = gate("quantization", write(what))
    assert answer.exit_code == 2, answer.output
    assert named in answer.output
    printed = gate("quantization", write(what), "--json")
    assert printed.exit_code == 2
    assert json.loads(printed.stdout)["outcome"] == "Invalid"
    assert named in printed.stdout


def test_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    answer = gate("speculation", tmp_path / "absent.yaml")
    assert answer.exit_code == 2
    assert "absent.yaml" in answer.output
