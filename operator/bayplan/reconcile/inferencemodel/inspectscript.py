"""Read a model's config.json and tensor headers: `python inspectscript.py LOCATION REVISION TARGET`.

Runs inside the engine's image, in a pod without a GPU and with the model's own credentials, so it imports nothing of
Bayplan; the image's huggingface_hub alone for a model on the hub. Weights are never read. TARGET gets at most 4,096
bytes, what a container may say when it ends: JSON {"config", "weightBytes"} or {"error"}.
"""

import json
import re
import struct
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

MAX_BYTES = 4096
MAX_CONFIG_BYTES = 16 * 2**20
MAX_HEADER_BYTES = 100_000_000
KEPT = re.compile(
    r"architectures|dtype|torch_dtype|.*(hidden|layer|head|expert|vocab|window|chunk|rank|rope|width|size|kernel|dim|"
    r"interval|pattern|tie_|tok|mlp|ffn|moe|mamba|ssm|linear|conv|groups|nextn|mtp|attn_|attention_|decoder|query|"
    r"position|index_|quant|norm|shared).*"
)
PACKED = ("quant_method", "bits", "group_size", "weight_block_size", "quant_algo")
LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
VISION = re.compile(r"(?:^|\.)(?:vision|visual|multi_modal_projector)")
HEAD = re.compile(r"(?:^|\.)(?:lm_head|output|embed_out)\.")
MTP = re.compile(r"(?:^|\.)mtp\.")


def reduced(config: dict[str, Any], depth: int = 0) -> dict[str, Any]:
    """The fields that can decide an architecture; short lists and flat objects only."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        if name == "quantization_config" and isinstance(value, dict):
            found[name] = {key: value[key] for key in PACKED if key in value}
        elif name in ("text_config", "llm_config") and isinstance(value, dict) and depth == 0:
            found[name] = reduced(value, 1)
        elif name == "vision_config" and isinstance(value, dict):
            found[name] = {key: number for key, number in value.items() if isinstance(number, int)}
        elif KEPT.fullmatch(name) and (isinstance(value, (int, float, str)) or _short(value)):
            found[name] = value
    return found


def _short(value: object) -> bool:
    return isinstance(value, list) and len(value) <= 512 and all(isinstance(one, (int, str)) for one in value)


def header(file: BinaryIO, size: int) -> list[tuple[str, int]]:
    """Name and bytes of each tensor of one safetensors file, from its header alone."""
    prefix = file.read(8)
    length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
    if not 0 < length <= min(MAX_HEADER_BYTES, size - 8):
        raise ValueError(f"a safetensors file of {size} bytes states a header of {length}")
    entries = json.loads(file.read(length))
    return [
        (name, entry["data_offsets"][1] - entry["data_offsets"][0])
        for name, entry in entries.items()
        if name != "__metadata__"
    ]


def local(folder: Path) -> tuple[dict[str, Any], list[tuple[str, int]]]:
    """Config and tensors of a folder."""
    path = folder / "config.json"
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise ValueError(f"config.json is longer than {MAX_CONFIG_BYTES} bytes")
    config = json.loads(path.read_bytes())
    tensors: list[tuple[str, int]] = []
    for name in sorted(folder.glob("*.safetensors")):
        with name.open("rb") as file:
            tensors += header(file, name.stat().st_size)
    return config, tensors


def hub(name: str, revision: str) -> tuple[dict[str, Any], list[tuple[str, int]]]:
    """Config and tensors of a model on the hub; headers are read in part, weights are not loaded."""
    from huggingface_hub import HfApi, hf_hub_download  # noqa: PLC0415 - of the engine's image
    from huggingface_hub.errors import NotASafetensorsRepoError  # noqa: PLC0415

    config = json.loads(Path(hf_hub_download(name, "config.json", revision=revision)).read_bytes())
    try:
        metadata = HfApi().get_safetensors_metadata(name, revision=revision)
    except NotASafetensorsRepoError:
        return config, []  # other formats have no headers to read; the architecture counts all the same
    tensors = [
        (tensor, entry.data_offsets[1] - entry.data_offsets[0])
        for one in metadata.files_metadata.values()
        for tensor, entry in one.tensors.items()
    ]
    return config, tensors


def by_layer(tensors: Sequence[tuple[str, int]], layers: int) -> dict[str, Any]:
    """Bytes by where the engine puts them; layers of equal size are told together, as [number, bytes]."""
    sizes, embedding, output, prediction = [0] * layers, 0, 0, 0
    for name, size in tensors:
        found = LAYER.search(name)
        if VISION.search(name):
            embedding += size
        elif MTP.search(name) or (found and int(found[1]) >= layers):
            prediction += size
        elif found:
            sizes[int(found[1])] += size
        elif HEAD.search(name) and "embed_tokens" not in name:
            output += size
        else:
            embedding += size
    runs = [[len(list(same)), size] for size, same in groupby(sizes)]
    return {"embedding": embedding, "head": output, "layers": runs, "prediction": prediction}


def read(location: str, revision: str) -> str:
    """What is said of the model, as JSON. Raises whatever reading raises, ValueError for more than can be said."""
    if location.startswith(("s3://", "oci://")):
        raise ValueError(f"nothing can be read from {location}: state model.architecture")
    config, tensors = local(Path(location)) if location.startswith("/") else hub(location, revision)
    text = config.get("text_config") or config.get("llm_config") or config
    found: dict[str, Any] = {"config": reduced(config)}
    layers = text.get("num_hidden_layers")
    if tensors and isinstance(layers, int) and 0 < layers <= 512:
        found["weightBytes"] = by_layer(tensors, layers)
    said = json.dumps(found, separators=(",", ":"))
    if len(said) > MAX_BYTES:
        raise ValueError(f"config.json needs {len(said)} characters where {MAX_BYTES} can be said")
    return said


def report(location: str, revision: str) -> str:
    """As `read`; a failure is said too."""
    try:
        return read(location, revision)
    except Exception as error:
        return json.dumps({"error": f"{type(error).__name__}: {error}"[:1000]})


if __name__ == "__main__":
    told = report(sys.argv[1], sys.argv[2])
    Path(sys.argv[3]).write_text(told)
    sys.exit(1 if told.startswith('{"error"') else 0)
