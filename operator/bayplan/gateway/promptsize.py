"""How many tokens a prompt has: counted by the model's own tokenizer file, else bounded from above by its bytes.

A token of a byte-level vocabulary covers at least one byte of the text, so the UTF-8 length plus the special tokens
that frame a prompt bounds the count. (It does not hold for vocabularies that expand text first, by NFKC; such models
need their tokenizer file.) The chat template is the engine's: for it the count takes a fixed allowance per message.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tokenizers import Tokenizer

FRAME_TOKENS = 4
"""Special tokens around a plain prompt."""
TEMPLATE_TOKENS = 64
"""What a chat template adds once: a default system prompt, the start of the answer."""
MESSAGE_TOKENS = 16
"""What a chat template adds per message: role and separators."""
INLINE_BYTES = 2048
"""Longer texts are tokenized in a thread: the event loop carries everybody's streams."""


@dataclass(frozen=True, slots=True)
class PromptTexts:
    """What a request's prompts consist of.

    Each of `prompts` is the texts of one prompt or the number of its token ids; `messages` counts those of a chat;
    `opaque` says that there are parts whose tokens no text tells (images, embeddings).
    """

    prompts: tuple[tuple[str, ...] | int, ...]
    messages: int = 0
    is_chat: bool = False
    opaque: bool = False


@dataclass(frozen=True, slots=True)
class PromptSize:
    """Tokens of the longest prompt; `exact` is False for an upper bound."""

    tokens: int
    exact: bool


class TextCounter(Protocol):
    """Counts the tokens of a text."""

    exact: bool

    def count(self, text: str) -> int:
        """Return the tokens, or an upper bound of them."""


class ByteBound:
    """The bound without a tokenizer."""

    exact = False

    def count(self, text: str) -> int:
        """Return the length in UTF-8."""
        return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


class TokenizerError(Exception):
    """A tokenizer file cannot be used; the message names it."""


class TokenizerFile:
    """A `tokenizer.json`."""

    exact = True

    def __init__(self, path: Path) -> None:
        """Raises TokenizerError."""
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exceptions
            raise TokenizerError(f"{path}: {error}") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def count(self, text: str) -> int:
        """Return the number of tokens. The library releases the interpreter while it works."""
        return len(self._tokenizer.encode(text.encode(errors="replace").decode(), add_special_tokens=False).ids)


BYTE_BOUND = ByteBound()


async def measure(texts: PromptTexts, counter: TextCounter) -> PromptSize | None:
    """Return the size of the longest prompt; None where no text tells."""
    if texts.opaque:
        return None
    if counter.exact and _length(texts) > INLINE_BYTES:
        return await asyncio.to_thread(_measure, texts, counter)
    return _measure(texts, counter)


def _measure(texts: PromptTexts, counter: TextCounter) -> PromptSize:
    sizes = (prompt if isinstance(prompt, int) else _count(prompt, counter) for prompt in texts.prompts)
    longest = max(sizes, default=0)
    given = all(isinstance(prompt, int) for prompt in texts.prompts)
    if texts.is_chat:
        return PromptSize(longest + TEMPLATE_TOKENS + MESSAGE_TOKENS * texts.messages, exact=False)
    return PromptSize(longest if given else longest + FRAME_TOKENS, exact=given)


def _count(parts: Iterable[str], counter: TextCounter) -> int:
    return sum(counter.count(part) for part in parts)


def _length(texts: PromptTexts) -> int:
    return sum(len(part) for prompt in texts.prompts if not isinstance(prompt, int) for part in prompt)
