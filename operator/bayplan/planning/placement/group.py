"""What a replica group asks of the fleet."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from bayplan.api.inferencemodel import TopologyRule
from bayplan.api.podtemplate import Toleration
from bayplan.planning.layout.split import Layout
from bayplan.planning.numbers import InvalidInput, count, named, positive
from bayplan.planning.placement.topology import ZONE


@dataclass(frozen=True, slots=True)
class GroupShape:
    """One way to run the group: `layout.nodes` pods of equal size on as many nodes with GPUs of one product.

    Raises InvalidInput for a negative amount.
    """

    layout: Layout
    gpu_product: str | None = None
    """Value of the product label, with or without the vendor prefix; None accepts any."""
    least_gpu_memory_mib: int | Fraction | None = None
    """Least memory of each GPU; None when the need is unknown or overridden."""
    cpu_millis: int = 0
    memory_bytes: int = 0
    preference: int = 0
    """Shapes of a smaller number win over others, whatever the other criteria say."""

    def __post_init__(self) -> None:
        count(self.cpu_millis, "cpu_millis", least=0)
        count(self.memory_bytes, "memory_bytes", least=0)
        if self.least_gpu_memory_mib is not None:
            positive(self.least_gpu_memory_mib, "least_gpu_memory_mib")

    @property
    def pods(self) -> int:
        """Pods of the group, each on its own node."""
        return self.layout.nodes

    @property
    def gpus_per_pod(self) -> int:
        """GPUs of one pod."""
        return self.layout.gpus_per_node


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """A replica group to place. Raises InvalidInput for a blank name or revision, or without a shape."""

    name: str
    revision: str
    shapes: tuple[GroupShape, ...]
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    topology: tuple[TopologyRule, ...] = ()
    spread_level: str = ZONE
    groups_in_domain: Mapping[str, int] = field(default_factory=dict)
    """Domain of the spread level → groups of the same model that it already holds."""
    resident_nodes: frozenset[str] = frozenset()
    """Nodes that hold the weights of exactly this revision."""
    kept_nodes: frozenset[str] = frozenset()
    """Nodes that the group must use: those that survived when one stage is replaced."""
    excluded_nodes: Mapping[str, str] = field(default_factory=dict)
    """Node → why it must not be used now, such as a pod that it refused a moment ago."""

    def __post_init__(self) -> None:
        named(self.name, "name")
        named(self.revision, "revision")
        if not self.shapes:
            raise InvalidInput("shapes", "needs at least one")

    @property
    def required(self) -> tuple[str, ...]:
        """Levels of which one domain must hold all pods."""
        return tuple(rule.level for rule in self.topology if rule.mode == "Required")

    @property
    def preferred(self) -> tuple[str, ...]:
        """Levels of which one domain should hold all pods, most wanted first."""
        return tuple(rule.level for rule in self.topology if rule.mode == "Preferred")
