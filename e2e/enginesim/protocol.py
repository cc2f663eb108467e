"""Request bodies of the OpenAI API as vLLM reads them, and what it refuses.

Field types are pydantic's lax ones, as in vLLM: `"5"` is a number, `"five"` is not. Unknown fields are ignored. Which
errors name a parameter and which do not is vLLM's, seen by `python -m e2e.conformance`.
"""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Self, TypeVar

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from e2e.enginesim.replies import ApiError, UnparsableError, malformed
from e2e.enginesim.text import layout_chat, tokenize

_SALT_FORBIDDEN = frozenset("@/\\\0")
_SALT_LONGEST = 128
_DEFAULT_COMPLETION_TOKENS = 16
_MOST_STOPS = 4
_MOST_CHOICES = 16_384
_TEXT_PARTS = (None, "text", "input_text", "output_text", "refusal", "thinking")

Body = TypeVar("Body", bound=BaseModel)
TokenId = Annotated[int, Field(ge=0, lt=2**62)]


class StreamOptions(BaseModel):
    """What a stream carries beside text."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class _Generation(BaseModel):
    """Fields that both kinds of generation share."""

    model_config = ConfigDict(extra="ignore")

    model: str | None = None
    n: int | None = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: str | Annotated[list[str], Field(max_length=_MOST_STOPS)] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    cache_salt: str | None = None

    @property
    def stops(self) -> list[str]:
        """Stop strings as a list."""
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else self.stop


class CompletionBody(_Generation):
    """Body of `/v1/completions`."""

    prompt: list[TokenId] | list[list[TokenId]] | str | list[str] | None = None

    def prompts(self) -> list[list[int]]:
        """Token ids of each prompt."""
        prompt = self.prompt
        if prompt is None:
            return []
        if isinstance(prompt, str):
            return [tokenize(prompt)]
        if prompt and isinstance(prompt[0], int):
            return [prompt]
        return [tokenize(part) if isinstance(part, str) else part for part in prompt]  # type: ignore[misc]

    def wanted_tokens(self) -> int | None:
        """The caller's output limit, or the API's default."""
        return _DEFAULT_COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens


class Part(BaseModel):
    """A part of a message; this model reads text only."""

    type: str | None = None
    text: str = ""


class Message(BaseModel):
    """One chat message."""

    role: str
    content: str | list[Part] | None = ""

    @model_validator(mode="after")
    def _only_assistants_may_say_nothing(self) -> Self:
        if self.content is None and self.role != "assistant":
            raise ValueError("content: must be a text or a list of parts")
        return self

    @property
    def text(self) -> str:
        """Its text, parts joined."""
        if self.content is None:
            return ""
        return self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)


class ChatBody(_Generation):
    """Body of `/v1/chat/completions`."""

    messages: list[Message]
    max_completion_tokens: int | None = None

    def prompts(self) -> list[list[int]]:
        """Token ids of the conversation."""
        return [tokenize(layout_chat([(message.role, message.text) for message in self.messages]))]

    def wanted_tokens(self) -> int | None:
        """The caller's output limit; None for all that the model length leaves."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class TokenizeBody(BaseModel):
    """Body of `/tokenize`."""

    prompt: str | None = None
    messages: list[Message] | None = None

    def tokens(self) -> list[int]:
        """Token ids of the prompt or the conversation."""
        if self.messages is not None:
            return tokenize(layout_chat([(message.role, message.text) for message in self.messages]))
        return tokenize(self.prompt or "")


async def read_body(request: web.Request) -> Any:
    """The JSON body. Raises ApiError or UnparsableError as vLLM answers a wrong content type or broken JSON."""
    if request.content_type != "application/json":
        raise malformed("Unsupported Media Type: send the body as application/json")
    data = await request.read()
    if not data:
        raise malformed("the body is empty", param="body")
    try:
        return json.loads(data)
    except json.JSONDecodeError as error:
        raise malformed(f"the body is not JSON: {error}", param=f"body.{error.pos}") from None
    except (ValueError, RecursionError) as error:
        raise UnparsableError(f"the body cannot be parsed: {error}") from None


def parse(kind: type[Body], data: Any) -> Body:
    """A validated body. Raises ApiError (400) that names the field."""
    if isinstance(data, dict):
        _check_raw(kind, data)
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        path = ".".join(["body", *_field_path(first["loc"])])
        raise malformed(f"{path}: {first['msg']}, got {str(first['input'])[:80]!r}", param=path) from None


def _field_path(location: Sequence[str | int]) -> list[str]:
    """The part of pydantic's location that a caller knows: the names of union members are left out."""
    return [str(part) for part in location if str(part) not in ("str", "int") and "[" not in str(part)]


def _check_raw(kind: type[BaseModel], data: dict[str, Any]) -> None:
    """What vLLM looks at before any types. Raises ApiError (400)."""
    _check_salt(data.get("cache_salt"))
    if data.get("stream_options") and not data.get("stream"):
        raise ApiError("stream_options: only with stream=true", param="stream_options")
    if issubclass(kind, CompletionBody):
        prompt = data.get("prompt")
        if prompt is None or prompt == "":
            raise ApiError("prompt: must be given and not empty", param="prompt")
        if prompt == [] or (isinstance(prompt, list) and any(part in ([], "") for part in prompt)):
            raise ApiError("prompt: must not be empty")
    if issubclass(kind, ChatBody):
        messages = data.get("messages", ())
        if messages is None or messages == []:
            raise ApiError("messages: must have at least one message")
        for message in messages if isinstance(messages, list) else ():
            _check_parts(message)


def _check_parts(message: Any) -> None:
    content = message.get("content") if isinstance(message, dict) else None
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and part.get("type") not in _TEXT_PARTS:
            raise ApiError(f"messages: this model reads text only, not {str(part.get('type'))[:40]!r}")


def _check_salt(salt: Any) -> None:
    if salt is None:
        return
    if not isinstance(salt, str) or not salt:
        raise ApiError("cache_salt: must be a non-empty string when given", param="cache_salt")
    if len(salt) > _SALT_LONGEST or _SALT_FORBIDDEN.intersection(salt):
        raise ApiError(
            f"cache_salt: at most {_SALT_LONGEST} characters, none of them '@', '/', '\\' or NUL", param="cache_salt"
        )


def check_sampling(body: _Generation) -> None:
    """Refuse numbers that vLLM's sampler refuses. Raises ApiError (400)."""
    choices = 1 if body.n is None else body.n
    if not 1 <= choices <= _MOST_CHOICES:
        raise ApiError(f"n: must be 1 to {_MOST_CHOICES}, got {choices}")
    for name in ("presence_penalty", "frequency_penalty"):
        _check_range(name, getattr(body, name), -2, 2)
    if body.repetition_penalty is not None and not body.repetition_penalty > 0:
        raise ApiError(f"repetition_penalty: must be above 0, got {body.repetition_penalty}")
    _check_range("temperature", body.temperature, 0, 2, param="temperature")
    if body.top_p is not None and not 0 < body.top_p <= 1:
        raise ApiError(f"top_p: must be in (0, 1], got {body.top_p}", param="top_p")
    if body.top_k is not None and body.top_k < -1:
        raise ApiError(f"top_k: must be -1 (all) or more, got {body.top_k}")
    _check_range("min_p", body.min_p, 0, 1)
    if body.min_tokens < 0:
        raise ApiError(f"min_tokens: must be at least 0, got {body.min_tokens}")
    if "" in body.stops:
        raise ApiError("stop: an empty string cannot stop anything")
    if body.temperature == 0 and choices > 1:
        raise ApiError(f"n: must be 1 with temperature 0, got {choices}")


def _check_range(name: str, value: float | None, least: float, most: float, *, param: str | None = None) -> None:
    if value is not None and not least <= value <= most:
        raise ApiError(f"{name}: must be in [{least}, {most}], got {value}", param=param)


def output_limit(body: CompletionBody | ChatBody, prompt: Sequence[int], *, max_model_len: int) -> int:
    """Most tokens that this prompt may be answered with: what was asked for, or what the prompt leaves if that is less.

    Raises ApiError (400) for a prompt that leaves nothing, and for a limit that no prompt could leave room for.
    """
    wanted = body.wanted_tokens()
    if wanted is not None and wanted > max_model_len:
        chat_limit = isinstance(body, ChatBody) and body.max_completion_tokens is not None
        param = "max_completion_tokens" if chat_limit else "max_tokens"
        raise ApiError(f"{param}: {wanted} is above the context length of {max_model_len} tokens", param=param)
    if len(prompt) > max_model_len:
        raise ApiError(
            f"prompt: {len(prompt)} tokens are above the context length of {max_model_len} tokens", param="input_tokens"
        )
    room = max_model_len - len(prompt)
    limit = room if wanted is None else min(room, wanted)
    if limit < 1:
        raise ApiError(f"max_tokens: must be at least 1, got {limit}", param="max_tokens")
    if body.min_tokens > limit:
        raise ApiError(f"min_tokens: {body.min_tokens} is above max_tokens {limit}")
    return limit
