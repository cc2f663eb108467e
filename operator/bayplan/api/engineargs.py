"""What users may not hand to the engine by hand: flags and variables that would contradict Bayplan's own fields.

A second value for a flag that Bayplan sets could contradict the memory plan, the layout or the probes, so every
spelling that vLLM's parser takes for such a flag is refused: `--flag value`, `--flag=value`, underscores for dashes,
short forms and second names, and any abbreviation, because argparse accepts a unique prefix. Variables by which vLLM
reads the same settings are refused for the same reason.
"""

import re
from types import MappingProxyType
from typing import Annotated, Final

from pydantic import StringConstraints

from bayplan.api.rules import Rule

RESERVED_FLAGS: Final = MappingProxyType(
    {
        "--model": "spec.model.uri",
        "--revision": "spec.model.revision",
        "--served-model-name": "spec.model.name",
        "--max-model-len": "spec.engine.maxModelLen",
        "--max-num-seqs": "spec.engine.maxNumSeqs",
        "--gpu-memory-utilization": "spec.engine.gpuMemoryUtilization",
        "--device-memory-utilization": "spec.engine.gpuMemoryUtilization",
        "--kv-cache-dtype": "spec.engine.kvCacheDtype",
        "--tensor-parallel-size": "spec.parallelism.tensor",
        "-tp": "spec.parallelism.tensor",
        "--pipeline-parallel-size": "spec.parallelism.pipeline",
        "-pp": "spec.parallelism.pipeline",
        "--prefill-context-parallel-size": "spec.parallelism.tensor",
        "-pcp": "spec.parallelism.tensor",
        "--data-parallel-size": "spec.parallelism.data",
        "-dp": "spec.parallelism.data",
        "--enable-expert-parallel": "spec.parallelism.expert",
        "--no-enable-expert-parallel": "spec.parallelism.expert",
        "-ep": "spec.parallelism.expert",
        "--decode-context-parallel-size": "spec.parallelism.decodeContext",
        "--device-ids": "",
        "--shutdown-timeout": "spec.drain.deadlineSeconds",
        "--host": "",
        "--port": "",
        "--uds": "",
        "--grpc": "",
        "--api-key": "",
        "--ssl-keyfile": "",
        "--ssl-certfile": "",
        "--nnodes": "",
        "-n": "",
        "--node-rank": "",
        "-r": "",
        "--master-addr": "",
        "--master-port": "",
        "--headless": "",
        "--config": "",
    }
)
"""Engine flags that Bayplan owns, with the field to use instead; empty: nothing to set, Bayplan needs it its way."""

RESERVED_BEGINNINGS: Final = MappingProxyType(
    {
        "--data-parallel-": "--data-parallel-size",
        "-dp": "-dp",
        "-dcp": "--decode-context-parallel-size",
        "-n": "-n",
        "-r": "-r",
    }
)
"""What no flag may begin with, and the reserved flag that it is taken for: a family of flags that each ask for further
engines (`--data-parallel-size-local`, `-dpl`), one-letter flags, whose value may follow without a space, and a short
form whose beginning is another flag (`-dc`)."""

RESERVED_ENV: Final = (
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "AMD_VISIBLE_DEVICES",
    "VLLM_HOST_IP",
    "VLLM_PORT",
    "VLLM_DP_SIZE",
    "VLLM_DP_RANK",
    "VLLM_DP_RANK_LOCAL",
    "VLLM_DP_MASTER_IP",
    "VLLM_DP_MASTER_PORT",
    "VLLM_API_KEY",
)
"""Variables that would show a container GPUs it was not given, move the engine off its address, make it one of several,
or lock warm-up and gateway out."""


def reserved_flag(argument: str) -> str | None:
    """Return the reserved flag that the engine would take `argument` for, or None."""
    name = re.split(r"[= ]", argument, maxsplit=1)[0].replace("_", "-")
    if not name.startswith("-") or name in ("-", "--"):
        return None
    abbreviated = next((flag for flag in RESERVED_FLAGS if flag.startswith(name)), None)
    return abbreviated or next((flag for start, flag in RESERVED_BEGINNINGS.items() if name.startswith(start)), None)


def _explain(argument: str) -> str:
    flag = reserved_flag(argument) or ""
    instead = RESERVED_FLAGS[flag]
    return f"{flag} is set by Bayplan: " + (f"use {instead} instead" if instead else "remove it")


def _flag_rule() -> Rule:
    # The outer list of one binds the name once; CEL has no other way to name a value.
    name = "self.split('=', 2)[0].split(' ', 2)[0].replace('_', '-')"
    flags = ", ".join(f"'{flag}'" for flag in RESERVED_FLAGS)
    beginnings = ", ".join(f"'{start}'" for start in RESERVED_BEGINNINGS)
    return Rule(
        expression=f"!self.startsWith('-') || [{name}].all(n, n in ['-', '--'] || "
        f"(![{beginnings}].exists(f, n.startsWith(f)) && ![{flags}].exists(f, f.startsWith(n))))",
        message="must not be a flag, nor abbreviate one, that Bayplan sets from its own fields: "
        + ", ".join(RESERVED_FLAGS)
        + ", or another --data-parallel flag",
        holds=lambda argument: reserved_flag(argument) is None,
        explain=_explain,
    )


EngineArgument = Annotated[str, StringConstraints(min_length=1, max_length=512), _flag_rule()]
"""One argument of the engine's command line."""

EnvName = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", min_length=1, max_length=128),
    Rule(
        expression="!(self in [" + ", ".join(f"'{name}'" for name in RESERVED_ENV) + "])",
        message="must not be a variable that decides which GPUs, address, ranks or key the engine gets: "
        + ", ".join(RESERVED_ENV),
        holds=lambda name: name not in RESERVED_ENV,
    ),
]
"""Name of an environment variable of the engine."""
