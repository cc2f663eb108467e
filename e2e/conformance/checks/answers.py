"""What a good request is answered with."""

from collections.abc import Mapping
from typing import Any

from e2e.conformance.engines import Engine
from e2e.conformance.records import Json, Record, shape, stream_phases
from e2e.conformance.requests import CHAT, COMPLETIONS, Streamed, chat, completion, stream, token_ids

USAGE: dict[str, object] = {"stream_options": {"include_usage": True}}
VOWELS = ["a", "e", "i", "o"]
"""Stop strings that any text meets soon; four are the most that a request may name."""


def _finish(body: Mapping[str, Any]) -> list[Json]:
    return [choice.get("finish_reason") for choice in body.get("choices", ())]


async def observe_bodies(engine: Engine) -> Record:
    """Whole answers: keys and types of the body, and the values that do not depend on the text."""
    asked: dict[str, tuple[str, dict[str, Any]]] = {
        "completion": (COMPLETIONS, completion(token_ids(12), max_tokens=4)),
        "completion of text": (COMPLETIONS, completion("Which berth is free?", max_tokens=4)),
        "completion of two prompts": (COMPLETIONS, completion([token_ids(12), token_ids(13, seed=1)], max_tokens=4)),
        "completion of two texts": (COMPLETIONS, completion(["bow", "stern"], max_tokens=4)),
        "completion in two choices": (
            COMPLETIONS,
            completion(token_ids(12), max_tokens=4, n=2, temperature=0.8, seed=1),
        ),
        "completion without a limit": (COMPLETIONS, _without(completion(token_ids(12), max_tokens=1), "max_tokens")),
        "completion with echo": (COMPLETIONS, completion(token_ids(12), max_tokens=4, echo=True)),
        "completion stopped by a string": (
            COMPLETIONS,
            completion(token_ids(12), max_tokens=200, min_tokens=10, stop=VOWELS),
        ),
        "completion without a model": (COMPLETIONS, _without(completion(token_ids(12), max_tokens=4), "model")),
        "chat": (CHAT, chat(max_tokens=4)),
        "chat in parts": (CHAT, chat([{"type": "text", "text": "Where is the quay?"}], max_tokens=4)),
        "chat in two choices": (CHAT, chat(max_tokens=4, n=2, temperature=0.8, seed=1)),
        "chat with max_completion_tokens": (
            CHAT,
            _without(chat(max_tokens=4, max_completion_tokens=5), "max_tokens"),
        ),
        "chat stopped by a string": (CHAT, chat(max_tokens=200, min_tokens=10, stop=VOWELS)),
        "chat with a system message": (
            CHAT,
            {
                **chat(max_tokens=4),
                "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
            },
        ),
    }
    seen: dict[str, Json] = {}
    for name, (path, body) in asked.items():
        answer = await engine.call("POST", path, json=body)
        content = answer.json()
        usage = content.get("usage") or {}
        seen[name] = {
            "status": answer.status,
            "content type": answer.content_type,
            "body": shape(content),
            "object": content.get("object"),
            "id prefix": str(content.get("id")).split("-")[0],
            "finish reasons": _finish(content),
            "stop reason is": shape([choice.get("stop_reason") for choice in content.get("choices", ())]),
            "prompt tokens": usage.get("prompt_tokens"),
            # Where a stop string cuts is a matter of the text.
            "completion tokens": None if "stop" in body else usage.get("completion_tokens"),
        }
    return seen


def _without(body: dict[str, Any], field: str) -> dict[str, Any]:
    return {key: value for key, value in body.items() if key != field}


async def observe_streams(engine: Engine) -> Record:
    """Streams: framing, the sequence of chunk shapes, the end."""
    asked: dict[str, tuple[str, dict[str, Any]]] = {
        "completion": (COMPLETIONS, completion(token_ids(12), max_tokens=6)),
        "completion with usage": (COMPLETIONS, completion(token_ids(12), max_tokens=6, **USAGE)),
        "completion with usage in every chunk": (
            COMPLETIONS,
            completion(
                token_ids(12),
                max_tokens=6,
                stream_options={"include_usage": True, "continuous_usage_stats": True},
            ),
        ),
        "completion of one token": (COMPLETIONS, completion(token_ids(12), max_tokens=1, **USAGE)),
        "completion stopped by a string": (
            COMPLETIONS,
            completion(token_ids(12), max_tokens=200, min_tokens=10, stop=VOWELS),
        ),
        "chat": (CHAT, chat(max_tokens=6)),
        "chat with usage": (CHAT, chat(max_tokens=6, **USAGE)),
        "chat of one token": (CHAT, chat(max_tokens=1, **USAGE)),
        "chat stopped by a string": (CHAT, chat(max_tokens=200, min_tokens=10, stop=VOWELS)),
    }
    return {name: _described(await stream(engine, path, body)) for name, (path, body) in asked.items()}


def _described(streamed: Streamed) -> dict[str, Json]:
    chunks = streamed.events.chunks()
    if not chunks:
        return {"status": streamed.status, "content type": streamed.content_type}
    return {
        "status": streamed.status,
        "content type": streamed.content_type,
        "framed": streamed.events.framed,
        "ends with [DONE]": streamed.events.done,
        "closed cleanly": streamed.closed_cleanly,
        "phases": stream_phases(streamed.events),
        "finish reasons": list(streamed.finish_reasons),
        "one id": len({chunk.get("id") for chunk in chunks}) == 1,
        "id prefix": str(chunks[0].get("id")).split("-")[0],
        "chunks with fingerprint": _fingerprints(chunks),
    }


def _fingerprints(chunks: list[dict[str, Any]]) -> list[Json]:
    """Whether a fingerprint is on the first, on any middle, on the last chunk."""
    has = [bool(chunk.get("system_fingerprint")) for chunk in chunks]
    return [has[0], any(has[1:-1]), has[-1]]


async def observe_usage(engine: Engine) -> Record:
    """Token counts, exact: a prompt given as ids has as many tokens as ids, a text as many as bytes in both engines."""
    seen: dict[str, Json] = {}
    for prompt, limit in ((1, 1), (31, 5), (32, 32), (33, 40), (500, 500), (1000, 24)):
        ids = token_ids(prompt, seed=prompt)
        whole = (await engine.call("POST", COMPLETIONS, json=completion(ids, max_tokens=limit))).json()
        streamed = await stream(engine, COMPLETIONS, completion(ids, max_tokens=limit, **USAGE))
        seen[f"{prompt} + {limit}"] = {"whole": whole["usage"], "streamed": streamed.usage}
    text = await stream(engine, COMPLETIONS, completion("Ä berth, 12 €", max_tokens=3, **USAGE))
    talk = await stream(engine, CHAT, chat("Ä berth, 12 €", max_tokens=3, **USAGE))
    seen["text"] = {"completion": text.usage, "chat": talk.usage}
    return seen
