"""What the environment decides about a simulated engine: speed, load times, capacity and faults.

| variable `ENGINESIM_…` | default | meaning |
|---|---|---|
| `LOAD_SECONDS`, `COMPILE_SECONDS`, `CACHE_SECONDS` | 0 | stages of the cold start: weights, compilation, KV cache |
| `LISTEN_EARLY` | false | listen at once: `/health` answers 200 while no model is listed yet |
| `KV_TOKENS` | 120000 | KV cache in tokens (per data-parallel rank) |
| `KV_BYTES_PER_TOKEN` | 131072 | only reported: `kv_cache_memory_bytes` of `vllm:cache_config_info` |
| `STEP_SECONDS` | 0.012 | duration of a step |
| `SEQUENCE_SECONDS` | 0.00006 | added for each sequence of a step |
| `PREFILL_TOKENS_PER_SECOND` | 14000 | prompt tokens lengthen a step by this rate |
| `KV_TOKEN_SECONDS` | 0 | added for each token of context that a step reads |
| `OUTPUT_TOKENS_MEDIAN` | 200 | median of the length at which the model stops by itself (log-normal) |
| `SEED` | 0 | output text and the choice of the requests that a share hits |
| `VERSION` | 0.32.0 | answered by `/version` |
| `GROUP_JOIN_SECONDS` | 600 | how long a group of nodes waits to be complete before it fails |
| `OOM_AT_START` | | `error`: no room for the KV cache, exit 1; `killed`: SIGKILL while loading (a kubelet shows 137) |
| `SLOW_TTFT_FACTOR`, `SLOW_TTFT_SHARE` | 1, 1 | times to the first token of this share of requests are multiplied |
| `SLOW_TPOT_FACTOR`, `SLOW_TPOT_SHARE` | 1, 1 | the same for the times between tokens |
| `SLOW_STEP_FACTOR` | 1 | every step takes this many times as long: a slow GPU |
| `ERROR_SHARE`, `ERROR_STATUS` | 0, 500 | this share of generations is answered with this status |
| `HANG_REQUESTS` | 0 | the next N generations are accepted and never answered |
| `CRASH_AFTER_REQUESTS` | | exit 1 on receipt of the N-th generation from now on |
| `CRASH_AFTER_SECONDS` | | exit 1 this many seconds after start-up |
| `METRICS` | | `cut`: `/metrics` closes the connection without an answer; `nan`: every value is NaN |

The rows from `SLOW_TTFT_FACTOR` on can be changed in a running engine: `POST /_enginesim/faults` with their names in
lower case; fields that are not named keep their value, `GET` shows all.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bayplan.simulation.speed import SpeedModel

PREFIX = "ENGINESIM_"

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Factor = Annotated[float, Field(ge=1, allow_inf_nan=False)]


class Faults(BaseModel):
    """What can be made to go wrong, at start by the environment and later over HTTP."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    slow_ttft_factor: Factor = 1
    slow_ttft_share: Share = 1
    slow_tpot_factor: Factor = 1
    slow_tpot_share: Share = 1
    slow_step_factor: Factor = 1
    error_share: Share = 0
    error_status: Annotated[int, Field(ge=400, le=599)] = 500
    hang_requests: Annotated[int, Field(ge=0)] = 0
    crash_after_requests: Annotated[int, Field(ge=1)] | None = None
    crash_after_seconds: Seconds | None = None
    metrics: Literal["", "cut", "nan"] = ""


class Settings(Faults):
    """Everything that the environment sets; see the table in the module's docstring."""

    load_seconds: Seconds = 0
    compile_seconds: Seconds = 0
    cache_seconds: Seconds = 0
    listen_early: bool = False
    kv_tokens: Annotated[int, Field(ge=1)] = 120_000
    kv_bytes_per_token: Annotated[int, Field(ge=1)] = 131_072
    step_seconds: Seconds = 0.012
    sequence_seconds: Seconds = 0.000_06
    prefill_tokens_per_second: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 14_000
    kv_token_seconds: Seconds = 0
    output_tokens_median: Annotated[int, Field(ge=1)] = 200
    seed: int = 0
    version: str = "0.32.0"
    group_join_seconds: Seconds = 600
    oom_at_start: Literal["", "error", "killed"] = ""

    def speed(self, faults: Faults) -> SpeedModel:
        """The speed model of the engine's steps under these faults."""
        return SpeedModel(
            seconds_per_step=self.step_seconds,
            seconds_per_sequence=self.sequence_seconds,
            seconds_per_prefill_token=1 / self.prefill_tokens_per_second,
            seconds_per_kv_token=self.kv_token_seconds,
            decode_factor=faults.slow_step_factor,
            prefill_factor=faults.slow_step_factor,
        )

    def faults(self) -> Faults:
        """The part that can change at run time."""
        return Faults(**{name: getattr(self, name) for name in Faults.model_fields})


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Settings from variables that start with `ENGINESIM_`; an empty value means the default.

    Raises ValueError that names the variable: unknown ones are refused too, since a misspelt fault injects nothing.
    """
    given = {
        name.removeprefix(PREFIX).lower(): value
        for name, value in environment.items()
        if name.startswith(PREFIX) and value != ""
    }
    try:
        return Settings.model_validate(given)
    except ValidationError as error:
        raise ValueError(describe(error, prefix=PREFIX)) from None


def describe(error: ValidationError, *, prefix: str = "") -> str:
    """One line per wrong field: its name, what was given, what would do."""
    lines = []
    for item in error.errors(include_url=False, include_context=False):
        name = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            known = ", ".join(Faults.model_fields if not prefix else Settings.model_fields)
            lines.append(f"{prefix}{name.upper() if prefix else name}: unknown; known are {known}")
        else:
            lines.append(f"{prefix}{name.upper() if prefix else name}: {item['msg']}, got {item['input']!r}")
    return "; ".join(lines)
