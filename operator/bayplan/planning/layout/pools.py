"""The GPU products of a fleet as layouts see them: node sizes and the memory that a program sees on one GPU."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.api.provenance import Provenance
from bayplan.planning.memory.gpucatalogue import Gpu, find_gpu, visible_memory_gib
from bayplan.planning.memory.terms import Source
from bayplan.planning.numbers import MIB_PER_GIB
from bayplan.planning.placement.gpus import MIG_INVALID, bare_product
from bayplan.planning.placement.inventory import Inventory, Node, Sharing


@dataclass(frozen=True, slots=True)
class GpuPool:
    """All nodes of one GPU product that the model's selector admits, ready or not: a layout outlives a reboot."""

    gpu_product: str
    node_sizes: tuple[int, ...]
    """GPUs per node, largest first."""
    gpu_memory_mib: int | Fraction | None
    """The smallest memory among the pool's GPUs; None when a node does not state it."""
    memory_provenance: Provenance = Provenance.UNKNOWN
    sharing: Sharing = Sharing.NONE
    stated: Gpu | None = None
    """The GPU as the operator's configuration states it."""

    @property
    def gpus_of_node(self) -> int:
        """GPUs of the largest node that one replica may use together."""
        return self.node_sizes[0]

    @property
    def gpu_memory_gib(self) -> Fraction | None:
        """Memory of one GPU in GiB, as its label states it, or the configuration where it does."""
        if self.stated is not None and self.stated.visible_source is Source.DECLARED:
            return self.stated.visible_gib
        return None if self.gpu_memory_mib is None else Fraction(self.gpu_memory_mib) / MIB_PER_GIB

    @property
    def gpu(self) -> Gpu | None:
        """The GPU with the memory that a program sees; None when nobody knows that memory."""
        if self.stated is not None and self.stated.visible_source is Source.DECLARED:
            return self.stated
        return _gpu(self.gpu_product, self.gpu_memory_mib, self.stated)

    @property
    def links_known(self) -> bool:
        """Whether catalogue or configuration know how GPUs of the product are connected."""
        return self.stated is not None or find_gpu(self.gpu_product) is not None

    def nodes_of(self, gpus: int) -> int:
        """Nodes that have at least `gpus`."""
        return sum(size >= gpus for size in self.node_sizes)

    def __str__(self) -> str:
        return self.gpu_product or "GPUs without a product label"


@lru_cache(maxsize=256)
def _gpu(product: str, label_mib: int | Fraction | None, stated: Gpu | None) -> Gpu | None:
    """The catalogue's GPU with the node's memory; an unknown product gets its memory alone."""
    visible = None if label_mib is None else visible_memory_gib(product, label_mib=label_mib)
    if visible is None:
        return None
    known = stated or find_gpu(product)
    if known is not None:
        return known.overridden(visible_gib=visible[0], visible_source=visible[1])
    vendor = "amd" if product.startswith("AMD") else "nvidia"
    return Gpu(name=product or "GPU", vendor=vendor, visible_gib=visible[0], visible_source=visible[1])


def gpu_pools(spec: InferenceModelSpec, inventory: Inventory) -> tuple[GpuPool, ...]:
    """The GPU products that the spec accepts and the inventory has, in the user's order, else smallest memory first.

    Small before large, so that messages speak first of the GPUs that a model leaves to nobody larger.

    Shared GPUs count only where the user names their product: others may use the memory that a fit promises.
    """
    products, selector = spec.placement.gpu_products, spec.placement.node_selector
    key = ("gpu_pools", products, tuple(sorted(selector.items())))
    found: tuple[GpuPool, ...] | None = inventory.of_nodes.get(key)
    if found is None:
        found = inventory.of_nodes[key] = _pools(products, selector, inventory)
    return found


def _pools(products: Sequence[str], selector: Mapping[str, str], inventory: Inventory) -> tuple[GpuPool, ...]:
    wanted = [bare_product(product) for product in products]
    by_product: dict[str, list[Node]] = {}
    for node in inventory.nodes:
        bare = bare_product(node.gpu_product)
        size = node.gpus or node.gpus_expected
        selected = all(node.labels.get(key) == value for key, value in selector.items())
        accepted = bare in wanted if wanted else node.sharing is not Sharing.SHARED
        if size and selected and accepted and MIG_INVALID not in bare:
            by_product.setdefault(bare, []).append(node)
    stated = {bare_product(gpu.name): gpu for gpu in inventory.gpus}
    pools = {bare: _pool(nodes, stated.get(bare)) for bare, nodes in by_product.items()}
    if wanted:
        return tuple(pools[bare] for bare in sorted(pools, key=wanted.index))
    return tuple(pools[bare] for bare in sorted(pools, key=lambda bare: (*_size(pools[bare]), bare)))


def _size(pool: GpuPool) -> tuple[bool, int | Fraction]:
    return pool.gpu_memory_mib is None, pool.gpu_memory_mib or 0


def _pool(nodes: list[Node], stated: Gpu | None) -> GpuPool:
    memories = [node.gpu_memory_mib for node in nodes]
    known = [memory for memory in memories if memory is not None]
    whole = len(known) == len(memories)
    estimated = any(node.gpu_memory_provenance is not Provenance.MEASURED for node in nodes)
    return GpuPool(
        gpu_product=min(node.gpu_product for node in nodes),
        node_sizes=tuple(sorted((node.gpus or node.gpus_expected for node in nodes), reverse=True)),
        gpu_memory_mib=min(known) if whole else None,
        memory_provenance=(Provenance.ESTIMATED if estimated else Provenance.MEASURED) if whole else Provenance.UNKNOWN,
        sharing=max((node.sharing for node in nodes), key=list(Sharing).index),
        stated=stated,
    )
