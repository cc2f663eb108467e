"""The fleet as placement sees it: nodes, what is claimed on them, and what is free.

Free = allocatable − requests of non-terminal pods that are bound or carry our assignment (gated or not) − decisions
assumed but not yet seen. An inventory is a snapshot: planning several groups means planning each against the inventory
that already contains the claims of those before.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from functools import cached_property
from typing import Any

from bayplan.api.provenance import Provenance
from bayplan.planning.memory.gpucatalogue import Gpu
from bayplan.planning.numbers import InvalidInput


class Sharing(StrEnum):
    """How the GPUs that a node offers relate to physical ones."""

    NONE = "whole GPUs"
    SHARED = "shared GPUs"
    PARTITIONED = "GPU partitions"


class Effect(StrEnum):
    """Taint effects of Kubernetes."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


def _never_negative(value: int | Fraction | None, name: str) -> None:
    if value is not None and value < 0:
        raise InvalidInput(name, f"must not be negative, not {value}")


@dataclass(frozen=True, slots=True)
class Taint:
    """A node taint. `effect` is kept as text: an unknown effect repels nobody."""

    key: str
    effect: str
    value: str = ""

    def __str__(self) -> str:
        return f"{self.key}{'=' if self.value else ''}{self.value}:{self.effect}"


@dataclass(frozen=True, slots=True)
class Node:
    """One node, read from the API and reduced to what decisions use.

    Amounts are allocatable ones; a negative one raises InvalidInput.
    """

    name: str
    gpus: int = 0
    cpu_millis: int = 0
    memory_bytes: int = 0
    pods: int = 0
    gpu_resource: str = ""
    gpu_product: str = ""
    """Value of the product label; empty where nothing labels the node."""
    gpu_memory_mib: int | Fraction | None = None
    """Memory of one GPU as the driver shows it; None when nobody says."""
    gpu_memory_provenance: Provenance = Provenance.UNKNOWN
    gpus_expected: int = 0
    """What the product labels count; above `gpus` while drivers install or after a GPU fell out."""
    sharing: Sharing = Sharing.NONE
    ready: bool = True
    cordoned: bool = False
    lost: bool = False
    """The control plane does not hear from it: its pods cannot be ended, only replaced."""
    leaving: str = ""
    """Why its groups should move away (drain annotation, autoscaler or cloud taint); empty when it stays."""
    unplaceable: str = ""
    """Why nothing can be placed although the node looks well, such as a MIG change under way."""
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    domains: Mapping[str, str] = field(default_factory=dict)
    """Topology level → domain."""
    facts: tuple[str, ...] = ()
    """What was odd about the node's labels or amounts; reported, never fatal."""

    def __post_init__(self) -> None:
        for name in ("gpus", "cpu_millis", "memory_bytes", "pods", "gpu_memory_mib"):
            _never_negative(getattr(self, name), name)


class ClaimState(StrEnum):
    """How firm a claim on a node is."""

    BOUND = "Bound"
    ASSIGNED = "Assigned"
    ASSUMED = "Assumed"


@dataclass(frozen=True, slots=True)
class Claim:
    """What one pod takes from one node, or several pods together. Raises InvalidInput for a negative amount."""

    node: str
    gpus: int = 0
    cpu_millis: int = 0
    memory_bytes: int = 0
    owner: str = ""
    """The group, or for foreign pods namespace/name."""
    state: ClaimState = ClaimState.BOUND
    pods: int = 1

    def __post_init__(self) -> None:
        for name in ("gpus", "cpu_millis", "memory_bytes", "pods"):
            _never_negative(getattr(self, name), name)


@dataclass(frozen=True, slots=True)
class Free:
    """What a node still has. Negative amounts mean that it is over-assigned."""

    gpus: int
    cpu_millis: int
    memory_bytes: int
    pods: int

    def minus(self, claim: Claim) -> "Free":
        """What is left after one more claim."""
        return Free(
            gpus=self.gpus - claim.gpus,
            cpu_millis=self.cpu_millis - claim.cpu_millis,
            memory_bytes=self.memory_bytes - claim.memory_bytes,
            pods=self.pods - claim.pods,
        )


NOTHING_FREE = Free(gpus=0, cpu_millis=0, memory_bytes=0, pods=0)


@dataclass(frozen=True)
class Inventory:
    """A snapshot of nodes and claims. Node names are unique; claims on unknown nodes count nowhere.

    Raises InvalidInput("nodes") when a name repeats.
    """

    nodes: tuple[Node, ...] = ()
    claims: tuple[Claim, ...] = ()
    version: str = ""
    """Names the snapshot in facts, for example the newest resourceVersion in it."""
    gpus: tuple[Gpu, ...] = ()
    """GPU products whose figures the operator's configuration states, by their label's value."""

    def __post_init__(self) -> None:
        if len(self.by_name) != len(self.nodes):
            repeated = next(name for name, times in Counter(node.name for node in self.nodes).items() if times > 1)
            raise InvalidInput("nodes", f"{repeated} is listed twice")

    @cached_property
    def by_name(self) -> Mapping[str, Node]:
        """Nodes by name."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def derived(self) -> dict[Hashable, Any]:
        """What readers worked out from this snapshot alone, by a key of their own: worked out once per snapshot."""
        return {}

    @cached_property
    def of_nodes(self) -> dict[Hashable, Any]:
        """The same of the nodes alone, whatever is claimed: snapshots of the same nodes share it."""
        return {}

    @cached_property
    def free(self) -> Mapping[str, Free]:
        """What each node still has, by name; computed once per snapshot."""
        return _subtract(
            {
                node.name: Free(
                    gpus=node.gpus, cpu_millis=node.cpu_millis, memory_bytes=node.memory_bytes, pods=node.pods
                )
                for node in self.nodes
            },
            self.claims,
        )

    def with_claims(self, claims: Iterable[Claim], *, version: str | None = None) -> "Inventory":
        """The inventory after `claims`; costs what they cost, not what the snapshot did. `version` renames it."""
        added = tuple(claims)
        name = self.version if version is None else version
        after = Inventory(nodes=self.nodes, claims=self.claims + added, version=name, gpus=self.gpus)
        after.__dict__["free"] = _subtract(dict(self.free), added)
        after.__dict__["of_nodes"] = self.of_nodes
        return after

    def without_owners(self, owners: Iterable[str]) -> "Inventory":
        """The inventory as if the pods of `owners` were gone: what a group's successor may count as its own."""
        gone = frozenset(owners)
        rest = Inventory(
            nodes=self.nodes,
            claims=tuple(claim for claim in self.claims if claim.owner not in gone),
            version=self.version,
            gpus=self.gpus,
        )
        rest.__dict__["of_nodes"] = self.of_nodes
        return rest


def _subtract(free: dict[str, Free], claims: Iterable[Claim]) -> dict[str, Free]:
    for claim in claims:
        left = free.get(claim.node)
        if left is not None:
            free[claim.node] = left.minus(claim)
    return free
