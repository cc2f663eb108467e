"""Requests at the gateway: answers through OpenAI's client, and what admission is good for under overload."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import openai
from openai import AsyncOpenAI
from rich.table import Table

from e2e.scenarios.narration import SceneFailedError, is_ready, url
from e2e.scenarios.scenes.stage import FIRST_TOKEN_SECONDS, MODELS, Stage

LLAMA = "default/llama-3.1-8b-instruct"
SMALL = "default/small-chat"
OUTPUT_TOKENS = 20
STEP_SECONDS = 0.03
SEATS = 8
"""What `models/small-chat.yaml` says."""
SERVED_PER_SECOND = SEATS / (OUTPUT_TOKENS * STEP_SECONDS)
"""Requests that one replica can serve at most."""
OVERLOAD = 5
LOAD_SECONDS = 6.0
SETTLE_SECONDS = 2.0
"""What arrives before is in no count: the first requests of a rush find an empty engine."""
LEAST_SHARE = 0.5
"""Of what the replica can serve at most, with admission; a busy machine costs some."""
MOST_SHARE = 0.1
"""The same without admission."""
OBEDIENT = 5
MOST_RETRIES = 8
IMPATIENT = 8


async def answers(stage: Stage) -> None:
    """The gateway as OpenAI's client sees it; needs `first_model`."""
    tell = stage.tell
    tell.scene(
        "Answers through the gateway, with OpenAI's client",
        "One address for all models. A request reserves its tokens on one warm replica before it gets there.",
    )
    base_url = f"{await stage.gateway()}/v1"
    tell.typed(f'client = AsyncOpenAI(base_url="{base_url}", api_key="any")')
    async with AsyncOpenAI(base_url=base_url, api_key="any") as client:
        tell.typed("await client.models.list()")
        models = await client.models.list()
        tell.came_back("\n".join(sorted(model.id for model in models.data)))
        tell.typed(f'await client.chat.completions.create(model="{LLAMA}", messages=[…], max_tokens=24)')
        chat = await client.chat.completions.create(
            model=LLAMA, messages=[{"role": "user", "content": "Which bay is free?"}], max_tokens=24
        )
        if not chat.choices[0].message.content or chat.usage is None:
            raise SceneFailedError(f"an answer without a text: {chat}")
        tell.came_back(f"{chat.choices[0].message.content.strip()}\nusage: {chat.usage.completion_tokens} tokens")
        tell.typed(f'await client.completions.create(model="{LLAMA}", prompt="A bay plan says", stream=True)')
        text = [
            chunk.choices[0].text
            async for chunk in await client.completions.create(
                model=LLAMA, prompt="A bay plan says", max_tokens=24, stream=True
            )
        ]
        tell.came_back(f"{''.join(text).strip()}\nin {len(text)} chunks")
        tell.typed(f'await client.completions.create(model="{LLAMA}", prompt="…", max_tokens=1_000_000)')
        try:
            await client.completions.create(model=LLAMA, prompt="A bay plan says", max_tokens=1_000_000)
        except openai.BadRequestError as error:
            tell.came_back(_told(error))
        else:
            raise SceneFailedError("a request that no replica can hold was not refused")


async def overload(stage: Stage) -> None:
    """The same rush twice, past the gateway and through it; leaves `small-chat` with one replica."""
    tell = stage.tell
    tell.scene(
        f"{OVERLOAD} × overload, without admission and with it",
        f"One replica serves at most {SERVED_PER_SECOND:.0f} of these requests a second. Good is a first token within "
        f"{FIRST_TOKEN_SECONDS:g} s, which the gateway knows as its deadline.",
    )
    gateway = await stage.gateway()
    await tell.kubectl(f"apply -f {MODELS}/small-chat.yaml")
    await tell.follow("small-chat", is_ready(1), what="one ready replica")
    address = (await stage.heads("small-chat"))[0]["status"]["podIP"]

    tell.say(f"{LOAD_SECONDS:.0f} s of it straight to the engine")
    async with _rush(url(address), "small-chat") as without:
        await asyncio.sleep(LOAD_SECONDS)
    tell.say("and through the gateway; the last ones are OpenAI's clients")
    async with _rush(f"{gateway}/v1/completions", SMALL) as admitted:
        await asyncio.sleep(SETTLE_SECONDS)
        obedient = asyncio.create_task(_obedient(f"{gateway}/v1"))
        shed = await _one_shed(f"{gateway}/v1")
        await asyncio.sleep(max(0.0, LOAD_SECONDS - admitted.seconds))
    tell.console.print(_table({"straight to the engine": without, "through the gateway": admitted}))
    tell.say("a refused client sees at once:")
    tell.came_back(_told(shed))
    retries = await asyncio.wait_for(obedient, 90)
    tell.say(
        f"{OBEDIENT} clients with max_retries={MOST_RETRIES} came back when they were told to, {retries} times in all, "
        "and each was answered"
    )
    if not retries:
        raise SceneFailedError("no obedient client was refused: nothing was shown")
    if without.share > MOST_SHARE or admitted.share < LEAST_SHARE:
        raise SceneFailedError(f"good answers: {without.share:.0%} without admission, {admitted.share:.0%} with it")


@dataclass
class Rush:
    """What the clients of one rush saw, of those that came after it had settled."""

    began: float = field(default_factory=time.monotonic)
    asked: int = 0
    good: int = 0
    shed: int = 0

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self.began

    @property
    def share(self) -> float:
        """Good answers, of what the replica could serve at most in that time."""
        return self.good / (SERVED_PER_SECOND * (LOAD_SECONDS - SETTLE_SECONDS))


@asynccontextmanager
async def _rush(address: str, model: str) -> AsyncIterator[Rush]:
    """Stream so many completions a second for the length of the block; whoever has no answer by its end gives up."""
    rush = Rush()
    per_second = OVERLOAD * SERVED_PER_SECOND
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        tasks: list[asyncio.Task[None]] = []

        async def send() -> None:
            while rush.seconds < LOAD_SECONDS:
                while len(tasks) < rush.seconds * per_second:
                    tasks.append(asyncio.create_task(_ask(session, address, model, rush)))
                await asyncio.sleep(0.5 / per_second)

        sender = asyncio.create_task(send())
        try:
            yield rush
        finally:
            # The last ones had their time, too.
            await asyncio.sleep(FIRST_TOKEN_SECONDS)
            for task in (sender, *tasks):
                task.cancel()
            await asyncio.gather(sender, *tasks, return_exceptions=True)


async def _ask(session: aiohttp.ClientSession, address: str, model: str, rush: Rush) -> None:
    began = rush.seconds
    counts = began >= SETTLE_SECONDS
    rush.asked += counts
    body = {"model": model, "prompt": "Which bay?", "max_tokens": OUTPUT_TOKENS, "stream": True, "ignore_eos": True}
    async with session.post(address, json=body) as answer:
        if answer.status != 200:
            rush.shed += counts
            return
        # The engine sends its head at once; only a token is an answer.
        first = await answer.content.readline()
        rush.good += counts and first.startswith(b"data: {") and rush.seconds - began <= FIRST_TOKEN_SECONDS
        await answer.read()


async def _one_shed(base_url: str) -> openai.APIStatusError:
    """Ask as clients that do not retry; return what one of those was told that were refused."""
    async with AsyncOpenAI(base_url=base_url, api_key="any", max_retries=0) as client:
        found = await asyncio.gather(
            *(
                client.completions.create(model=SMALL, prompt="Which bay?", max_tokens=OUTPUT_TOKENS)
                for _ in range(IMPATIENT)
            ),
            return_exceptions=True,
        )
    for one in found:
        if isinstance(one, openai.RateLimitError):
            return one
    raise SceneFailedError(f"{IMPATIENT} requests at once into the overload, and none was refused: {found[0]}")


async def _obedient(base_url: str) -> int:
    """Ask as clients that come back when they are told to; return how often they came back until all had an answer."""
    async with AsyncOpenAI(base_url=base_url, api_key="any", max_retries=MOST_RETRIES) as client:
        found = await asyncio.gather(
            *(
                client.completions.with_raw_response.create(model=SMALL, prompt="Which bay?", max_tokens=OUTPUT_TOKENS)
                for _ in range(OBEDIENT)
            )
        )
    if not all(one.parse().choices[0].text for one in found):
        raise SceneFailedError("an obedient client got an empty answer")
    return sum(one.retries_taken for one in found)


def _told(error: openai.APIStatusError) -> str:
    headers = error.response.headers
    hints = [f"{name}: {headers[name]}" for name in ("retry-after", "x-should-retry") if name in headers]
    return f"openai.{type(error).__name__}: {error.status_code}\n{json.dumps(error.body)}\n{', '.join(hints)}"


def _table(rushes: dict[str, Rush]) -> Table:
    table = Table("", "asked", "in time", "too late, or never", "refused at once")
    for name, rush in rushes.items():
        table.add_row(name, *map(str, (rush.asked, rush.good, rush.asked - rush.good - rush.shed, rush.shed)))
    return table
