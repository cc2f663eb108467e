"""What goes into a simulated engine and what comes out of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class FinishReason(StrEnum):
    """Why a sequence ended, in the words of the OpenAI API (`abort` is vLLM's)."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Limits of one engine, under vLLM's names.

    `num_blocks` is what sequences can use; `max_num_batched_tokens` bounds the tokens of one step (decodes first, then
    chunks of prompts). Raises ValueError where vLLM would refuse to start: a pool that cannot hold one sequence of
    `max_model_len`, or a step too small for one token of every sequence.
    """

    num_blocks: int
    block_size: int = 16
    max_model_len: int = 8192
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048

    def __post_init__(self) -> None:
        for name in ("num_blocks", "block_size", "max_model_len", "max_num_seqs", "max_num_batched_tokens"):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"{name}: {value} is not at least 1")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens: {self.max_num_batched_tokens} is below max_num_seqs {self.max_num_seqs}; "
                f"a step must hold one token of every sequence"
            )
        if self.num_blocks * self.block_size < self.max_model_len:
            raise ValueError(
                f"max_model_len: {self.max_model_len} tokens do not fit the KV cache of "
                f"{self.num_blocks * self.block_size} tokens ({self.num_blocks} blocks of {self.block_size})"
            )


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One sequence to generate.

    `output_tokens` is where the model would stop by itself (the end-of-sequence token counts), None for never; the
    engine stops at `max_tokens` or at the model length if that comes first. `block_hashes` are the keys of the full
    blocks of prompt *and* output (`kv_blocks.chain_block_hashes`); a shorter list caches less, an empty one nothing.
    """

    request_id: str
    prompt_tokens: int
    max_tokens: int
    output_tokens: int | None = None
    block_hashes: Sequence[bytes] = ()

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "max_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} is not at least 1")
        if self.output_tokens is not None and self.output_tokens < 1:
            raise ValueError(f"output_tokens: {self.output_tokens} is not at least 1; None means no natural end")


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """One sequence's account; times are on the caller's clock, None for a stage that it never reached."""

    request_id: str
    reason: FinishReason
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    preemptions: int
    arrival_seconds: float
    scheduled_seconds: float | None
    first_token_seconds: float | None
    finished_seconds: float


@dataclass(frozen=True, slots=True)
class FirstToken:
    """A sequence that got its first token, and how much of its prompt the prefix cache had."""

    request_id: str
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step did. Its tokens exist from `started_seconds + duration_seconds` on.

    A sequence emits at most one token in a step: `emitted` names those that did (empty when not asked for),
    `first_tokens` those for which it was the first. `finished` are among the emitting ones.
    """

    started_seconds: float
    duration_seconds: float
    prefill_tokens: int
    generated_tokens: int
    emitted: Sequence[str]
    admitted: Sequence[str]
    first_tokens: Sequence[FirstToken]
    preempted: Sequence[str]
    finished: Sequence[FinishedRequest]
