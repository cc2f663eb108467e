"""Does a real engine page its KV cache as `bayplan fit` says: one start per family of models, with dummy weights.

The engine gets 1 GiB of cache. Blocks must be equal, tokens within one block per group. Bayplan's side is its command
line, as a user calls it.
"""

import asyncio
import json
import os
import re
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e import realengine
from e2e.realengine.arguments import ENGINE_ENVIRONMENT, KV_CACHE_SPACE_GIB

FAMILIES = Path(__file__).with_name("cache_families.json")
STARTER = Path(__file__).with_name("startcache.py")
START_SECONDS = 400.0
"""An engine takes about a minute on two quiet cores; kernels for latent attention have taken more than three."""
FIT_SECONDS = 60.0
MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS = 16, 1024
_PRINTED = re.compile(r"KV cache size: ([\d,]+) tokens")

Say = Callable[[str], None]


class CachePagesError(RuntimeError):
    """An engine did not start, or the command line had no answer; the message has the end of the output."""


@dataclass(frozen=True)
class Pages:
    """How a cache of 1 GiB is paged."""

    blocks: int
    tokens: int


@dataclass(frozen=True)
class Family:
    """A configuration and the flags that page its cache."""

    name: str
    config: Mapping[str, Any]
    block_size: int
    max_model_len: int
    flags: Mapping[str, str]
    """Further flags of the engine, by their Python names."""
    reported: Pages
    """What the engine said when the family was added: what is planned can be held against it without an engine."""


@dataclass(frozen=True)
class CachePages:
    """One family, both sides. `tolerance` is one block of each group, in tokens."""

    family: str
    engine: Pages
    planned: Pages
    tolerance: int

    @property
    def equal(self) -> bool:
        """Whether blocks agree exactly and tokens within the tolerance."""
        near = abs(self.engine.tokens - self.planned.tokens) <= self.tolerance
        return self.engine.blocks == self.planned.blocks and near


def read_families(path: Path = FAMILIES) -> list[Family]:
    """The families of the data file."""
    entries = json.loads(path.read_text(encoding="utf-8"))["families"]
    return [
        Family(
            one["name"],
            one["config"],
            one["block_size"],
            one["max_model_len"],
            one.get("flags", {}),
            Pages(**one["reported"]),
        )
        for one in entries
    ]


async def _run(command: list[str], *, environment: Mapping[str, str], seconds: float, what: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *command, env=dict(environment), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), seconds)
    except TimeoutError:
        raise CachePagesError(f"{what} did not end within {seconds:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, output.decode(errors="replace")


async def started_pages(family: Family, folder: Path) -> Pages:
    """Start the engine on the model in `folder` and return how it pages 1 GiB."""
    flags = {
        "max_model_len": family.max_model_len,
        "block_size": family.block_size,
        "max_num_seqs": MAX_NUM_SEQS,
        "max_num_batched_tokens": MAX_NUM_BATCHED_TOKENS,
        "dtype": "bfloat16",
        "async_scheduling": False,
        **family.flags,
    }
    # -P: this folder's requests.py must not stand for the package of that name inside the engine.
    command = [str(realengine.installed().python), "-P", str(STARTER), str(folder), json.dumps(flags)]
    environment = {**os.environ, **ENGINE_ENVIRONMENT}
    code, output = await _run(
        command, environment=environment, seconds=START_SECONDS, what=f"the engine of {family.name}"
    )
    lines = [line for line in output.splitlines() if line.startswith('{"blocks"')]
    if code or not lines:
        raise CachePagesError(f"{family.name}: the engine did not start: {output[-1500:]}")
    found, printed = json.loads(lines[-1]), _PRINTED.findall(output)
    tokens = int(printed[-1].replace(",", "")) if printed else found["tokens"]
    if found["blocks"] is None or tokens is None:
        raise CachePagesError(f"{family.name}: the engine says nothing of its cache: {output[-1500:]}")
    return Pages(int(found["blocks"]), int(tokens))


def fit_arguments(family: Family, folder: Path) -> list[str]:
    """Command line of `bayplan` that asks for the same."""
    return [
        *("fit", "--json", "--config", str(folder / "config.json")),
        *("--gpu", "CPU", "--gpu-memory-gib", "64", "--engine-version", realengine.ENGINE_VERSION),
        *("--kv-cache-memory-bytes", str(KV_CACHE_SPACE_GIB * 2**30), "--tensor-parallel-size", "1"),
        *("--max-model-len", str(family.max_model_len), "--block-size", str(family.block_size)),
        *("--max-num-seqs", str(MAX_NUM_SEQS), "--max-num-batched-tokens", str(MAX_NUM_BATCHED_TOKENS)),
        *("--dtype", "bfloat16", "--no-async-scheduling", "--enforce-eager"),
        *(text for name, value in family.flags.items() for text in (f"--{name.replace('_', '-')}", value)),
    ]


def read_fit(output: str) -> tuple[Pages, int]:
    """Pages of an answer of `bayplan fit`, and one block of each group in tokens."""
    cache = json.loads(output)["kv"]
    return Pages(cache["blocks"], cache["printedTokens"]), sum(group["blockTokens"] for group in cache["groups"])


async def planned_pages(family: Family, folder: Path) -> tuple[Pages, int]:
    """What `bayplan fit` says of the same, and one block of each group in tokens."""
    command = [sys.executable, "-m", "bayplan", *fit_arguments(family, folder)]
    code, output = await _run(
        command, environment=os.environ, seconds=FIT_SECONDS, what=f"bayplan fit of {family.name}"
    )
    if code not in (0, 1):
        raise CachePagesError(f"{family.name}: bayplan fit has no answer: {output[-1500:]}")
    return read_fit(output)


async def cache_pages(
    *,
    say: Say,
    started: Callable[[Family, Path], Awaitable[Pages]] = started_pages,
    families: list[Family] | None = None,
) -> list[CachePages]:
    """Start every family, one after the other, and compare. Raises CachePagesError when all had their turn."""
    found, failures = [], []
    for family in read_families() if families is None else families:
        with tempfile.TemporaryDirectory(prefix="bayplan-cache-") as place:
            folder = Path(place)
            (folder / "config.json").write_text(json.dumps(family.config))
            try:
                planned, tolerance = await planned_pages(family, folder)
                engine = await started(family, folder)
            except CachePagesError as error:
                say(f"{family.name}: failed")
                failures.append(str(error))
                continue
        one = CachePages(family.name, engine, planned, tolerance)
        say(
            f"{family.name}: {engine.blocks} blocks, {engine.tokens} tokens; planned {planned.blocks}, {planned.tokens}"
        )
        found.append(one)
    if failures:
        raise CachePagesError("\n".join(failures))
    return found
