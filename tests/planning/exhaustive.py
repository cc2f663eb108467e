"""Placement by trying every set of nodes: shares no rule with the planner, and is only good for a handful of nodes."""

from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations

from bayplan.planning.placement.group import GroupRequest, GroupShape
from bayplan.planning.placement.inventory import Inventory, Node, Sharing


def violations(request: GroupRequest, shape: GroupShape, inventory: Inventory, names: tuple[str, ...]) -> list[str]:
    """Everything that is wrong with putting one pod of `shape` on each of `names`."""
    nodes = {node.name: node for node in inventory.nodes}
    found = []
    if len(names) != shape.layout.nodes or len(set(names)) != len(names):
        found.append("not one node per pod")
    if not set(request.kept_nodes) <= set(names):
        found.append("a kept node is missing")
    for name in names:
        found += [f"{name}: {problem}" for problem in _node_violations(request, shape, inventory, nodes[name])]
    if len(names) > 1:
        for rule in request.topology:
            if rule.mode == "Required" and not _in_one_domain([nodes[name] for name in names], rule.level):
                found.append(f"not in one {rule.level}")
    return found


def _node_violations(request: GroupRequest, shape: GroupShape, inventory: Inventory, node: Node) -> Iterator[str]:
    taken = [claim for claim in inventory.claims if claim.node == node.name]
    if sum(claim.gpus for claim in taken) + shape.layout.gpus_per_node > node.gpus:
        yield "GPUs"
    if sum(claim.cpu_millis for claim in taken) + shape.cpu_millis > node.cpu_millis:
        yield "CPU"
    if sum(claim.memory_bytes for claim in taken) + shape.memory_bytes > node.memory_bytes:
        yield "memory"
    if len(taken) + 1 > node.pods:
        yield "pods"
    if shape.gpu_product is not None and node.gpu_product != shape.gpu_product:
        yield "product"
    if not node.ready or node.lost or node.cordoned or node.leaving or node.unplaceable:
        yield "state"
    if any(node.labels.get(key) != value for key, value in request.node_selector.items()):
        yield "selector"
    for taint in node.taints:
        tolerated = any(t.key == taint.key and t.operator == "Exists" for t in request.tolerations)
        if taint.effect in ("NoSchedule", "NoExecute") and not tolerated:
            yield "taint"
    if node.sharing is not Sharing.NONE and shape.layout.gpus > 1:
        yield "sharing"
    need = shape.least_gpu_memory_mib
    if need is not None and node.gpu_memory_mib is not None and node.gpu_memory_mib < need:
        yield "GPU memory"
    if node.name in request.excluded_nodes:
        yield "excluded"


def _in_one_domain(nodes: list[Node], level: str) -> bool:
    domains = {node.domains.get(level) for node in nodes}
    return len(domains) == 1 and None not in domains


Ranked = tuple[int, tuple[bool, ...], int, int, int, int, int | Fraction, tuple[str, ...]]


def ranked_groups(request: GroupRequest, inventory: Inventory) -> list[Ranked]:
    """Every valid group of every shape with its value per criterion, best first."""
    names = sorted(node.name for node in inventory.nodes)
    return sorted(
        _value(request, shape, inventory, group)
        for shape in request.shapes
        for group in combinations(names, shape.layout.nodes)
        if not violations(request, shape, inventory, group)
    )


def _value(request: GroupRequest, shape: GroupShape, inventory: Inventory, group: tuple[str, ...]) -> Ranked:
    nodes = [node for node in inventory.nodes if node.name in group]
    wishes = [rule.level for rule in request.topology if rule.mode == "Preferred"]
    touched = {node.domains.get(request.spread_level, "") for node in nodes}
    left = memory = Fraction(0)
    for node in nodes:
        taken = sum(claim.gpus for claim in inventory.claims if claim.node == node.name)
        left += node.gpus - taken - shape.layout.gpus_per_node
        if shape.least_gpu_memory_mib is not None and node.gpu_memory_mib is not None:
            memory += (node.gpu_memory_mib - shape.least_gpu_memory_mib) * shape.layout.gpus_per_node
    return (
        shape.preference,
        tuple(len(nodes) > 1 and not _in_one_domain(nodes, level) for level in wishes),
        sum(request.groups_in_domain.get(domain, 0) + 1 for domain in touched),
        sum(name not in request.resident_nodes for name in group),
        shape.layout.gpus,
        int(left),
        memory,
        group,
    )
