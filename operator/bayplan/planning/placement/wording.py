"""The words of placement: what decided, or what was needed, what is there, how much is missing, what to change."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from bayplan.planning.placement.eligibility import Obstacle, Size
from bayplan.planning.placement.group import GroupRequest, GroupShape
from bayplan.planning.placement.inventory import Free, Inventory, Node
from bayplan.planning.placement.search import Candidate, Score, SearchRules, buckets
from bayplan.planning.words import plural

_HOLDERS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Findings:
    """What a shape found: nodes that match in everything but room, with what is free; how many have room."""

    matching: tuple[tuple[Node, Free], ...]
    fitting: int
    obstacles: Mapping[Obstacle, int]
    largest: Mapping[Obstacle, Size] = field(default_factory=dict)
    """For each resource that nodes are too small in: what a pod asks of it, and the most that one of them has."""

    @property
    def free_gpus(self) -> int:
        """Free GPUs on the matching nodes; an over-assigned node counts as 0."""
        return sum(max(0, free.gpus) for _, free in self.matching)

    @property
    def largest_free_gpus(self) -> int:
        """Most free GPUs of one matching node."""
        return max((max(0, free.gpus) for _, free in self.matching), default=0)

    @property
    def summary(self) -> str:
        """Nodes that could not take a pod, by reason; empty when all could."""
        if not self.obstacles:
            return ""
        named = sorted(self.obstacles.items(), key=lambda item: (-item[1], item[0].name))
        return "nodes left out: " + ", ".join(f"{number} {obstacle.value}" for obstacle, number in named)


def gpus_named(shape: GroupShape) -> str:
    """The GPUs of a whole group, such as `8 NVIDIA-H200 GPUs`."""
    return plural(shape.layout.gpus, f"{shape.gpu_product} GPU" if shape.gpu_product else "GPU")


def need(shape: GroupShape) -> str:
    """What the group asks for."""
    gpu = f"free {shape.gpu_product} GPU" if shape.gpu_product else "free GPU"
    each = " each" if shape.pods > 1 else ""
    return f"needs {plural(shape.pods, 'node')} with {plural(shape.gpus_per_pod, gpu)}{each}"


def placed(shape: GroupShape, score: Score) -> str:
    """One line for a placed group."""
    return f"{gpus_named(shape)} on {', '.join(score.names)}"


def deciding_facts(request: GroupRequest, shape: GroupShape, score: Score, inventory: Inventory) -> tuple[str, ...]:
    """The value of every criterion for the chosen group, in the order in which they count."""
    nodes = [inventory.by_name[name] for name in score.names]
    return (
        *_topology_facts(request, shape, score, nodes),
        _spread_fact(request, nodes),
        f"weights resident on {score.resident} of {plural(shape.pods, 'node')}",
        f"leaves {plural(score.gpus_left, 'GPU')} free on {'it' if shape.pods == 1 else 'them'}",
    )


def _topology_facts(request: GroupRequest, shape: GroupShape, score: Score, nodes: Sequence[Node]) -> tuple[str, ...]:
    if shape.pods == 1:
        return ()
    required = [f"one {level} as required: {nodes[0].domains.get(level, '')}" for level in request.required]
    wished = [
        f"one {level} as preferred: " + ("not met" if missed else f"met, {nodes[0].domains.get(level, '')}")
        for level, missed in zip(request.preferred, score.unmet, strict=True)
    ]
    return (*required, *wished)


def _spread_fact(request: GroupRequest, nodes: Sequence[Node]) -> str:
    level = request.spread_level
    domains = sorted({node.domains.get(level, "") for node in nodes})
    held = ", ".join(
        f"{domain or f'no {level} label'} holds {request.groups_in_domain.get(domain, 0)}" for domain in domains
    )
    return f"spread over {level}: {held} of the model's other groups"


def no_node_matches(shape: GroupShape, findings: Findings, inventory: Inventory) -> str:
    """Too few nodes match, whatever is free."""
    there = len(findings.matching)
    out = "; ".join([findings.summary or "the cluster has no nodes", *_sizes(findings)])
    return (
        f"{need(shape)}: {there} of {plural(len(inventory.nodes), 'node')} {'matches' if there == 1 else 'match'}, "
        f"{shape.pods - there} more needed; {out}; {_remedy(findings)}"
    )


_SMALLER = {
    Obstacle.TOO_FEW_GPUS: "spec.parallelism",
    Obstacle.TOO_LITTLE_CPU: "spec.template.resources",
    Obstacle.TOO_LITTLE_MEMORY: "spec.template.resources",
    Obstacle.GPU_MEMORY: "spec.concurrency or spec.engine.maxModelLen",
}
"""The field that makes a pod smaller in what a node is too small in."""


def _sizes(findings: Findings) -> list[str]:
    return [
        f"a pod asks for {_amount(size.asked)} {size.unit}, the largest of them has {_amount(size.there)}, "
        f"{_amount(size.asked - size.there)} short"
        for _, size in sorted(findings.largest.items())
    ]


def _amount(value: Fraction) -> str:
    """Up to three decimals, and never 0 for what is missing."""
    return f"{float(value):.3f}".rstrip("0").rstrip(".") if value >= Fraction(1, 1000) else f"{float(value):.1g}"


def _remedy(findings: Findings) -> str:
    """Add what is missing, or ask for less of it; other nodes help where something else than size is in the way."""
    smaller = list(dict.fromkeys(_SMALLER[obstacle] for obstacle in sorted(findings.largest)))
    ways = [f"ask for less in {' and '.join(smaller)}"] if smaller else []
    if not smaller or any(not obstacle.is_size and not obstacle.is_room for obstacle in findings.obstacles):
        return ", ".join(["add or repair nodes", *ways, "or widen spec.placement"])
    return f"{ways[0]}, or add larger nodes"


def insufficient_gpu(shape: GroupShape, findings: Findings, inventory: Inventory) -> str:
    """The matching nodes have too few free GPUs even in sum."""
    total = shape.layout.gpus
    return (
        f"{need(shape)}{f', {total} in all' if shape.pods > 1 else ''}: {findings.free_gpus} free on "
        f"{plural(len(findings.matching), 'matching node')}, {total - findings.free_gpus} more needed"
        f"{_held_by(findings, inventory)}; free GPUs or add nodes{_left_out(findings)}"
    )


def fragmented(shape: GroupShape, findings: Findings, inventory: Inventory) -> str:
    """Enough GPUs are free in sum, but too few nodes have room for a whole pod."""
    best, free = min(findings.matching, key=lambda pair: (-pair[1].gpus, pair[0].name))
    text = (
        f"{need(shape)}: {findings.free_gpus} GPUs are free in sum on "
        f"{plural(len(findings.matching), 'matching node')}, but {findings.fitting} of them "
        f"{'has' if findings.fitting == 1 else 'have'} room for one pod, {shape.pods - findings.fitting} more needed"
    )
    if free.gpus < shape.gpus_per_pod:
        text += f"; the largest free block is {free.gpus} on {best.name}, {shape.gpus_per_pod - free.gpus} short"
    for obstacle, what, asked, most in (
        (Obstacle.CPU_BUSY, "CPU", shape.cpu_millis / 1000, max(f.cpu_millis for _, f in findings.matching) / 1000),
        (
            Obstacle.MEMORY_BUSY,
            "GiB of memory",
            shape.memory_bytes / 2**30,
            max(f.memory_bytes for _, f in findings.matching) / 2**30,
        ),
    ):
        if findings.obstacles.get(obstacle):
            text += f"; a pod asks for {asked:g} {what}, the most that a node has free is {max(0.0, most):g}"
    return (
        f"{text}{_held_by(findings, inventory)}; free GPUs on one node, or let pods be smaller "
        f"(spec.parallelism, spec.template.resources){_left_out(findings)}"
    )


def no_topology(shape: GroupShape, findings: Findings, candidates: Sequence[Candidate], rules: SearchRules) -> str:
    """Nodes fit one by one, but no domain holds the whole group."""
    if rules.kept:
        gone = sorted(rules.kept - {candidate.name for candidate in candidates})
        where = (
            f"which has no room: {', '.join(gone)}" if gone else f"with no {' or '.join(rules.required)} for the rest"
        )
        return f"{need(shape)}, among them {', '.join(sorted(rules.kept))}, {where}{_left_out(findings)}"
    level = " and ".join(rules.required)
    open_rules = SearchRules(size=rules.size, required=rules.required)
    sizes = [
        (-len(bucket), tuple(bucket[0].domains[name] for name in rules.required))
        for bucket in buckets(candidates, rules.required, open_rules)
    ]
    unlabelled = sum(any(not c.domains.get(name) for name in rules.required) for c in candidates)
    most, domain = min(sizes, default=(0, ()))
    best = f"the best, {', '.join(domain)}, holds {-most}, {shape.pods + most} more needed there" if domain else ""
    bare = f"{plural(unlabelled, 'node')} without a {level} label" if unlabelled else ""
    return (
        f"{need(shape)} in one {level}: {plural(findings.fitting, 'node')} could take a pod, but no {level} holds "
        f"{shape.pods} of them; {'; '.join(filter(None, (best, bare)))}; free nodes in one {level}, or make the rule "
        f"Preferred in spec.placement.topology{_left_out(findings)}"
    )


def _left_out(findings: Findings) -> str:
    return f"; {findings.summary}" if findings.summary else ""


def _held_by(findings: Findings, inventory: Inventory) -> str:
    """Who holds most GPUs of the matching nodes."""
    names = {node.name for node, _ in findings.matching}
    held: Counter[str] = Counter()
    for claim in inventory.claims:
        if claim.gpus and claim.node in names:
            held[claim.owner or "unnamed pods"] += claim.gpus
    top = sorted(held.items(), key=lambda item: (-item[1], item[0]))
    shown = ", ".join(f"{owner} ({gpus})" for owner, gpus in top[:_HOLDERS_SHOWN])
    more = f" and {len(top) - _HOLDERS_SHOWN} more" if len(top) > _HOLDERS_SHOWN else ""
    return f"; held by {shown}{more}" if shown else ""
