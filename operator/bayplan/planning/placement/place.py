"""Placing one replica group on nodes: constraints, then spread, residency, tightest fit, name.

A group is planned whole or not at all. A refusal is a proof: no set of nodes in this inventory satisfies the request.
Several groups are planned one after the other, each against `inventory.with_claims(...)` of those before.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from bayplan.api.conditions import Reason
from bayplan.planning.placement import wording as text
from bayplan.planning.placement.eligibility import Obstacle, Size, node_obstacle, room_obstacle, size_of
from bayplan.planning.placement.group import GroupRequest, GroupShape
from bayplan.planning.placement.inventory import Claim, ClaimState, Inventory, Node
from bayplan.planning.placement.search import Candidate, Score, SearchRules, best_group, second_best_group


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """The second best group and the first criterion by which it lost."""

    nodes: tuple[str, ...]
    criterion: str


@dataclass(frozen=True, slots=True)
class PlacementDecision:
    """Where the group goes, or why nowhere. `nodes[i]` is the node of rank i; empty when refused."""

    reason: Reason
    message: str
    nodes: tuple[str, ...] = ()
    shape: GroupShape | None = None
    """The shape that was placed, or the one that came closest."""
    facts: tuple[str, ...] = ()
    preferred_met: Mapping[str, bool] = field(default_factory=dict)
    resident: int = 0
    """Pods on nodes that hold the weights already."""
    gpus_left: int = 0
    """GPUs that stay free on the chosen nodes."""
    gpu_memory_left_mib: int | Fraction = 0
    """Memory beyond the need on the chosen GPUs; 0 when either is unknown."""
    runner_up: RunnerUp | None = None
    obstacles: Mapping[Obstacle, int] = field(default_factory=dict)
    """Nodes that could not take a pod of `shape`, by the first thing in their way."""
    needed_gpus: int = 0
    free_gpus: int = 0
    """Free GPUs on the nodes that match in everything but room."""
    largest_free_gpus: int = 0
    """The most that one matching node has free."""
    inventory_version: str = ""

    @property
    def placed(self) -> bool:
        """Whether a whole group was found."""
        return bool(self.nodes)

    def claims(self, owner: str) -> tuple[Claim, ...]:
        """What the group takes once it is decided; subtract it before the next decision."""
        if self.shape is None:
            return ()
        return tuple(
            Claim(
                node=node,
                gpus=self.shape.gpus_per_pod,
                cpu_millis=self.shape.cpu_millis,
                memory_bytes=self.shape.memory_bytes,
                owner=owner,
                state=ClaimState.ASSUMED,
            )
            for node in self.nodes
        )


@dataclass(frozen=True, slots=True)
class _Survey:
    """What one shape finds in the inventory."""

    shape: GroupShape
    findings: text.Findings
    candidates: tuple[Candidate, ...]
    rules: SearchRules


_CRITERIA = (
    "GPU product preference",
    "preferred topology",
    "spread",
    "resident weights",
    "fewest GPUs",
    "tightest fit",
    "least spare GPU memory",
    "name",
)
_Rank = tuple[int, tuple[bool, ...], int, int, int, int, int | Fraction, tuple[str, ...]]
"""One value per criterion; smaller wins."""


def place_off(request: GroupRequest, inventory: Inventory, *, taken: Collection[str]) -> PlacementDecision:
    """Decide where the group goes on nodes that are not `taken` by the replicas that it is to be kept apart from."""
    others = {**request.excluded_nodes, **dict.fromkeys(taken, "another replica of the revision is on it")}
    return place(replace(request, excluded_nodes=others), inventory)


def place_apart(request: GroupRequest, inventory: Inventory, *, taken: Collection[str]) -> PlacementDecision:
    """Decide where the group goes: on none of the nodes that are `taken` if that is possible, else as `place` does.

    Groups of one shape that are kept apart take no more room than groups that are not, so nothing fits less often.
    """
    if taken:
        decision = place_off(request, inventory, taken=taken)
        if decision.placed:
            return decision
    return place(request, inventory)


def place(request: GroupRequest, inventory: Inventory, *, with_runner_up: bool = True) -> PlacementDecision:
    """Decide where the group goes.

    The runner-up takes as long to find as the decision; who only counts places does without.

    Deterministic: equal inputs, in whatever order nodes and claims come, give equal decisions. Invalid input has
    raised in the records already.
    """
    surveys = [_survey(request, shape, inventory) for shape in request.shapes]
    scores = [(survey, best_group(survey.candidates, survey.rules)) for survey in surveys]
    found = sorted(
        ((_rank(survey, score), survey, score) for survey, score in scores if score is not None),
        key=lambda entry: entry[0],
    )
    if not found:
        return _refusal(surveys, inventory)
    rank, survey, score = found[0]
    second = second_best_group(survey.candidates, survey.rules, score) if with_runner_up else None
    rivals = [entry[0] for entry in found[1:] if entry[0] != rank and with_runner_up]
    rivals += [] if second is None else [_rank(survey, second)]
    runner_up = _runner_up(rank, min(rivals)) if rivals else None
    lost = "" if runner_up is None else f"runner-up {', '.join(runner_up.nodes)} lost on {runner_up.criterion}"
    findings = survey.findings
    return PlacementDecision(
        reason=Reason.PLACED,
        message=text.placed(survey.shape, score),
        nodes=score.names,
        shape=survey.shape,
        facts=(*text.deciding_facts(request, survey.shape, score, inventory), *filter(None, (lost, findings.summary))),
        preferred_met={level: not missed for level, missed in zip(request.preferred, score.unmet, strict=True)},
        resident=score.resident,
        gpus_left=score.gpus_left,
        gpu_memory_left_mib=score.memory_left_mib,
        runner_up=runner_up,
        obstacles=findings.obstacles,
        needed_gpus=survey.shape.layout.gpus,
        free_gpus=findings.free_gpus,
        largest_free_gpus=findings.largest_free_gpus,
        inventory_version=inventory.version,
    )


@dataclass(frozen=True, slots=True)
class _Ground:
    """What one shape finds in the nodes, whatever is free on them."""

    matching: tuple[tuple[Node, int | Fraction], ...]
    """Nodes that match in everything but room, and the spare GPU memory of a pod there."""
    obstacles: Mapping[Obstacle, int]
    largest: Mapping[Obstacle, Size]


MOST_GROUNDS = 64
"""Requests whose ground is remembered of one set of nodes."""


def _ground(request: GroupRequest, shape: GroupShape, inventory: Inventory) -> _Ground:
    """Look at every node once, for all replicas of a request."""
    selector, excluded = tuple(sorted(request.node_selector.items())), tuple(sorted(request.excluded_nodes))
    key = ("ground", shape, selector, request.tolerations, excluded)
    found: _Ground | None = inventory.of_nodes.get(key)
    if found is not None:
        return found
    obstacles: Counter[Obstacle] = Counter()
    largest: dict[Obstacle, Size] = {}
    matching = []
    spare: dict[int | Fraction | None, int | Fraction] = {}
    for node in inventory.nodes:
        obstacle = node_obstacle(node, request, shape)
        if obstacle is None:
            if node.gpu_memory_mib not in spare:
                spare[node.gpu_memory_mib] = _spare_memory(node, shape)
            matching.append((node, spare[node.gpu_memory_mib]))
            continue
        obstacles[obstacle] += 1
        if obstacle.is_size:
            size = size_of(obstacle, node, shape)
            if obstacle not in largest or size.there > largest[obstacle].there:
                largest[obstacle] = size
    if len(inventory.of_nodes) >= MOST_GROUNDS:
        inventory.of_nodes.clear()
    found = inventory.of_nodes[key] = _Ground(tuple(matching), obstacles, largest)
    return found


def _spare_memory(node: Node, shape: GroupShape) -> int | Fraction:
    need, memory = shape.least_gpu_memory_mib, node.gpu_memory_mib
    return 0 if need is None or memory is None else (memory - need) * shape.gpus_per_pod


def _survey(request: GroupRequest, shape: GroupShape, inventory: Inventory) -> _Survey:
    free, ground = inventory.free, _ground(request, shape, inventory)
    obstacles = Counter(ground.obstacles)
    matching, candidates = [], []
    for node, spare_memory in ground.matching:
        left = free[node.name]
        matching.append((node, left))
        obstacle = room_obstacle(left, shape)
        if obstacle is not None:
            obstacles[obstacle] += 1
            continue
        candidates.append(
            Candidate(
                name=node.name,
                domains=node.domains,
                resident=node.name in request.resident_nodes,
                gpus_left=left.gpus - shape.gpus_per_pod,
                memory_left_mib=spare_memory,
            )
        )
    rules = SearchRules(
        size=shape.pods,
        required=request.required,
        preferred=request.preferred,
        spread_level=request.spread_level,
        groups_in_domain=request.groups_in_domain,
        kept=request.kept_nodes,
    )
    findings = text.Findings(
        matching=tuple(matching), fitting=len(candidates), obstacles=obstacles, largest=ground.largest
    )
    return _Survey(shape=shape, findings=findings, candidates=tuple(candidates), rules=rules)


def _rank(survey: _Survey, score: Score) -> _Rank:
    shape = survey.shape
    return (
        shape.preference,
        score.unmet,
        score.spread,
        score.cold,
        shape.layout.gpus,
        score.gpus_left,
        score.memory_left_mib,
        score.names,
    )


def _runner_up(best: _Rank, rival: _Rank) -> RunnerUp:
    criterion = next(name for name, a, b in zip(_CRITERIA, best, rival, strict=True) if a != b)
    return RunnerUp(nodes=rival[-1], criterion=criterion)


_CLOSENESS = (
    Reason.NO_NODE_MATCHES_TOPOLOGY,
    Reason.FRAGMENTED_CAPACITY,
    Reason.INSUFFICIENT_GPU,
    Reason.NO_NODE_MATCHES,
)
"""Refusals, the nearest to a placement first."""


def _refusal_reason(survey: _Survey) -> Reason:
    findings, shape = survey.findings, survey.shape
    if len(findings.matching) < shape.pods:
        return Reason.NO_NODE_MATCHES
    if findings.free_gpus < shape.layout.gpus:
        return Reason.INSUFFICIENT_GPU
    if len(survey.candidates) < shape.pods:
        return Reason.FRAGMENTED_CAPACITY
    return Reason.NO_NODE_MATCHES_TOPOLOGY


def _refusal(surveys: Sequence[_Survey], inventory: Inventory) -> PlacementDecision:
    """Explain the shape that came closest; the others are named."""
    reasons = [_refusal_reason(survey) for survey in surveys]
    order = sorted(
        range(len(surveys)),
        key=lambda i: (_CLOSENESS.index(reasons[i]), surveys[i].shape.preference, surveys[i].shape.layout.gpus, i),
    )
    survey, reason = surveys[order[0]], reasons[order[0]]
    findings = survey.findings
    message = {
        Reason.NO_NODE_MATCHES: text.no_node_matches,
        Reason.INSUFFICIENT_GPU: text.insufficient_gpu,
        Reason.FRAGMENTED_CAPACITY: text.fragmented,
    }
    if reason is Reason.NO_NODE_MATCHES_TOPOLOGY:
        told = text.no_topology(survey.shape, findings, survey.candidates, survey.rules)
    else:
        told = message[reason](survey.shape, findings, inventory)
    rest = [f"{text.gpus_named(surveys[i].shape)}: {reasons[i].value}" for i in order[1:]]
    return PlacementDecision(
        reason=reason,
        message=told + (f" (also tried {', '.join(rest)})" if rest else ""),
        shape=survey.shape,
        obstacles=findings.obstacles,
        needed_gpus=survey.shape.layout.gpus,
        free_gpus=findings.free_gpus,
        largest_free_gpus=findings.largest_free_gpus,
        inventory_version=inventory.version,
    )


def groups_per_domain(inventory: Inventory, groups: Iterable[Iterable[str]], level: str) -> dict[str, int]:
    """Count groups per domain of `level`. `groups` are the node names of each; unknown nodes count nowhere."""
    counted: Counter[str] = Counter()
    for nodes in groups:
        known = (inventory.by_name[name] for name in nodes if name in inventory.by_name)
        counted.update({node.domains.get(level, "") for node in known})
    return dict(counted)
