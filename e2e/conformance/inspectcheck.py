"""What an inspection pod reads of a model on a hub, by the client library of the engine's image.

The script is run as the pod runs it, in the real engine's environment, against a hub on loopback that asks for a token.
"""

import asyncio
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e import realengine
from e2e.conformance.engines import REPOSITORY
from e2e.conformance.hub import checkpoint, hub

SCRIPT = REPOSITORY / "operator/bayplan/reconcile/inferencemodel/inspectscript.py"
MODEL = "acme/boat"
TOKEN = "hub-token"
CONFIG: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 4096,
}
EMBEDDING, LAYER = 4096 * 256, 100_000
READ_SECONDS = 60.0
MOST_OF_A_FILE = 200_000
"""Bytes of a checkpoint that may be loaded: the library asks for the first 100 kB, where headers are."""


class InspectCheckError(RuntimeError):
    """The script did not read what it should, or read what it should not."""


@dataclass(frozen=True)
class InspectCheck:
    """What was read, and how much of it was loaded."""

    one_file: Mapping[str, Any]
    sharded: Mapping[str, Any]
    without_headers: Mapping[str, Any]
    refused: str
    loaded_bytes: int
    checkpoint_bytes: int


async def _inspect(url: str, token: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="bayplan-inspect-") as place:
        said = Path(place, "said")
        environment = {**os.environ, "HF_ENDPOINT": url, "HF_TOKEN": token, "HF_HOME": place}
        command = [str(realengine.installed().python), "-P", str(SCRIPT), MODEL, "main", str(said)]
        process = await asyncio.create_subprocess_exec(
            *command, env=environment, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )
        try:
            await asyncio.wait_for(process.wait(), READ_SECONDS)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        found: dict[str, Any] = json.loads(said.read_text())
        return found


def _require(condition: object, what: str) -> None:
    if not condition:
        raise InspectCheckError(what)


async def inspect_on_a_hub(*, say: Callable[[str], None]) -> InspectCheck:
    """Read four models. Raises InspectCheckError for a wrong answer, TimeoutError for none."""
    say("inspect: reading models from a hub")
    config = json.dumps(CONFIG).encode()
    embedding, first, second = (
        {"model.embed_tokens.weight": EMBEDDING},
        {"model.layers.0.mlp.up_proj.weight": LAYER},
        {"model.layers.1.mlp.up_proj.weight": LAYER},
    )
    whole = checkpoint({**embedding, **first, **second})
    parts = {"model-1.safetensors": embedding, "model-2.safetensors": {**first, **second}}
    index = {"metadata": {}, "weight_map": {tensor: name for name, part in parts.items() for tensor in part}}
    sharded = {
        "model.safetensors.index.json": json.dumps(index).encode(),
        **{name: checkpoint(part) for name, part in parts.items()},
    }
    expected = {"embedding": 2 * EMBEDDING, "head": 0, "layers": [[2, 2 * LAYER]], "prediction": 0}

    async with hub(MODEL, {"config.json": config, "model.safetensors": whole}, token=TOKEN) as served:
        one_file = await _inspect(served.url, TOKEN)
        loaded = served.sent_bytes.get("model.safetensors", 0)
        refused = (await _inspect(served.url, "another")).get("error", "")
    async with hub(MODEL, {"config.json": config, **sharded}, token=TOKEN) as served:
        in_parts = await _inspect(served.url, TOKEN)
    async with hub(MODEL, {"config.json": config}, token=TOKEN) as served:
        without = await _inspect(served.url, TOKEN)

    for name, found in (("one file", one_file), ("shards", in_parts)):
        _require(found.get("weightBytes") == expected, f"{name}: {found}, expected {expected}")
        _require(found["config"] == CONFIG, f"{name}: {found['config']}")
    _require(without == {"config": CONFIG}, f"no safetensors: {without}")
    _require(refused, "a wrong token is no error")
    _require(0 < loaded <= MOST_OF_A_FILE, f"{loaded} bytes of a checkpoint of {len(whole)} were loaded")
    return InspectCheck(one_file, in_parts, without, refused, loaded, len(whole))
