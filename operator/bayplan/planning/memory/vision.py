"""Parameters of vision towers: they stay in 16 bits under quantization and take 0.4 to 1 GiB of the first stage."""

from collections.abc import Mapping
from typing import Any

from bayplan.planning.numbers import count

_PATCH = 14


def vision_parameters(tower: str, config: Mapping[str, Any], *, hidden_size: int) -> int:
    """Parameters of the tower and of its projection to `hidden_size`; 0 for a family without one that is counted.

    A `vision_config` that is empty switches the tower off. Raises InvalidInput for a field that is no positive number.
    """
    described = config.get("vision_config")
    if not tower or (described is not None and not described):
        return 0
    if tower == "siglip":
        return _siglip(hidden_size)
    if tower == "pixtral":
        return _pixtral(hidden_size)
    if not isinstance(described, Mapping):
        return 0
    return _qwen2(described, hidden_size) if tower == "qwen2" else _qwen(described, hidden_size)


def _biased_layer(width: int, inner: int) -> int:
    """Attention, feed-forward of two matrices and two layer norms, all with biases."""
    return 4 * (width * width + width) + 4 * width + 2 * width * inner + inner + width


def _siglip(hidden_size: int) -> int:
    """Gemma 3: 27 layers of width 1152, 4096 positions, one projection."""
    width, layers, inner, positions = 1152, 27, 4304, 4096
    embedding = 3 * _PATCH**2 * width + width + positions * width
    return layers * _biased_layer(width, inner) + embedding + 2 * width + width * hidden_size + width


def _pixtral(hidden_size: int) -> int:
    """Mistral Small 3: 24 gated layers of width 1024 without biases, a patch merger of 2 × 2, two projections."""
    width, layers, inner = 1024, 24, 4096
    layer = 4 * width * width + 3 * width * inner + 2 * width
    projection = width + 4 * width * width + width * hidden_size + hidden_size * hidden_size
    return layers * layer + 3 * _PATCH**2 * width + width + projection


def _qwen2(described: Mapping[str, Any], hidden_size: int) -> int:
    """Qwen 2.5 VL: gated layers with biases and one-sided norms, patches without a bias, a merger of two matrices."""
    defaults = {
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "patch_size": 14,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
    }
    size = {name: count(described.get(name, default), f"vision_config.{name}") for name, default in defaults.items()}
    width, inner = size["hidden_size"], size["intermediate_size"]
    layer = 4 * (width * width + width) + 3 * width * inner + 2 * inner + width + 2 * width
    merged = width * size["spatial_merge_size"] ** 2
    merger = width + merged * merged + merged + merged * hidden_size + hidden_size
    return size["depth"] * layer + 3 * size["temporal_patch_size"] * size["patch_size"] ** 2 * width + merger


def _qwen(described: Mapping[str, Any], hidden_size: int) -> int:
    """Qwen 3 VL and 3.5: as `vision_config` describes it, with a merger of two biased matrices.

    Qwen 3 VL has one more merger, normed after merging, for each layer that it taps (`deepstack_visual_indexes`).
    """
    defaults = {
        "depth": 27,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "patch_size": 16,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "num_position_embeddings": 2304,
    }
    size = {name: count(described.get(name, default), f"vision_config.{name}") for name, default in defaults.items()}
    width = size["hidden_size"]
    merged = width * size["spatial_merge_size"] ** 2
    embedding = 3 * size["temporal_patch_size"] * size["patch_size"] ** 2 * width + width
    embedding += size["num_position_embeddings"] * width
    matrices = merged * merged + merged + merged * hidden_size + hidden_size
    taps = described.get("deepstack_visual_indexes") or ()
    mergers = 2 * width + matrices + len(taps if isinstance(taps, list | tuple) else ()) * (2 * merged + matrices)
    return size["depth"] * _biased_layer(width, size["intermediate_size"]) + embedding + mergers
