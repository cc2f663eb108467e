"""A CapacityPlan: proven, too dear, stale, and with a class missing; and the same said before anybody applies it."""

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bayplan.api import names
from bayplan.api.meta import rfc3339
from e2e.scenarios.narration import SceneFailedError, condition, is_ready
from e2e.scenarios.scenes.stage import MODELS, Stage

MODEL, PLAN = "planned-chat", "chat-peak"
REPLICAS = 2
PLANS = f"/apis/{names.API_VERSION}/namespaces/default/{names.CAPACITYPLAN_PLURAL}"
LIMIT_SECONDS = 30.0
Json = dict[str, Any]


async def planned(stage: Stage) -> None:
    """Needs two free H100 GPUs, and gives them back; garbage collection may take a moment."""
    tell = stage.tell
    tell.scene(
        "How many replicas, what they cost, and whether that is proven",
        "A CapacityPlan sizes two workload classes, places all replicas, prices them, and earns each claim by running "
        "its decision. It reserves nothing and shrinks nothing.",
    )
    text = Path(MODELS, f"{PLAN}.yaml").read_text(encoding="utf-8").replace("TODAY", rfc3339(datetime.now(UTC)))
    file = stage.system.cluster.folder / f"{PLAN}.yaml"
    file.write_text(text, encoding="utf-8")
    await tell.kubectl(f"apply -f {MODELS}/{MODEL}.yaml -f {file}")
    await _until(stage, "Ready", "Ready")
    await tell.kubectl(f"get capplan {PLAN}")
    await tell.follow(MODEL, is_ready(REPLICAS), what="as many ready replicas as the plan's floor")
    await _budget(stage, file)
    await _evidence(stage)
    await tell.kubectl(f"delete imodel/{MODEL} capplan/{PLAN}")


async def _budget(stage: Stage, file: Path) -> None:
    tell = stage.tell
    tell.say("in a pull request the budget becomes too small; the pipeline sees it before the cluster does")
    proposed = file.with_name("pull-request.yaml")
    proposed.write_text(file.read_text(encoding="utf-8").replace("maxHourlyCost: 20", "maxHourlyCost: 5"), "utf-8")
    nodes = file.with_name("nodes.json")
    tell.typed("bayplan inventory > nodes.json")
    _, saved = await tell.bayplan("inventory")
    nodes.write_text(saved, encoding="utf-8")
    manifests = (str(proposed), f"{MODELS}/{MODEL}.yaml", "--nodes", str(nodes))
    tell.typed("bayplan plan pull-request.yaml … --nodes nodes.json")
    (code, shown), (_, printed) = await asyncio.gather(
        tell.bayplan("plan", *manifests, fits=(0, 1)),
        tell.bayplan("plan", *manifests, "--json", fits=(0, 1)),
    )
    tell.came_back(shown)
    offline = next(o for o in json.loads(printed)["objects"] if o["kind"] == names.CAPACITYPLAN_KIND)
    if code != 1:
        raise SceneFailedError(f"bayplan plan ended with {code} for a budget that is too small")
    tell.say("merged all the same, the cluster says the same")
    await tell.kubectl(f"apply -f {proposed}")
    plan = await _until(stage, "WithinBudget", "BudgetExceeded")
    told = {c["type"]: (c["status"], c["reason"]) for c in offline["conditions"]}
    stored = {c["type"]: (c["status"], c["reason"]) for c in plan["status"]["conditions"]}
    if told != stored:
        raise SceneFailedError(f"bayplan plan says {told}, the operator {stored}")
    tell.say(condition(plan, "WithinBudget")["message"])
    await tell.follow(MODEL, is_ready(REPLICAS), what="the same replicas as before")
    await tell.kubectl(f"apply -f {file}")
    await _until(stage, "Ready", "Ready")


async def _evidence(stage: Stage) -> None:
    tell = stage.tell
    tell.say("the benchmark grows old: its claims are lost by name, and the last floor stands")
    old = '{"spec":{"benchmark":{"observedTime":"2020-01-01T00:00:00Z"}}}'
    await tell.kubectl(f"patch capplan {PLAN} --type merge -p '{old}'")
    plan = await _until(stage, "EvidenceCurrent", "EvidenceStale")
    tell.say(condition(plan, "EvidenceCurrent")["message"])
    await tell.follow(MODEL, is_ready(REPLICAS), what="the replicas of the last floor")
    tell.say("a workload class is deleted: its requirement is not")
    fresh = rfc3339(datetime.now(UTC))
    edits = json.dumps(
        [
            {"op": "replace", "path": "/spec/benchmark/observedTime", "value": fresh},
            {"op": "remove", "path": "/spec/workloadClasses/1"},
        ]
    )
    await tell.kubectl(f"patch capplan {PLAN} --type json -p '{edits}'")
    plan = await _until(stage, "EvidenceCurrent", "EvidenceMissing")
    message = condition(plan, "EvidenceCurrent")["message"]
    if "workload:generation" not in message:
        raise SceneFailedError(f"the deleted class is not named: {message}")
    tell.say(message)


async def _until(stage: Stage, kind: str, reason: str) -> Json:
    """Wait until a condition of the plan has this reason; return the plan."""
    found: Json = {}

    async def reached() -> bool:
        found.clear()
        found.update(await stage.system.api.get(f"{PLANS}/{PLAN}"))
        current = found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"]
        return current and condition(found, kind).get("reason") == reason

    await stage.tell.wait(reached, what=f"{kind} with reason {reason} on {PLAN}", timeout_seconds=LIMIT_SECONDS)
    return found
