"""Clients of a live gateway: OpenAI's own against a full one, and bare sockets torn at random."""

import asyncio
import json
import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import openai
from openai import AsyncOpenAI

from bayplan.planning.admission.sheds import ShedCode
from bench.gatewayhost import Host

_TYPES = {400: openai.BadRequestError, 429: openai.RateLimitError, 503: openai.InternalServerError}
_CODES = {code.value for code in ShedCode}


@dataclass
class Sheds:
    """What refused clients saw, and how many of those that come back as they are told got in."""

    served: int = 0
    sheds: int = 0
    keeping: int = 0
    """Sheds that keep every point of the contract."""
    codes: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    obeying: int = 0
    obeying_served: int = 0

    @property
    def contract(self) -> float:
        """Share of sheds that keep the contract."""
        return self.keeping / self.sheds if self.sheds else 0.0


def _breach(error: openai.APIStatusError) -> str:
    """What is missing from a shed; empty when it is as promised."""
    headers, body = error.response.headers, error.body if isinstance(error.body, dict) else {}
    hint = headers.get("retry-after", "")
    told = {
        "true": hint.isdigit() and 1 <= int(hint) <= 120 and body.get("retry_after") == int(hint),
        "false": not hint,
    }
    points = {
        "body": {"message", "type", "param", "code"} <= body.keys(),
        "code": body.get("code") in _CODES,
        "status": isinstance(error, _TYPES.get(error.status_code, ())),
        "hint": told.get(headers.get("x-should-retry", ""), False),
    }
    return ", ".join(f"{name} of {error.status_code} {body}" for name, kept in points.items() if not kept)


async def shed_contract(host: Host, *, clients: int, obeying: int) -> Sheds:
    """Ask with many clients at once that do not retry, then with some that do as they are told."""
    found = Sheds()
    asked: dict[str, Any] = {"model": host.model, "prompt": "hello", "max_tokens": 50, "stream": True}

    async def read(client: AsyncOpenAI, **fields: Any) -> None:
        async for _ in await client.completions.create(**{**asked, **fields}):
            pass

    async def one(client: AsyncOpenAI, number: int) -> None:
        try:
            # Every tenth asks for more than there will ever be: such a refusal carries no hint.
            await read(client, **({"max_tokens": 1_000_000} if number % 10 == 0 else {}))
            found.served += 1
        except openai.APIStatusError as error:
            found.sheds += 1
            breach = _breach(error)
            found.keeping += not breach
            if breach:
                found.broken.append(breach)
            body = error.body if isinstance(error.body, dict) else {}
            found.codes[str(body.get("code"))] += 1

    async def obedient(client: AsyncOpenAI) -> None:
        found.obeying += 1
        with suppress(openai.APIStatusError):
            await read(client)
            found.obeying_served += 1

    base: dict[str, Any] = {"base_url": host.url, "api_key": "any", "timeout": 120}
    async with AsyncOpenAI(**base, max_retries=0) as client:
        await asyncio.gather(*(one(client, number) for number in range(clients)))
    async with AsyncOpenAI(**base, max_retries=5) as client:
        await asyncio.gather(*(obedient(client) for _ in range(obeying)))
    return found


@dataclass
class Torn:
    """What torn sockets left behind."""

    sockets: int
    finished: int
    leaked: int
    """Reservations and waiting requests that outlive their clients."""


async def torn_sockets(host: Host, *, sockets: int, seed: int, at_once: int = 50) -> Torn:
    """Open so many connections and tear most of them: in the header, in the body, waiting, in the answer."""
    dice = random.Random(seed)
    at = urlsplit(host.url)
    turns = iter(range(sockets))
    finished = 0

    async def one() -> bool:
        body = json.dumps(
            {"model": host.model, "prompt": "hello", "max_tokens": dice.randrange(1, 80), "stream": dice.random() < 0.7}
        ).encode()
        head = (
            f"POST {at.path}/completions HTTP/1.1\r\nHost: {at.netloc}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        data = head.encode() + body
        cut = dice.choice((dice.randrange(len(head)), len(data) - dice.randrange(1, len(body)), None, None, None, None))
        reader, writer = await asyncio.open_connection(at.hostname, at.port)
        try:
            writer.write(data[:cut])
            await writer.drain()
            match dice.randrange(3) if cut is None else 0:
                case 0:
                    await asyncio.sleep(dice.random() * 0.05)
                case 1:
                    await reader.read(dice.randrange(1, 2000))
                case 2:
                    return (await reader.read()).startswith(b"HTTP/1.1 200 ")
            if dice.random() < 0.5:
                writer.transport.abort()
            return False
        finally:
            writer.close()

    async def many() -> None:
        nonlocal finished
        for _ in turns:
            with suppress(ConnectionError):
                whole = await one()
                finished += whole

    await asyncio.gather(*(many() for _ in range(at_once)))
    await host.until_idle()
    models = (await host.evidence())["models"].values()
    held = sum(pod["reservedRequests"] for model in models for pod in model["pods"].values())
    return Torn(sockets, finished, held + sum(model["queuedRequests"] for model in models))
