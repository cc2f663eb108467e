"""Fakes of the engine and metrics ports: every address answers as the test says, healthy unless told otherwise."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from bayplan.planning.demand import DoorReading, EngineReading
from bayplan.planning.measurements import Measured
from bayplan.telemetry.engine import EngineError, EngineLoad, EngineNotListeningError
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
