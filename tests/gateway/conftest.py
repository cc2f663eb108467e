"""Gateways and engines for the tests; everything ends with the test."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from e2e.enginesim.flags import parse_flags
from e2e.enginesim.process import EngineService
from e2e.enginesim.settings import read_settings
from tests.gateway.gatewaytown import Town, loopback
from tests.gateway.rollouttrial import Trial
from tests.gateway.scriptedengine import Script, ScriptedEngine, whole_answer

FAST = {"ENGINESIM_STEP_SECONDS": "0.002", "ENGINESIM_SEQUENCE_SECONDS": "0"}
MakeTown = Callable[..., Awaitable[Town]]
MakeEngine = Callable[..., Awaitable[str]]


@pytest.fixture
async def make_town() -> AsyncIterator[MakeTown]:
    """Starts gateways: `await make_town(settings=…, tenants=…)`."""
    towns: list[Town] = []

    async def make(**fields: Any) -> Town:
        town = Town(**fields)
        towns.append(town)
        return await town.start()

    yield make
    for town in towns:
        await town.stop()


@pytest.fixture
async def make_engine() -> AsyncIterator[MakeEngine]:
    """Starts engine simulators in this loop: `await make_engine("--block-size 32", SEED="1")` gives the address."""
    services: list[EngineService] = []

    async def make(flags: str = "", **environment: str) -> str:
        host = loopback()
        settings = read_settings({**FAST, **{f"ENGINESIM_{name}": value for name, value in environment.items()}})
        service = EngineService(parse_flags(["serve", "tiny", "--host", host, *flags.split()]), settings)
        services.append(service)
        assert await service.start(None)
        return host

    yield make
    for service in services:
        await service.stop()


MakeScripted = Callable[..., Awaitable[ScriptedEngine]]


@pytest.fixture
async def scripted() -> AsyncIterator[MakeScripted]:
    """Starts engines that play scripts: `await scripted(first, second)`."""
    engines: list[ScriptedEngine] = []

    async def make(*scripts: Script) -> ScriptedEngine:
        engine = await ScriptedEngine(list(scripts)).start()
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        await engine.stop()


@pytest.fixture
async def town(make_town: MakeTown, make_engine: MakeEngine) -> Town:
    """A gateway in front of one engine that serves the model `tiny`."""
    made = await make_town()
    made.model()
    made.head("a", await make_engine())
    return made


MakeTrial = Callable[..., Awaitable[Trial]]


@pytest.fixture
async def make_trial(make_town: MakeTown, scripted: MakeScripted) -> MakeTrial:
    async def make(*, serving: Script = whole_answer, candidate: Script = whole_answer) -> Trial:
        return Trial(await make_town(), await scripted(serving), await scripted(candidate))

    return make


@pytest.fixture
async def trial(make_trial: MakeTrial) -> Trial:
    return await make_trial()
