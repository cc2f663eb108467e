"""What users may not hand to the engine by hand: flags and variables that would contradict Bayplan's own fields.

A second value for a flag that Bayplan sets could contradict the memory plan, the layout or the probes, so every
spelling that vLLM's parser takes for such a flag is refused: `--flag value`, `--flag=value`, underscores for dashes,
and any abbreviation, because argparse accepts a unique prefix.
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
        "--kv-cache-dtype": "spec.engine.kvCacheDtype",
        "--tensor-parallel-size": "spec.parallelism.tensor",
        "-tp": "spec.parallelism.tensor",
        "--pipeline-parallel-size": "spec.parallelism.pipeline",
        "-pp": "spec.parallelism.pipeline",
        "--data-parallel-size": "spec.replicas",
        "-dp": "spec.replicas",
        "--shutdown-timeout": "spec.drain.deadlineSeconds",
        "--host": "",
        "--port": "",
        "--uds": "",
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

RESERVED_ENV: Final = (
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "AMD_VISIBLE_DEVICES",
    "VLLM_HOST_IP",
    "VLLM_PORT",
)
"""Variables that would show a container GPUs it was not given, or move the engine off its address."""


def reserved_flag(argument: str) -> str | None:
    """Return the reserved flag that the engine would take `argument` for, or None."""
    name = re.split(r"[= ]", argument, maxsplit=1)[0].replace("_", "-")
    if not name.startswith("-") or name in ("-", "--"):
        return None
    for flag in RESERVED_FLAGS:
        if flag.startswith(name) or (len(flag) == 2 and name.startswith(flag)):
            return flag
    return None


def _explain(argument: str) -> str:
    flag = reserved_flag(argument) or ""
    instead = RESERVED_FLAGS[flag]
    return f"{flag} is set by Bayplan: " + (f"use {instead} instead" if instead else "remove it")


def _flag_rule() -> Rule:
    # The outer list of one binds the name once; CEL has no other way to name a value.
    name = "self.split('=', 2)[0].split(' ', 2)[0].replace('_', '-')"
    flags = ", ".join(f"'{flag}'" for flag in RESERVED_FLAGS)
    short = ", ".join(f"'{flag}'" for flag in RESERVED_FLAGS if len(flag) == 2)
    return Rule(
        expression=f"!self.startsWith('-') || [{name}].all(n, n in ['-', '--'] || "
        f"(![{short}].exists(f, n.startsWith(f)) && ![{flags}].exists(f, f.startsWith(n))))",
        message="must not be a flag, nor abbreviate one, that Bayplan sets from its own fields: "
        + ", ".join(RESERVED_FLAGS),
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
        message="must not be a variable that decides which GPUs or address the engine gets: " + ", ".join(RESERVED_ENV),
        holds=lambda name: name not in RESERVED_ENV,
    ),
]
"""Name of an environment variable of the engine."""
