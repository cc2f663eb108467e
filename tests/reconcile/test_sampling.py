"""Measuring beside the workers: paces, failures, models that come and go, and gateways that are read once for all."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from fractions import Fraction

import pytest

from bayplan.api.autoscaling import Autoscaling
from bayplan.cluster.clock import sleep
from bayplan.cluster.resources import Key
from bayplan.planning.scaling.demand import DoorReading
from bayplan.planning.scaling.policy import policy_of
from bayplan.reconcile.scaling.sampling import DemandSampler, Round
from bayplan.telemetry.shared import SharedGateways
from bayplan.telemetry.sources import EngineAnswer, EngineSource, GatewayAnswer, GatewaySource
from tests.fakes.clock import FakeClock, settle

POLICY = policy_of(Autoscaling(max_replicas=5, service_tokens_per_second=100))
KEY, OTHER = Key("team", "llama"), Key("team", "other")
GATEWAY = GatewaySource("g1", "system", "gateway-0", "10.1.0.1")


class Port:
    """Counts what is asked; `held` lets answers wait."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.engine_reads = 0
        self.gateway_reads: list[list[str]] = []
        self.error: Exception | None = None
        self.free = asyncio.Event()
        self.free.set()

    async def read_engines(self, sources: Sequence[EngineSource]) -> Mapping[str, EngineAnswer]:
        self.engine_reads += 1
        await self.free.wait()
        if self.error is not None:
            raise self.error
        return {}

    async def read_gateways(self, sources: Sequence[GatewaySource]) -> Mapping[str, GatewayAnswer]:
        self.gateway_reads.append([source.uid for source in sources])
        await self.free.wait()
        reading = DoorReading(Fraction(self.clock.time()), "run", Fraction(0), Fraction(0), Fraction(0))
        return {source.uid: GatewayAnswer({str(KEY): reading, str(OTHER): reading}, {}) for source in sources}

    async def close(self) -> None:
        pass


class Bench:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.port = Port(self.clock)
        self.sampler = DemandSampler(self.port, clock=self.clock.time, sleep=lambda seconds: sleep(self.clock, seconds))
        self.sampled: list[Key] = []
        self.looks = True

    def ensure(self, key: Key = KEY, uid: str = "u1", seconds: int = 10) -> None:
        self.sampler.ensure(
            key,
            uid,
            sample_seconds=seconds,
            look=lambda: Round([], [GATEWAY], {}, POLICY) if self.looks else None,
            sampled=lambda: self.sampled.append(key),
        )


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    found = Bench()
    yield found
    await found.sampler.close()


async def test_a_model_is_measured_at_its_own_pace_however_often_it_is_asked_for(bench: Bench) -> None:
    for _ in range(5):
        bench.ensure()
    await bench.clock.advance(29)

    assert bench.port.engine_reads == 3
    assert bench.sampled == [KEY] * 3


async def test_another_pace_takes_the_place_of_the_first_and_keeps_the_history(bench: Bench) -> None:
    bench.ensure()
    await bench.clock.advance(9)
    history = bench.sampler.history(KEY)
    bench.ensure(seconds=2)
    await bench.clock.advance(4)

    assert bench.sampler.history(KEY) is history
    assert bench.port.engine_reads == 1 + 3


async def test_a_failure_costs_one_measurement(bench: Bench) -> None:
    bench.port.error = RuntimeError("a bug")
    bench.ensure()
    await bench.clock.advance(9)
    assert bench.sampled == []
    bench.port.error = None
    await bench.clock.advance(10)

    assert bench.sampled == [KEY]


async def test_a_port_that_hangs_holds_up_its_own_model_alone(bench: Bench) -> None:
    bench.port.free.clear()
    bench.ensure()
    await bench.clock.advance(60)

    assert (bench.port.engine_reads, bench.sampled) == (1, [])
    bench.port.free.set()
    await settle()
    assert bench.sampled == [KEY]


async def test_a_model_of_the_same_name_is_another_one(bench: Bench) -> None:
    bench.ensure()
    await bench.clock.advance(1)
    first = bench.sampler.history(KEY)
    bench.ensure(uid="u2")

    assert bench.sampler.history(KEY) is not first


async def test_a_forgotten_model_is_measured_no_more(bench: Bench) -> None:
    bench.ensure()
    await bench.clock.advance(1)
    bench.sampler.forget(KEY)
    await bench.clock.advance(60)

    assert bench.port.engine_reads == 1
    assert bench.sampler.history(KEY) is None


async def test_a_model_that_nobody_may_be_asked_about_is_left_out(bench: Bench) -> None:
    bench.looks = False
    bench.ensure()
    await bench.clock.advance(30)

    assert bench.port.engine_reads == 0


async def test_models_share_one_reading_of_the_gateways(bench: Bench) -> None:
    bench.ensure()
    bench.ensure(OTHER)
    await bench.clock.advance(1)

    assert bench.port.gateway_reads == [["g1"]]
    await bench.clock.advance(10)
    assert len(bench.port.gateway_reads) == 2


@pytest.mark.parametrize(("age", "reads"), [(5, 1), (5.001, 2)])
async def test_a_reading_of_the_gateways_is_fresh_for_so_long(age: float, reads: int) -> None:
    clock = FakeClock()
    port = Port(clock)
    shared = SharedGateways(port, clock=clock.time)
    await shared.read([GATEWAY], max_age_seconds=5)
    clock.jump(age)
    await shared.read([GATEWAY], max_age_seconds=5)

    assert len(port.gateway_reads) == reads


async def test_a_gateway_that_was_not_read_yet_is_read_at_once() -> None:
    clock = FakeClock()
    port = Port(clock)
    shared = SharedGateways(port, clock=clock.time)
    await shared.read([GATEWAY], max_age_seconds=5)
    other = GatewaySource("g2", "system", "gateway-1", "10.1.0.2")
    found = await shared.read([GATEWAY, other], max_age_seconds=5)

    assert set(found) == {"g1", "g2"}
    assert port.gateway_reads == [["g1"], ["g2"]], "models with other gateways do not read each other's anew"
    assert await shared.read([], max_age_seconds=5) == {}
