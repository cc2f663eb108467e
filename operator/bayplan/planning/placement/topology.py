"""Topology levels and the node labels that name their domains.

Clouds and tools spell the same level differently, so each level has a list of label keys and the first one that a node
carries counts. The table is configuration: `DEFAULT_TOPOLOGY` is what holds without any.
"""

from collections.abc import Mapping
from types import MappingProxyType

Topology = Mapping[str, tuple[str, ...]]
"""Level → label keys, most specific writer first."""

HOST = "host"
ZONE = "zone"
REGION = "region"

DEFAULT_TOPOLOGY: Topology = MappingProxyType(
    {
        REGION: ("topology.kubernetes.io/region",),
        ZONE: ("topology.kubernetes.io/zone",),
        "block": (
            "fabric.topograph.run/tier-1",
            "network.topology.nvidia.com/spine",
            "cloud.google.com/gce-topology-block",
            "topology.k8s.aws/network-node-layer-2",
            "oci.oraclecloud.com/host.network_block_id",
            "ib.coreweave.cloud/superpod",
        ),
        "rack": (
            "topology.kubernetes.io/rack",
            "node.coreweave.cloud/rack",
            "oci.oraclecloud.com/host.rack_id",
            "fabric.topograph.run/tier-0",
            "network.topology.nvidia.com/leaf",
            "cloud.google.com/gce-topology-subblock",
            "topology.k8s.aws/network-node-layer-3",
            "ib.coreweave.cloud/leafgroup",
            "backend.coreweave.cloud/leafgroup",
        ),
        "fabric": (
            "ib.coreweave.cloud/fabric",
            "backend.coreweave.cloud/fabric",
            "network.topology.nvidia.com/core",
            "topology.k8s.aws/network-node-layer-1",
            "fabric.topograph.run/tier-2",
        ),
        "clique": (
            "nvidia.com/gpu.clique",
            "accelerator.topograph.run/domain",
            "network.topology.nvidia.com/accelerator",
            "ds.coreweave.com/nvlink.domain",
            "topology.k8s.aws/ultraserver-id",
        ),
    }
)
"""Levels that users name in `placement.topology` and `placement.spread`, beside `host`, which every node is."""

_OUTER = (REGION, ZONE, HOST)


def domains_of(name: str, labels: Mapping[str, str], topology: Topology = DEFAULT_TOPOLOGY) -> dict[str, str]:
    """Return level → domain for the node `name`.

    A level without a label has no entry. Domains below the zone carry the zone's name: racks numbered per zone by hand
    must not become one rack.
    """
    found = {level: value for level, keys in topology.items() if (value := _first(labels, keys))}
    zone = found.get(ZONE)
    domains = {level: value if zone is None or level in _OUTER else f"{zone}/{value}" for level, value in found.items()}
    domains[HOST] = name
    return domains


def _first(labels: Mapping[str, str], keys: tuple[str, ...]) -> str:
    return next((labels[key] for key in keys if labels.get(key)), "")
