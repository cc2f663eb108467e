"""GPU product names as node labels spell them."""

from bayplan.planning.memory.gpucatalogue import find_gpu

_PREFIX = "NVIDIA-"
MIG_INVALID = "-MIG-INVALID"
"""Part of the product label when a node's MIG partitions make no valid layout."""


def bare_product(product: str) -> str:
    """A product without the vendor prefix that newer drivers print and older ones do not."""
    return product.removeprefix(_PREFIX)


def table_memory_mib(product: str) -> int | None:
    """Memory of one GPU of the product in MiB as its label would say; None for one that the catalogue does not know.

    The label `nvidia.com/gpu.memory` comes from the driver and always wins.
    """
    known = find_gpu(product) if product else None
    return None if known is None else known.label_mib
