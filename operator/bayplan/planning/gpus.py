"""GPU memory by product, for nodes whose labels do not state it.

The label `nvidia.com/gpu.memory` comes from the driver and always wins. The values here are MiB as GPU Feature
Discovery publishes them for the same products (captured label dumps and nvidia-smi outputs in public issues).
"""

from collections.abc import Mapping
from types import MappingProxyType

_MIB_BY_PRODUCT: Mapping[str, int] = MappingProxyType(
    {
        "Tesla-T4": 15360,
        "A10": 23028,
        "A10G": 23028,
        "A30": 24576,
        "L4": 23034,
        "L40S": 46068,
        "A100-SXM4-40GB": 40960,
        "A100-PCIE-40GB": 40960,
        "A100-SXM4-80GB": 81920,
        "A100-80GB-PCIe": 81920,
        "H100-80GB-HBM3": 81559,
        "H100-PCIe": 81559,
        "H100-NVL": 95830,
        "H200": 143771,
        "B200": 183359,
    }
)

_PREFIX = "NVIDIA-"
MIG_INVALID = "-MIG-INVALID"
"""Part of the product label when a node's MIG partitions make no valid layout."""


def bare_product(product: str) -> str:
    """A product without the vendor prefix that newer drivers print and older ones do not."""
    return product.removeprefix(_PREFIX)


def table_memory_mib(product: str) -> int | None:
    """Memory of one GPU of the product in MiB, or None for one that the table does not know."""
    return _MIB_BY_PRODUCT.get(bare_product(product))
