"""Tokens and text without a model: one token is one byte, and the answer follows from the prompt.

The stand-in tokenizer gives every UTF-8 byte its value as token id. Token counts are therefore some four times those of
a real tokenizer for English, and exact: the prompt's count is its byte count, and a token of output is one ASCII
character (the end-of-sequence token is none). Chat messages are laid out as `role: content` lines and `assistant: `, so
that the next turn of a conversation starts with the tokens of this one, as a prefix cache expects.
"""

import hashlib
import math
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

_WORDS = tuple(
    word
    for line in (
        "anchor ballast bay berth bollard bow bridge buoy cargo chart compass container crane current deck dock draft",
        "drift fender galley harbour hatch hawser heading helm hold hull keel knot lading lantern lashing ledger line",
        "load manifest mast moor pilot port quay ramp rigging row rudder sail shoal slot spar stack starboard stern",
        "stow tally tide tier trim tug twistlock vessel voyage wake watch wharf winch yard",
    )
    for word in line.split()
)
_LENGTH_SPREAD = 0.6  # sigma of the log-normal output lengths


def tokenize(text: str) -> list[int]:
    """Token ids of a text; an unpaired surrogate becomes three bytes."""
    return list(text.encode("utf-8", "surrogatepass"))


def layout_chat(messages: Sequence[tuple[str, str]]) -> str:
    """The prompt text of (role, content) messages."""
    return "".join(f"{role}: {content}\n" for role, content in messages) + "assistant: "


@dataclass(frozen=True, slots=True)
class PlannedOutput:
    """What a sequence will say: `text` holds one character per token, up to the limit or the natural end.

    `tokens` is where generation ends: at a stop string, at the end-of-sequence token (`eos`, a token without a
    character), or None when neither comes before the limit. `stop` is the stop string met.
    """

    text: str
    tokens: int | None
    eos: bool
    stop: str | None


def plan_output(
    prompt: Sequence[int],
    *,
    seed: int,
    variant: str,
    limit: int,
    median_tokens: int,
    ignore_eos: bool,
    min_tokens: int,
    stops: Sequence[str],
) -> PlannedOutput:
    """The output for a prompt: a pure function of its arguments, longer limits extending the same text.

    `variant` tells apart answers that sampling would make different (request seed, choice number); `limit` is the most
    tokens wanted.
    """
    digest = hashlib.blake2b(array("q", prompt).tobytes(), digest_size=8, key=f"{seed}/{variant}".encode()[:64])
    source = random.Random(digest.digest())
    natural = max(1, min_tokens + 1, round(median_tokens * math.exp(source.gauss(0, _LENGTH_SPREAD))))
    characters = limit if ignore_eos else min(limit, natural - 1)
    words: list[str] = []
    length = 0
    while length < characters:
        word = source.choice(_WORDS)
        words.append(word)
        length += len(word) + 1
    text = " ".join(words)[:characters].ljust(characters)
    met: tuple[int, str] | None = None
    for stop in stops:
        found = text.find(stop, max(0, min_tokens - len(stop) + 1))
        if found >= 0 and (met is None or found + len(stop) < met[0]):
            met = (found + len(stop), stop)
    if met is not None:
        return PlannedOutput(text[: met[0]], met[0], eos=False, stop=met[1])
    if not ignore_eos and natural <= limit:
        return PlannedOutput(text, natural, eos=True, stop=None)
    return PlannedOutput(text, None, eos=False, stop=None)
