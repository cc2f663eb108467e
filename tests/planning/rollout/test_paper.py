"""What may touch a GPU: the papers of candidates that change quantization or speculation."""

import copy
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.planning.evidence import read_record
from bayplan.planning.numbers import InvalidInput
from bayplan.planning.rollout.paper import (
    Paper,
    PaperOutcome,
    PaperSubject,
    PaperVerdict,
    decide_paper,
    read_quantization,
    read_speculation,
)
from bayplan.planning.rollout.quantization import QuantizationGate
from bayplan.planning.rollout.speculation import Acceptance, DraftRound, SpeculationCosts, decide_speculation

NOON = Fraction(1_769_860_800)  # 2026-01-31T12:00:00Z
HOUR = 3600
RECORD: dict[str, Any] = {
    "model": "acme/chat@1a2b3c",
    "runtime": "vllm 0.11.2",
    "hardware": "NVIDIA-L40S",
    "source": "https://bench.example/42",
    "observedTime": "2026-01-31T11:00:00Z",
    "expiryTime": "2026-01-31T13:00:00Z",
    "values": {
        "weightBits": 16,
        "hardwareSupported": True,
        "qualityScore": Decimal("0.90"),
        "weightMemoryGib": 28,
        "p95TtftSeconds": Decimal("0.8"),
        "outputTokensPerSecond": 100,
    },
}
QUANTIZATION: dict[str, Any] = {
    "baseline": RECORD,
    "candidate": RECORD
    | {
        "model": "acme/chat-fp8@4d5e6f",
        "values": RECORD["values"] | {"weightBits": 8, "qualityScore": Decimal("0.87"), "weightMemoryGib": 15},
    },
    "requirements": {
        "minQualityScore": Decimal("0.85"),
        "maxQualityDrop": Decimal("0.03"),
        "maxWeightMemoryGib": 16,
        "maxP95TtftSeconds": Decimal("0.8"),
        "minRelativeThroughput": 1,
    },
}
SPECULATION: dict[str, Any] = {
    "baseline": RECORD | {"values": {"secondsPerToken": 1}},
    "candidate": RECORD | {"values": {"draftSecondsPerToken": Decimal("0.25"), "verificationSecondsPerRound": 1}},
    "rounds": [{"draft": [1, 2], "target": [1, 2, 3]}],
    "minimumSpeedup": 2,
}
BOTH = frozenset(PaperSubject)


def with_(raw: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """A copy in which the place of that path has the value; None takes it away."""
    made = copy.deepcopy(raw)
    *parents, last = path.split(".")
    inside = made
    for parent in parents:
        inside = inside[parent]
    if value is None:
        del inside[last]
    else:
        inside[last] = value
    return made


def decide(changes: frozenset[PaperSubject], now: Fraction = NOON, **papers: Paper | InvalidInput) -> PaperVerdict:
    return decide_paper(changes, {PaperSubject(name): paper for name, paper in papers.items()}, now_seconds=now)


class TestQuantization:
    def test_a_drop_exactly_at_the_allowance_stages(self) -> None:
        paper = read_quantization(QUANTIZATION)

        assert paper.failures == ()
        assert decide(frozenset({PaperSubject.QUANTIZATION}), quantization=paper).outcome is PaperOutcome.STAGED

    @pytest.mark.parametrize(
        ("field", "value", "gate"),
        [
            ("hardwareSupported", False, QuantizationGate.HARDWARE_SUPPORT),
            ("qualityScore", Decimal("0.8699"), QuantizationGate.QUALITY_DROP),
            ("weightMemoryGib", Decimal("16.01"), QuantizationGate.WEIGHT_MEMORY),
            ("p95TtftSeconds", Decimal("0.81"), QuantizationGate.TTFT),
            ("outputTokensPerSecond", Decimal("99.9"), QuantizationGate.THROUGHPUT),
        ],
    )
    def test_each_gate_fails_alone_and_by_its_name(self, field: str, value: object, gate: QuantizationGate) -> None:
        paper = read_quantization(with_(QUANTIZATION, f"candidate.values.{field}", value))

        assert paper.decision.failed == (gate,)  # type: ignore[union-attr]
        assert paper.failures[0].startswith(gate.value)

    def test_fewer_bits_promise_nothing(self) -> None:
        fewer = read_quantization(with_(QUANTIZATION, "candidate.values.weightBits", 4)).decision

        assert fewer == read_quantization(QUANTIZATION).decision

    @pytest.mark.parametrize(
        "path",
        [
            "candidate.model",
            "candidate.expiryTime",
            "baseline.values.qualityScore",
            "candidate.values.outputTokensPerSecond",
            "requirements.maxQualityDrop",
            "requirements",
        ],
    )
    def test_what_is_missing_is_named_with_its_place(self, path: str) -> None:
        with pytest.raises(InvalidInput) as error:
            read_quantization(with_(QUANTIZATION, path, None))

        assert error.value.field == path

    @pytest.mark.parametrize(
        ("path", "value"),
        [
            ("candidate.values.qualityScore", float("nan")),
            ("candidate.values.hardwareSupported", "yes"),
            ("baseline.values.outputTokensPerSecond", 0),
            ("requirements.maxQualityDrop", Decimal("-0.01")),
            ("requirements.minPrice", 3),
            ("baseline.observedTime", "yesterday"),
            ("baseline.colour", "blue"),
            ("candidate.expiryTime", "2026-01-31T11:00:00Z"),
        ],
    )
    def test_what_cannot_be_meant_is_named_with_its_place(self, path: str, value: object) -> None:
        with pytest.raises(InvalidInput) as error:
            read_quantization(with_(QUANTIZATION, path, value))

        assert error.value.field == path

    @pytest.mark.parametrize("part", ["hardware", "runtime"])
    def test_sides_measured_differently_are_not_compared(self, part: str) -> None:
        with pytest.raises(InvalidInput, match=f"{part}: must be the same on both sides"):
            read_quantization(with_(QUANTIZATION, f"candidate.{part}", "another"))


class TestSpeculation:
    def test_equal_to_the_minimum_enables(self) -> None:
        assert read_speculation(SPECULATION).failures == ()
        assert "speed-up" in read_speculation(with_(SPECULATION, "minimumSpeedup", Decimal("2.001"))).failures[0]

    def test_acceptance_is_told_by_position_over_all_rounds(self) -> None:
        rounds = [
            DraftRound((1, 2, 3), (1, 2, 3, 4)),
            DraftRound((1, 9, 3), (1, 2, 3, 4)),
            DraftRound((9,), (1, 2)),
        ]

        decision = decide_speculation(rounds, SpeculationCosts(Fraction(1), Fraction(1, 10), Fraction(1)))

        assert decision.by_position == (Acceptance(3, 2), Acceptance(2, 1), Acceptance(2, 1))
        assert decision.emitted == ((1, 2, 3, 4), (1, 2), (1,))
        assert decision.baseline_cost_seconds == 7
        assert decision.speculative_cost_seconds == 3 + Fraction(7, 10)

    def test_a_round_that_was_not_verified_fails_the_evaluation_however_good_the_others(self) -> None:
        rounds = [{"draft": [1, 2], "target": [1, 2, 3]}] * 50
        broken = SPECULATION | {"rounds": [*rounds, {"draft": [1, 2], "failure": "out of memory"}]}

        paper = read_speculation(broken | {"minimumSpeedup": 1})

        assert "1 of 51 rounds were not verified: out of memory" in paper.failures[0]

    @pytest.mark.parametrize(
        ("path", "value", "field"),
        [
            ("rounds", [], "rounds"),
            ("rounds", [{"draft": [], "target": [1]}], "rounds[0].draft"),
            ("rounds", [{"draft": [1, 2], "target": [1, 2]}], "rounds[0].target"),
            ("rounds", [{"draft": [True], "target": [1, 2]}], "rounds[0].draft"),
            ("minimumSpeedup", 0, "minimumSpeedup"),
            ("baseline.values.secondsPerToken", 0, "baseline.values.secondsPerToken"),
            ("candidate.values.draftSecondsPerToken", None, "candidate.values.draftSecondsPerToken"),
        ],
    )
    def test_bad_input_is_named_with_its_place(self, path: str, value: object, field: str) -> None:
        with pytest.raises(InvalidInput) as error:
            read_speculation(with_(SPECULATION, path, value))

        assert error.value.field == field

    def test_nothing_is_decided_without_a_round(self) -> None:
        with pytest.raises(InvalidInput, match="rounds"):
            decide_speculation([], SpeculationCosts(Fraction(1), Fraction(1), Fraction(1)))

    @given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=6), min_size=1, max_size=6))
    def test_every_round_emits_what_the_target_alone_would_have_said(self, drafts: list[list[int]]) -> None:
        target = (1, 0, 1, 1, 0, 1, 0)
        rounds = [DraftRound(tuple(draft), target) for draft in drafts]

        decision = decide_speculation(rounds, SpeculationCosts(Fraction(1), Fraction(1), Fraction(1)))

        for one, emitted in zip(rounds, decision.emitted, strict=True):
            assert emitted == target[: len(emitted)]
            assert (len(emitted) == len(one.draft_tokens) + 1) == (one.draft_tokens == target[: len(one.draft_tokens)])
        assert decision.emitted_tokens == decision.accepted_tokens + len(rounds)


class TestVerdict:
    def test_a_candidate_that_changes_neither_needs_no_paper(self) -> None:
        assert decide(frozenset()).outcome is PaperOutcome.NOT_NEEDED

    def test_papers_of_one_subject_do_not_stand_for_the_other(self) -> None:
        verdict = decide(BOTH, quantization=read_quantization(QUANTIZATION))

        assert verdict.outcome is PaperOutcome.MISSING
        assert not verdict.passes
        assert "speculation: the candidate changes it" in verdict.messages[0]

    def test_a_failed_gate_outweighs_what_is_missing(self) -> None:
        failing = read_quantization(with_(QUANTIZATION, "candidate.values.outputTokensPerSecond", 50))

        verdict = decide(BOTH, quantization=failing)

        assert verdict.outcome is PaperOutcome.REJECTED
        assert "throughput: 0.5 of the baseline's tokens/s, at least 1" in verdict.messages[0]

    def test_papers_that_cannot_be_read_are_waited_for_by_the_name_of_the_field(self) -> None:
        verdict = decide(frozenset({PaperSubject.SPECULATION}), speculation=InvalidInput("rounds", "must be a list"))

        assert (verdict.outcome, verdict.messages) == (PaperOutcome.MISSING, ("speculation: rounds: must be a list",))

    @pytest.mark.parametrize(
        ("now", "outcome"),
        [
            (NOON + HOUR - 1, PaperOutcome.STAGED),
            (NOON + HOUR, PaperOutcome.MISSING),
            (NOON - HOUR, PaperOutcome.STAGED),
            (NOON - HOUR - 1, PaperOutcome.MISSING),
        ],
    )
    def test_expired_papers_and_papers_from_the_future_prove_nothing(
        self, now: Fraction, outcome: PaperOutcome
    ) -> None:
        both = {"quantization": read_quantization(QUANTIZATION), "speculation": read_speculation(SPECULATION)}

        assert decide(BOTH, now, **both).outcome is outcome

    def test_an_expired_failure_rejects_nobody(self) -> None:
        failing = read_quantization(with_(QUANTIZATION, "candidate.values.outputTokensPerSecond", 50))

        verdict = decide(frozenset({PaperSubject.QUANTIZATION}), NOON + HOUR, quantization=failing)

        assert verdict.outcome is PaperOutcome.MISSING


def test_times_are_read_with_their_offset() -> None:
    record = read_record(RECORD | {"observedTime": "2026-01-31T13:30:00.5+01:00"}, "candidate")

    assert record.observed_at_seconds == NOON + 1800 + Fraction(1, 2)
