"""Warm-up: a real generation on the head's container, outside the reconcile worker.

A tracker runs one task per head container. The reconciler asks for the observation on each pass; a change of what is
observed re-enqueues the model. Nothing here is durable: after a restart tasks begin again, and a group that was warm
already says so in its pod conditions.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from bayplan.api.inferencemodel import Warmup
from bayplan.api.inferencemodel_status import WarmupStage
from bayplan.planning.groups.members import Group
from bayplan.reconcile.background import TaskTable
from bayplan.telemetry.engine import EngineError, EngineNotListeningError, EnginePort, EngineUnreachableError


class Outcome(StrEnum):
    """How far the proof is."""

    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class WarmupObservation:
    """What a warming head showed last. `since` is the start of the stage."""

    stage: WarmupStage
    since: datetime
    outcome: Outcome = Outcome.RUNNING
    message: str = ""
    cache_blocks: int | None = None
    """KV cache blocks that the engine reports, once it has generated."""


@dataclass(frozen=True, slots=True)
class _Target:
    """What is warmed, and how."""

    address: str
    container_started: datetime
    served_name: str
    warmup: Warmup


def _container(group: Group) -> Hashable:
    return (group.head.uid, group.head.container_id)


class WarmupTracker:
    """Runs and remembers warm-ups, one per (head pod, head container)."""

    def __init__(
        self,
        engine: EnginePort,
        *,
        now: Callable[[], datetime],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        longest_poll_seconds: float = 2.0,
    ) -> None:
        self._engine = engine
        self._now = now
        self._sleep = sleep
        self._longest_poll_seconds = longest_poll_seconds
        self._tasks = TaskTable()
        self._seen: dict[Hashable, WarmupObservation] = {}

    def observe(self, group: Group) -> WarmupObservation | None:
        """Return the last observation of the group's present head container, if there is one."""
        return self._seen.get(_container(group))

    def ensure(
        self, owner: Hashable, group: Group, *, served_name: str, warmup: Warmup, changed: Callable[[], None]
    ) -> None:
        """Start warming the group's head unless that container is already being (or has been) warmed.

        Does nothing until the head's container runs and has an address.
        """
        head, subject = group.head, _container(group)
        if head.pod_ip is None or head.container_id is None or head.container_started is None:
            return
        if self._tasks.running(owner, subject):
            return
        target = _Target(head.pod_ip, head.container_started, served_name, warmup)
        work = self._run(subject, target, changed)
        self._tasks.start(owner, subject, work, name=f"warm-up {head.namespace}/{head.name}")

    def retain(self, owner: Hashable, groups: Iterable[Group]) -> None:
        """Drop what was known of the owner's containers that are in none of `groups`."""
        for subject in self._tasks.retain(owner, [_container(group) for group in groups]):
            self._seen.pop(subject, None)

    async def close(self) -> None:
        """Cancel everything and wait for it."""
        await self._tasks.close()

    async def _run(self, key: Hashable, target: _Target, changed: Callable[[], None]) -> None:
        def note(
            stage: WarmupStage, outcome: Outcome = Outcome.RUNNING, message: str = "", blocks: int | None = None
        ) -> None:
            before = self._seen.get(key)
            since = before.since if before is not None and before.stage is stage else self._now()
            self._seen[key] = WarmupObservation(stage, since, outcome, message, blocks)
            if before is None or (before.stage, before.outcome) != (stage, outcome):
                changed()

        note(WarmupStage.STARTING)
        if not await self._wait_until_listed(target, note):
            return
        note(WarmupStage.GENERATING)
        await self._generate(target, note)

    async def _wait_until_listed(self, target: _Target, note: Callable[..., None]) -> bool:
        deadline = target.warmup.load_deadline_seconds
        delay, stage, problem = 0.1, WarmupStage.STARTING, ""
        while True:
            try:
                listed = await self._engine.served_models(target.address)
                if target.served_name in listed:
                    note(WarmupStage.MODEL_LISTED)
                    return True
                stage, problem = WarmupStage.LISTENING, f"it lists {', '.join(listed) or 'no model'}"
            except (EngineNotListeningError, EngineUnreachableError) as error:
                problem = str(error)
            except EngineError as error:
                stage, problem = WarmupStage.LISTENING, str(error)
            if (self._now() - target.container_started).total_seconds() >= deadline:
                note(
                    stage,
                    Outcome.FAILED,
                    f"the engine did not list {target.served_name} within {deadline} s: {problem}",
                )
                return False
            note(stage)
            await self._sleep(delay)
            delay = min(self._longest_poll_seconds, delay * 1.5)

    async def _blocks(self, target: _Target) -> int | None:
        """What the engine says of its cache; a replica that generates is warm whether it says so or not."""
        try:
            return await self._engine.cache_blocks(target.address)
        except EngineError:
            return None

    async def _generate(self, target: _Target, note: Callable[..., None]) -> None:
        deadline = target.warmup.deadline_seconds
        started = self._now()
        delay = 0.2
        while True:
            left = deadline - (self._now() - started).total_seconds()
            try:
                await self._engine.generate(
                    target.address,
                    model=target.served_name,
                    prompt=target.warmup.prompt,
                    max_tokens=target.warmup.max_tokens,
                    timeout_seconds=max(0.1, left),
                )
            except EngineError as error:
                if (self._now() - started).total_seconds() + delay >= deadline:
                    note(
                        WarmupStage.GENERATING,
                        Outcome.FAILED,
                        f"no generation succeeded within {deadline} s: {error}",
                    )
                    return
            else:
                note(WarmupStage.GENERATING, Outcome.SUCCEEDED, blocks=await self._blocks(target))
                return
            await self._sleep(delay)
            delay = min(self._longest_poll_seconds, delay * 2)
