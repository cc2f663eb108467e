"""Tensor headers of a checkpoint: exact bytes without reading weights.

A safetensors file begins with the length of a JSON header (8 bytes, little-endian), then the header, then the data. The
caller reads the bytes; here they are checked before anything is believed: a length beyond the format's own limit is
refused before it is read, and offsets must tile the data without gap, overlap or overhang.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bayplan.planning.numbers import InvalidInput

PREFIX_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
"""The format's own limit, as its reference implementation enforces it."""
MAX_TENSORS = 400_000
"""Tensors of one file, and of one checkpoint: the largest published ones have less than 300,000."""
MAX_ELEMENTS = 2**60

_DTYPE_BITS: Mapping[str, int] = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
_VISION = re.compile(r"(?:^|\.)(?:audio_tower|embed_audio|vision|visual|multi_modal_projector)")
_EMBEDDING = re.compile(r"(?:^|\.)(?:embed_tokens|wte|word_embeddings|tok_embeddings|embedding|embeddings|embed)\.")
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|output|embed_out)\.")
_MTP = re.compile(r"(?:^|\.)mtp\.")


@dataclass(frozen=True, slots=True)
class TensorSize:
    """One tensor of a header."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CheckpointSizes:
    """Bytes of a checkpoint by where the engine puts them."""

    embedding_bytes: int
    """Embedding, vision tower and whatever belongs to no layer: the first stage."""
    head_bytes: int
    """Output head: the last stage."""
    layer_bytes: tuple[int, ...]
    mtp_bytes: int
    """Multi-token-prediction layers; loaded only when the engine speculates with them."""

    @property
    def total_bytes(self) -> int:
        """All tensors."""
        return self.embedding_bytes + self.head_bytes + sum(self.layer_bytes) + self.mtp_bytes


def header_length(prefix: bytes, *, file_bytes: int, name: str = "file") -> int:
    """Length of the JSON header from the first 8 bytes of a file of `file_bytes`.

    Raises InvalidInput for a truncated prefix and for a length that is 0, above the format's limit, or beyond the file.
    """
    if len(prefix) < PREFIX_BYTES:
        raise InvalidInput(name, f"is truncated: {len(prefix)} of the 8 bytes that state the header's length")
    length = int.from_bytes(prefix[:PREFIX_BYTES], "little")
    if length > MAX_HEADER_BYTES:
        raise InvalidInput(name, f"states a header of {length} bytes; the format allows {MAX_HEADER_BYTES}")
    if length == 0:
        raise InvalidInput(name, "states an empty header")
    if length + PREFIX_BYTES > file_bytes:
        raise InvalidInput(name, f"states a header of {length} bytes and has {file_bytes} in all: it is truncated")
    return length


def load_json(data: bytes, *, name: str, limit: int) -> Any:
    """Decode JSON of at most `limit` bytes; raises InvalidInput for longer, broken or too deeply nested text."""
    if len(data) > limit:
        raise InvalidInput(name, f"is longer than {limit} bytes")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(name, f"is not valid JSON: {str(error)[:120]}") from error


def parse_header(header: bytes, *, data_bytes: int, name: str = "file") -> tuple[TensorSize, ...]:
    """Tensors of one file from its JSON header; `data_bytes` is what follows the header in the file.

    Raises InvalidInput unless every size follows from dtype and shape and the tensors tile the data exactly.
    """
    if header.count(b"data_offsets") > MAX_TENSORS:
        raise InvalidInput(name, f"names more than {MAX_TENSORS} tensors")
    document = load_json(header, name=name, limit=MAX_HEADER_BYTES)
    if not isinstance(document, dict):
        raise InvalidInput(name, "has a header that is no JSON object")
    if len(document) > MAX_TENSORS:
        raise InvalidInput(name, f"names {len(document)} tensors; at most {MAX_TENSORS} are read")
    spans = sorted(
        (*_offsets(entry, f"{name}: {tensor[:80]}"), tensor)
        for tensor, entry in document.items()
        if tensor != "__metadata__"
    )
    reached = 0
    for begin, end, tensor in spans:
        if begin != reached:
            raise InvalidInput(f"{name}: {tensor[:80]}", f"begins at byte {begin}, where {reached} was expected")
        reached = end
    if reached != data_bytes:
        raise InvalidInput(name, f"holds {data_bytes} bytes of data where its header describes {reached}")
    return tuple(TensorSize(tensor, end - begin) for begin, end, tensor in spans)


def _offsets(entry: object, name: str) -> tuple[int, int]:
    if not isinstance(entry, dict):
        raise InvalidInput(name, "is no JSON object")
    bits = _DTYPE_BITS.get(str(entry.get("dtype")))
    if bits is None:
        raise InvalidInput(name, f"has the unknown dtype {str(entry.get('dtype'))[:20]!r}")
    shape, offsets = _whole_numbers(entry.get("shape"), name), _whole_numbers(entry.get("data_offsets"), name)
    if len(offsets) != 2:
        raise InvalidInput(name, "must have two data_offsets")
    elements = 1
    for side in shape:
        elements *= side
        if elements > MAX_ELEMENTS:
            raise InvalidInput(name, "has more elements than any file holds")
    begin, end = offsets
    if (end - begin) * 8 != elements * bits:
        raise InvalidInput(name, f"takes {end - begin} bytes where its shape needs {elements * bits / 8:g}")
    return begin, end


def _whole_numbers(value: object, name: str) -> list[int]:
    if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
        raise InvalidInput(name, "must have a shape and data_offsets of whole numbers")
    return value


def index_total_bytes(index: object, *, name: str = "model.safetensors.index.json") -> int:
    """Sum of all tensors as the index of a sharded checkpoint states it. Raises InvalidInput when it states none."""
    metadata = index.get("metadata") if isinstance(index, Mapping) else None
    total = metadata.get("total_size") if isinstance(metadata, Mapping) else None
    if isinstance(total, bool) or not isinstance(total, int) or total <= 0:
        raise InvalidInput(name, "must have a positive metadata.total_size")
    return total


def index_files(index: object, *, name: str = "model.safetensors.index.json") -> frozenset[str]:
    """Names of the files that the index of a sharded checkpoint takes its tensors from: what the engine loads.

    A repository may hold the same weights once more under other names. Empty for an index that places no tensor. Raises
    InvalidInput for a map that is none, and for files outside its folder.
    """
    placed = (index.get("weight_map") or {}) if isinstance(index, Mapping) else {}
    if not isinstance(placed, Mapping):
        raise InvalidInput(name, "must have a weight_map of tensor names to files")
    files = {file if isinstance(file, str) else "" for file in placed.values()}
    for file in files:
        if not file.endswith(".safetensors") or "/" in file or "\\" in file:
            raise InvalidInput(name, f"names {file[:80]!r}, which is no .safetensors file beside it")
    return frozenset(files)


def checkpoint_sizes(tensors: Iterable[TensorSize], *, layers: int, prediction_layers: int = 1) -> CheckpointSizes:
    """Add tensors up by layer; `prediction_layers` beyond `layers` are multi-token prediction (DeepSeek's way).

    Raises InvalidInput for a layer beyond these, and for one without a tensor: the files are of another model.
    """
    by_layer = [0] * layers
    embedding = head = mtp = 0
    for tensor in tensors:
        match = _LAYER.search(tensor.name)
        if _VISION.search(tensor.name):
            embedding += tensor.size_bytes
        elif match and not _MTP.search(tensor.name) and int(match[1]) >= layers + max(1, prediction_layers):
            raise InvalidInput("num_hidden_layers", f"is {layers} in config.json, and the files hold layer {match[1]}")
        elif _MTP.search(tensor.name) or (match and int(match[1]) >= layers):
            mtp += tensor.size_bytes
        elif match:
            by_layer[int(match[1])] += tensor.size_bytes
        elif _HEAD.search(tensor.name) and not _EMBEDDING.search(tensor.name):
            head += tensor.size_bytes
        else:
            embedding += tensor.size_bytes
    empty = [index for index, size in enumerate(by_layer) if not size]
    if empty:
        raise InvalidInput(
            "num_hidden_layers", f"is {layers} in config.json, and the files hold no tensor of layer {empty[0]}"
        )
    return CheckpointSizes(embedding, head, tuple(by_layer), mtp)
