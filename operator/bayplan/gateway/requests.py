"""The body of a generation request, as far as it decides what is reserved, and as the engine gets it.

What costs memory is checked here to the last type; everything else is the engine's to judge, which refuses it before
it costs anything.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NoReturn

import orjson

from bayplan.gateway.promptsize import PromptTexts
from bayplan.gateway.refusals import RefusalCode, Refused

MOST_SEQUENCES = 128
"""Most sequences of one request: OpenAI's own bound of `n`."""
MOST_OUTPUT_TOKENS = 100_000_000
"""The API's bound of `engine.maxModelLen`."""
COMPLETION_TOKENS = 16
"""The API's output limit of a completion that names none."""
_TEXT_PARTS = ("text", "input_text", "output_text", "refusal", "thinking")
_NOT_CALLERS = ("kv_transfer_params", "prompt_embeds")


class Api(StrEnum):
    """The two ways to ask for a generation; the value is the engine's path."""

    COMPLETIONS = "/v1/completions"
    CHAT = "/v1/chat/completions"


@dataclass(slots=True)
class GenerationRequest:
    """One request for a generation. `max_output_tokens` is None when the caller names no limit."""

    api: Api
    body: dict[str, Any]
    model: str | None
    texts: PromptTexts
    sequences: int
    max_output_tokens: int | None
    stream: bool

    def payload(self, *, model: str, cache_salt: str, max_output_tokens: int) -> bytes:
        """Return the body for the engine: served name, our salt, and an output limit in every case."""
        body = self.body
        body["model"] = model
        body["cache_salt"] = cache_salt
        body.pop("request_id", None)  # the engine takes it for its own identity: two callers could choose the same
        if self.max_output_tokens is None:
            body["max_tokens" if self.api is Api.COMPLETIONS else "max_completion_tokens"] = max_output_tokens
        return orjson.dumps(body)

    def opening(self) -> bytes | None:
        """The messages up to the first of the user's, which every later turn repeats; None where it is no chat."""
        if self.api is not Api.CHAT:
            return None
        messages = self.body["messages"]
        first = next((at for at, message in enumerate(messages) if message.get("role") == "user"), len(messages) - 1)
        return orjson.dumps(messages[: first + 1])


def parse_generation(api: Api, raw: bytes) -> GenerationRequest:
    """Read a body. Raises Refused (400) that names the field and what would be accepted."""
    body = _parse_object(raw)
    for name in _NOT_CALLERS:
        if body.get(name) is not None:
            _refuse(name, "is not taken from callers")
    model = body.get("model")
    if model is not None and (not isinstance(model, str) or not 0 < len(model) <= 256):
        _refuse("model", "must be a model's name")
    stream = body.get("stream")
    if stream is not None and not isinstance(stream, bool):
        _refuse("stream", "must be true or false")
    texts = _completion_texts(body) if api is Api.COMPLETIONS else _chat_texts(body)
    choices = max(_whole(body, "n", 1, MOST_SEQUENCES) or 1, _whole(body, "best_of", 1, MOST_SEQUENCES) or 1)
    sequences = choices * len(texts.prompts)
    if sequences > MOST_SEQUENCES:
        _refuse("prompt", f"{len(texts.prompts)} prompts × {choices} sequences: must be at most {MOST_SEQUENCES}")
    limit = _whole(body, "max_tokens", 1, MOST_OUTPUT_TOKENS)
    if api is Api.CHAT:
        own = _whole(body, "max_completion_tokens", 1, MOST_OUTPUT_TOKENS)
        limit = limit if own is None else own
    elif limit is None:
        limit = COMPLETION_TOKENS
        body["max_tokens"] = limit
    return GenerationRequest(api, body, model, texts, sequences, limit, bool(stream))


def _parse_object(raw: bytes) -> dict[str, Any]:
    if not raw:
        _refuse(None, "the body is empty; it must be a JSON object")
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        # The position only: the text itself may be somebody's prompt.
        _refuse(None, f"the body is not JSON, or nested too deeply, at character {error.pos}")
    if not isinstance(body, dict):
        _refuse(None, "the body must be a JSON object")
    found: dict[str, Any] = body
    return found


def _refuse(param: str | None, problem: str) -> NoReturn:
    raise Refused(RefusalCode.INVALID_REQUEST, f"{param}: {problem}" if param else problem, param=param)


def _whole(body: Mapping[str, Any], name: str, least: int, most: int) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if type(value) is not int or not least <= value <= most:
        _refuse(name, f"must be a whole number from {least} to {most}")
    return value


def _completion_texts(body: Mapping[str, Any]) -> PromptTexts:
    prompt = body.get("prompt")
    prompts: Sequence[Any]
    if isinstance(prompt, str):
        prompts = (prompt,)
    elif isinstance(prompt, list) and prompt:
        prompts = (prompt,) if type(prompt[0]) is int else prompt
    else:
        _refuse("prompt", "must be a text, a list of token ids, or a list of either")
    return PromptTexts(prompts=tuple(_one_prompt(one) for one in prompts))


def _one_prompt(prompt: Any) -> tuple[str, ...] | int:
    if isinstance(prompt, str) and prompt:
        return (prompt,)
    if isinstance(prompt, list) and prompt and all(type(token) is int and token >= 0 for token in prompt):
        return len(prompt)
    _refuse("prompt", "must be a text, a list of token ids, or a list of either, and not empty")


def _chat_texts(body: Mapping[str, Any]) -> PromptTexts:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        _refuse("messages", "must be a list of at least one message")
    parts: list[str] = []
    opaque = body.get("chat_template") is not None  # what a template of the caller's own prints is unknown
    for position, message in enumerate(messages):
        if not isinstance(message, dict):
            _refuse(f"messages.{position}", "must be an object with role and content")
        content = message.get("content")
        if isinstance(content, str):
            parts.append(content)
        elif isinstance(content, list):
            for part in content:
                text = _text_of(part)
                if text is None:
                    opaque = True
                else:
                    parts.append(text)
        elif content is not None:
            _refuse(f"messages.{position}.content", "must be a text or a list of parts")
        parts += _other_members(message)
    # Whatever else the template may print, as it stands in the body.
    for name in ("tools", "functions", "documents", "chat_template_kwargs", "response_format"):
        if body.get(name) is not None:
            parts.append(_text(body[name]))
    return PromptTexts(prompts=(tuple(parts),), messages=len(messages), is_chat=True, opaque=opaque)


def _text_of(part: Any) -> str | None:
    """The text of a part of a message; None for a part whose tokens no text tells."""
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and part.get("type", "text") in _TEXT_PARTS:
        texts = [value for name, value in part.items() if name != "type" and isinstance(value, str)]
        return "".join(texts)
    return None


def _other_members(message: Mapping[str, Any]) -> list[str]:
    """Role, tool calls and what else a template may print of a message."""
    return [
        value if isinstance(value, str) else _text(value)
        for name, value in message.items()
        if name != "content" and value is not None
    ]


def _text(value: Any) -> str:
    return orjson.dumps(value).decode()
