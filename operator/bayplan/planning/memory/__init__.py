"""Memory of one GPU: what a model needs under a layout, what the engine leaves for the KV cache, and the verdict.

- `terms`: the words of an answer. `proportional`: the founding text's formula over declared numbers.
- `architecture`, `modelconfig`, `families`, `catalogue`: what a model is, from its config.json or the catalogue.
- `parameters`, `formats`, `weights`, `safetensors`: its weights by tensor class, per rank and stage.
- `cachelayers`, `pages`: its KV cache as the engine lays it out: groups, blocks, page bytes, requests.
- `enginerules`, `overheads`, `otherengines`: what the engine takes beside, by engine and version.
- `gpucatalogue`, `support`: what GPUs have and which formats they run.
- `plan`, `verdict`, `replica`: the terms per stage, fits or not, and both as one replica's memory.
"""

from bayplan.planning.memory.proportional import MemoryDecision, MemoryRequest, ModelShape, decide_memory
from bayplan.planning.memory.terms import KV_CACHE, OVERHEAD, WEIGHTS, Fit, Term

__all__ = [
    "KV_CACHE",
    "OVERHEAD",
    "WEIGHTS",
    "Fit",
    "MemoryDecision",
    "MemoryRequest",
    "ModelShape",
    "Term",
    "decide_memory",
]
