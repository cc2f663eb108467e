"""What one model's history makes of answers: newcomers, silence, samples that are old, and what is forgotten."""

from fractions import Fraction
from typing import Any

import pytest

from bayplan.api.autoscaling import Autoscaling
from bayplan.planning.measurements import Measured, Unknown
from bayplan.planning.scaling.demand import DoorReading, EngineReading
from bayplan.planning.scaling.policy import policy_of
from bayplan.planning.scaling.seed import Observation
from bayplan.reconcile.scaling.history import Answers, DemandHistory
from bayplan.telemetry.sources import EngineAnswer, GatewayAnswer, Trouble, TroubleKind

MODEL = "team/llama"
POLICY = policy_of(
    Autoscaling(max_replicas=5, service_tokens_per_second=100, scale_down_stabilization_seconds=60, sample_seconds=10)
)
SILENT = Trouble(TroubleKind.UNREACHABLE, "pod a: no answer")


def engine(at: float, served: Measured | float, *, waiting: float = 0, remaining: float = 0) -> EngineAnswer:
    counted = served if isinstance(served, Unknown) else Fraction(served)
    return EngineAnswer(EngineReading(Fraction(at), "run", counted, Fraction(waiting), Fraction(remaining)))


def gateway(at: float, demand: float, *, model: str = MODEL, reserved: Any = None) -> GatewayAnswer:
    reading = DoorReading(Fraction(at), "run", Fraction(demand), Fraction(0), Fraction(0))
    return GatewayAnswer({model: reading}, {} if reserved is None else reserved)


class Bench:
    def __init__(self) -> None:
        self.history = DemandHistory(MODEL)

    def take(self, at: float, engines: Any = None, gateways: Any = None, ready: Any = None) -> Observation:
        self.history.take(Answers(engines or {}, gateways or {}, ready or {}), POLICY, now_seconds=Fraction(at))
        return self.history.observations[-1]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_the_first_sample_has_no_rate_and_the_second_one_has(bench: Bench) -> None:
    first = bench.take(0, {"a": engine(0, 500)})
    assert isinstance(first.arrival_tokens_per_second, Unknown)
    assert bench.history.collecting

    second = bench.take(10, {"a": engine(10, 1500)})
    assert (second.arrival_tokens_per_second, second.coverage) == (100, 1)
    assert not bench.history.collecting


def test_a_replica_that_has_just_become_ready_counts_from_zero(bench: Bench) -> None:
    bench.take(0, {"a": engine(0, 0)})
    bench.take(10, {"a": engine(10, 1000)})

    seen = bench.take(20, {"a": engine(20, 2000), "b": engine(20, 500)}, ready={"a": 90, "b": 3})

    assert (seen.arrival_tokens_per_second, seen.coverage) == (150, 1)


def test_a_replica_that_was_ready_long_ago_is_no_newcomer(bench: Bench) -> None:
    bench.take(0, {"a": engine(0, 0)})

    seen = bench.take(10, {"a": engine(10, 1000), "b": engine(10, 10**9)}, ready={"a": 90, "b": 90})

    assert (seen.arrival_tokens_per_second, seen.coverage) == (100, Fraction(1, 2))


def test_a_replica_whose_drain_was_taken_back_is_no_newcomer(bench: Bench) -> None:
    bench.take(0, {"a": engine(0, 0), "b": engine(0, 9000)})
    bench.take(10, {"a": engine(10, 1000)})

    seen = bench.take(20, {"a": engine(20, 2000), "b": engine(20, 9500)}, ready={"a": 90, "b": 1})

    assert (seen.arrival_tokens_per_second, seen.coverage) == (125, 1)


def test_a_gateway_that_has_just_come_counts_from_zero(bench: Bench) -> None:
    bench.take(0, gateways={"g": gateway(0, 0)})

    seen = bench.take(10, gateways={"g": gateway(10, 1000), "h": gateway(10, 500)})

    assert (seen.arrival_tokens_per_second, seen.coverage) == (150, 1)


def test_silence_is_unknown_and_the_rate_after_it_is_the_mean_over_it(bench: Bench) -> None:
    bench.take(0, {"a": engine(0, 0)})
    bench.take(10, {"a": engine(10, 1000)})
    silent = bench.take(20, {"a": EngineAnswer(None, SILENT)})
    assert isinstance(silent.arrival_tokens_per_second, Unknown)
    assert bench.history.trouble == SILENT

    back = bench.take(30, {"a": engine(30, 5000)})
    assert back.arrival_tokens_per_second == 200
    assert bench.history.trouble is None


def test_nobody_to_ask_is_no_sample_of_anything(bench: Bench) -> None:
    bench.take(0)
    assert (bench.history.nobody, bench.history.collecting) == (True, False)
    bench.take(10, {"a": engine(10, 0)})
    assert (bench.history.nobody, bench.history.collecting) == (False, True)


@pytest.mark.parametrize(("age", "known"), [(30, True), (30.001, False)])
def test_a_sample_may_be_three_paces_old(bench: Bench, age: float, known: bool) -> None:
    bench.take(0, {"a": engine(-40, 0)})

    bench.take(100, {"a": engine(100 - age, 1000)})

    assert (bench.history.trouble is None) is known
    if bench.history.trouble is not None:
        assert bench.history.trouble.kind is TroubleKind.STALE


def test_a_sample_that_prometheus_has_not_renewed_is_no_news(bench: Bench) -> None:
    bench.take(0, {"a": engine(0, 0)})
    bench.take(10, {"a": engine(8, 800)})
    before = list(bench.history.observations)

    bench.take(20, {"a": engine(8, 800)})

    assert bench.history.observations == before
    assert bench.take(30, {"a": engine(28, 4800)}).arrival_tokens_per_second == 200


def test_a_gateway_that_does_not_know_the_model_makes_it_unknown(bench: Bench) -> None:
    bench.take(0, gateways={"g": gateway(0, 0, model="team/other")})

    assert bench.history.trouble is not None
    assert (bench.history.trouble.kind, MODEL in bench.history.trouble.message) == (TroubleKind.MISSING, True)


def test_another_models_bad_number_is_not_this_models_trouble(bench: Bench) -> None:
    answer = gateway(0, 0)
    bad = GatewayAnswer(answer.models, {}, Trouble(TroubleKind.INVALID, "model team/other: queuedTokens is nan"))
    bench.take(0, gateways={"g": bad})

    assert bench.history.trouble is None


def test_the_worst_trouble_is_shown(bench: Bench) -> None:
    missing = Trouble(TroubleKind.MISSING, "pod b reports no such thing")
    answers = {"a": EngineAnswer(None, SILENT), "b": EngineAnswer(None, missing), "c": engine(0, 0)}
    bench.take(0, answers)

    assert bench.history.trouble == missing


def test_work_left_is_the_larger_of_what_gateways_hold_and_engines_have(bench: Bench) -> None:
    engines = {"a": engine(0, 0, remaining=50), "b": engine(0, 0, remaining=500), "c": EngineAnswer(None, SILENT)}
    holds = {"a": Fraction(70), "c": Fraction(5)}
    bench.take(0, engines, {"g": gateway(0, 0, reserved=holds), "h": gateway(0, 0, reserved={"a": Fraction(10)})})
    assert bench.history.remaining_tokens == {"a": 80, "b": 500, "c": 5}

    silent = GatewayAnswer(trouble=SILENT)
    bench.take(10, engines, {"g": gateway(10, 0, reserved=holds), "h": silent})
    assert bench.history.remaining_tokens["a"] == 50
    assert isinstance(bench.history.remaining_tokens["c"], Unknown)


def test_the_history_reaches_to_the_start_of_the_window_and_no_further(bench: Bench) -> None:
    for at in range(0, 1000, 10):
        bench.take(at, {"a": engine(at, at)})

    times = [seen.at_seconds for seen in bench.history.observations]
    assert times == list(range(930, 1000, 10))
