"""Bad requests, and those that look bad and are not: status, error type, parameter and code of each."""

import asyncio
from collections.abc import Mapping
from typing import Any

from e2e.conformance.engines import MAX_MODEL_LEN, Answer, Engine
from e2e.conformance.records import Json, Record, shape
from e2e.conformance.requests import CHAT, COMPLETIONS, chat, completion, token_ids

PROMPT = token_ids(16)
LONG_PROMPT = token_ids(1000)
LONG_MESSAGES = [{"role": "user", "content": "a" * (1000 - len("user: \nassistant: "))}]
"""A chat prompt of 1000 tokens in both engines' template."""
ANSWER_SECONDS = 30.0
Headers = Mapping[str, str]
NONE: Headers = {}
JSON_TYPE: Headers = {"Content-Type": "application/json"}


def _with(**fields: object) -> dict[str, Any]:
    return {**completion(PROMPT, max_tokens=4), **fields}


def _chat_with(**fields: object) -> dict[str, Any]:
    return {**chat(max_tokens=4), **fields}


COMPLETION_FIELDS: Mapping[str, dict[str, Any]] = {
    "unknown model": _with(model="nobody"),
    "model null": _with(model=None),
    "model number": _with(model=5),
    "max_tokens 0": _with(max_tokens=0),
    "max_tokens -1": _with(max_tokens=-1),
    "max_tokens to the last": _with(prompt=LONG_PROMPT, max_tokens=MAX_MODEL_LEN - len(LONG_PROMPT)),
    "max_tokens one over what is left": _with(prompt=LONG_PROMPT, max_tokens=MAX_MODEL_LEN - len(LONG_PROMPT) + 1),
    "max_tokens as the context": _with(prompt=LONG_PROMPT, max_tokens=MAX_MODEL_LEN),
    "max_tokens above the context": _with(prompt=LONG_PROMPT, max_tokens=MAX_MODEL_LEN + 1),
    "max_tokens word": _with(max_tokens="ten"),
    "max_tokens digits": _with(max_tokens="10"),
    "max_tokens fraction": _with(max_tokens=1.5),
    "max_tokens whole float": _with(max_tokens=2.0),
    "max_tokens true": _with(max_tokens=True),
    "max_tokens null": _with(prompt=LONG_PROMPT, max_tokens=None),
    "max_tokens list": _with(max_tokens=[1]),
    "prompt fills the context": _with(prompt=token_ids(MAX_MODEL_LEN), max_tokens=1),
    "prompt over the context": _with(prompt=token_ids(MAX_MODEL_LEN + 1), max_tokens=1),
    "prompt null": _with(prompt=None),
    "prompt empty": _with(prompt=""),
    "prompt empty list": _with(prompt=[]),
    "prompt of an empty list": _with(prompt=[[]]),
    "prompt number": _with(prompt=7),
    "prompt negative id": _with(prompt=[-1]),
    "prompt mixed list": _with(prompt=["a", 1]),
    "prompt missing": {"model": "tiny", "max_tokens": 4},
    "n 0": _with(n=0),
    "n -1": _with(n=-1),
    "n huge": _with(n=1_000_000, temperature=0.8),
    "n 2 with temperature 0": _with(n=2),
    "n word": _with(n="two"),
    "temperature -1": _with(temperature=-1),
    "temperature 2": _with(temperature=2),
    "temperature 100": _with(temperature=100),
    "temperature word": _with(temperature="warm"),
    "top_p 0": _with(top_p=0),
    "top_p 1": _with(top_p=1),
    "top_p above 1": _with(top_p=1.01),
    "top_k -1": _with(top_k=-1),
    "top_k -2": _with(top_k=-2),
    "presence_penalty 2": _with(presence_penalty=2),
    "presence_penalty 3": _with(presence_penalty=3),
    "frequency_penalty -3": _with(frequency_penalty=-3),
    "repetition_penalty 0": _with(repetition_penalty=0),
    "min_p 2": _with(min_p=2),
    "min_tokens above max_tokens": _with(min_tokens=5),
    "min_tokens as max_tokens": _with(min_tokens=4),
    "min_tokens -1": _with(min_tokens=-1),
    "stop empty string": _with(stop=""),
    "stop in a list empty string": _with(stop=["a", ""]),
    "stop null": _with(stop=None),
    "stop of four": _with(stop=["#1", "#2", "#3", "#4"]),
    "stop of five": _with(stop=["#1", "#2", "#3", "#4", "#5"]),
    "stop number": _with(stop=5),
    "seed word": _with(seed="x"),
    "stream word": _with(stream="perhaps"),
    "stream_options without stream": _with(stream_options={"include_usage": True}),
    "stream_options null": _with(stream_options=None),
    "stream_options word": _with(stream=True, stream_options="usage"),
    "include_usage word": _with(stream=True, stream_options={"include_usage": "perhaps"}),
    "unknown model, streamed": _with(model="nobody", stream=True),
    "max_tokens above the context, streamed": _with(max_tokens=MAX_MODEL_LEN + 1, stream=True),
    "unknown field": _with(no_such_field=1),
    "user": _with(user="u-1"),
    "salt": _with(cache_salt="ward-7"),
    "salt null": _with(cache_salt=None),
    "salt empty": _with(cache_salt=""),
    "salt with @": _with(cache_salt="a@b"),
    "salt with /": _with(cache_salt="a/b"),
    "salt with \\": _with(cache_salt="a\\b"),
    "salt with NUL": _with(cache_salt="a\0b"),
    "salt of 128": _with(cache_salt="s" * 128),
    "salt of 129": _with(cache_salt="s" * 129),
    "salt number": _with(cache_salt=5),
}

CHAT_FIELDS: Mapping[str, dict[str, Any]] = {
    "unknown model": _chat_with(model="nobody"),
    "messages empty": _chat_with(messages=[]),
    "messages null": _chat_with(messages=None),
    "messages missing": {"model": "tiny", "max_tokens": 4},
    "messages text": _chat_with(messages="Hello"),
    "message without role": _chat_with(messages=[{"content": "Hello"}]),
    "message without content": _chat_with(messages=[{"role": "user"}]),
    "message content null": _chat_with(messages=[{"role": "user", "content": None}]),
    "message content number": _chat_with(messages=[{"role": "user", "content": 5}]),
    "message content empty": _chat_with(messages=[{"role": "user", "content": ""}]),
    "message of an unknown role": _chat_with(messages=[{"role": "pilot", "content": "Hello"}]),
    "message part of an unknown type": _chat_with(messages=[{"role": "user", "content": [{"type": "smell"}]}]),
    "max_tokens 0": _chat_with(max_tokens=0),
    "max_tokens one over what is left": _chat_with(messages=LONG_MESSAGES, max_tokens=25),
    "max_tokens as the context": _chat_with(messages=LONG_MESSAGES, max_tokens=MAX_MODEL_LEN),
    "max_tokens above the context": _chat_with(messages=LONG_MESSAGES, max_tokens=MAX_MODEL_LEN + 1),
    "max_tokens null": _chat_with(messages=LONG_MESSAGES, max_tokens=None),
    "max_tokens word": _chat_with(max_tokens="ten"),
    "max_completion_tokens 0": _chat_with(max_completion_tokens=0),
    "max_completion_tokens above the context": _chat_with(max_completion_tokens=MAX_MODEL_LEN + 1),
    "n 0": _chat_with(n=0),
    "temperature -1": _chat_with(temperature=-1),
    "top_p 0": _chat_with(top_p=0),
    "stream_options without stream": _chat_with(stream_options={"include_usage": True}),
    "salt empty": _chat_with(cache_salt=""),
    "salt with @": _chat_with(cache_salt="a@b"),
    "salt of 129": _chat_with(cache_salt="s" * 129),
    "messages over the context": _chat_with(messages=[{"role": "user", "content": "a" * MAX_MODEL_LEN}]),
}

RAW: Mapping[str, tuple[str, str, bytes | None, Headers]] = {
    "bad JSON": ("POST", COMPLETIONS, b'{"model": "tiny", ', JSON_TYPE),
    "bad JSON for chat": ("POST", CHAT, b"{'model': 'tiny'}", JSON_TYPE),
    "empty body": ("POST", COMPLETIONS, b"", JSON_TYPE),
    "JSON list": ("POST", COMPLETIONS, b"[]", JSON_TYPE),
    "JSON null": ("POST", COMPLETIONS, b"null", JSON_TYPE),
    "JSON text": ("POST", COMPLETIONS, b'"tiny"', JSON_TYPE),
    "not UTF-8": ("POST", COMPLETIONS, b'{"model": "\xff\xfe"}', JSON_TYPE),
    "NaN": ("POST", COMPLETIONS, b'{"model": "tiny", "prompt": "a", "max_tokens": 1, "temperature": NaN}', JSON_TYPE),
    "plain text type": ("POST", COMPLETIONS, b'{"model": "tiny", "prompt": "a"}', {"Content-Type": "text/plain"}),
    "form type": (
        "POST",
        COMPLETIONS,
        b"model=tiny&prompt=a",
        {"Content-Type": "application/x-www-form-urlencoded"},
    ),
    "no type": ("POST", COMPLETIONS, b'{"model": "tiny", "prompt": "a", "max_tokens": 1}', {}),
    "type with charset": (
        "POST",
        COMPLETIONS,
        b'{"model": "tiny", "prompt": "a", "max_tokens": 1}',
        {"Content-Type": "application/json; charset=utf-8"},
    ),
    "type with an unknown charset": (
        "POST",
        COMPLETIONS,
        b'{"model": "tiny", "prompt": "a", "max_tokens": 1}',
        {"Content-Type": "application/json; charset=nonsense"},
    ),
    "unknown path": ("POST", "/v1/complete", b"{}", JSON_TYPE),
    "unknown path, GET": ("GET", "/v2/models", None, {}),
    "root": ("GET", "/", None, {}),
    "trailing slash": ("POST", f"{COMPLETIONS}/", b"{}", JSON_TYPE),
    "GET completions": ("GET", COMPLETIONS, None, {}),
    "GET chat": ("GET", CHAT, None, {}),
    "PUT completions": ("PUT", COMPLETIONS, b"{}", JSON_TYPE),
    "DELETE models": ("DELETE", "/v1/models", None, {}),
    "POST health": ("POST", "/health", b"", {}),
    "HEAD health": ("HEAD", "/health", None, {}),
    "one model by name": ("GET", "/v1/models/tiny", None, {}),
}


def _described(answer: Answer) -> dict[str, Json]:
    seen: dict[str, Json] = {"status": answer.status}
    content = answer.json()
    if answer.status == 200:
        if isinstance(content, dict):
            seen["usage"] = {key: content["usage"][key] for key in ("prompt_tokens", "completion_tokens")}
        return seen
    if answer.status < 400:
        return seen  # a redirect: its body is nobody's business
    seen["content type"] = answer.content_type
    seen["body"] = shape(content)
    error = content.get("error") if isinstance(content, dict) else None
    if isinstance(error, dict):
        seen["body"] = {"error": sorted(error)}
        seen |= {key: error.get(key) for key in ("type", "param", "code")}
        seen["says why"] = isinstance(error.get("message"), str) and bool(error["message"])
    return seen


async def _ask(
    engine: Engine, method: str, path: str, *, json: object = None, data: bytes | None = None, headers: Headers = NONE
) -> dict[str, Json]:
    try:
        answer = await asyncio.wait_for(
            engine.call(method, path, json=json, data=data, headers=headers), ANSWER_SECONDS
        )
    except TimeoutError:
        return {"status": f"no answer within {ANSWER_SECONDS:g} s"}
    return _described(answer)


async def observe_errors(engine: Engine) -> Record:
    """Status and error fields of every request above; messages only have to be there."""
    seen: dict[str, dict[str, Json]] = {"completions": {}, "chat": {}, "http": {}}
    for name, body in COMPLETION_FIELDS.items():
        seen["completions"][name] = await _ask(engine, "POST", COMPLETIONS, json=body)
    for name, body in CHAT_FIELDS.items():
        seen["chat"][name] = await _ask(engine, "POST", CHAT, json=body)
    for name, (method, path, data, headers) in RAW.items():
        seen["http"][name] = await _ask(engine, method, path, data=data, headers=headers)
    return seen
