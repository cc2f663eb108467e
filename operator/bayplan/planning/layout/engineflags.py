"""vLLM's flags of a spec as the memory plan takes them: the spec's own fields, and the user's further arguments.

Arguments are read as argparse does: `--flag=value` or `--flag value`, underscores for dashes, the last one counts.
What cannot be read is left to the engine, which will refuse it.
"""

import json
import re
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.planning.memory.adapters import AdapterSlots
from bayplan.planning.memory.request import EngineFlags
from bayplan.planning.memory.versions import EngineVersion
from bayplan.planning.numbers import InvalidInput

_TAG = re.compile(r"(?:^|/)vllm-(?:openai|cpu)[-a-z0-9_.]*:v?(\d+\.\d+(?:\.\d+)?(?:\.?(?:rc|dev)\d+)*)")
_SWITCHES = frozenset(
    {
        "--enforce-eager",
        "--enable-lora",
        *("--enable-prefix-caching", "--no-enable-prefix-caching", "--async-scheduling", "--no-async-scheduling"),
    }
)
_DTYPES = frozenset({"bfloat16", "float16", "half", "float32", "float"})
_STATE_DTYPES = frozenset({"bfloat16", "float16", "float32"})
_DEFAULT_LORAS, _DEFAULT_LORA_RANK = 1, 16


def read_arguments(arguments: Sequence[str]) -> dict[str, str]:
    """Flag → value of command-line arguments, "" for a switch; names with dashes."""
    found: dict[str, str] = {}
    pending = ""
    for argument in arguments:
        if not argument.startswith("-"):
            if pending:
                found[pending] = argument
            pending = ""
            continue
        name, *rest = re.split(r"[= ]", argument, maxsplit=1)
        flag = name.replace("_", "-")
        found[flag] = rest[0] if rest else ""
        pending = "" if rest or flag in _SWITCHES else flag
    return found


def image_version(image: str) -> EngineVersion | None:
    """The release that the tag of vLLM's own image names; None where it names none."""
    found = _TAG.search(image)
    if found is None:
        return None
    try:
        return EngineVersion.parse(found[1])
    except InvalidInput:
        return None


def engine_flags(spec: InferenceModelSpec) -> EngineFlags:
    """The flags under which Bayplan starts the engine of `spec`."""
    engine = spec.engine
    return _flags(
        image=engine.image,
        args=engine.args,
        length=engine.max_model_len,
        sequences=engine.max_num_seqs,
        utilization=Fraction(engine.gpu_memory_utilization),
        cache=engine.kv_cache_dtype,
    )


@lru_cache(maxsize=512)
def _flags(
    *, image: str, args: tuple[str, ...], length: int, sequences: int | None, utilization: Fraction, cache: str
) -> EngineFlags:
    given = read_arguments(args)
    return EngineFlags(
        version=image_version(image),
        max_model_len=length,
        max_num_seqs=sequences,
        max_num_batched_tokens=_number(given, "--max-num-batched-tokens"),
        gpu_memory_utilization=utilization,
        kv_cache_dtype=cache,
        mamba_cache_dtype=_dtype(given, "--mamba-cache-dtype", _STATE_DTYPES),
        mamba_ssm_cache_dtype=_dtype(given, "--mamba-ssm-cache-dtype", _STATE_DTYPES),
        dtype=_dtype(given, "--dtype", _DTYPES),
        block_size=_number(given, "--block-size"),
        kv_cache_memory_bytes=_number(given, "--kv-cache-memory-bytes"),
        enforce_eager="--enforce-eager" in given,
        enable_prefix_caching=_switch(given, "enable-prefix-caching"),
        async_scheduling=_switch(given, "async-scheduling"),
        speculative_tokens=_speculative(given.get("--speculative-config", "")),
        attention_backend=given.get("--attention-backend", ""),
        adapters=_adapters(given),
    )


def _switch(given: dict[str, str], name: str) -> bool | None:
    if f"--{name}" in given:
        return True
    return False if f"--no-{name}" in given else None


def _number(given: dict[str, str], flag: str) -> int | None:
    text = given.get(flag, "")
    return int(text) if re.fullmatch(r"[1-9]\d{0,14}", text) else None


def _dtype(given: dict[str, str], flag: str, known: frozenset[str]) -> str:
    name = given.get(flag, "auto")
    return name if name in known else "auto"


def _speculative(text: str) -> int:
    """Tokens that the model's own prediction layers propose; a separate draft's own size is not known here."""
    try:
        stated = json.loads(text) if len(text) < 4096 else None
    except ValueError:
        return 0
    if not isinstance(stated, dict) or "mtp" not in str(stated.get("method", "")):
        return 0
    tokens = stated.get("num_speculative_tokens")
    return tokens if type(tokens) is int and 0 < tokens <= 64 else 0


def _adapters(given: dict[str, str]) -> AdapterSlots | None:
    if "--enable-lora" not in given:
        return None
    return AdapterSlots(
        _number(given, "--max-loras") or _DEFAULT_LORAS, _number(given, "--max-lora-rank") or _DEFAULT_LORA_RANK
    )
