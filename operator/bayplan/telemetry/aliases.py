"""What demand is computed from, and under which names engines of different versions report it.

Names are facts read from vLLM: `vllm/v1/metrics/loggers.py` of 0.10 to 0.33, and of 0.6 for the older ones. The first
name that a process reports counts, so the newest stands first. Collectors that do not take a colon write `_` for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Signal(StrEnum):
    """One number that an engine reports. The value is how messages call it."""

    RUNNING = "running requests"
    WAITING = "waiting requests"
    PROMPT_TOKENS = "prompt tokens served"
    OUTPUT_TOKENS = "output tokens served"
    PROMPT_LENGTH_SUM = "sum of prompt lengths"
    PROMPT_LENGTH_COUNT = "requests with a prompt length"
    OUTPUT_LENGTH_SUM = "sum of output lengths"
    OUTPUT_LENGTH_COUNT = "requests with an output length"
    OUTPUT_LIMIT_SUM = "sum of output limits"
    KV_USAGE = "share of the KV cache in use"
    PROCESS_START = "start of the process"


def _spellings(*names: str) -> tuple[str, ...]:
    return (*names, *(name.replace(":", "_") for name in names if ":" in name))


@dataclass(frozen=True, slots=True)
class Aliases:
    """Names by signal; of those that a process reports the first counts. Raises ValueError for a name of two signals.

    `names` is every name that is looked for.
    """

    by_signal: Mapping[Signal, tuple[str, ...]]
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        meant: dict[str, Signal] = {}
        for signal, names in self.by_signal.items():
            for name in names:
                if meant.setdefault(name, signal) is not signal:
                    raise ValueError(f"{name} cannot be both {meant[name].value} and {signal.value}")
        object.__setattr__(self, "names", tuple(meant))

    def preferring(self, given: Mapping[Signal, Sequence[str]]) -> "Aliases":
        """Return aliases in which the given names stand before these. Raises ValueError as the class does."""
        return Aliases(
            {signal: tuple(dict.fromkeys((*given.get(signal, ()), *names))) for signal, names in self.by_signal.items()}
        )


_VLLM: Final[Mapping[Signal, tuple[str, ...]]] = MappingProxyType(
    {
        Signal.RUNNING: _spellings("vllm:num_requests_running"),
        Signal.WAITING: _spellings("vllm:num_requests_waiting"),
        Signal.PROMPT_TOKENS: _spellings("vllm:prompt_tokens_total", "vllm:prompt_tokens"),
        Signal.OUTPUT_TOKENS: _spellings("vllm:generation_tokens_total", "vllm:generation_tokens"),
        Signal.PROMPT_LENGTH_SUM: _spellings("vllm:request_prompt_tokens_sum"),
        Signal.PROMPT_LENGTH_COUNT: _spellings("vllm:request_prompt_tokens_count"),
        Signal.OUTPUT_LENGTH_SUM: _spellings("vllm:request_generation_tokens_sum"),
        Signal.OUTPUT_LENGTH_COUNT: _spellings("vllm:request_generation_tokens_count"),
        Signal.OUTPUT_LIMIT_SUM: _spellings("vllm:request_params_max_tokens_sum"),
        # 0.10 reports both, 0.33 the first alone.
        Signal.KV_USAGE: _spellings("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        Signal.PROCESS_START: ("process_start_time_seconds",),
    }
)
VLLM: Final = Aliases(_VLLM)
"""Names by signal, newest first."""

NEEDED: Final = (Signal.RUNNING, Signal.WAITING, Signal.PROMPT_TOKENS, Signal.OUTPUT_TOKENS)
"""Without these nothing is known of an engine's demand."""
