"""`python -m e2e.scenarios.restart --kills 50`: kill the operator again and again, and compare where things end up.

A scripted life of three models (create, scale, change, lose a node, suspend, delete) is played with an operator that
is SIGKILLed at seeded moments and started again at once. After each step the world must converge to the same shape as
in an undisturbed life: the same replicas ready, no leftovers, whole groups only. After the last convergence nothing is
written but Leases and Events.
"""

import asyncio
import json
import random
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bayplan.api import names
from e2e.localcluster.client import ApiError, KubeApi
from e2e.scenarios.audit import quiet_writes
from e2e.scenarios.invariants import GpuWatch
from e2e.scenarios.stack import INVENTORIES, REPOSITORY, Stack, StackError, stack

MODELS = REPOSITORY / "e2e" / "scenarios" / "models"
PATH = f"/apis/{names.API_VERSION}/namespaces/default/{names.INFERENCEMODEL_PLURAL}"
CONVERGE_SECONDS = 120.0
QUIET_SECONDS = 10.0


class DivergedError(Exception):
    """A step did not end in the state that an undisturbed operator reaches."""


@dataclass(frozen=True)
class Expectation:
    """What the world looks like after a step: ready replicas and pods per model; everything else is absent."""

    ready: dict[str, int]
    pods: dict[str, int]


@dataclass
class Killer:
    """Kills the leading operator at random moments and starts the next one."""

    system: Stack
    random: random.Random
    wanted: int
    kills: int = 0
    by_step: dict[str, int] = field(default_factory=dict)

    async def run(self, step: Callable[[], str], pause: tuple[float, float]) -> None:
        """Kill until `wanted` is reached; the pause between kills is drawn from `pause`, in seconds."""
        while self.kills < self.wanted:
            await asyncio.sleep(self.random.uniform(*pause))
            if not self.system.operators:
                continue  # it has just ended by itself and is being started again
            await self.system.kill_operator(self.system.operators[0])
            self.kills += 1
            self.by_step[step()] = self.by_step.get(step(), 0) + 1
            await self.system.start_operator()


class Life:
    """The scripted life. `step` names what is going on, for the report."""

    def __init__(self, system: Stack) -> None:
        self.system = system
        self.api = system.api
        self.step = "start"

    def script(self) -> list[tuple[str, Callable[[], Awaitable[None]], Expectation]]:
        """The steps, each with what must be true when it has converged."""
        return [
            ("create", self.create, Expectation({"small": 2, "group": 1}, {"small": 2, "group": 2})),
            ("scale up", self.scale("small", 3), Expectation({"small": 3, "group": 1}, {"small": 3, "group": 2})),
            ("change", self.change, Expectation({"small": 3, "group": 1}, {"small": 3, "group": 2})),
            ("scale down", self.scale("small", 1), Expectation({"small": 1, "group": 1}, {"small": 1, "group": 2})),
            ("crash", self.crash, Expectation({"small": 1, "group": 1}, {"small": 1, "group": 2})),
            ("suspend", self.suspend("small"), Expectation({"small": 0, "group": 1}, {"small": 0, "group": 2})),
            ("delete", self.delete, Expectation({}, {})),
        ]

    async def create(self) -> None:
        """A model of one-GPU replicas, and one whose replica spans two nodes."""
        await self.api.apply([model("small", replicas=2), two_node_model("group")], namespace="default")

    def scale(self, name: str, replicas: int) -> Callable[[], Awaitable[None]]:
        """Change the wanted replicas."""

        async def act() -> None:
            await self.api.patch(f"{PATH}/{name}", {"spec": {"replicas": replicas}})

        return act

    async def change(self) -> None:
        """A new revision: replaced one group at a time."""
        await self.api.patch(f"{PATH}/small", {"spec": {"engine": {"maxModelLen": 4096}}})

    async def crash(self) -> None:
        """A rank of the two-node group dies: the group fails and is replaced as a whole."""
        pods = await pods_of(self.api, "group")
        victim = next(pod for pod in pods if pod["metadata"]["labels"][names.LABEL_RANK] == "1")
        try:
            await self.system.control("/kill-pod", namespace="default", name=victim["metadata"]["name"], exit_code=1)
        except StackError as error:
            raise DivergedError(f"crash: {error}") from None

    def suspend(self, name: str) -> Callable[[], Awaitable[None]]:
        """Drain to zero."""

        async def act() -> None:
            await self.api.patch(f"{PATH}/{name}", {"spec": {"suspend": True}})

        return act

    async def delete(self) -> None:
        """Delete everything."""
        for name in ("small", "group"):
            await self.api.delete(f"{PATH}/{name}")

    async def converged(self, expected: Expectation) -> None:
        """Wait for the expectation; raises DivergedError with what was seen instead."""
        seen = ""
        try:
            async with asyncio.timeout(CONVERGE_SECONDS):
                while True:
                    seen = await self.difference(expected)
                    if not seen:
                        return
                    await asyncio.sleep(0.3)
        except TimeoutError:
            raise DivergedError(f"{self.step}: {seen}") from None

    async def difference(self, expected: Expectation) -> str:
        """Say how the world differs from the expectation; empty when it does not."""
        models = {m["metadata"]["name"]: m for m in (await self.api.get(PATH))["items"]}
        if set(models) != set(expected.ready):
            return f"models {sorted(models)} instead of {sorted(expected.ready)}"
        for name, ready in expected.ready.items():
            status = models[name].get("status") or {}
            counts = {word: status.get(f"{word}Replicas") for word in ("desired", "pending", "warming", "draining")}
            if status.get("observedGeneration") != models[name]["metadata"]["generation"]:
                return f"{name}: status is about an older spec"
            if status.get("readyReplicas") != ready or counts != {
                "desired": ready,
                "pending": 0,
                "warming": 0,
                "draining": 0,
            }:
                return f"{name}: ready {status.get('readyReplicas')} instead of {ready}, {counts}"
        return await self.leftovers(expected)

    async def leftovers(self, expected: Expectation) -> str:
        """Say which children are there that should not be, or the other way round."""
        for name in ("small", "group"):
            pods = await pods_of(self.api, name)
            if len(pods) != expected.pods.get(name, 0):
                return f"{name}: {len(pods)} pods instead of {expected.pods.get(name, 0)}"
            groups = {pod["metadata"]["labels"][names.LABEL_GROUP] for pod in pods}
            budgets = await listed(self.api, "/apis/policy/v1/namespaces/default/poddisruptionbudgets", name)
            if {budget["metadata"]["name"] for budget in budgets} != groups:
                return f"{name}: budgets {sorted(b['metadata']['name'] for b in budgets)} for groups {sorted(groups)}"
        if not expected.ready:
            for path in ("/api/v1/namespaces/default/services", "/apis/apps/v1/namespaces/default/controllerrevisions"):
                left = [
                    item["metadata"]["name"]
                    for name in ("small", "group")
                    for item in await listed(self.api, path, name)
                ]
                if left:
                    return f"left over: {', '.join(left)}"
        return ""


def model(name: str, *, replicas: int) -> dict[str, Any]:
    """An 8B model under another name."""
    found: dict[str, Any] = yaml.safe_load((MODELS / "llama-8b.yaml").read_text())
    found["metadata"]["name"] = name
    found["spec"]["replicas"] = replicas
    found["spec"]["engine"]["env"] = [{"name": "ENGINESIM_LOAD_SECONDS", "value": "0.5"}]
    found["spec"]["placement"] = {"gpuProducts": ["NVIDIA-L40S"]}
    return found


def two_node_model(name: str) -> dict[str, Any]:
    """A model whose replica is two pods on two nodes."""
    found = model(name, replicas=1)
    found["spec"]["model"]["name"] = name
    found["spec"]["parallelism"] = {"tensor": 4, "pipeline": 2}
    return found


async def pods_of(api: KubeApi, name: str) -> list[dict[str, Any]]:
    """All pods of a model, whatever state they are in."""
    return await listed(api, "/api/v1/namespaces/default/pods", name)


async def listed(api: KubeApi, path: str, name: str) -> list[dict[str, Any]]:
    """Children of a model under a path."""
    found: list[dict[str, Any]] = (await api.get(path, labelSelector=f"{names.LABEL_MODEL}={name}"))["items"]
    return found


async def live(system: Stack, *, kills: int, seed: int, console: Console) -> dict[str, Any]:
    """Play one life with `kills` kills; return the report. Raises DivergedError."""
    life = Life(system)
    killer = Killer(system, random.Random(seed), kills)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )
    async with GpuWatch.on(system.api) as gpus:
        with bar:
            task = bar.add_task("steps", total=len(life.script()))
            share = max(1, -(-kills // len(life.script())))
            for number, (name, act, expected) in enumerate(life.script(), start=1):
                life.step = name
                bar.update(task, description=f"{name:10} kills {killer.kills}")
                killer.wanted = min(kills, share * number)
                killing = asyncio.create_task(killer.run(lambda: life.step, (0.3, 2.5)))
                try:
                    await act()
                    await killing
                finally:
                    killing.cancel()
                    await asyncio.gather(killing, return_exceptions=True)
                await life.converged(expected)
                bar.advance(task)
        writes = await quiet_writes(system.cluster, QUIET_SECONDS)
    return {
        "seed": seed,
        "kills": killer.kills,
        "kills_by_step": killer.by_step,
        "ended_by_themselves": system.restarts,
        "steps_converged": len(life.script()),
        "over_allocations": gpus.violations,
        "states_checked": gpus.checked,
        "writes_after_convergence": writes,
    }


async def campaign(*, kills: int, seed: int, console: Console) -> dict[str, Any]:
    """Run on a system of its own."""
    async with stack(name="restart", inventory=INVENTORIES / "demo.yaml") as system:
        return await live(system, kills=kills, seed=seed, console=console)


def failed(report: dict[str, Any]) -> bool:
    """Whether a report breaks a promise."""
    return bool(report["over_allocations"] or report["writes_after_convergence"])


def main(
    *,
    kills: Annotated[int, typer.Option(min=0, help="How often the operator is killed, spread over the steps.")] = 50,
    seed: Annotated[int, typer.Option(help="Decides the moments of the kills.")] = 1,
) -> None:
    """Kill the operator through a whole life of models and compare the end states."""
    console = Console(stderr=True)
    try:
        report = asyncio.run(campaign(kills=kills, seed=seed, console=console))
    except (DivergedError, StackError, ApiError) as error:
        print(f"seed {seed}: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    print(json.dumps(report, indent=2))
    raise typer.Exit(1 if failed(report) else 0)


if __name__ == "__main__":
    typer.run(main)
