"""What a GPU-less pod read of a model's own files, and the spec with it in place of the missing architecture."""

import json
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from bayplan.api.inferencemodel import Architecture, InferenceModelSpec

MAX_REPORT_BYTES = 8192
MAX_LAYERS = 512


@dataclass(frozen=True, slots=True)
class Inspected:
    """One report: an architecture, or why there is none."""

    architecture: Architecture | None
    error: str = ""


def read_report(text: str) -> Inspected:
    """Read what the pod said when it ended; never raises, whatever it said."""
    try:
        raw = json.loads(text) if len(text) <= MAX_REPORT_BYTES else None
        if not isinstance(raw, dict):
            return Inspected(None, "the pod said nothing that can be read")
        if "error" in raw:
            return Inspected(None, str(raw["error"])[:1000])
        block: dict[str, Any] = {"config": json.dumps(raw["config"], separators=(",", ":"))}
        if "weightBytes" in raw:
            sizes = dict(raw["weightBytes"])
            runs = [(int(number), int(size)) for number, size in sizes["layers"]]
            if not 0 < sum(number for number, _ in runs) <= MAX_LAYERS:
                return Inspected(None, f"the pod speaks of no layers, or of more than {MAX_LAYERS}")
            block["weightBytes"] = {**sizes, "layers": [size for number, size in runs for _ in range(number)]}
        return Inspected(Architecture.model_validate(block, by_alias=True, by_name=False))
    except (ValueError, TypeError, KeyError, RecursionError, ValidationError) as error:
        return Inspected(None, f"the pod's report is not readable: {str(error).splitlines()[0][:200]}")


def inspects(spec: InferenceModelSpec) -> bool:
    """Whether the model's own files are to be read: asked for, and nothing else says what it is."""
    return spec.model.inspect and spec.model.architecture is None


def with_architecture(spec: InferenceModelSpec, found: Inspected) -> InferenceModelSpec:
    """The spec as if it stated what was read."""
    if found.architecture is None:
        return spec
    return spec.model_copy(update={"model": spec.model.model_copy(update={"architecture": found.architecture})})


def without_architecture(spec: InferenceModelSpec) -> InferenceModelSpec:
    """The spec without an architecture that contradicts itself."""
    return spec.model_copy(update={"model": spec.model.model_copy(update={"architecture": None})})
