"""Where the first groups of a revision on trial would stand: all on one node, they would be judged with that node."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from bayplan.planning.placement.group import GroupRequest
from bayplan.planning.placement.inventory import Inventory
from bayplan.planning.placement.place import PlacementDecision, groups_per_domain, place_apart, place_off


@dataclass(slots=True)
class ApartPlacer:
    """Places that many groups of one request, each as soon as it finds room, on nodes of its own where there are some.

    What was placed stays where it is: room that is made afterwards helps only the groups that are still to come.
    """

    request: GroupRequest
    groups: int
    placed: list[PlacementDecision] = field(default_factory=list)
    missing: str = ""
    """Why the first group that is beside another one is not on a node of its own."""

    @property
    def head_nodes(self) -> tuple[str, ...]:
        """The nodes on which the heads are."""
        return tuple(sorted({decision.nodes[0] for decision in self.placed}))

    def add(self, inventory: Inventory, standing: Sequence[Sequence[str]]) -> None:
        """Place what finds room in an inventory without this request's groups, beside groups `standing` on nodes."""
        for number, decision in enumerate(self.placed):
            inventory = inventory.with_claims(decision.claims(self._name(number)))
        while len(self.placed) < self.groups:
            name = self._name(len(self.placed))
            taken = {node for decision in self.placed for node in decision.nodes}
            nodes = [*standing, *(decision.nodes for decision in self.placed)]
            counted = groups_per_domain(inventory, nodes, self.request.spread_level)
            request = replace(self.request, name=name, groups_in_domain=counted)
            decision = place_apart(request, inventory, taken=taken)
            if not decision.placed:
                return
            if taken.intersection(decision.nodes):
                self.missing = self.missing or place_off(request, inventory, taken=taken).message
            self.placed.append(decision)
            inventory = inventory.with_claims(decision.claims(name))

    def _name(self, number: int) -> str:
        return f"{self.request.name}-{number}"
