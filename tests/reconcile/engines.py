"""A fake of the engine port: every address answers as the test says, healthy unless told otherwise."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from bayplan.telemetry.engine import EngineError, EngineLoad, EngineNotListeningError


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
