"""Replicas follow what a real engine reports: names, units and pace of its metrics, read by the operator itself."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from e2e.localcluster import KubeApi

CLIENTS = 4
TOKENS = 50
KNOWN_SECONDS = 60.0
RISE_SECONDS = 120.0
MOST_APART = 3.0
"""The operator's rate is of one sample, the clients' of the whole load; start and end of both blur the rest."""


class ScalingCheckError(RuntimeError):
    """The operator did not read the engine's demand, or read something else."""


@dataclass(frozen=True)
class ScalingReading:
    """One rise and the two rates behind it, in prompt and output tokens per second."""

    desired_replicas: int
    read_by_operator: float
    seen_by_clients: float


def known_demand(model: Mapping[str, Any]) -> bool:
    """Whether the operator says that it knows the demand on a model."""
    return _scaling_active(model) == ("True", "DemandKnown")


def reading_of(model: Mapping[str, Any], *, seen_by_clients: float) -> ScalingReading:
    """Compare the decision in the status with what clients got. Raises ScalingCheckError."""
    scaling = (model.get("status") or {}).get("scaling") or {}
    read = scaling.get("arrivalTokensPerSecond")
    if scaling.get("reason") != "ScaleUp" or scaling.get("desiredReplicas", 0) < 2:
        raise ScalingCheckError(f"the load did not raise the replicas: {scaling}")
    if read is None or float(scaling.get("coverage", 0)) != 1:
        raise ScalingCheckError(f"the engine's rate was not known when it was decided by: {scaling}")
    if not seen_by_clients / MOST_APART <= float(read) <= seen_by_clients * MOST_APART:
        raise ScalingCheckError(f"the operator read {read} tokens/s, clients got {seen_by_clients:.0f}")
    return ScalingReading(int(scaling["desiredReplicas"]), float(read), seen_by_clients)


async def scaling_reads_metrics(
    api: KubeApi, path: str, address: str, *, served_name: str, say: Callable[[str], None]
) -> ScalingReading:
    """Load the one replica of an autoscaled model at `address` until the operator asks for a second one.

    Raises ScalingCheckError.
    """
    await _until(api, path, known_demand, seconds=KNOWN_SECONDS, what="known demand on an idle engine")
    say("the operator knows the demand on an idle engine; loading it")
    tokens = 0
    started = time.monotonic()
    body = {"model": served_name, "prompt": "Which berth?", "max_tokens": TOKENS, "ignore_eos": True, "temperature": 0}

    async def client(session: aiohttp.ClientSession) -> None:
        nonlocal tokens
        while True:
            async with session.post(f"http://{address}/v1/completions", json=body) as response:
                tokens += int((await response.json())["usage"]["total_tokens"])

    async with aiohttp.ClientSession(raise_for_status=True) as session:
        clients = [asyncio.create_task(client(session)) for _ in range(CLIENTS)]
        try:
            model = await _until(
                api, path, _has_risen, seconds=RISE_SECONDS, what="a rise under load", while_running=clients
            )
            seen = tokens / (time.monotonic() - started)
        finally:
            for one in clients:
                one.cancel()
            await asyncio.gather(*clients, return_exceptions=True)
    reading = reading_of(model, seen_by_clients=seen)
    say(f"the operator read {reading.read_by_operator:.0f} tokens/s, clients got {reading.seen_by_clients:.0f}")
    return reading


def _has_risen(model: Mapping[str, Any]) -> bool:
    return bool(((model.get("status") or {}).get("scaling") or {}).get("reason") == "ScaleUp")


def _scaling_active(model: Mapping[str, Any]) -> tuple[str, str]:
    conditions = (model.get("status") or {}).get("conditions") or ()
    return next(((c["status"], c["reason"]) for c in conditions if c["type"] == "ScalingActive"), ("", ""))


async def _until(
    api: KubeApi,
    path: str,
    reached: Callable[[Mapping[str, Any]], bool],
    *,
    seconds: float,
    what: str,
    while_running: list[asyncio.Task[None]] | None = None,
) -> Mapping[str, Any]:
    deadline = time.monotonic() + seconds
    while True:
        model: Mapping[str, Any] = await api.get(path)
        if reached(model):
            return model
        for task in while_running or ():
            if task.done() and (error := task.exception()) is not None:
                raise ScalingCheckError(f"a client failed: {type(error).__name__}: {error!s:.300}")
        if time.monotonic() > deadline:
            status = model.get("status") or {}
            shown: Any = next((c for c in status.get("conditions") or () if c["type"] == "ScalingActive"), {})
            raise ScalingCheckError(f"not seen in {seconds:g} s: {what}; {shown}, {status.get('scaling')}")
        await asyncio.sleep(0.2)
