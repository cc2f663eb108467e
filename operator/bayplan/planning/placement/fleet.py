"""Placing all replicas of a model one after the other, each against what those before it took.

Reserves nothing. Spread counts the groups that are already placed, as it does when the operator reserves them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from bayplan.planning.placement.group import GroupRequest
from bayplan.planning.placement.inventory import Inventory
from bayplan.planning.placement.place import PlacementDecision, groups_per_domain, place


@dataclass(frozen=True, slots=True)
class FleetPlacement:
    """Where the replicas went; `refusal` is the decision on the first that found no place."""

    inventory: Inventory
    """What is left."""
    placed: tuple[PlacementDecision, ...] = ()
    refusal: PlacementDecision | None = None

    @property
    def replicas(self) -> int:
        """Replicas with a place."""
        return len(self.placed)

    def in_domains(self, level: str) -> Mapping[str, int]:
        """Replicas by domain of that level; one that spans domains is in each of them, because it dies with each."""
        counted: Counter[str] = Counter()
        for decision in self.placed:
            counted.update(domains_of_group(decision.nodes, self.inventory, level))
        return counted


def domains_of_group(nodes: Sequence[str], inventory: Inventory, level: str) -> set[str]:
    """Domains of the level that a group on these nodes is in. A node without that level is a domain of its own."""
    found = (inventory.by_name[name] for name in nodes)
    return {node.domains.get(level) or f"node {node.name}" for node in found}


@dataclass(slots=True)
class FleetPlacer:
    """Places replicas of one request until one finds no place."""

    request: GroupRequest
    inventory: Inventory
    standing: Sequence[Sequence[str]] = ()
    """Nodes of each group of the same model that stands already; spread counts them."""
    placed: list[PlacementDecision] = field(default_factory=list)
    refusal: PlacementDecision | None = None

    def add(self) -> bool:
        """Place one more replica; False, with `refusal`, when there is no place."""
        level = self.request.spread_level
        groups = [*self.standing, *(decision.nodes for decision in self.placed)]
        request = replace(
            self.request,
            name=f"{self.request.name}-{len(self.placed)}",
            groups_in_domain=groups_per_domain(self.inventory, groups, level),
        )
        decision = place(request, self.inventory, with_runner_up=False)
        if not decision.placed:
            self.refusal = decision
            return False
        self.inventory = self.inventory.with_claims(decision.claims(request.name))
        self.placed.append(decision)
        return True

    def result(self) -> FleetPlacement:
        """What was placed so far."""
        return FleetPlacement(self.inventory, tuple(self.placed), self.refusal)


def place_replicas(
    request: GroupRequest, inventory: Inventory, replicas: int, *, standing: Sequence[Sequence[str]] = ()
) -> FleetPlacement:
    """Place that many replicas, or as many as find a place, beside the groups that are `standing`."""
    placer = FleetPlacer(request, inventory, standing)
    for _ in range(replicas):
        if not placer.add():
            break
    return placer.result()
