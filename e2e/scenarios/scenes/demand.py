"""Replicas follow tokens: up in one step, held while nobody knows, down without cutting a stream.

One load and one model carry all three scenes: `load_triples` leaves three replicas without work, and the two after it
say what may become of them.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from bayplan.api import names
from e2e.scenarios.gatewaypod import complete
from e2e.scenarios.narration import SceneFailedError, condition, streaming
from e2e.scenarios.scenes.stage import Stage

MODEL = "small-chat"
SERVED = f"default/{MODEL}"
PROMPT = "x" * 72
OUTPUT_TOKENS = 4
BASE_PER_SECOND = 3
"""Requests of 80 tokens by the gateway's bound of a prompt: 240 tokens a second are one replica of 400 × 0.8. So few
and so short that none has to wait: a queue alone would ask for a replica more."""
SAMPLE_SECONDS = 2
WINDOW_SECONDS = 5
REPLICAS = 3
"""Three times 240 tokens a second, over 320 a replica."""
AUTOSCALING = {
    "minReplicas": 1,
    "maxReplicas": REPLICAS,
    "serviceTokensPerSecond": 400,
    "scaleUpCooldownSeconds": 0,
    "scaleDownStabilizationSeconds": WINDOW_SECONDS,
    "sampleSeconds": SAMPLE_SECONDS,
}
"""Times are shortened: the defaults are samples of 15 s and a window of 300 s."""
STREAM_TOKENS = 600
"""At 30 ms a token, longer than the window and two samples."""


async def load_triples(stage: Stage) -> None:
    """A rise in one step; needs `overload`, leaves `REPLICAS` replicas without load."""
    tell = stage.tell
    tell.scene(
        "The load triples",
        "Replicas follow prompt and output tokens, counted at the gateway's door before anything is refused.",
    )
    gateway = await stage.gateway()
    patch = json.dumps({"spec": {"replicas": None, "autoscaling": AUTOSCALING}})
    await tell.kubectl(f"patch imodel {MODEL} --type merge -p '{patch}'")
    async with _Desired.of(stage) as desired, aiohttp.ClientSession() as session:
        async with _load(session, gateway, BASE_PER_SECOND) as statuses:
            tell.say(f"{BASE_PER_SECOND} requests a second")
            await tell.follow(MODEL, _follows_demand(1), what="one replica that follows known demand")
            await asyncio.sleep(2 * SAMPLE_SECONDS)
            desired.seen.clear()
            tell.say(f"{3 * BASE_PER_SECOND} requests a second")
            async with _load(session, gateway, 2 * BASE_PER_SECOND) as more:
                model = await tell.follow(
                    MODEL,
                    lambda m: m["status"].get("readyReplicas") == REPLICAS,
                    what=f"{REPLICAS} ready replicas",
                    timeout_seconds=90,
                )
                await asyncio.sleep(SAMPLE_SECONDS)
        tell.say(f"status.scaling: {model['status']['scaling']['message']}")
        tell.say(f"desired went {' → '.join(map(str, desired.seen))}")
        if desired.seen != [1, REPLICAS]:
            raise SceneFailedError(f"desired went {desired.seen}, not once from 1 to {REPLICAS}")
        answered = [*statuses, *more]
        if set(answered) != {200}:
            raise SceneFailedError(f"answers while the replicas came: {sorted(set(answered))}")
        tell.say(f"{len(answered)} requests meanwhile, all answered with 200")


async def metrics_are_cut(stage: Stage) -> None:
    """Nothing falls on what nobody knows; leaves the metrics cut."""
    tell = stage.tell
    tell.scene(
        "The load is gone, and so are the metrics",
        f"A missing number is Unknown, never zero: the window of {WINDOW_SECONDS} s passes, and nothing falls.",
    )
    async with _Desired.of(stage) as desired:
        await _set_metrics(stage, ["nan", *["cut"] * (REPLICAS - 1)])
        model = await tell.follow(
            MODEL, lambda m: condition(m, "ScalingActive").get("status") == "False", what="ScalingActive=False"
        )
        found = condition(model, "ScalingActive")
        tell.say(f"ScalingActive=False {found['reason']}: {found['message']}")
        await asyncio.sleep(WINDOW_SECONDS + 3 * SAMPLE_SECONDS)
        await tell.kubectl(f"get imodel {MODEL}")
        if desired.seen != [REPLICAS]:
            raise SceneFailedError(f"desired went {desired.seen} while the metrics were cut")
    tell.say(f"desired is still {REPLICAS}")


async def load_is_gone(stage: Stage) -> None:
    """A fall in one step, once the demand is known again; needs `metrics_are_cut`."""
    tell = stage.tell
    tell.scene(
        "The metrics are back: down, with a stream on each replica",
        "Down to the highest demand of a whole window that was watched; who leaves is unrouted, and ends its streams.",
    )
    host = urlsplit(await stage.gateway()).hostname or ""
    async with _Desired.of(stage) as desired, AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(streaming(host, SERVED, f"Story {number}", STREAM_TOKENS))
            for number in range(REPLICAS)
        ]
        tell.say(f"{REPLICAS} streams of {STREAM_TOKENS} tokens through the gateway")
        await _set_metrics(stage, [""] * REPLICAS)
        await tell.follow(
            MODEL,
            lambda m: m["status"].get("drainingReplicas") == REPLICAS - 1,
            what=f"{REPLICAS - 1} draining replicas",
            timeout_seconds=90,
        )
        if any(stream.done.is_set() for stream in streams):
            raise SceneFailedError("a stream ended before the drain: nothing was shown")
        for stream in streams:
            await asyncio.wait_for(stream.done.wait(), 120)
            if (stream.finish_reason, stream.completion_tokens) != ("length", STREAM_TOKENS):
                raise SceneFailedError(f"a stream was cut after {stream.completion_tokens} tokens")
        tell.say(f"all {REPLICAS} streams ended whole")
        await tell.follow(MODEL, _follows_demand(1), what="one replica")
        tell.say(f"desired went {' → '.join(map(str, desired.seen))}")
        if desired.seen != [REPLICAS, 1]:
            raise SceneFailedError(f"desired went {desired.seen}, not once from {REPLICAS} to 1")


def _follows_demand(replicas: int) -> Any:
    def check(model: dict[str, Any]) -> bool:
        status = model["status"]
        return (
            condition(model, "ScalingActive").get("reason") == "DemandKnown"
            and status.get("readyReplicas") == status.get("desiredReplicas") == replicas
            and not any(status.get(f"{word}Replicas") for word in ("pending", "warming", "draining"))
        )

    return check


class _Desired:
    """Every number of desired replicas that the status showed."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    @classmethod
    @asynccontextmanager
    async def of(cls, stage: Stage) -> AsyncIterator["_Desired"]:
        """Look for the length of the block."""
        desired = cls()
        path = f"/apis/{names.API_VERSION}/namespaces/default/{names.INFERENCEMODEL_PLURAL}/{MODEL}"

        async def look() -> None:
            while True:
                number = (await stage.system.api.get(path))["status"].get("desiredReplicas")
                if number is not None and desired.seen[-1:] != [number]:
                    desired.seen.append(number)
                await asyncio.sleep(0.1)

        looking = asyncio.create_task(look())
        try:
            yield desired
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)


@asynccontextmanager
async def _load(session: aiohttp.ClientSession, gateway: str, per_second: int) -> AsyncIterator[list[int]]:
    """Short requests at a steady rate for the length of the block; yields their statuses."""
    statuses: list[int] = []
    tasks: list[asyncio.Task[None]] = []

    async def one() -> None:
        status, _ = await complete(session, gateway, model=SERVED, prompt=PROMPT, max_tokens=OUTPUT_TOKENS)
        statuses.append(status)

    async def send() -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        while True:
            while len(tasks) < (loop.time() - started) * per_second:
                tasks.append(asyncio.create_task(one()))
            await asyncio.sleep(0.5 / per_second)

    sender = asyncio.create_task(send())
    try:
        yield statuses
    finally:
        sender.cancel()
        await asyncio.gather(sender, *tasks, return_exceptions=True)


async def _set_metrics(stage: Stage, faults: list[str]) -> None:
    """Let the engine of each replica answer `/metrics` as told."""
    heads = await stage.heads(MODEL)
    if len(heads) != len(faults):
        raise SceneFailedError(f"{len(heads)} replicas, not {len(faults)}")
    async with aiohttp.ClientSession() as session:
        for head, fault in zip(heads, faults, strict=True):
            address = f"http://{head['status']['podIP']}:{names.ENGINE_PORT}/_enginesim/faults"
            body = json.dumps({"metrics": fault})
            stage.tell.typed(f"curl -d '{body}' {address}")
            async with session.post(address, data=body, headers={"Content-Type": "application/json"}) as answer:
                if answer.status != 200:
                    raise SceneFailedError(f"the engine's faults were not set: {await answer.text()}")
