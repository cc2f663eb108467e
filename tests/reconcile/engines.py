"""Fakes of the engine and metrics ports: every address answers as the test says, healthy unless told otherwise."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from fractions import Fraction

from bayplan.planning.gates.counts import Arm, Row, SourceCounts
from bayplan.planning.gates.servicemetrics import Histogram
from bayplan.planning.measurements import Measured, Unknown
from bayplan.planning.scaling.demand import DoorReading, EngineReading
from bayplan.reconcile.rollout.stored import seconds_of
from bayplan.telemetry.engine import EngineError, EngineLoad, EngineNotListeningError
from bayplan.telemetry.rolloutcounts import CountedModel, ModelCounts
from bayplan.telemetry.sources import EngineAnswer, EngineSource, GatewayAnswer, GatewaySource, Trouble


@dataclass(slots=True)
class EngineState:
    """What one engine shows. An error text makes that call fail."""

    listening: bool = True
    models: tuple[str, ...] = ("llama",)
    generation_error: str = ""
    load_error: str = ""
    running: int = 0
    waiting: int = 0
    cache_blocks: int | None = None
    calls: list[str] = field(default_factory=list)


class FakeEngine:
    """`EnginePort` over `EngineState` by address."""

    def __init__(self) -> None:
        self.at: defaultdict[str, EngineState] = defaultdict(EngineState)
        self.prompts: list[str] = []

    async def _reach(self, address: str, call: str) -> EngineState:
        await asyncio.sleep(0)
        state = self.at[address]
        state.calls.append(call)
        if not state.listening:
            raise EngineNotListeningError(f"{address}: Connection refused")
        return state

    async def served_models(self, address: str) -> Sequence[str]:
        return (await self._reach(address, "models")).models

    async def generate(self, address: str, *, model: str, prompt: str, max_tokens: int, timeout_seconds: float) -> int:
        state = await self._reach(address, "generate")
        self.prompts.append(prompt)
        if state.generation_error:
            raise EngineError(state.generation_error)
        return max_tokens

    async def load(self, address: str) -> EngineLoad:
        state = await self._reach(address, "load")
        if state.load_error:
            raise EngineError(state.load_error)
        return EngineLoad(running=state.running, waiting=state.waiting)

    async def cache_blocks(self, address: str) -> int | None:
        return self.at[address].cache_blocks


@dataclass(slots=True)
class EngineNumbers:
    """What one engine counts; `rate` makes what it serves grow with time. A trouble stands for the whole answer."""

    rate: float = 0.0
    served: Measured | None = None
    """Takes the place of what `rate` says."""
    waiting: Measured = Fraction(0)
    remaining: Measured = Fraction(0)
    run: str = ""
    trouble: Trouble | None = None


@dataclass(slots=True)
class GatewayNumbers:
    """What one gateway counts for every model."""

    rate: float = 0.0
    queued: Measured = Fraction(0)
    reserved: dict[str, Fraction] = field(default_factory=dict)
    trouble: Trouble | None = None


class FakeMetrics:
    """`MetricsPort` over numbers by address (engines) and by uid (gateways)."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.engines: defaultdict[str, EngineNumbers] = defaultdict(EngineNumbers)
        self.gateways: defaultdict[str, GatewayNumbers] = defaultdict(GatewayNumbers)
        self.models = ["team/llama"]
        """Models that every gateway knows."""
        self.reads = 0
        self._clock = clock
        self._start = clock()
        self._served: dict[str, tuple[float, float]] = {}

    async def read_engines(self, sources: Sequence[EngineSource]) -> Mapping[str, EngineAnswer]:
        self.reads += 1
        await asyncio.sleep(0)
        return {source.uid: self._engine(source) for source in sources}

    async def read_gateways(self, sources: Sequence[GatewaySource]) -> Mapping[str, GatewayAnswer]:
        await asyncio.sleep(0)
        return {source.uid: self._gateway(source) for source in sources}

    async def close(self) -> None:
        pass

    def _count(self, who: str, rate: float) -> Fraction:
        """A counter that has grown by `rate` since it was last looked at."""
        now = self._clock()
        at, value = self._served.get(who, (self._start, 0.0))
        self._served[who] = (now, value + rate * (now - at))
        return Fraction(self._served[who][1])

    def _engine(self, source: EngineSource) -> EngineAnswer:
        numbers = self.engines[source.address]
        if numbers.trouble is not None:
            return EngineAnswer(None, numbers.trouble)
        served = numbers.served if numbers.served is not None else self._count(source.uid, numbers.rate)
        at, run = Fraction(self._clock()), source.container + numbers.run
        return EngineAnswer(EngineReading(at, run, served, numbers.waiting, numbers.remaining))

    def _gateway(self, source: GatewaySource) -> GatewayAnswer:
        numbers = self.gateways[source.uid]
        if numbers.trouble is not None:
            return GatewayAnswer(trouble=numbers.trouble)
        demand = self._count(source.uid, numbers.rate)
        reading = DoorReading(Fraction(self._clock()), source.uid, demand, Fraction(0), numbers.queued)
        return GatewayAnswer(dict.fromkeys(self.models, reading), dict(numbers.reserved))


TTFT_EDGES = (Fraction(1, 2), Fraction(1), Fraction(2))
TPOT_EDGES = (Fraction(5, 100), Fraction(1, 10))


@dataclass(slots=True)
class PodCounts:
    """What a gateway has counted of one pod, arm and class."""

    requests: int = 0
    errors: int = 0
    slow_ttft: int = 0
    slow_tpot: int = 0
    seconds: Fraction = Fraction(0)


class FakeCounts:
    """`CountsPort` over counts by gateway; what is `silent` does not answer, and `runs` says in which incarnation."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self.rows: defaultdict[str, defaultdict[tuple[str, Arm], PodCounts]] = defaultdict(
            lambda: defaultdict(PodCounts)
        )
        self.running: dict[str, int] = {}
        """Requests under way by pod uid."""
        self.silent: set[str] = set()
        self.runs: defaultdict[str, int] = defaultdict(int)
        self.reads = 0
        self._now = now

    async def read(self, sources: Sequence[GatewaySource], model: CountedModel) -> Mapping[str, ModelCounts | Unknown]:
        self.reads += 1
        at = seconds_of(self._now())
        await asyncio.sleep(0)
        return {source.uid: self._of(source.uid, at) for source in sources}

    async def close(self) -> None:
        pass

    def _of(self, gateway: str, at: Fraction) -> ModelCounts | Unknown:
        if gateway in self.silent:
            return Unknown(f"gateway {gateway}: no answer")
        rows = [self._row(pod, arm, counts) for (pod, arm), counts in self.rows[gateway].items()]
        ended = {row.pod: row.requests - row.errors for row in rows if row.arm is not Arm.SHADOW}
        source = SourceCounts(at, f"{gateway} {self.runs[gateway]}", tuple(rows))
        return ModelCounts(source, dict(self.running), ended, TTFT_EDGES, TPOT_EDGES)

    @staticmethod
    def _row(pod: str, arm: Arm, counts: PodCounts) -> Row:
        total = counts.requests - counts.errors
        ttft = (0, total - counts.slow_ttft, total)
        tpot = (total - counts.slow_tpot, total)
        return Row(
            pod=pod,
            arm=arm,
            workload_class="default",
            requests=counts.requests,
            errors=counts.errors,
            output_tokens=10 * total,
            loaded_seconds=counts.seconds,
            ttft=Histogram(TTFT_EDGES, ttft, total),
            tpot=Histogram(TPOT_EDGES, tpot, total),
        )


class FakePrompts:
    """`PromptPort`: every engine answers "yes", or, once `right` is a set, those at an address in it."""

    def __init__(self) -> None:
        self.right: set[str] | None = None
        self.asked: list[str] = []

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
        await asyncio.sleep(0)
        self.asked.append(address)
        return "yes" if self.right is None or address in self.right else "no"
