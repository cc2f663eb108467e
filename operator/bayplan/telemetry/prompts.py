"""One question to one engine, and its whole answer as text: what quality is measured by."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from bayplan.api.names import ENGINE_PORT
from bayplan.telemetry.http import PodClient, PodError, json_object, pod_url

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


class PromptPort(Protocol):
    """What a quality run asks of an engine. Raises PodError, nothing else."""

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
        """Return the answer at temperature 0 to a text, or to messages if there are any."""


class HttpPrompts:
    """`PromptPort` over HTTP. One session for all engines; close it at the end."""

    def __init__(self) -> None:
        self._client = PodClient()

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

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
        """See `PromptPort`."""
        path = CHAT if messages else COMPLETIONS
        asked = {"messages": list(messages)} if messages else {"prompt": text}
        body = {"model": model, "max_tokens": max_tokens, "temperature": 0, "seed": 0, **asked}
        url = pod_url(address, ENGINE_PORT, path)
        raw = await self._client.request("POST", url, path, timeout_seconds=timeout_seconds, body=body)
        return _text_of(json_object(raw, path), path)


def _text_of(answer: Mapping[str, object], path: str) -> str:
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        raise PodError(f"{path} answered without a choice")
    reason = choice.get("finish_reason")
    if reason not in ("stop", "length"):
        raise PodError(f"{path} ended with finish_reason {reason!r:.80}")
    message = choice.get("message")
    text = message.get("content") if isinstance(message, dict) else choice.get("text")
    if not isinstance(text, str):
        raise PodError(f"{path} answered without a text")
    return text
