"""GPUs that Bayplan knows: what the driver shows to a program, and what else a planner needs, each figure sourced.

The facts are a data file of the package (data/gpus.json). What a node's own label says wins over a memory figure here,
and the operator's configuration may override any field. A GPU that nobody knows is None: a fact to report, no guess.
"""

import json
import re
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

from bayplan.planning.memory.terms import Source
from bayplan.planning.numbers import InvalidInput, exact, positive

DRIVER_KEEPS_GIB = Fraction(47, 100)
"""What a program sees less than the label says: 0.39 to 0.80 GiB on twelve products, mostly 0.42 to 0.49."""
MIB_PER_GIB = 1024
_RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "intel": "gpu.intel.com/xe"}


class Link(StrEnum):
    """The fastest connection between GPUs of one node."""

    NVLINK = "NVLink"
    BRIDGE = "bridge"
    XGMI = "xGMI"
    PCIE = "PCIe"
    NETWORK = "network"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU product. Raises InvalidInput for a figure that is not positive."""

    name: str
    vendor: str
    visible_gib: Fraction
    """Memory that the driver shows to a program (CUDA's total), in GiB."""
    visible_source: Source = Source.DECLARED
    marketed_gb: int = 0
    label_mib: int | None = None
    """What the node label says: a little more than a program sees."""
    bandwidth_tb_s: Fraction | None = None
    bf16_tflops: int | None = None
    fp8_tflops: int | None = None
    link: Link = Link.PCIE
    link_gb_s: int | None = None
    fast_domain_gpus: int = 1
    """GPUs that the fast link connects."""
    compute_capability: tuple[int, int] | None = None
    labels: tuple[str, ...] = ()
    """Values of the product label, without the vendor's prefix."""
    names: tuple[str, ...] = ()
    unified_memory: bool = False
    """CPU and GPU share the memory: the page cache counts against a profile."""
    default_backend_gib: Fraction = Fraction(0)
    """What the default attention backend takes beside; ROCm boards only."""
    sources: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    """Where each figure comes from."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "visible_gib", positive(self.visible_gib, "visible_gib"))

    @property
    def resource_name(self) -> str:
        """The extended resource of a pod that asks for it."""
        return _RESOURCES.get(self.vendor, f"{self.vendor}.com/gpu")

    def overridden(self, **changes: Any) -> "Gpu":
        """The GPU with other figures, as the operator's configuration states them.

        Raises InvalidInput for a field that is not there.
        """
        unknown = sorted(set(changes) - {item.name for item in fields(self)})
        if unknown:
            raise InvalidInput(unknown[0], "is no figure of a GPU")
        return replace(self, **changes)


def _key(name: str) -> str:
    """Letters and digits of a name, without the vendor."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    return re.sub(r"^(nvidia|amd)", "", plain)


@lru_cache(maxsize=1)
def gpu_catalogue() -> tuple[Gpu, ...]:
    """All known GPUs, in the catalogue's order."""
    document = json.loads((Path(__file__).parent / "data" / "gpus.json").read_text(encoding="utf-8"))
    return tuple(_read(entry, document["sources"]) for entry in document["gpus"])


def _read(entry: dict[str, Any], sources: dict[str, str]) -> Gpu:
    sourced = {name: value for name, value in entry.items() if isinstance(value, list) and len(value) == 2}
    sourced = {name: value for name, value in sourced.items() if value[1] in sources}
    capability = entry["compute_capability"]
    values = {name: value[0] for name, value in sourced.items()}
    return Gpu(
        name=entry["name"],
        vendor=entry["vendor"],
        visible_gib=Fraction(values["visible_gib"]),
        visible_source=Source.MEASURED if sourced["visible_gib"][1] == "log" else Source.ESTIMATED,
        marketed_gb=entry["marketed_gb"],
        label_mib=values.get("label_mib"),
        bandwidth_tb_s=Fraction(values["bandwidth_tb_s"]),
        bf16_tflops=values["bf16_tflops"],
        fp8_tflops=values.get("fp8_tflops"),
        link=Link(entry["link"]),
        link_gb_s=values["link_gb_s"],
        fast_domain_gpus=entry["fast_domain_gpus"],
        compute_capability=None if capability is None else _capability(capability),
        labels=tuple(entry["labels"]),
        names=tuple(entry["names"]),
        unified_memory=entry["unified_memory"],
        default_backend_gib=Fraction(values.get("default_backend_gib", 0)),
        sources=tuple((name, sources[value[1]]) for name, value in sourced.items()),
    )


def _capability(text: str) -> tuple[int, int]:
    major, minor = text.split(".")
    return int(major), int(minor)


@lru_cache(maxsize=1)
def _index() -> dict[str, tuple[Gpu, ...]]:
    index: dict[str, tuple[Gpu, ...]] = {}
    for gpu in gpu_catalogue():
        for name in dict.fromkeys(_key(name) for name in (gpu.name, *gpu.labels, *gpu.names)):
            index[name] = (*index.get(name, ()), gpu)
    return index


def gpus_named(name: str) -> tuple[Gpu, ...]:
    """Every GPU of this name or label value, smaller memory first ("A100" is two). Empty for an unknown one."""
    return tuple(sorted(_index().get(_key(name), ()), key=lambda gpu: gpu.visible_gib))


_NUMBER_OF = re.compile(r"^\s*\d{1,3}\s*[x×]\s*|\s*[x×]\s*\d{1,3}\s*$", re.IGNORECASE)
_MEMORY = re.compile(r"(?<![\w.])(\d{1,3})\s*g(?:i?b)?(?!\w)", re.IGNORECASE)
_FORM = re.compile(r"\b(?:nvidia|amd|intel|geforce|tesla|quadro|radeon|instinct|oam|sxm\d?|hbm\d?e?|gpu|graphics)\b")
_SHORT = re.compile(r"\d{4}(?:ti)?d?")


def gpus_spelt(text: str) -> tuple[Gpu, ...]:
    """The GPUs that people mean by `text`, smaller memory first; empty for none that is known.

    People write how many there are ("8x H100"), the memory ("RTX 3090 24GB"), the form ("H100 SXM5"), and another name
    in brackets ("DGX Spark (GB10)"). A node's label is exact, so `gpus_named` reads it; this is for command lines and
    reports. A memory that no GPU of the name has finds none: "A100 64GB" is no A100 that is known.
    """
    spellings = [text, *re.split(r"[()\[\]]", text)]
    for spelling in spellings:
        plain = _NUMBER_OF.sub("", spelling.replace("-", " "))
        memory = _MEMORY.search(plain)
        bare = _FORM.sub(" ", _MEMORY.sub(" ", plain).lower())
        for name in (
            spelling,
            plain,
            _MEMORY.sub(" ", plain),
            bare,
            *(f"RTX {bare}",) * bool(_SHORT.match(_key(bare))),
        ):
            found = gpus_named(name)
            if memory is not None and len(found) > 1:
                found = tuple(gpu for gpu in found if gpu.marketed_gb == int(memory[1]))
            if found and (memory is None or any(_holds(gpu, int(memory[1])) for gpu in found)):
                return found
    return ()


def _holds(gpu: Gpu, stated_gb: int) -> bool:
    """Whether a GPU is sold, or shows itself, with this memory: 80 and 79 for an H100, 480 for a GH200's label."""
    return stated_gb == gpu.marketed_gb or abs(stated_gb - gpu.visible_gib) < 2 or f"{stated_gb}GB" in str(gpu.labels)


_AMD = re.compile(r"\b(?:amd|radeon|instinct|mi\d{2,3}\w*|rx\s?\d{4})\b", re.IGNORECASE)


def unlisted_gpu(name: str, visible_gib: Fraction) -> Gpu:
    """A GPU that is not in the catalogue, of which the memory is stated. Its vendor follows from the name."""
    return Gpu(name=name, vendor="amd" if _AMD.search(name) else "nvidia", visible_gib=visible_gib)


def find_gpu(name: str) -> Gpu | None:
    """The GPU of this name or label value; the smallest where the name says too little. None for an unknown one."""
    found = gpus_named(name)
    return found[0] if found else None


def visible_memory_gib(product: str, *, label_mib: int | Fraction | None) -> tuple[Fraction, Source] | None:
    """Memory that a program sees on a node's GPU, from its label and the catalogue.

    A label within 3 % of the product's own means the whole GPU: the catalogue's figure. Another label (a partition, an
    unknown product) loses what the driver keeps. Without a label the catalogue alone speaks; None when nobody does.
    """
    known = find_gpu(product)
    if label_mib is None:
        return None if known is None else (known.visible_gib, known.visible_source)
    label = exact(label_mib, "gpu_memory_mib")
    if known is not None and known.label_mib and abs(label / known.label_mib - 1) <= Fraction(3, 100):
        return known.visible_gib, known.visible_source
    return max(label / MIB_PER_GIB - DRIVER_KEEPS_GIB, label / MIB_PER_GIB * Fraction(9, 10)), Source.ESTIMATED
