"""A prompt set: what both arms are asked, and how each answer is told right from wrong."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bayplan.planning.gates.quality import Check, read_check
from bayplan.planning.numbers import InvalidInput

MAX_PROMPTS = 2000
MAX_ANSWER_TOKENS = 4096
DEFAULT_ANSWER_TOKENS = 64
MAX_MESSAGES = 64
_ROLES = ("system", "user", "assistant", "developer")
_KNOWN = ("name", "prompt", "messages", "maxTokens", "check")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question: a text to complete, or the messages of a chat."""

    name: str
    check: Check
    text: str = ""
    messages: tuple[Mapping[str, str], ...] = ()
    """Role and content each; empty for a text."""
    max_tokens: int = DEFAULT_ANSWER_TOKENS


@dataclass(frozen=True, slots=True)
class PromptSet:
    """The prompts, in order. `digest` is of prompts, limits and checks: 16 hexadecimal digits."""

    prompts: tuple[Prompt, ...]
    digest: str


def read_prompt_set(raw: object) -> PromptSet:
    """Read a list of {name, prompt or messages, maxTokens, check}. Raises InvalidInput that names the entry."""
    if not isinstance(raw, list) or not 0 < len(raw) <= MAX_PROMPTS:
        raise InvalidInput("prompts", f"must be a list of 1 to {MAX_PROMPTS} prompts")
    prompts = tuple(_read_prompt(one, f"prompts[{at}]") for at, one in enumerate(raw))
    seen: set[str] = set()
    for at, prompt in enumerate(prompts):
        if prompt.name in seen:
            raise InvalidInput(f"prompts[{at}].name", f"{prompt.name!r} stands there twice")
        seen.add(prompt.name)
    try:
        canonical = json.dumps(raw, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError):
        # YAML knows dates and other things that no answer could ever equal.
        raise InvalidInput("prompts", "must hold texts, finite numbers, lists and objects alone") from None
    return PromptSet(prompts, hashlib.sha256(canonical.encode(errors="surrogatepass")).hexdigest()[:16])


def _read_prompt(raw: object, name: str) -> Prompt:
    if not isinstance(raw, Mapping):
        raise InvalidInput(name, f"must be an object with {', '.join(_KNOWN)}")
    for key in sorted(map(str, raw.keys() - set(_KNOWN))):
        raise InvalidInput(f"{name}.{key}", f"is not known; known are {', '.join(_KNOWN)}")
    own = raw.get("name")
    if not isinstance(own, str) or not 0 < len(own.strip()) <= 253:
        raise InvalidInput(f"{name}.name", "must be a text of 1 to 253 characters")
    if ("prompt" in raw) == ("messages" in raw):
        raise InvalidInput(name, "must have exactly one of prompt, messages")
    limit = raw.get("maxTokens", DEFAULT_ANSWER_TOKENS)
    if type(limit) is not int or not 1 <= limit <= MAX_ANSWER_TOKENS:
        raise InvalidInput(f"{name}.maxTokens", f"must be a whole number from 1 to {MAX_ANSWER_TOKENS}, not {limit!r}")
    text = ""
    messages: tuple[Mapping[str, str], ...] = ()
    if "prompt" in raw:
        text = raw["prompt"]
        if not isinstance(text, str) or not text:
            raise InvalidInput(f"{name}.prompt", "must be a text that is not empty")
    else:
        messages = _read_messages(raw["messages"], f"{name}.messages")
    return Prompt(own, read_check(raw.get("check"), f"{name}.check"), text, messages, limit)


def _read_messages(raw: Any, name: str) -> tuple[Mapping[str, str], ...]:
    if not isinstance(raw, list) or not 0 < len(raw) <= MAX_MESSAGES:
        raise InvalidInput(name, f"must be a list of 1 to {MAX_MESSAGES} messages")
    for at, message in enumerate(raw):
        if (
            not isinstance(message, Mapping)
            or message.keys() != {"role", "content"}
            or message["role"] not in _ROLES
            or not isinstance(message["content"], str)
        ):
            raise InvalidInput(f"{name}[{at}]", f"must be an object of a role ({', '.join(_ROLES)}) and a text content")
    return tuple({"role": message["role"], "content": message["content"]} for message in raw)
