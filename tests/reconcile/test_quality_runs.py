"""Answers of both arms to a prompt set: all or Unknown, few at a time, once, and again when something was unknown."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import pytest

from bayplan.planning.gates.promptset import PromptSet
from bayplan.planning.measurements import Unknown
from bayplan.planning.numbers import InvalidInput
from bayplan.reconcile.qualityruns import AT_ONCE, RETRY_SECONDS, Examinee, QualityRuns, parse_prompt_set
from bayplan.telemetry.http import PodError
from bayplan.telemetry.prompts import HttpPrompts
from e2e.enginesim.flags import parse_flags
from e2e.enginesim.process import EngineService
from e2e.enginesim.settings import read_settings
from tests.fakes.clock import FakeClock, until
from tests.gateway.gatewaytown import loopback
from tests.gateway.scriptedengine import Connection, ScriptedEngine

OWNER = ("team", "chat")
PROMPTS = """
- {name: one, prompt: "1", check: {exact: "right"}}
- {name: two, prompt: "2", check: {exact: "right"}}
- {name: three, messages: [{role: user, content: "3"}], maxTokens: 5, check: {regex: "^ri"}}
"""


def prompt_set(text: str = PROMPTS) -> PromptSet:
    return parse_prompt_set({"prompts": text})


class Answers:
    """Engines that say what a test tells them."""

    def __init__(self, *, hold: bool = False) -> None:
        self.asked: list[tuple[str, str, str]] = []
        self.limits: list[int] = []
        self.wrong: set[str] = set()
        self.failing: dict[str, Exception] = {}
        self.at_once = self.most_at_once = 0
        self.released = asyncio.Event()
        if not hold:
            self.released.set()

    async def answer(
        self,
        address: str,
        *,
        model: str,
        text: str,
        messages: Sequence[Mapping[str, str]],
        max_tokens: int,
        timeout_seconds: float,
    ) -> str:
        asked = text or messages[0]["content"]
        self.asked.append((address, model, asked))
        self.limits.append(max_tokens)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self.released.wait()
            await asyncio.sleep(0)
        finally:
            self.at_once -= 1
        if asked in self.failing:
            raise self.failing[asked]
        return "wrong" if asked in self.wrong else "right"


class Bench:
    def __init__(self, engine: Answers, **fields: Any) -> None:
        self.clock = FakeClock()
        self.engine = engine
        self.changes = 0
        self.sleeps: list[float] = []
        self.runs = QualityRuns(engine, now_seconds=self.now, sleep=self._sleep, **fields)

    def now(self) -> Fraction:
        return Fraction(self.clock.time())

    async def _sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.clock.jump(seconds)
        await asyncio.sleep(0)

    def ensure(
        self, prompts: PromptSet, *, revision: str = "r2", since: Fraction = Fraction(0), addresses: Any = ("10.0.0.1",)
    ) -> None:
        self.runs.ensure(
            OWNER, Examinee(revision, "tiny", tuple(addresses)), prompts, since_seconds=since, changed=self._changed
        )

    def _changed(self) -> None:
        self.changes += 1

    async def ended(self, number: int = 1) -> None:
        await until(lambda: self.changes >= number)


@pytest.fixture
async def engine() -> Answers:
    return Answers()


@pytest.fixture
async def bench(engine: Answers) -> AsyncIterator[Bench]:
    made = Bench(engine)
    yield made
    await made.runs.close()


async def test_whole_set_is_asked_and_only_counts_are_kept(bench: Bench, engine: Answers) -> None:
    engine.wrong = {"2"}
    prompts = prompt_set()
    assert bench.runs.observe(OWNER, "r2", prompts) is None
    bench.ensure(prompts, addresses=("10.0.0.1", "10.0.0.2"))
    await bench.ended()
    counts = bench.runs.observe(OWNER, "r2", prompts)
    assert counts is not None
    assert (counts.passed, counts.failed, counts.unknown) == (2, 1, 0)
    assert (counts.revision, counts.prompt_set) == ("r2", prompts.digest)
    assert counts.observed_at_seconds == bench.now()
    assert {address for address, _, _ in engine.asked} == {"10.0.0.1", "10.0.0.2"}
    assert {model for _, model, _ in engine.asked} == {"tiny"}
    assert sorted(engine.limits) == [5, 64, 64]


async def test_it_is_asked_once_however_often_somebody_wants_it(bench: Bench, engine: Answers) -> None:
    prompts = prompt_set()
    for _ in range(3):
        bench.ensure(prompts)
    await bench.ended()
    bench.ensure(prompts)
    await asyncio.sleep(0)
    assert len(engine.asked) == 3


async def test_answers_from_before_are_asked_for_again(bench: Bench, engine: Answers) -> None:
    prompts = prompt_set()
    bench.ensure(prompts)
    await bench.ended()
    bench.clock.jump(5)
    bench.ensure(prompts, since=bench.now())
    await bench.ended(2)
    assert len(engine.asked) == 6
    counts = bench.runs.observe(OWNER, "r2", prompts)
    assert counts is not None
    assert counts.observed_at_seconds == bench.now()


@pytest.mark.parametrize("error", [PodError("/v1/completions answered 500: no"), RuntimeError("odd")])
async def test_one_missing_answer_makes_the_quality_unknown_and_is_asked_for_again_later(
    bench: Bench, engine: Answers, error: Exception
) -> None:
    engine.failing = {"2": error}
    prompts = prompt_set()
    bench.ensure(prompts)
    await bench.ended()
    counts = bench.runs.observe(OWNER, "r2", prompts)
    assert counts is not None
    assert (counts.passed, counts.unknown) == (2, 1)
    assert isinstance(counts.score, Unknown)
    assert "prompt two" in counts.score.reason
    engine.failing = {}
    bench.ensure(prompts)
    await bench.ended(2)
    assert bench.sleeps == [RETRY_SECONDS]
    counts = bench.runs.observe(OWNER, "r2", prompts)
    assert counts is not None
    assert counts.score == 1


async def test_check_that_fails_is_no_wrong_answer(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = prompt_set()

    def broken(_: str) -> bool:
        raise RuntimeError("scorer")

    monkeypatch.setattr(prompts.prompts[0].check, "_test", broken)
    bench.ensure(prompts)
    await bench.ended()
    counts = bench.runs.observe(OWNER, "r2", prompts)
    assert counts is not None
    assert (counts.failed, counts.unknown) == (0, 1)
    assert "RuntimeError" in counts.reason


async def test_few_prompts_are_under_way_at_once() -> None:
    engine = Answers(hold=True)
    bench = Bench(engine)
    text = "\n".join(f"- {{name: n{n}, prompt: p{n}, check: {{exact: right}}}}" for n in range(20))
    bench.ensure(prompt_set(text))
    await until(lambda: engine.at_once == AT_ONCE)
    engine.released.set()
    await bench.ended()
    assert engine.most_at_once == AT_ONCE
    assert len(engine.asked) == 20


async def test_run_that_takes_too_long_ends_with_what_is_missing_unknown() -> None:
    engine = Answers(hold=True)
    bench = Bench(engine, run_seconds=0.05)
    prompts = prompt_set()
    bench.ensure(prompts)
    await bench.ended()
    counts = bench.runs.observe(OWNER, "r2", prompts)
    assert counts is not None
    assert (counts.prompts, counts.unknown) == (0, 3)
    assert "0.05 s" in counts.reason
    assert engine.at_once == 0, "nothing is left under way"


async def test_without_a_ready_head_nothing_is_asked(bench: Bench, engine: Answers) -> None:
    bench.ensure(prompt_set(), addresses=())
    await asyncio.sleep(0)
    assert engine.asked == []


async def test_what_is_no_longer_of_interest_ends_and_is_forgotten() -> None:
    engine = Answers(hold=True)
    bench = Bench(engine)
    prompts = prompt_set()
    bench.ensure(prompts, revision="r1")
    bench.ensure(prompts, revision="r2")
    await until(lambda: len(engine.asked) == 2 * AT_ONCE)
    bench.runs.retain(OWNER, ["r1"], prompts)
    await until(lambda: engine.at_once == AT_ONCE)
    engine.released.set()
    await bench.ended()
    assert bench.runs.observe(OWNER, "r1", prompts) is not None
    assert bench.runs.observe(OWNER, "r2", prompts) is None
    bench.runs.retain(OWNER, ["r1"], None)
    assert bench.runs.observe(OWNER, "r1", prompts) is None


@pytest.mark.parametrize(
    ("data", "field"),
    [({}, "prompts"), ({"prompts": "["}, "prompts"), ({"prompts": "- 1"}, r"prompts\[0\]"), ({"other": ""}, "prompts")],
)
def test_config_map_without_readable_prompts_is_refused_by_name(data: dict[str, str], field: str) -> None:
    with pytest.raises(InvalidInput, match=field):
        parse_prompt_set(data)


def test_times_in_a_prompt_set_stay_texts() -> None:
    prompts = prompt_set("- {name: date, prompt: 2026-01-31, check: {exact: 2026-01-31}}")
    assert prompts.prompts[0].text == "2026-01-31"


class TestOverHttp:
    async def ask(self, script: Any, **fields: Any) -> tuple[str, ScriptedEngine]:
        engine = await ScriptedEngine([script]).start()
        prompts = HttpPrompts()
        asked: dict[str, Any] = {"text": "hi", "messages": (), "max_tokens": 7, "timeout_seconds": 5.0} | fields
        try:
            return await prompts.answer(engine.host, model="tiny", **asked), engine
        finally:
            await prompts.close()
            await engine.stop()

    async def test_text_is_completed_and_messages_are_answered_at_temperature_zero(self) -> None:
        async def complete(connection: Connection) -> None:
            await connection.answer(200, {"choices": [{"text": "yes", "finish_reason": "stop"}]})

        async def chat(connection: Connection) -> None:
            await connection.answer(200, {"choices": [{"message": {"content": "no"}, "finish_reason": "length"}]})

        answer, engine = await self.ask(complete)
        (received,) = engine.received
        assert answer == "yes"
        assert received.path == "/v1/completions"
        expected = {"model": "tiny", "prompt": "hi", "max_tokens": 7, "temperature": 0, "seed": 0}
        assert received.body == expected
        messages = [{"role": "user", "content": "well?"}]
        answer, engine = await self.ask(chat, text="", messages=messages)
        assert answer == "no"
        assert engine.received[0].path == "/v1/chat/completions"
        assert engine.received[0].body["messages"] == messages

    @pytest.mark.parametrize(
        "body",
        [
            {},
            {"choices": []},
            {"choices": [1]},
            {"choices": [{"text": "half", "finish_reason": "abort"}]},
            {"choices": [{"text": None, "finish_reason": "stop"}]},
            {"choices": [{"message": {"content": None}, "finish_reason": "stop"}]},
            b"no json",
        ],
    )
    async def test_what_is_no_whole_answer_is_an_error(self, body: object) -> None:
        async def say(connection: Connection) -> None:
            await connection.answer(200, body)

        with pytest.raises(PodError):
            await self.ask(say)

    async def test_engine_simulator_answers_the_same_every_time(self) -> None:
        host, engine = loopback(), HttpPrompts()
        settings = read_settings({"ENGINESIM_STEP_SECONDS": "0.002"})
        service = EngineService(parse_flags(["serve", "tiny", "--host", host]), settings)
        assert await service.start(None)
        try:
            asked: dict[str, Any] = {"messages": (), "max_tokens": 4, "timeout_seconds": 5.0}
            first, again = [await engine.answer(host, model="tiny", text="hi", **asked) for _ in range(2)]
            assert first == again != ""
        finally:
            await engine.close()
            await service.stop()
