"""The checker of "no GPU twice" finds what it should find."""

from typing import Any, cast

from e2e.localcluster import KubeApi
from e2e.scenarios.invariants import GpuWatch, placed_on


def node(name: str, gpus: int) -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": {"allocatable": {"nvidia.com/gpu": str(gpus)}}}


def pod(
    gpus: int, *, bound: str | None = None, pinned: str | None = None, gated: bool = False, phase: str = "Pending"
) -> dict[str, Any]:
    spec: dict[str, Any] = {"containers": [{"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}]}
    if bound:
        spec["nodeName"] = bound
    if gated:
        spec["schedulingGates"] = [{"name": "bayplan.dev/placement"}]
    if pinned:
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [pinned]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        spec["affinity"] = {"nodeAffinity": required}
    return {"spec": spec, "status": {"phase": phase}}


def violations(nodes: list[dict[str, Any]], pods: list[dict[str, Any]]) -> list[str]:
    watch = GpuWatch(cast(KubeApi, None))
    watch.check(nodes, pods)
    return watch.violations


def test_a_node_that_is_exactly_full_is_no_violation() -> None:
    assert violations([node("a", 4)], [pod(3, bound="a"), pod(1, pinned="a")]) == []


def test_a_bound_and_a_released_pod_on_the_same_gpus_are_found() -> None:
    assert violations([node("a", 4)], [pod(4, bound="a"), pod(1, pinned="a")]) == ["a: 5 of 4 GPUs"]


def test_two_bound_pods_on_the_same_gpus_are_found() -> None:
    assert violations([node("a", 4)], [pod(4, bound="a"), pod(1, bound="a")]) == ["a: 5 of 4 GPUs"]


def test_gated_and_ended_pods_hold_nothing() -> None:
    pods = [pod(4, bound="a"), pod(4, pinned="a", gated=True), pod(4, bound="a", phase="Failed")]
    assert violations([node("a", 4)], pods) == []


def test_a_pod_that_may_go_anywhere_is_on_no_node() -> None:
    assert placed_on(pod(1)) is None
