"""The weight format that a checkpoint's config.json states in `quantization_config`, and the blocks it is packed in.

Blocks matter beside the bits: a tensor rank must hold whole ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bayplan.planning.memory.formats import WeightFormat, weight_format
from bayplan.planning.numbers import InvalidInput, count


@dataclass(frozen=True, slots=True)
class StatedFormat:
    """How the weights are packed. `block` is the number of inner columns that share a scale; 0 for whole rows."""

    weights: WeightFormat
    block: int = 0


def stated_format(config: Mapping[str, Any]) -> StatedFormat | None:
    """What `quantization_config` says; None without one.

    Raises InvalidInput for a method that is not known: its bits would be a guess, so the weights' format or their
    headers must be given.
    """
    stated = _stated(config)
    if stated is None:
        return None
    if not isinstance(stated, Mapping):
        raise InvalidInput("quantization_config", "must be a JSON object")
    method = str(stated.get("quant_method", "")).lower()
    name = _name(method, stated, expert_type=config.get("expert_dtype"))
    if name is None:
        raise InvalidInput(
            "quantization_config", f"has the unknown quant_method {method[:40]!r}; state the weights' format"
        )
    weights = weight_format(name)
    return StatedFormat(weights, _block(method, stated) or weights.block)


_CACHE_BITS = {8: "fp8", 4: "nvfp4"}


def stated_cache_type(config: Mapping[str, Any]) -> str:
    """The type of the KV cache that the checkpoint declares, as `--kv-cache-dtype` names it; "auto" for none.

    ModelOpt and compressed-tensors write it beside the weights' format, and the engine takes it unless a flag says
    otherwise [vLLM 0.32 `get_kv_cache_quant_algo_string`, `attention.py`]. A scheme that the engine does not know is
    none, as it is there.
    """
    stated = _stated(config)
    if not isinstance(stated, Mapping):
        return "auto"
    method = str(stated.get("quant_method", "")).lower()
    inner = stated.get("quantization")
    levels = [level for level in (inner, stated) if isinstance(level, Mapping)]
    scheme = next((level["kv_cache_scheme"] for level in levels if level.get("kv_cache_scheme")), None)
    if isinstance(scheme, Mapping) and (method.startswith("modelopt") or method == "compressed-tensors"):
        bits = scheme.get("num_bits")
        return _CACHE_BITS.get(bits, "auto") if scheme.get("type") == "float" and type(bits) is int else "auto"
    if not method.startswith("modelopt"):
        return "auto"
    named = next((level["kv_cache_quant_algo"] for level in levels if level.get("kv_cache_quant_algo")), "")
    return str(named).lower() if str(named).lower() in _CACHE_BITS.values() else "auto"


def _stated(config: Mapping[str, Any]) -> Any:
    nested = config.get("text_config")
    own = nested.get("quantization_config") if isinstance(nested, Mapping) else None
    return config.get("quantization_config") or own


def _name(method: str, stated: Mapping[str, Any], *, expert_type: object = None) -> str | None:
    bits = stated.get("bits", 4)
    if method == "compressed-tensors":
        return _compressed(stated)
    if method in {"modelopt", "modelopt_fp4"}:
        algorithm = str(stated.get("quant_algo", "")).upper()
        return {"FP8": "fp8", "NVFP4": "nvfp4"}.get(algorithm, "nvfp4" if method == "modelopt_fp4" else None)
    if method in {"gptq", "awq"}:
        return {4: f"{method}-4bit", 8: "int8"}.get(count(bits, "quantization_config.bits"))
    if method == "fp8" and stated.get("scale_fmt") == "ue8m0" and expert_type == "fp4":
        return "mxfp4-fp8"
    if method == "fp8":
        return "fp8-block" if stated.get("weight_block_size") else "fp8"
    return {
        "fbgemm_fp8": "fp8",
        "mxfp4": "mxfp4",
        "auto-round": "autoround-int4",
        "intel/auto-round": "autoround-int4",
    }.get(method)


def _compressed(stated: Mapping[str, Any]) -> str | None:
    """compressed-tensors: bits and type of the first group's weights; experts alone where the rest is ignored."""
    groups = stated.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights = first.get("weights") if isinstance(first, Mapping) else None
    if not isinstance(weights, Mapping):
        return None
    kind = (str(weights.get("type", "int")), count(weights.get("num_bits"), "quantization_config.num_bits"))
    ignored = stated.get("ignore")
    attention = isinstance(ignored, list) and any("self_attn" in str(item) for item in ignored)
    if kind == ("int", 4):
        return "int4-experts" if attention else "int4"
    names: dict[tuple[str, object], str] = {("float", 8): "fp8", ("int", 8): "int8", ("float", 4): "nvfp4"}
    return names.get(kind)


def _block(method: str, stated: Mapping[str, Any]) -> int:
    blocks = stated.get("weight_block_size")
    if isinstance(blocks, list) and blocks:
        return count(blocks[-1], "weight_block_size")
    group = stated.get("group_size")
    if method in {"gptq", "awq"} and isinstance(group, int) and group > 0:
        return group
    return 0
