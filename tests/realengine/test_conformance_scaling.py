"""What counts as the operator having read a real engine's demand, tried on statuses and a scripted engine."""

import asyncio
from typing import Any, cast

import pytest
from aiohttp import web

from e2e.conformance import scalingcheck
from e2e.conformance.scalingcheck import ScalingCheckError, known_demand, reading_of, scaling_reads_metrics
from e2e.localcluster import KubeApi

Json = dict[str, Any]
RISE: Json = {"reason": "ScaleUp", "desiredReplicas": 2, "arrivalTokensPerSecond": 300, "coverage": 1}


def model(scaling: Json | None = None, *, status: str = "True", reason: str = "DemandKnown") -> Json:
    conditions = [{"type": "Ready", "status": "True", "reason": "Ready"}]
    conditions.append({"type": "ScalingActive", "status": status, "reason": reason})
    return {"status": {"conditions": conditions, **({} if scaling is None else {"scaling": scaling})}}


def test_demand_is_known_by_the_condition_alone() -> None:
    assert known_demand(model())
    assert not known_demand(model(status="False", reason="MetricsMissing"))
    assert not known_demand({})


@pytest.mark.parametrize("clients", [100.0, 300.0, 900.0])
def test_a_rate_within_a_factor_of_three_is_the_same_one(clients: float) -> None:
    reading = reading_of(model(RISE), seen_by_clients=clients)
    assert (reading.desired_replicas, reading.read_by_operator, reading.seen_by_clients) == (2, 300.0, clients)


@pytest.mark.parametrize("clients", [99.0, 901.0, 0.0])
def test_a_rate_of_another_size_is_not_what_the_engine_reports(clients: float) -> None:
    with pytest.raises(ScalingCheckError, match="read 300"):
        reading_of(model(RISE), seen_by_clients=clients)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reason": "Steady"}, "did not raise"),
        ({"desiredReplicas": 1}, "did not raise"),
        ({"arrivalTokensPerSecond": None}, "not known"),
        ({"coverage": 0.5}, "not known"),
    ],
)
def test_a_decision_that_was_made_otherwise_proves_nothing(change: Json, message: str) -> None:
    with pytest.raises(ScalingCheckError, match=message):
        reading_of(model({**RISE, **change}), seen_by_clients=300.0)


class Scripted:
    """An engine that answers at a pace, and an API server whose model rises once enough was answered."""

    def __init__(self, *, tokens: int, rises_after: int) -> None:
        self.answered = 0
        self.open = 0
        self._tokens = tokens
        self._rises_after = rises_after

    async def get(self, _path: str) -> Json:
        risen = self.answered >= self._rises_after
        return model(RISE if risen else {"reason": "Steady", "desiredReplicas": 1})

    async def complete(self, request: web.Request) -> web.Response:
        asked = await request.json()
        assert asked["model"] == "served"
        self.open += 1
        try:
            await asyncio.sleep(0.05)
        finally:
            self.open -= 1
        self.answered += 1
        return web.json_response({"usage": {"total_tokens": self._tokens}})


async def run(scripted: Scripted) -> scalingcheck.ScalingReading:
    app = web.Application()
    app.router.add_post("/v1/completions", scripted.complete)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        api = cast(KubeApi, scripted)
        return await scaling_reads_metrics(
            api, "/model", f"{host}:{port}", served_name="served", say=lambda _text: None
        )
    finally:
        await runner.cleanup()


async def test_the_load_ends_with_the_rise_and_is_compared_with_it() -> None:
    scripted = Scripted(tokens=5, rises_after=12)
    reading = await run(scripted)
    assert reading.desired_replicas == 2
    assert 100 <= reading.seen_by_clients <= 400  # four clients, 5 tokens each 50 ms
    assert scripted.open == 0


async def test_a_model_that_does_not_rise_ends_the_load_with_what_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scalingcheck, "RISE_SECONDS", 0.5)
    scripted = Scripted(tokens=5, rises_after=10**9)
    with pytest.raises(ScalingCheckError, match=r"a rise under load.*Steady"):
        await run(scripted)
    assert scripted.open == 0
    assert scripted.answered


async def test_a_client_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_self: Scripted, _request: web.Request) -> web.Response:
        return web.Response(status=500)

    monkeypatch.setattr(Scripted, "complete", fail)
    with pytest.raises(ScalingCheckError, match=r"a client failed.*500"):
        await run(Scripted(tokens=5, rises_after=1))
