"""A pod that no node could hold even if it were empty: which resource, how much is missing, which field to change."""

from typing import Any

import pytest

from bayplan.planning.placement.inventory import Inventory
from bayplan.planning.placement.place import place
from tests.planning.fleets import node, request, shape


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (
            {"cpu_millis": 1_000_000},
            "2 with too little CPU for one pod; a pod asks for 1000 CPU, the largest of them has 96, 904 short; "
            "ask for less in spec.template.resources, or add larger nodes",
        ),
        (
            {"memory_bytes": 3 * 2**40},
            "a pod asks for 3072 GiB of memory, the largest of them has 1024, 2048 short; "
            "ask for less in spec.template.resources, or add larger nodes",
        ),
        (
            {"memory_bytes": 2**40 + 1},
            "a pod asks for 1024 GiB of memory, the largest of them has 1024, 9e-10 short",
        ),
        ({"cpu_millis": 96_001}, "a pod asks for 96.001 CPU, the largest of them has 96, 0.001 short"),
        (
            {"least_gpu_memory_mib": 100 * 1024},
            "GPUs with too little memory; a pod asks for 100 GiB of memory per GPU, the largest of them has 80, 20 "
            "short; ask for less in spec.concurrency or spec.engine.maxModelLen, or add larger nodes",
        ),
    ],
)
def test_what_nodes_are_too_small_in_is_named_with_amounts_and_the_field_to_change(
    asked: dict[str, Any], text: str
) -> None:
    fleet = Inventory(
        (
            node("a", cpu_millis=96_000, memory_bytes=2**40, memory_mib=80 * 1024),
            node("b", cpu_millis=48_000, memory_bytes=2**39, memory_mib=40 * 1024),
        )
    )
    assert text in place(request(shape(2, **asked)), fleet).message


def test_too_few_gpus_name_the_layout_and_other_obstacles_other_nodes() -> None:
    small, broken = node("a", gpus=2), node("b", gpus=8, ready=False)
    assert place(request(shape(4)), Inventory((small,))).message.endswith(
        "a pod asks for 4 GPUs, the largest of them has 2, 2 short; ask for less in spec.parallelism, or add larger "
        "nodes"
    )
    assert place(request(shape(4)), Inventory((small, broken))).message.endswith(
        "add or repair nodes, ask for less in spec.parallelism, or widen spec.placement"
    )
