"""Response bodies and stream chunks, field for field as vLLM sends them."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from e2e.enginesim.generation import Delta

DONE = b"data: [DONE]\n\n"

_encode = json.JSONEncoder(separators=(",", ":")).encode
_MARK = "\0"


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request."""

    prompt_tokens: int
    completion_tokens: int

    def body(self) -> dict[str, int]:
        """The `usage` object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
        }


class Renderer:
    """Writes one request's answer, as a text completion or as a chat completion.

    `system_fingerprint` goes on the last message of a stream alone.
    """

    def __init__(self, *, chat: bool, request_id: str, model: str, fingerprint: str) -> None:
        self._chat = chat
        self._fingerprint = fingerprint
        self._created = int(time.time())
        self._id = request_id
        self._model = model
        kind = "chat.completion" if chat else "text_completion"
        self._object = f"{kind}.chunk" if chat else kind
        head = {"id": request_id, "object": self._object, "created": self._created, "model": model}
        self._head = _encode(head)[:-1].encode()
        self._frames: dict[int, tuple[bytes, bytes]] = {}

    def first_chunks(self, choices: int) -> bytes:
        """What precedes the first tokens: in a chat a chunk with the role for each choice."""
        if not self._chat:
            return b""
        chunks = []
        for index in range(choices):
            choice = {
                "index": index,
                "delta": {"role": "assistant", "content": ""},
                "logprobs": None,
                "finish_reason": None,
            }
            chunks.append(self._event({"choices": [choice], "prompt_token_ids": None, "prompt_text": None}))
        return b"".join(chunks)

    def chunk(self, delta: Delta, *, usage: Usage | None, last: bool) -> bytes:
        """One choice's news; `usage` when the client wants it in every chunk, `last` on a stream's final message."""
        if usage is None and delta.finish_reason is None:
            before, after = self._frames.get(delta.index) or self._frame(delta.index)
            return before + _encode(delta.text).encode() + after
        body: dict[str, Any] = {"choices": [self._choice(delta)]}
        if usage is not None:
            body["usage"] = usage.body()
        return self._event(body, stamp=last)

    def _frame(self, index: int) -> tuple[bytes, bytes]:
        """What stands before and after the text in all chunks of a choice but the last."""
        event = self._event({"choices": [self._choice(Delta(index, _MARK, 1, None, None))]})
        before, after = event.split(_encode(_MARK).encode())
        self._frames[index] = before, after
        return before, after

    def _choice(self, delta: Delta) -> dict[str, Any]:
        if self._chat:
            choice: dict[str, Any] = {
                "index": delta.index,
                "delta": {"content": delta.text},
                "logprobs": None,
                "finish_reason": delta.finish_reason,
            }
            if delta.finish_reason is not None:
                choice["stop_reason"] = delta.stop_reason
            choice["token_ids"] = None
        else:
            choice = {
                "index": delta.index,
                "text": delta.text,
                "logprobs": None,
                "finish_reason": delta.finish_reason,
                "stop_reason": delta.stop_reason,
                "prompt_token_ids": None,
                "token_ids": None,
            }
        return choice

    def usage_chunk(self, usage: Usage) -> bytes:
        """The message after the last chunk, for clients that asked for usage."""
        return self._event({"choices": [], "usage": usage.body()}, stamp=True)

    def body(self, results: Sequence[Delta], usage: Usage) -> dict[str, Any]:
        """A whole answer at once."""
        choices = []
        for result in results:
            choice: dict[str, Any] = {"index": result.index}
            if self._chat:
                choice["message"] = {
                    "role": "assistant",
                    "content": result.text,
                    "refusal": None,
                    "annotations": None,
                    "audio": None,
                    "function_call": None,
                    "reasoning": None,
                }
            else:
                choice["text"] = result.text
            choice |= {
                "logprobs": None,
                "finish_reason": result.finish_reason,
                "stop_reason": result.stop_reason,
                "token_ids": None,
                "routed_experts": None,
            }
            if not self._chat:
                choice |= {"prompt_logprobs": None, "prompt_token_ids": None}
            choices.append(choice)
        chat_only = dict.fromkeys(("prompt_logprobs", "prompt_token_ids", "prompt_text")) if self._chat else {}
        return {
            "id": self._id,
            "object": "chat.completion" if self._chat else "text_completion",
            "created": self._created,
            "model": self._model,
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": self._fingerprint,
            "usage": {**usage.body(), "prompt_tokens_details": None, "completion_tokens_details": None},
            **chat_only,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def _event(self, body: dict[str, Any], *, stamp: bool = False) -> bytes:
        if stamp:
            body["system_fingerprint"] = self._fingerprint
        return b"data: " + self._head + b"," + _encode(body)[1:].encode() + b"\n\n"
