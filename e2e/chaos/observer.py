"""What really happens in one world, seen past the proxy: every state of its objects, in order.

It checks the GPU invariant in each state of the pods, counts creations and deletions per object, and knows when
something last changed. It shares no code with the planner.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from e2e.nodeagent.kubeapi import KubeApi, follow
from e2e.scenarios.invariants import GPUS, gpus_of, placed_on

Json = dict[str, Any]
KINDS = {
    "Pod": "/api/v1/namespaces/{}/pods",
    "Service": "/api/v1/namespaces/{}/services",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
    "ControllerRevision": "/apis/apps/v1/namespaces/{}/controllerrevisions",
    "InferenceModel": "/apis/bayplan.dev/v1alpha1/namespaces/{}/inferencemodels",
    "Rollout": "/apis/bayplan.dev/v1alpha1/namespaces/{}/rollouts",
    "CapacityPlan": "/apis/bayplan.dev/v1alpha1/namespaces/{}/capacityplans",
}
"""What the operator owns or reads in a namespace; a new kind is added here and nowhere else."""
OURS = "bayplan.dev/"
AT_REST = frozenset({"AwaitingApproval", "RolloutInProgress"})
"""Reasons of what is under way, yet does not move: until a person says so; and as long as its Rollout does not."""


@dataclass(eq=False)
class Observer:
    """Use `Observer.on(...)`. Objects are kept by uid, the counters by (kind, name)."""

    objects: dict[str, Json] = field(default_factory=dict)
    created: Counter[tuple[str, str]] = field(default_factory=Counter)
    deleted: Counter[tuple[str, str]] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    allocatable: dict[str, int] = field(default_factory=dict)
    """GPUs by node."""
    states: int = 0
    """States of the pods in which the GPU invariant was checked."""
    revision: int = 0
    """Counts changes."""
    changed_at: float = 0.0
    """Monotonic seconds of the last change."""
    _listed: set[str] = field(default_factory=set)
    _complete: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    @asynccontextmanager
    async def on(cls, api: KubeApi, *, namespace: str, nodes: dict[str, Json]) -> AsyncIterator[Self]:
        """Observe a namespace and the GPUs of `nodes` for the length of the block."""
        observer = cls(allocatable={name: _allocatable(node) for name, node in nodes.items()})
        tasks = [
            asyncio.create_task(observer._follow(api, kind, path.format(namespace)), name=f"observe {kind}")
            for kind, path in KINDS.items()
        ]
        try:
            await observer._complete.wait()
            yield observer
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def of_kind(self, kind: str) -> Iterator[Json]:
        """Yield the objects of one kind."""
        return (obj for obj in self.objects.values() if obj["kind"] == kind)

    def unsettled(self) -> str:
        """Say what is not at rest by its own account (kstatus) or on its way out; empty when everything is."""
        for obj in self.objects.values():
            metadata, status = obj["metadata"], obj.get("status") or {}
            named = f"{obj['kind']} {metadata['name']}"
            if metadata.get("deletionTimestamp"):
                return f"{named} is being deleted"
            if any(owner["uid"] not in self.objects for owner in metadata.get("ownerReferences") or ()):
                return f"{named} waits for the garbage collector"
            if not obj["apiVersion"].startswith(OURS):
                continue
            if status.get("observedGeneration") != metadata["generation"]:
                return f"{named}: status is about an older spec"
            busy = [c for c in status.get("conditions") or () if c["type"] == "Reconciling" and c["status"] == "True"]
            if busy and busy[0]["reason"] not in AT_REST:
                return f"{named}: {busy[0]['message']}"
        return ""

    async def _follow(self, api: KubeApi, kind: str, path: str) -> None:
        def replace(items: list[Json]) -> None:
            self._listed.add(kind)
            if len(self._listed) == len(KINDS):
                self._complete.set()
            present = {item["metadata"]["uid"] for item in items}
            for uid in [uid for uid, obj in self.objects.items() if obj["kind"] == kind and uid not in present]:
                self.take("DELETED", self.objects[uid])
            for item in items:
                self.take("MODIFIED", _with_head(item, kind))

        await follow(api, path, {}, replace=replace, change=lambda word, item: self.take(word, _with_head(item, kind)))

    def take(self, word: str, obj: Json) -> None:
        """Take in one ADDED, MODIFIED or DELETED."""
        metadata, uid = obj["metadata"], obj["metadata"]["uid"]
        identity = (obj["kind"], metadata["name"])
        if word == "DELETED":
            self.objects.pop(uid, None)
            self.deleted[identity] += 1
        else:
            if uid not in self.objects:
                self.created[identity] += 1
            self.objects[uid] = obj
        self.revision += 1
        self.changed_at = time.monotonic()
        if obj["kind"] == "Pod":
            self._check()

    def _check(self) -> None:
        self.states += 1
        held: Counter[str] = Counter()
        holders: dict[str, list[str]] = {}
        for pod in self.of_kind("Pod"):
            place = placed_on(pod)
            if place is not None and pod.get("status", {}).get("phase") not in ("Failed", "Succeeded"):
                held[place] += gpus_of(pod)
                holders.setdefault(place, []).append(pod["metadata"]["name"])
        for node, used in held.items():
            limit = self.allocatable.get(node, 0)
            if used > limit:
                self.violations.append(f"{node}: {used} of {limit} GPUs for {', '.join(sorted(holders[node]))}")


def _allocatable(node: Json) -> int:
    amounts = (node.get("status") or {}).get("allocatable") or {}
    return sum(int(amounts.get(resource, 0)) for resource in GPUS)


def _with_head(item: Json, kind: str) -> Json:
    """Lists leave out what every item has in common."""
    if "kind" in item:
        return item
    group, _, _ = KINDS[kind].removeprefix("/apis/").removeprefix("/api/").partition("/namespaces/")
    return {"kind": kind, "apiVersion": group, **item}
