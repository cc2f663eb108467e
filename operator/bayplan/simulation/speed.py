"""How long one engine step takes: a linear model of the batch, with factors for an engine that runs slow."""

import math
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class SpeedModel:
    """Step time of an iteration-level scheduler.

    `decode_factor * (base + per_sequence * sequences + per_kv_token * kv_tokens) + prefill_factor * per_prefill_token *
    prefill_tokens`, in seconds. The defaults describe one 8B-class model on one data-centre GPU: a decode step of
    12 ms plus 0.06 ms per sequence, and 14,000 prefilled tokens a second. The factors slow the parts that a client sees
    as TPOT and, for long prompts, as TTFT; 1 is the healthy engine.

    Raises ValueError for a negative or non-finite number, and for a model in which a step could take no time.
    """

    seconds_per_step: float = 0.012
    seconds_per_sequence: float = 0.000_06
    seconds_per_prefill_token: float = 1 / 14_000
    seconds_per_kv_token: float = 0.0
    decode_factor: float = 1.0
    prefill_factor: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not math.isfinite(value) or value < 0:
                raise ValueError(f"{field.name}: {value!r} is not a finite number >= 0")
        if self.step_seconds(sequences=1, prefill_tokens=1, kv_tokens=1) <= 0:
            raise ValueError("seconds_per_step: a step would take no time; give at least one part of it a duration")

    def step_seconds(self, *, sequences: int, prefill_tokens: int, kv_tokens: int) -> float:
        """Seconds of one step that runs `sequences`, prefills `prefill_tokens` and reads `kv_tokens` of context."""
        decode = self.seconds_per_step + self.seconds_per_sequence * sequences + self.seconds_per_kv_token * kv_tokens
        return self.decode_factor * decode + self.prefill_factor * self.seconds_per_prefill_token * prefill_tokens
