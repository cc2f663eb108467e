"""Reading a model's files: config.json and the headers of its safetensors files, in bounded memory.

Weights are never read: of each file the first 8 bytes and the header that they announce, after its length was checked.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bayplan.planning.memory.safetensors import (
    MAX_TENSORS,
    PREFIX_BYTES,
    CheckpointSizes,
    TensorSize,
    checkpoint_sizes,
    header_length,
    index_files,
    index_total_bytes,
    load_json,
    parse_header,
)
from bayplan.planning.numbers import InvalidInput

MAX_CONFIG_BYTES = 16 * 2**20
MAX_INDEX_BYTES = 256 * 2**20
INDEX_NAME = "model.safetensors.index.json"
MAX_FILES = 4096


def read_config(path: Path) -> Mapping[str, Any]:
    """Load a config.json. Raises InvalidInput for a file that is missing, longer than 16 MiB, or no JSON object."""
    document = _read_json(path, limit=MAX_CONFIG_BYTES)
    if not isinstance(document, dict):
        raise InvalidInput(path.name, "must be a JSON object")
    return document


def read_checkpoint(folder: Path, *, layers: int, prediction_layers: int = 1) -> CheckpointSizes:
    """Add up the tensors of the safetensors files in `folder`: those of its index, or all where it has none.

    Raises InvalidInput for a folder without any, a file that is truncated or lies about itself, an index whose total
    differs from the headers, and layers that config.json does not have.
    """
    path = folder / INDEX_NAME
    index = _read_json(path, limit=MAX_INDEX_BYTES) if path.exists() else None
    placed = frozenset() if index is None else index_files(index)
    files = sorted(folder / name for name in placed) or sorted(folder.glob("*.safetensors"))
    if not files:
        raise InvalidInput(str(folder), "holds no .safetensors file")
    if len(files) > MAX_FILES:
        raise InvalidInput(str(folder), f"holds {len(files)} .safetensors files; at most {MAX_FILES} are read")
    tensors: list[TensorSize] = []
    for file in files:
        tensors += read_header(file)
        if len(tensors) > MAX_TENSORS:
            raise InvalidInput(str(folder), f"names more than {MAX_TENSORS} tensors")
    if index is not None:
        stated, found = index_total_bytes(index), sum(tensor.size_bytes for tensor in tensors)
        if stated != found:
            raise InvalidInput(INDEX_NAME, f"states {stated} bytes where the headers add up to {found}")
    return checkpoint_sizes(tensors, layers=layers, prediction_layers=prediction_layers)


def read_header(path: Path) -> tuple[TensorSize, ...]:
    """Tensors of one file. Raises InvalidInput as `parse_header` does, and for a file that cannot be read."""
    try:
        with path.open("rb") as file:
            file_bytes = os.fstat(file.fileno()).st_size
            length = header_length(file.read(PREFIX_BYTES), file_bytes=file_bytes, name=path.name)
            header = file.read(length)
    except OSError as error:
        raise InvalidInput(path.name, f"cannot be read: {error.strerror}") from error
    return parse_header(header, data_bytes=file_bytes - PREFIX_BYTES - length, name=path.name)


def _read_json(path: Path, *, limit: int) -> Any:
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size > limit:
                raise InvalidInput(path.name, f"is longer than {limit} bytes")
            return load_json(file.read(limit + 1), name=path.name, limit=limit)
    except OSError as error:
        raise InvalidInput(path.name, f"cannot be read: {error.strerror}") from error
