from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import pytest

from bayplan.api.capacitywords import ClaimState, Control
from bayplan.api.rolloutwords import Outcome
from bayplan.planning.evidencecontract.canary import CanaryEnd, CanaryGate, CanaryResult, judge_canary
from bayplan.planning.evidencecontract.canonical import canonical_json, digest_of
from bayplan.planning.evidencecontract.claims import RESTS_ON, EvidenceInput, Finding, InputName, earned, failed
from bayplan.planning.evidencecontract.contract import EvidenceReport, Requirement, evaluate_contract
from bayplan.planning.evidencecontract.scalingloop import run_scaling_loop
from bayplan.planning.numbers import InvalidInput
from bayplan.planning.scaling.seed import ScalingPolicy

NOW = Fraction(1_000_000)
AGES = dict.fromkeys(InputName, Fraction(100))
REQUIRED = Requirement(classes=("chat",))


def inputs(**changed: EvidenceInput | None) -> list[EvidenceInput]:
    every = {name: EvidenceInput(name, f"sha256:{name}", NOW - 50) for name in InputName}
    for name, one in changed.items():
        if one is None:
            del every[InputName(name)]
        else:
            every[InputName(name)] = one
    return list(every.values())


def judge(given: list[EvidenceInput] | None = None, **evaluators: Callable[[], Finding]) -> EvidenceReport:
    every: dict[str, Callable[[], Finding]] = dict.fromkeys(REQUIRED.claims, lambda: earned("yes"))
    every |= {name.replace("_", "-"): evaluator for name, evaluator in evaluators.items()}
    return evaluate_contract(
        REQUIRED, every, inputs=inputs() if given is None else given, greatest_ages=AGES, now_seconds=NOW
    )


def state(report: EvidenceReport, name: str) -> ClaimState:
    return next(claim.state for claim in report.claims if claim.name == name)


def test_all_claims_that_are_decided_on_current_inputs_are_earned() -> None:
    report = judge()

    assert report.proven
    assert report.earned == REQUIRED.claims
    assert len(report.claims) == 9
    assert report.worst is ClaimState.EARNED


@pytest.mark.parametrize("claim", REQUIRED.claims)
def test_an_evaluator_that_raises_proves_nothing_and_takes_no_other_claim_along(claim: str) -> None:
    def broken() -> Finding:
        raise ZeroDivisionError("by zero")

    every: dict[str, Callable[[], Finding]] = dict.fromkeys(REQUIRED.claims, lambda: earned("yes"))
    report = evaluate_contract(REQUIRED, every | {claim: broken}, inputs=inputs(), greatest_ages=AGES, now_seconds=NOW)

    (unproven,) = report.unproven
    assert (unproven.name, unproven.state) == (claim, ClaimState.EVALUATOR_FAILED)
    assert "by zero" in unproven.message


@pytest.mark.parametrize("claim", REQUIRED.claims)
def test_a_decision_that_says_no_fails_its_own_claim_alone(claim: str) -> None:
    every: dict[str, Callable[[], Finding]] = dict.fromkeys(REQUIRED.claims, lambda: earned("yes"))
    every[claim] = lambda: failed("no")

    report = evaluate_contract(REQUIRED, every, inputs=inputs(), greatest_ages=AGES, now_seconds=NOW)

    assert [(one.name, one.state) for one in report.unproven] == [(claim, ClaimState.FAILED)]


@pytest.mark.parametrize("claim", REQUIRED.claims)
def test_what_nothing_decides_is_missing_and_stays_required(claim: str) -> None:
    every = {name: (lambda: earned("yes")) for name in REQUIRED.claims if name != claim}

    report = evaluate_contract(REQUIRED, every, inputs=inputs(), greatest_ages=AGES, now_seconds=NOW)

    assert [(one.name, one.state) for one in report.unproven] == [(claim, ClaimState.MISSING)]


@pytest.mark.parametrize("name", list(InputName))
def test_missing_stale_contradicted_and_future_inputs_are_told_apart(name: InputName) -> None:
    resting = {claim for claim in REQUIRED.claims if name in RESTS_ON.get(claim, ())}
    resting |= {"workload:chat"} if name in (InputName.ARTIFACT, InputName.BENCHMARK) else set()
    for changed, expected in (
        (None, ClaimState.MISSING),
        (EvidenceInput(name, "d", NOW - 101), ClaimState.STALE),
        (EvidenceInput(name, "d", NOW + 1), ClaimState.CONTRADICTED),
        (EvidenceInput(name, "d", NOW, contradiction="about another revision"), ClaimState.CONTRADICTED),
    ):
        report = judge(inputs(**{name.value: changed}))
        assert {(one.name, one.state) for one in report.unproven} == {(claim, expected) for claim in resting}
    assert resting, f"nothing rests on {name}"


def test_an_age_equal_to_the_greatest_passes_and_one_second_more_does_not() -> None:
    assert judge(inputs(price=EvidenceInput(InputName.PRICE, "d", NOW - 100))).proven
    assert not judge(inputs(price=EvidenceInput(InputName.PRICE, "d", NOW - 101))).proven


def test_an_evaluator_is_not_even_asked_while_its_input_is_in_doubt() -> None:
    asked = []

    def count() -> Finding:
        asked.append(1)
        return earned("yes")

    judge(inputs(canary=None), canary_gate=count)

    assert asked == []


def test_the_report_says_when_time_alone_will_change_it() -> None:
    assert judge().changes_at_seconds == NOW + 50
    future = EvidenceInput(InputName.PRICE, "d", NOW + 7)
    assert judge(inputs(price=future)).changes_at_seconds == NOW + 7
    timeless = [EvidenceInput(name, "d") for name in InputName]
    assert judge(timeless).changes_at_seconds is None


def test_a_needless_price_may_be_missing_but_a_stale_one_may_not_be_used() -> None:
    every: dict[str, Callable[[], Finding]] = dict.fromkeys(REQUIRED.claims, lambda: earned("yes"))
    needless = frozenset({InputName.PRICE})
    for given, proven in ((inputs(price=None), True), (inputs(price=EvidenceInput(InputName.PRICE, "d", 0)), False)):
        report = evaluate_contract(
            REQUIRED, every, inputs=given, greatest_ages=AGES, now_seconds=NOW, needless=needless
        )
        assert report.proven is proven


def test_equal_inputs_give_equal_bytes_and_any_changed_input_another_digest() -> None:
    assert canonical_json(judge().claims) == canonical_json(judge().claims)
    digests = {judge().digest}
    for name in InputName:
        digests.add(judge(inputs(**{name.value: EvidenceInput(name, "sha256:other", NOW - 50)})).digest)
    digests.add(judge(canary_gate=lambda: earned("yes, but")).digest)
    assert len(digests) == len(InputName) + 2


def test_the_time_of_evaluation_is_no_part_of_a_report() -> None:
    every: dict[str, Callable[[], Finding]] = dict.fromkeys(REQUIRED.claims, lambda: earned("yes"))
    later = evaluate_contract(REQUIRED, every, inputs=inputs(), greatest_ages=AGES, now_seconds=NOW + 20)

    assert later.digest == judge().digest


def test_requirements_of_nothing_are_refused() -> None:
    with pytest.raises(InvalidInput, match="must not be empty"):
        Requirement(classes=(), controls=())


class TestCanonicalForm:
    def test_numbers_stay_exact_and_keys_are_sorted(self) -> None:
        assert canonical_json({"b": Fraction(1, 3), "a": Fraction(4, 2)}) == b'{"a":2,"b":"1/3"}'

    def test_order_of_sets_and_maps_does_not_matter(self) -> None:
        assert digest_of({"a": {1, 2, 3}}) == digest_of({"a": frozenset({3, 2, 1})})

    def test_floats_and_unknown_things_have_no_exact_text(self) -> None:
        for value in (0.1, object()):
            with pytest.raises(TypeError, match="no exact text"):
                canonical_json(value)

    def test_records_are_their_fields(self) -> None:
        @dataclass(frozen=True)
        class Pair:
            left: int
            right: str

        assert canonical_json(Pair(1, "é")) == b'{"left":1,"right":"\\u00e9"}'


class TestScalingLoop:
    POLICY = ScalingPolicy(2, 8, 350, Fraction(3, 4), 10, 5)

    def run(self, policy: ScalingPolicy, planned: int, tokens: int = 825) -> bool:
        loop = run_scaling_loop(
            policy, planned_replicas=planned, arriving_tokens_per_second=tokens, sample_seconds=Fraction(15)
        )
        assert loop.started_at < planned or policy.max_replicas < planned
        return loop.arrives

    def test_demand_brings_it_from_below_to_the_planned_number(self) -> None:
        assert self.run(self.POLICY, 4)

    def test_demand_that_asks_for_fewer_does_not(self) -> None:
        assert not self.run(self.POLICY, 4, tokens=780)

    def test_a_lower_ceiling_stops_it(self) -> None:
        assert not self.run(ScalingPolicy(1, 3, 350, Fraction(3, 4), 10, 5), 4)

    def test_fewest_replicas_at_the_plan_prove_nothing(self) -> None:
        assert not self.run(ScalingPolicy(4, 8, 350, Fraction(3, 4), 10, 5), 4, tokens=10)

    def test_a_long_cool_down_and_a_confirmed_rise_are_waited_for(self) -> None:
        assert self.run(ScalingPolicy(1, 8, 350, Fraction(3, 4), 10, 600, scale_up_samples=2), 4)


class TestCanary:
    def result(self, end: CanaryEnd = CanaryEnd.PROMOTED, *gates: CanaryGate) -> CanaryResult:
        return CanaryResult("r1", end, NOW, gates or (CanaryGate("ttft", True, Outcome.PASSED),))

    def test_a_promotion_by_an_enforced_gate_earns_it(self) -> None:
        assert judge_canary(self.result()).state is ClaimState.EARNED

    @pytest.mark.parametrize("end", [end for end in CanaryEnd if end is not CanaryEnd.PROMOTED])
    def test_no_other_end_earns_it(self, end: CanaryEnd) -> None:
        assert judge_canary(self.result(end)).state is ClaimState.FAILED

    def test_gates_that_are_not_enforced_earn_nothing(self) -> None:
        only = self.result(CanaryEnd.PROMOTED, CanaryGate("ttft", False, Outcome.PASSED))
        assert judge_canary(only).state is ClaimState.FAILED

    @pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.UNKNOWN, Outcome.INVALID])
    def test_an_enforced_gate_that_did_not_pass_loses_it(self, outcome: Outcome) -> None:
        gates = (CanaryGate("ttft", True, Outcome.PASSED), CanaryGate("tpot", True, outcome))
        found = judge_canary(self.result(CanaryEnd.PROMOTED, *gates))
        assert found.state is ClaimState.FAILED
        assert f"tpot {outcome}" in found.message


def test_there_are_eight_controls() -> None:
    assert len(Control) == 8
    assert set(RESTS_ON) == set(Control)
