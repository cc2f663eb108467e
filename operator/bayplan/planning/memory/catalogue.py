"""Models that Bayplan knows by name: their config.json facts, with source and published number of parameters.

The facts are a data file of the package (data/models.json), so that a plan needs no model hub. They are constants: the
file is read once, and a user's own config.json or numbers always win.
"""

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from bayplan.planning.memory.architecture import ModelArchitecture
from bayplan.planning.memory.formats import WeightFormat, weight_format
from bayplan.planning.memory.modelconfig import parse_config
from bayplan.planning.memory.parameters import parameters_of
from bayplan.planning.numbers import InvalidInput

_PACKING = re.compile(
    r"bf16|fp16|fp8|fp4|dynamic|static|block|nvfp4|nvfp4a16|mxfp4|int4|int8|awq|gptq|w4a16|w8a8|w8a16|w4a4|g128|g32"
    r"|autoround|quantized|4bit|8bit|bit|bnb|unsloth|marlin|mlx|ct|qat|unquantized|(int8|fp16|bf16)mix|q\d"
)
"""Words of a name that say how a checkpoint is packed."""
_TUNING = re.compile(
    r"instruct|chat|it|hf|base|meta|thinking|mtp|text|exp|preview|abliterated|uncensored|heretic|20\d\d|\d{4}"
)
"""Words that say how a model was tuned or dated. None of them changes its architecture, nor does packing."""
_VERSION = re.compile(r"v\d+(\.\d+)*")
_HUB_CACHE = re.compile(r"(?:^|/)models--[^/]+?--([^/]+)")
"""A folder of the Hugging Face cache, which carries the repository's name and ends in a revision."""
_QUANT_TYPE = re.compile(r"[-_.]q\d_[0-9a-z]+(?:_[a-z])?(?=[-_.]|$)")


@dataclass(frozen=True, slots=True)
class CatalogueModel:
    """One model of the catalogue."""

    name: str
    architecture: ModelArchitecture
    source: str
    """Where the facts come from."""
    published_parameters: int
    published_is_rounded: bool
    """The published number is a card's rounded figure, not a sum of tensors."""
    published_beside: int
    """Numbers in the published sum that are no parameters: scales and buffers."""
    published_counts_mtp: bool
    native_format: str
    """Format of the weights that this entry's checkpoint holds, as `formats` names it."""

    @property
    def weights(self) -> WeightFormat:
        """The native format; every fp8 checkpoint of the catalogue is scaled in blocks of 128 × 128."""
        return weight_format("fp8-block" if self.native_format == "fp8" else self.native_format)

    @property
    def parameters(self) -> int:
        """Our count of what the published number counts."""
        counted = parameters_of(self.architecture)
        mtp = sum(item.parameters for item in counted.mtp) if self.published_counts_mtp else 0
        return counted.total + mtp + self.published_beside


def _words(name: str) -> list[str]:
    """Words of the last part of a name or path, lower case."""
    plain = name.strip().lower().rstrip("/")
    cached = _HUB_CACHE.search(plain)
    last = cached[1] if cached else plain.rsplit("/", 1)[-1]
    last = _QUANT_TYPE.sub("", last.replace("quantized.", "quantized-"))
    return [word for word in re.split(r"[\s_()\[\]-]+", last) if word]


def _key(name: str, *, version: bool = True) -> str:
    """The words of a name that tell architectures apart. A version behind a packing is the packing's."""
    kept: list[str] = []
    before = ""
    for word in _words(name):
        is_version = bool(_VERSION.fullmatch(word))
        of_packing = is_version and bool(_PACKING.fullmatch(before))
        if not of_packing and (version or not is_version) and not _is_beside(word):
            kept.append(word)
        before = word
    return "-".join(kept)


def _is_beside(word: str) -> bool:
    return bool(_PACKING.fullmatch(word) or _TUNING.fullmatch(word))


@lru_cache(maxsize=1)
def _document() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "models.json").read_text(encoding="utf-8"))
    return document


@lru_cache(maxsize=1)
def _index() -> dict[str, str]:
    """Key → catalogue name, whole names first. Of entries that share a key the first stands: their facts agree."""
    index: dict[str, str] = {}
    document = _document()
    pairs = [*((name, name) for name in document["models"]), *document["aliases"].items()]
    for name, target in pairs:
        index.setdefault("-".join(_words(name)), target)
    for version in (True, False):
        for name, target in pairs:
            index.setdefault(_key(name, version=version), target)
    for key in tuple(index):
        index.setdefault(_joined(key), index[key])
    return index


def _joined(key: str) -> str:
    """A key without its dashes: "llama3.1-8b" and "llama-3.1-8b" are one name."""
    return key.replace("-", "")


def model_names() -> tuple[str, ...]:
    """All names of the catalogue, in its order."""
    return tuple(_document()["models"])


@lru_cache(maxsize=512)
def find_model(name: str) -> CatalogueModel | None:
    """The model of this name, or None.

    The organisation or folder, letter case, dashes, and words for tuning, format and date do not matter:
    "RedHatAI/Qwen3-14B-FP8-dynamic" and "/models/Qwen3-14B/" are found as Qwen3-14B. The weights' format is never taken
    from here. A version word does matter: v0.2 is not found as v0.1.
    """
    index = _index()
    key = _key(name)
    found = index.get("-".join(_words(name))) or index.get(key) or index.get(_joined(key))
    return None if found is None else _model(found)


def catalogue_model(name: str) -> CatalogueModel:
    """As `find_model`; raises InvalidInput for a name that is not there."""
    found = find_model(name)
    if found is None:
        raise InvalidInput("model", f"{name[:80]!r} is not in the catalogue; give its config.json")
    return found


@lru_cache(maxsize=256)
def _model(name: str) -> CatalogueModel:
    document = _document()
    entry = document["models"][name]
    return CatalogueModel(
        name=name,
        architecture=parse_config(entry["config"]),
        source=document["sources"][entry["source"]],
        published_parameters=entry["published_parameters"],
        published_is_rounded=entry["published_is_rounded"],
        published_beside=sum(entry.get("published_beside", {}).values()),
        published_counts_mtp=entry.get("published_counts_mtp", False),
        native_format=entry.get("format", "bf16"),
    )
