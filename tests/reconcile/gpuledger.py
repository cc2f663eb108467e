"""An independent account of GPUs per node. It shares nothing with the planner: it reads raw objects alone.

A pod counts on a node from the moment in which nothing of ours holds it back any more: bound, or released and pinned.
The sum may exceed the node only through a foreign pod that was bound after the reads of the recheck that released ours.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
GATE = "bayplan.dev/placement"


@dataclass(frozen=True, slots=True)
class Held:
    """GPUs that one pod takes from one node."""

    node: str
    gpus: int
    foreign: bool


def held_by(pod: Json) -> Held | None:
    """What a pod holds; None for one that is held back, nowhere, or over."""
    place = pod["spec"].get("nodeName") or _pin(pod)
    if place is None or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return None
    gpus = sum(int(c["resources"]["requests"]["nvidia.com/gpu"]) for c in pod["spec"]["containers"])
    return Held(place, gpus, "bayplan.dev/model" not in pod["metadata"].get("labels", {}))


def _pin(pod: Json) -> str | None:
    if any(gate["name"] == GATE for gate in pod["spec"].get("schedulingGates", ())):
        return None
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [])
    return str(terms[0]["matchFields"][0]["values"][0]) if terms else None


@dataclass
class GpuLedger:
    """Compares each state with the one before. `over_allocations` are those that no foreign bind explains."""

    over_allocations: list[str] = field(default_factory=list)
    releases: int = 0
    foreign_excesses: int = 0
    """Over-allocations by foreign pods that were bound too late for any recheck to see."""
    excess: dict[str, int] = field(default_factory=dict)
    """Nodes that hold too much now, and how much."""
    _before: dict[str, Held] = field(default_factory=dict)
    _foreign_since: dict[str, int] = field(default_factory=dict)
    _excused: set[str] = field(default_factory=set)

    def observe(
        self, pods: Iterable[Json], nodes: Iterable[Json], *, version: int, read_at: Callable[[Json], int]
    ) -> None:
        """Take in the state at `version`; `read_at` says when the recheck that released a pod read its node."""
        listed = list(pods)
        now = {pod["metadata"]["uid"]: held for pod in listed if (held := held_by(pod)) is not None}
        limits = {obj["metadata"]["name"]: int(obj["status"]["allocatable"]["nvidia.com/gpu"]) for obj in nodes}
        for pod in listed:
            uid = pod["metadata"]["uid"]
            if uid in now and uid not in self._before:
                self._arrived(uid, now, limits, since=version if now[uid].foreign else read_at(pod))
        used = {name: sum(held.gpus for held in now.values() if held.node == name) for name in limits}
        self.excess = {name: used[name] - limits[name] for name in limits if used[name] > limits[name]}
        self._excused &= set(self.excess)
        unexplained = set(self.excess) - self._excused
        self.over_allocations += [f"{name} holds {used[name]} of {limits[name]} GPUs" for name in sorted(unexplained)]
        self._before = now

    def _arrived(self, uid: str, now: dict[str, Held], limits: dict[str, int], *, since: int) -> None:
        """A pod began to count: judge the node without what its recheck could not see."""
        held = now[uid]
        if held.foreign:
            self._foreign_since[uid] = since
        else:
            self.releases += 1
        here = {name: other for name, other in now.items() if other.node == held.node}
        seen = sum(
            other.gpus for name, other in here.items() if not other.foreign or self._foreign_since.get(name, 0) <= since
        )
        if sum(other.gpus for other in here.values()) > limits[held.node] and (
            held.foreign or seen <= limits[held.node]
        ):
            self.foreign_excesses += 1
            self._excused.add(held.node)


def partial_groups(pods: Iterable[Json]) -> list[str]:
    """Groups of ours that lack a rank or have one too many, told by labels and the reservation's own text."""
    groups: dict[str, dict[str, Json]] = {}
    for pod in pods:
        labels = pod["metadata"].get("labels", {})
        if "bayplan.dev/group" in labels:
            groups.setdefault(labels["bayplan.dev/group"], {})[labels["bayplan.dev/rank"]] = pod
    wrong = []
    for name, ranks in groups.items():
        text = ranks.get("0", {}).get("metadata", {}).get("annotations", {}).get("bayplan.dev/assignment")
        expected = len(json.loads(text)["ranks"]) if text else -1
        if set(ranks) != {str(rank) for rank in range(expected)}:
            wrong.append(f"{name} has ranks {sorted(ranks)} of {expected}")
    return wrong
