"""Churn: models come, grow, shrink and go, and nodes are lost and return, decided by a seed."""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field

from bench import workload
from bench.system import System
from e2e.localcluster.client import ApiError
from e2e.nodeagent.kubeapi import MERGE

PAUSE_SECONDS = (0.1, 0.6)
NODE_LOST_SECONDS = 8.0
MOST_REPLICAS = 3
MODELS = 40
"""Around so many models live at a time."""


@dataclass
class Churn:
    """Changes one thing after the other. Run `run()` as a task; `done` counts what it did."""

    system: System
    random: random.Random
    done: Counter[str] = field(default_factory=Counter)
    _alive: list[str] = field(default_factory=list)
    _number: int = 0
    _returning: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self) -> None:
        """Churn until cancelled; lost nodes have returned when it ends."""
        try:
            while True:
                await self.step()
                await asyncio.sleep(self.random.uniform(*PAUSE_SECONDS))
        finally:
            await asyncio.gather(*self._returning)

    async def step(self) -> None:
        """Change one thing."""
        full = len(self._alive) / MODELS
        kinds = ("create", "scale", "delete", "node")
        (kind,) = self.random.choices(kinds, weights=(max(0.1, 2 - full), 2.0, full, 0.15))
        if kind == "create" or not self._alive:
            await self._create()
        elif kind == "scale":
            await self._patch(self.random.choice(self._alive), self.random.randint(0, MOST_REPLICAS))
        elif kind == "delete":
            await self._delete(self._alive.pop(self.random.randrange(len(self._alive))))
        else:
            self._flap()

    async def clear(self) -> None:
        """Delete what is left."""
        while self._alive:
            await self._delete(self._alive.pop())

    async def _create(self) -> None:
        name = f"churn-{self._number}"
        self._number += 1
        body = workload.model(name, replicas=self.random.randint(0, MOST_REPLICAS))
        await self.system.api.request("POST", workload.MODELS, body)
        self._alive.append(name)
        self.done["create"] += 1

    async def _patch(self, name: str, replicas: int) -> None:
        path = f"{workload.MODELS}/{name}"
        await self.system.api.request("PATCH", path, {"spec": {"replicas": replicas}}, content_type=MERGE)
        self.done["scale"] += 1

    async def _delete(self, name: str) -> None:
        try:
            await self.system.api.request("DELETE", f"{workload.MODELS}/{name}")
        except ApiError as error:
            if error.status != 404:
                raise
        self.done["delete"] += 1

    def _flap(self) -> None:
        present = sorted(set(self.system.nodes) - self.system.kubelets.lost)
        node = self.random.choice(present)
        self.done["node"] += 1
        task = asyncio.create_task(self._lose_for_a_while(node), name=f"flap {node}")
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

    async def _lose_for_a_while(self, node: str) -> None:
        await self.system.kubelets.lose(node)
        try:
            await asyncio.sleep(NODE_LOST_SECONDS)
        finally:
            await self.system.kubelets.find(node)
