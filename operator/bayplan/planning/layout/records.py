"""What a revision remembers about its layout on one GPU product, as an annotation holds it.

Beside the sizes it notes for which load and GPU memory they were chosen, so that a later, better figure for the same
question moves nothing that runs; and the cache that an engine reported, where it differed from the plan.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from bayplan.planning.layout.split import Split
from bayplan.planning.numbers import InvalidInput

MAX_RECORDED = 2**53


@dataclass(frozen=True, slots=True)
class RecordedLayout:
    """A layout that was decided for a revision on a GPU product."""

    split: Split
    concurrency: int | None = None
    """Requests of full length that it was decided for; None where an older operator noted none."""
    gpu_memory_mib: int | None = None
    """Memory of the smallest GPU that it was decided for."""
    blocks: int | None = None
    """KV cache blocks of one rank as an engine reported them, where that was more than 3 % off the plan."""
    planned_blocks: int | None = None
    """What the plan said before it was measured."""

    def as_json(self) -> dict[str, int | bool]:
        """The members of the annotation."""
        split = self.split
        found: dict[str, int | bool] = {"tensor": split.tensor, "pipeline": split.pipeline}
        if split.data > 1:
            found["data"] = split.data
        if split.expert:
            found["expert"] = True
        if split.decode_context > 1:
            found["decodeContext"] = split.decode_context
        for name, value in (
            ("concurrency", self.concurrency),
            ("gpuMemoryMib", self.gpu_memory_mib),
            ("blocks", self.blocks),
            ("plannedBlocks", self.planned_blocks),
        ):
            if value is not None:
                found[name] = value
        return found


Recorded = Mapping[str, RecordedLayout]
"""Recorded layouts by GPU product."""
NOTHING_RECORDED: Recorded = MappingProxyType({})


def write_layouts(layouts: Recorded) -> str:
    """The annotation's value; equal records give equal text."""
    return json.dumps(
        {product: layout.as_json() for product, layout in layouts.items()}, sort_keys=True, separators=(",", ":")
    )


def read_layouts(text: object) -> dict[str, RecordedLayout]:
    """Read the annotation back; an entry that is not readable counts as not recorded."""
    try:
        raw = json.loads(text) if isinstance(text, str) else {}
    except ValueError:
        return {}
    if not isinstance(raw, dict):
        return {}
    found = {product: _read(entry) for product, entry in raw.items()}
    return {product: layout for product, layout in found.items() if layout is not None}


def _read(entry: object) -> RecordedLayout | None:
    if not isinstance(entry, dict):
        return None
    numbers = {name: value for name, value in entry.items() if type(value) is int and 0 < value <= MAX_RECORDED}
    try:
        split = Split(
            tensor=numbers["tensor"],
            pipeline=numbers["pipeline"],
            data=numbers.get("data", 1),
            expert=entry.get("expert") is True,
            decode_context=numbers.get("decodeContext", 1),
        )
    except (KeyError, InvalidInput):
        return None
    return RecordedLayout(
        split,
        numbers.get("concurrency"),
        numbers.get("gpuMemoryMib"),
        numbers.get("blocks"),
        numbers.get("plannedBlocks"),
    )


def with_evidence(stored: Recorded, wanted: Recorded) -> dict[str, RecordedLayout]:
    """`wanted` with what engines reported about the same splits in `stored`: a plan made before a report lacks it."""
    found = dict(wanted)
    for product, layout in wanted.items():
        before = stored.get(product)
        if before is not None and before.blocks is not None and before.split.sizes == layout.split.sizes:
            found[product] = replace(layout, blocks=before.blocks, planned_blocks=before.planned_blocks)
    return found
