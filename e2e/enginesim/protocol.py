"""Request bodies of the OpenAI API as vLLM reads them, and its error bodies.

Field types are pydantic's lax ones, as in vLLM: `"5"` is a number, `"five"` is not. Unknown fields are ignored.
"""

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from e2e.enginesim.text import layout_chat, tokenize

_SALT_FORBIDDEN = frozenset("@/\\\0")
_SALT_LONGEST = 128
_DEFAULT_COMPLETION_TOKENS = 16

Body = TypeVar("Body", bound=BaseModel)
TokenId = Annotated[int, Field(ge=0, lt=2**62)]


class ApiError(Exception):
    """An answer with vLLM's error body: `{"error": {"message", "type", "param", "code"}}`."""

    def __init__(
        self, message: str, *, status: int = 400, error_type: str = "BadRequestError", param: str | None = None
    ):
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": error_type, "param": param, "code": status}}

    def response(self) -> web.Response:
        """The HTTP answer."""
        return web.json_response(self.body, status=self.status)


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
    stop: str | list[str] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
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
    """A part of a message; only text counts."""

    text: str = ""


class Message(BaseModel):
    """One chat message."""

    role: str
    content: str | list[Part] | None = None

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
    """The JSON body. Raises ApiError as vLLM answers a wrong content type or broken JSON."""
    if request.content_type != "application/json":
        raise _malformed("Unsupported Media Type: send the body as application/json")
    try:
        return await request.json()
    except (ValueError, LookupError, RecursionError) as error:
        raise _malformed(f"the body is not JSON: {error}") from None


def parse(kind: type[Body], data: Any) -> Body:
    """A validated body. Raises ApiError (400) that names the field."""
    if isinstance(data, dict):
        _check_salt(data.get("cache_salt"))
        if data.get("stream_options") and not data.get("stream"):
            raise _malformed("stream_options: only with stream=true", param="stream_options")
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        path = ".".join(str(part) for part in first["loc"])
        raise _malformed(
            f"{path or 'body'}: {first['msg']}, got {str(first['input'])[:80]!r}",
            param=str(first["loc"][0]) if first["loc"] else None,
        ) from None


def _malformed(message: str, param: str | None = None) -> ApiError:
    return ApiError(message, error_type="Bad Request", param=param)


def _check_salt(salt: Any) -> None:
    if salt is None:
        return
    if not isinstance(salt, str) or not salt:
        raise _malformed("cache_salt: must be a non-empty string when given", param="cache_salt")
    if len(salt) > _SALT_LONGEST or _SALT_FORBIDDEN.intersection(salt):
        raise _malformed(
            f"cache_salt: at most {_SALT_LONGEST} characters, none of them '@', '/', '\\' or NUL", param="cache_salt"
        )


def check_sampling(body: _Generation) -> None:
    """Refuse numbers that vLLM's sampler refuses. Raises ApiError (400)."""
    if body.n is not None and body.n < 1:
        raise ApiError(f"n: must be at least 1, got {body.n}", param="n")
    if body.temperature is not None and not 0 <= body.temperature < float("inf"):
        raise ApiError(f"temperature: must be a number of at least 0, got {body.temperature}", param="temperature")
    if body.temperature == 0 and (body.n or 1) > 1:
        raise ApiError(f"n: must be 1 with temperature 0, got {body.n}", param="n")
    if body.top_p is not None and not 0 < body.top_p <= 1:
        raise ApiError(f"top_p: must be in (0, 1], got {body.top_p}", param="top_p")
    if body.min_tokens < 0:
        raise ApiError(f"min_tokens: must be at least 0, got {body.min_tokens}", param="min_tokens")
    if "" in body.stops:
        raise ApiError("stop: an empty string cannot stop anything", param="stop")


def output_limit(body: CompletionBody | ChatBody, prompt: Sequence[int], *, max_model_len: int) -> int:
    """Most tokens that this prompt may be answered with. Raises ApiError (400) where it does not fit the model."""
    wanted = body.wanted_tokens()
    param = "max_tokens"
    if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
        param = "max_completion_tokens"
    if wanted is not None and wanted < 1:
        raise ApiError(f"{param}: must be at least 1, got {wanted}", param=param)
    room = max_model_len - len(prompt)
    if room < 1:
        raise ApiError(
            f"prompt: {len(prompt)} input tokens leave no room for output within the maximum context length of "
            f"{max_model_len} tokens",
            param="input_tokens",
        )
    if wanted is not None and wanted > room:
        raise ApiError(
            f"{param}: {wanted} output tokens and {len(prompt)} input tokens exceed the maximum context length of "
            f"{max_model_len} tokens; at most {room} output tokens fit",
            param=param,
        )
    if body.min_tokens > (wanted or room):
        raise ApiError(f"min_tokens: {body.min_tokens} is above {param} {wanted or room}", param="min_tokens")
    return wanted or room
