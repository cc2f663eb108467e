"""Inventories: what is refused and how it is said, and the nodes that come out."""

from pathlib import Path
from typing import Any

import pytest

from e2e.nodeagent.inventory import InventoryError, load_inventory, parse_inventory

INVENTORIES = Path(__file__).parents[2] / "e2e" / "inventories"
L40S = {"product": "NVIDIA-L40S", "memoryMib": 46068, "computeCapability": "8.9"}


def inventory(**pool: Any) -> dict[str, Any]:
    return {"gpuKinds": {"l40s": L40S}, "pools": [{"nodeNames": "n-{index}", "count": 2, **pool}]}


def test_demo_has_six_nodes_three_kinds_two_zones_three_racks() -> None:
    nodes = load_inventory(INVENTORIES / "demo.yaml").nodes()
    assert len(nodes) == 6
    assert len({node.labels["nvidia.com/gpu.product"] for node in nodes}) == 3
    assert len({node.labels["topology.kubernetes.io/zone"] for node in nodes}) == 2
    assert len({node.labels["fabric.topograph.run/tier-0"] for node in nodes}) == 3
    assert all(node.labels["nvidia.com/gpu.count"] == node.allocatable["nvidia.com/gpu"] for node in nodes)


def test_demo_has_one_node_that_four_large_gpus_fill_exactly() -> None:
    nodes = load_inventory(INVENTORIES / "demo.yaml").nodes()
    large = [node for node in nodes if int(node.labels["nvidia.com/gpu.memory"]) > 80_000]
    assert [node.name for node in large if node.devices["nvidia.com/gpu"] == 4] == ["a2-a100-1"]


def test_two_node_groups_has_racks_with_a_pair_and_one_without() -> None:
    nodes = load_inventory(INVENTORIES / "two-node-groups.yaml").nodes()
    racks = [node.labels["fabric.topograph.run/tier-0"] for node in nodes]
    assert sorted(racks.count(rack) for rack in set(racks)) == [1, 2, 2, 2]


def test_gpu_labels_have_the_form_of_gpu_feature_discovery() -> None:
    kind = L40S | {"driverVersion": "570.172.08", "cudaVersion": "12.8", "family": "ada-lovelace"}
    data = inventory(gpu="l40s", gpusPerNode=4) | {"gpuKinds": {"l40s": kind}}
    labels = parse_inventory(data).nodes()[0].labels
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-L40S"
    assert labels["nvidia.com/gpu.memory"] == "46068"
    assert (labels["nvidia.com/gpu.compute.major"], labels["nvidia.com/gpu.compute.minor"]) == ("8", "9")
    assert labels["nvidia.com/cuda.driver-version.full"] == "570.172.08"
    assert labels["nvidia.com/cuda.driver-version.revision"] == "08"
    assert labels["nvidia.com/cuda.runtime-version.minor"] == "8"
    assert labels["nvidia.com/gpu.family"] == "ada-lovelace"


def test_amd_pool_counts_amd_gpus_and_has_its_labellers_names() -> None:
    kind = {"vendor": "amd", "product": "Instinct_MI210", "memoryMib": 65536}
    data = {"gpuKinds": {"mi210": kind}, "pools": [{"nodeNames": "amd-1", "gpu": "mi210", "gpusPerNode": 8}]}
    node = parse_inventory(data).nodes()[0]
    assert node.devices == {"amd.com/gpu": 8}
    assert node.labels["amd.com/gpu.product-name"] == "Instinct_MI210"
    assert node.labels["amd.com/gpu.vram"] == "64G"
    assert not [key for key in node.labels if key.startswith("nvidia.com/")]


def test_pool_labels_and_allocatable_override_what_is_derived() -> None:
    pool = {"labels": {"nvidia.com/gpu.count": "8"}, "allocatable": {"nvidia.com/gpu": 3, "cpu": "500m"}}
    node = parse_inventory(inventory(gpu="l40s", gpusPerNode=4, **pool)).nodes()[0]
    assert node.labels["nvidia.com/gpu.count"] == "8"
    assert node.devices == {"nvidia.com/gpu": 3}
    assert node.allocatable["cpu"] == "500m"


@pytest.mark.parametrize(
    ("pool", "message"),
    [
        ({"count": 0}, "pools.0.count: Input should be greater than or equal to 1"),
        ({"colour": "red"}, "pools.0.colour: Extra inputs are not permitted"),
        ({"gpu": "h100", "gpusPerNode": 8}, "pools.0.gpu: unknown GPU kind 'h100'; gpuKinds has: l40s"),
        ({"gpu": "l40s"}, "pools.0: gpu and gpusPerNode belong together"),
        ({"nodeNames": "node"}, "pools.0: nodeNames needs {index} when count is above 1"),
        ({"nodeNames": "Node-{index}"}, "pools.0.nodeNames: 'Node-1' is not a node name"),
        ({"nodeNames": "n-{rack}"}, "pools.0.nodeNames: 'n-{rack}' may contain no other placeholder than {index}"),
        ({"allocatable": {"cpu": "many"}}, "pools.0.allocatable.cpu: 'many' is not a Kubernetes quantity"),
        ({"allocatable": {"cpu": True}}, "pools.0.allocatable.cpu: must be a Kubernetes quantity"),
        ({"allocatable": {"nvidia.com/gpu": "1k"}}, "pools.0: allocatable.nvidia.com/gpu must be a whole number"),
        ({"taints": [{"key": "a", "effect": "No"}]}, "pools.0.taints.0.effect"),
        ({"zone": "zone a"}, "pools.0.zone"),
    ],
)
def test_bad_pool_is_refused_with_its_field(pool: dict[str, Any], message: str) -> None:
    with pytest.raises(InventoryError) as error:
        parse_inventory(inventory(**pool))
    assert message in str(error.value)


def test_same_node_name_in_two_pools_is_refused() -> None:
    with pytest.raises(InventoryError, match="node name 'a' occurs twice"):
        parse_inventory({"pools": [{"nodeNames": "a"}, {"nodeNames": "a"}]})


@pytest.mark.parametrize(("count", "accepted"), [(4999, True), (5000, True), (5001, False)])
def test_number_of_nodes_is_limited(count: int, accepted: bool) -> None:
    data = {"pools": [{"nodeNames": "a-{index}", "count": count - 1}, {"nodeNames": "b"}]}
    if accepted:
        assert len(parse_inventory(data).nodes()) == count
    else:
        with pytest.raises(InventoryError, match="5001 nodes in all; at most 5000"):
            parse_inventory(data)


def test_nvidia_kind_without_compute_capability_is_refused() -> None:
    with pytest.raises(InventoryError, match=r"gpuKinds\.x: computeCapability is required for vendor nvidia"):
        parse_inventory({"gpuKinds": {"x": {"product": "X", "memoryMib": 1}}, "pools": [{"nodeNames": "a"}]})


@pytest.mark.parametrize(
    ("text", "message"),
    [("[", "not YAML"), ("- a", "must be a mapping"), ("pools: []", "pools: Tuple should have at least 1 item")],
)
def test_unreadable_file_is_refused_with_its_path(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "nodes.yaml"
    path.write_text(text)
    with pytest.raises(InventoryError) as error:
        load_inventory(path)
    assert str(path) in str(error.value)
    assert message in str(error.value)


def test_missing_file_is_refused_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(InventoryError, match=r"absent\.yaml: No such file"):
        load_inventory(tmp_path / "absent.yaml")
