"""Which weight and cache formats a GPU runs, by engine version: checked before memory, because no memory helps.

After vLLM's table of supported hardware for quantization kernels and its backend selection (releases 0.8.5 to 0.32.0).
"""

from dataclasses import dataclass

from bayplan.planning.memory.enginerules import NEWEST_KNOWN
from bayplan.planning.memory.formats import WeightFormat
from bayplan.planning.memory.gpucatalogue import Gpu, gpu_catalogue
from bayplan.planning.memory.request import EngineFlags
from bayplan.planning.memory.versions import EngineVersion
from bayplan.planning.memory.weights import WeightNumbers
from bayplan.planning.numbers import InvalidInput


class UnsupportedOnHardware(InvalidInput):
    """The GPU cannot run the format; `products` names known GPUs that can."""

    def __init__(self, field: str, message: str, products: tuple[str, ...]) -> None:
        super().__init__(field, message)
        self.products = products


@dataclass(frozen=True, slots=True)
class Requirement:
    """What a format needs: NVIDIA's compute capability, other vendors, and the engine's release."""

    capability: tuple[int, int]
    vendors: frozenset[str]
    """Vendors beside NVIDIA that run it."""
    since: EngineVersion
    source: str


_ALL, _ROCM, _NONE = frozenset({"amd", "intel"}), frozenset({"amd"}), frozenset[str]()
_FIRST = EngineVersion(0, 4, 0)
WEIGHTS: dict[str, Requirement] = {
    "bf16": Requirement((8, 0), _ALL, _FIRST, "bfloat16 needs 8.0; float16 runs on older GPUs"),
    "fp16": Requirement((7, 0), _ALL, _FIRST, "oldest GPUs of the engine"),
    "fp32": Requirement((7, 0), _ALL, _FIRST, "oldest GPUs of the engine"),
    "fp8": Requirement((8, 0), _ROCM, _FIRST, "native from 8.9; weight-only through Marlin from 8.0"),
    "fp8-block": Requirement((8, 0), _ROCM, _FIRST, "native from 8.9; weight-only through Marlin from 8.0"),
    "int8": Requirement((7, 5), _NONE, _FIRST, "INT8 tensor cores of Turing and later"),
    "gptq-4bit": Requirement((7, 0), _ALL, _FIRST, "exllama kernels from 7.0, Marlin from 8.0"),
    "awq-4bit": Requirement((7, 5), _ALL, _FIRST, "AWQ kernels from 7.5, Marlin from 8.0"),
    "int4": Requirement((7, 5), _ALL, _FIRST, "as AWQ"),
    "autoround-int4": Requirement((7, 5), _ALL, EngineVersion(0, 8, 0), "as AWQ"),
    "int4-experts": Requirement((8, 0), _ROCM, EngineVersion(0, 8, 0), "Marlin kernels for experts"),
    "mxfp4": Requirement((8, 0), _ROCM, EngineVersion(0, 10, 1), "Marlin from 8.0, Triton on 9.0, from gpt-oss on"),
    "mxfp4-fp8": Requirement((8, 0), _ROCM, EngineVersion(0, 20, 0), "DeepSeek-V4 appears in 0.20.0"),
    "nvfp4": Requirement((8, 0), _NONE, EngineVersion(0, 9, 0), "native from 10.0; weight-only through Marlin"),
}
CACHES: dict[str, Requirement] = {
    "fp8": Requirement((8, 0), _ROCM, _FIRST, "fp8 caches of FlashInfer and Triton from 8.0"),
    "nvfp4": Requirement((10, 0), _NONE, EngineVersion(0, 27, 0), "seen on 12.0 with 0.27.1 and 0.29"),
}


def check_support(
    gpu: Gpu, *, weights: str, kv_cache_dtype: str = "auto", version: EngineVersion | None = None
) -> None:
    """Raise UnsupportedOnHardware when `gpu` cannot run the weight format or the cache type.

    Raises InvalidInput when the engine's release is too old for a format. A format without an entry is not judged.
    """
    cache = "fp8" if kv_cache_dtype.startswith("fp8") else kv_cache_dtype
    for field, name, table in (("quantization", weights, WEIGHTS), ("kv_cache_dtype", cache, CACHES)):
        need = table.get(name)
        if need is None:
            continue
        if (version or NEWEST_KNOWN) < need.since:
            raise InvalidInput(field, f"{name} needs vLLM {need.since} or later, not {version}")
        if not _runs(gpu, need):
            products = tuple(known.name for known in gpu_catalogue() if _runs(known, need))
            raise UnsupportedOnHardware(
                field, f"{gpu.name} cannot run {name} ({need.source}); use one of {', '.join(products)}", products
            )


def _runs(gpu: Gpu, need: Requirement) -> bool:
    if gpu.vendor != "nvidia":
        return gpu.vendor in need.vendors
    return gpu.compute_capability is None or gpu.compute_capability >= need.capability


def unsupported_text(gpu: Gpu, weights: WeightNumbers, flags: EngineFlags) -> str:
    """Why `gpu` or the release cannot run these weights and this cache; empty when they can.

    A bfloat16 checkpoint is loaded in float16 where the GPU lacks bfloat16, unless `--dtype` insists.
    """
    name = weights.name if isinstance(weights, WeightFormat) else ""
    if name == "bf16" and flags.dtype not in {"bfloat16", "float32", "float"}:
        name = "fp16"
    try:
        check_support(gpu, weights=name, kv_cache_dtype=flags.kv_cache_dtype, version=flags.version)
    except UnsupportedOnHardware as error:
        return error.message
    except InvalidInput as error:
        return str(error)
    return ""
