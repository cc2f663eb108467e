"""A model whose architecture is known, from its config.json or from the catalogue, with the weights that it has."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bayplan.planning.layout.rules import RuleFacts, facts_for
from bayplan.planning.memory.architecture import ModelArchitecture
from bayplan.planning.memory.catalogue import CatalogueModel
from bayplan.planning.memory.formats import WeightFormat, weight_format
from bayplan.planning.memory.modelconfig import parse_config
from bayplan.planning.memory.quantconfig import StatedFormat, stated_cache_type, stated_format
from bayplan.planning.memory.safetensors import CheckpointSizes
from bayplan.planning.memory.weights import WeightNumbers, check_consistent
from bayplan.planning.numbers import InvalidInput

_PLAIN = frozenset({"bf16", "fp16", "fp32"})
_FORMAT_WORDS = {
    "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
    "fp8": "fp8",
    "awq": "awq-4bit",
    "gptq": "gptq-4bit",
    "autoround": "autoround-int4",
    "w8a8": "int8",
    "w4a16": "int4",
    "int4": "int4",
    "int8": "int8",
    "fp4": "nvfp4",
    "4bit": "int4",
    "8bit": "int8",
}


@dataclass(frozen=True, slots=True)
class KnownModel:
    """An architecture, its weights, and what the engine's rules look at."""

    architecture: ModelArchitecture
    weights: WeightNumbers
    facts: RuleFacts
    source: str
    cache_dtype: str = "auto"
    """What the checkpoint declares for its KV cache."""


def named_format(name: str) -> str | None:
    """The weight format in a checkpoint's name, or None: makers put it there."""
    words = name.lower()
    return next((kind for word, kind in _FORMAT_WORDS.items() if word in words), None)


def from_catalogue(
    found: CatalogueModel,
    *,
    stated: WeightFormat | None = None,
    sizes: CheckpointSizes | None = None,
    quantization: str = "",
) -> KnownModel:
    """A model of the catalogue.

    `stated` is the checkpoint's format where it is not the entry's own; `sizes` are header sums, better than any
    format. `quantization` is the engine's own flag, which packs a checkpoint in 16 bits at load. Raises InvalidInput
    for sizes that contradict the architecture.
    """
    source = f"model catalogue: {found.name} ({found.source})"
    own = StatedFormat(found.weights, found.weights.block) if stated is None else StatedFormat(stated, stated.block)
    known = _known(found.architecture, own, sizes, quantization, source)
    # Makers of packed checkpoints pad dense widths so that they divide (Qwen2.5-72B to 29,696): what the entry's own
    # width says about blocks is not said of another checkpoint.
    return known if own.weights == found.weights else replace(known, facts=replace(known.facts, block=0))


def from_config(
    config: Mapping[str, Any],
    *,
    stated: WeightFormat | None = None,
    sizes: CheckpointSizes | None = None,
    quantization: str = "",
) -> KnownModel:
    """The model of a loaded config.json, with the format that it states; see `from_catalogue` for the rest.

    Raises UnknownArchitecture for a class that is not known, InvalidInput for fields and sizes that contradict it.
    """
    architecture = parse_config(config)
    own = StatedFormat(stated, stated.block) if stated is not None else _own_format(config, sizes)
    if own is None:
        own = StatedFormat(weight_format("fp32" if architecture.element_bytes == 4 else "bf16"))
    known = _known(architecture, own, sizes, quantization, f"config.json of {architecture.name}")
    return replace(known, cache_dtype=stated_cache_type(config))


def _own_format(config: Mapping[str, Any], sizes: CheckpointSizes | None) -> StatedFormat | None:
    """What the file says of its format; an unknown method does not matter where headers give the bytes."""
    try:
        return stated_format(config)
    except InvalidInput:
        if sizes is None:
            raise
        return None


def _known(
    architecture: ModelArchitecture, own: StatedFormat, sizes: CheckpointSizes | None, quantization: str, source: str
) -> KnownModel:
    weights: WeightNumbers = own.weights
    if sizes is not None:
        check_consistent(architecture, sizes)
        weights = sizes
    elif quantization and own.weights.name in _PLAIN:
        weights = weight_format(quantization)
    block = None if weights != own.weights and sizes is None else own.block
    return KnownModel(architecture, weights, facts_for(architecture, weights, block=block), source)
