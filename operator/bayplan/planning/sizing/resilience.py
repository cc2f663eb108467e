"""Replicas beyond the load: for the loss of the largest failure domain and for maintenance, where they really are.

After the largest domain of the level is lost, and while the maintenance replicas are away, what is left must be the
load's replicas still. Mean load says nothing about that, and neither does a count without places: the replicas are
placed as the operator would place them, one more at a time.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from bayplan.api.capacitywords import Need
from bayplan.planning.placement.fleet import FleetPlacement, FleetPlacer, domains_of_group
from bayplan.planning.placement.group import GroupRequest
from bayplan.planning.placement.inventory import Inventory
from bayplan.planning.sizing.records import Resilience
from bayplan.planning.words import plural

MOST_PLACED = 1024
"""Replicas that are placed one by one; for a plan of more, nothing is said about the rest."""
MOST_TRIED_FACTOR = 4
"""The search ends at so many times the load's replicas; a fleet that needs more is not spread at all."""


@dataclass(frozen=True, slots=True)
class FleetSizing:
    """Replicas in all, and the placement that they were counted in."""

    needs: Mapping[Need, int]
    """Replicas by need: load, load and a lost domain, load and maintenance. Only those that are asked for."""
    replicas: int
    at_least: bool
    """The placement does not survive the loss: so many at least, in other places."""
    placement: FleetPlacement
    bounded: bool = False
    """More than are placed one by one: the placement covers a part of them, and proves nothing of the rest."""
    largest_domain: str = ""
    largest_domain_replicas: int = 0
    message: str = ""

    @property
    def binding(self) -> tuple[Need, ...]:
        """The needs that alone call for the most replicas."""
        most = max(self.needs.values())
        return tuple(need for need, replicas in self.needs.items() if replicas == most)


def size_fleet(load_replicas: int, resilience: Resilience, request: GroupRequest, inventory: Inventory) -> FleetSizing:
    """Add what survives a loss and maintenance, and place it all on the inventory."""
    away = resilience.maintenance_replicas
    needs = {Need.LOAD: load_replicas}
    if away:
        needs[Need.MAINTENANCE] = load_replicas + away
    placer = FleetPlacer(request, inventory)
    if resilience.domain_level is not None:
        return _surviving(load_replicas, resilience, needs, placer)
    replicas = load_replicas + away
    while len(placer.placed) < min(replicas, MOST_PLACED) and placer.add():
        pass
    bounded = placer.refusal is None and replicas > MOST_PLACED
    return FleetSizing(needs, replicas, at_least=False, bounded=bounded, placement=placer.result())


def _surviving(load: int, resilience: Resilience, needs: dict[Need, int], placer: FleetPlacer) -> FleetSizing:
    """Place one more at a time until what is left after the loss of the largest domain is enough."""
    level, away = resilience.domain_level or "", resilience.maintenance_replicas
    wanted = MOST_TRIED_FACTOR * (load + away) + 1
    in_domains: Counter[str] = Counter()
    loss_alone: int | None = None
    while len(placer.placed) < min(wanted, MOST_PLACED) and placer.add():
        placed = len(placer.placed)
        in_domains.update(domains_of_group(placer.placed[-1].nodes, placer.inventory, level))
        if placed < load:
            continue
        name, lost = _largest(in_domains)
        if loss_alone is None and placed - lost >= load:
            loss_alone = placed
        if placed - lost - away >= load:
            needs[Need.DOMAIN_LOSS] = placed if loss_alone is None else loss_alone
            return FleetSizing(
                needs,
                placed,
                at_least=False,
                placement=placer.result(),
                largest_domain=name,
                largest_domain_replicas=lost,
                message=f"losing {level} {name} takes {lost} of {placed}",
            )
    if placer.refusal is None and wanted > MOST_PLACED:
        needs[Need.DOMAIN_LOSS] = load + 1
        return FleetSizing(needs, load + away + 1, at_least=True, bounded=True, placement=placer.result())
    return _not_survived(load, resilience, needs, placer, loss_alone)


def _not_survived(
    load: int, resilience: Resilience, needs: dict[Need, int], placer: FleetPlacer, loss_alone: int | None
) -> FleetSizing:
    """The loss cannot be survived here: the fewest replicas that could survive it with more places elsewhere."""
    first = FleetPlacer(placer.request, placer.inventory)
    first.placed = placer.placed[:load]
    domains = first.result().in_domains(resilience.domain_level or "")
    name, lost = _largest(domains) if domains else ("", 0)
    missing = load - len(first.placed)
    if missing:  # wherever the rest goes, at least one domain holds a replica
        lost = max(lost, 1)
    needs[Need.DOMAIN_LOSS] = loss_alone if loss_alone is not None else load + lost
    replicas = load + lost + resilience.maintenance_replicas
    where = f"{resilience.domain_level} {name}" if name else f"a {resilience.domain_level}"
    text = f"the placement of {plural(len(first.placed), 'replica')} has {lost} in {where}"
    refusal = f"; a further one finds no place: {placer.refusal.message}" if placer.refusal is not None else ""
    return FleetSizing(
        needs,
        replicas,
        at_least=True,
        placement=placer.result(),
        largest_domain=name,
        largest_domain_replicas=lost,
        message=f"{text}: what is left after its loss is not the {load} that the load needs; at least {replicas}, "
        f"over more domains of {resilience.domain_level}{refusal}",
    )


def _largest(domains: Mapping[str, int]) -> tuple[str, int]:
    """The domain with the most replicas; the first by name on a tie."""
    return min(domains.items(), key=lambda entry: (-entry[1], entry[0]))
