"""New revisions in stages: one that is worse loses its traffic by itself, one that is not is promoted as it stands, and
one that does not fit says so before anything starts.

One model, one Rollout and one load carry all three scenes. The load never stops while a candidate is on trial, and no
request of it may fail.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from bayplan.api import names
from e2e.scenarios.gatewaypod import complete
from e2e.scenarios.narration import SceneFailedError, condition, is_ready
from e2e.scenarios.scenes.stage import MODELS, Stage
from e2e.scenarios.traffic import TrafficWatch

MODEL = "staged-chat"
SERVED = f"default/{MODEL}"
PER_SECOND = 24
OUTPUT_TOKENS = 12
SLOWER = 1.5
WEIGHT = 30
"""What `models/staged-chat-rollout.yaml` gives a canary."""
ROLLOUTS = f"/apis/{names.API_VERSION}/namespaces/default/{names.ROLLOUT_PLURAL}"
STAGE_SECONDS = 120.0
Json = dict[str, Any]


async def worse_candidate(stage: Stage) -> None:
    """A candidate that slows down under requests; leaves the model with its spec at what was rejected."""
    tell = stage.tell
    tell.scene(
        "A new revision that is worse",
        "It is warmed, gets copies of requests, then some of them. When it slows down, the gate that sees it takes its "
        "traffic away, and Bayplan proves that it is over.",
    )
    gateway = await stage.gateway()
    await tell.kubectl(f"apply -f {MODELS}/staged-chat.yaml -f {MODELS}/staged-chat-rollout.yaml")
    await tell.follow(MODEL, is_ready(2), what="two ready replicas")
    serving = {pod["metadata"]["uid"] for pod in await stage.heads(MODEL)}
    async with _watched(stage, gateway) as (answers, traffic):
        await _change(stage, "a new revision in Git", ENGINESIM_SEED="1")
        await _follow(stage, _in_stage(f"canary-{WEIGHT}"), what=f"canary-{WEIGHT}")
        for pod in await stage.heads(MODEL):
            if pod["metadata"]["uid"] not in serving:
                await _slow_down(pod["status"]["podIP"])
        tell.say(f"under requests, the candidate becomes {SLOWER} times as slow per token")
        rollout = await _follow(
            stage,
            lambda found: condition(found, "RollbackProven").get("status") == "True",
            what="the rollback is proven",
        )
        status = rollout["status"]
        if status["cause"]["reason"] != "GateFailed" or "tpot" not in status["cause"]["message"]:
            raise SceneFailedError(f"it was rolled back for another reason: {status['cause']}")
        tell.say(f"{status['cause']['reason']}: {status['cause']['message']}")
        await _rollout(stage, "explain", MODEL)
    _all_as_it_should(stage, answers, traffic)
    model = await tell.model(MODEL)
    current = condition(model, "Current")
    tell.say(f"Git still asks for it, and nothing fights: Current={current.get('status')} {current.get('reason')}")
    if current.get("status") != "False" or "tpot" not in current.get("message", ""):
        raise SceneFailedError(f"Current does not name the gate: {current}")
    if not serving <= {pod["metadata"]["uid"] for pod in await stage.heads(MODEL)}:
        raise SceneFailedError("a serving replica was touched")


async def good_candidate(stage: Stage) -> None:
    """Promotion with the same pods; needs `worse_candidate`."""
    tell = stage.tell
    tell.scene(
        "A new revision that is not worse",
        "It passes every stage and serves: the very pods that were tried, without another load of the weights.",
    )
    gateway = await stage.gateway()
    before = {pod["metadata"]["uid"] for pod in await stage.heads(MODEL)}
    async with _watched(stage, gateway) as (answers, traffic):
        await _change(stage, "the next revision in Git", ENGINESIM_SEED="2")
        await _follow(stage, _in_stage(f"canary-{WEIGHT}"), what=f"canary-{WEIGHT}")
        tried = {pod["metadata"]["uid"] for pod in await stage.heads(MODEL)} - before
        tell.say(f"on trial: {len(tried)} pods")
        await _follow(stage, _is_current, what="promoted, and nothing of the old revision left")
        await tell.follow(MODEL, is_ready(2), what="two ready replicas")
    _all_as_it_should(stage, answers, traffic)
    now = {pod["metadata"]["uid"] for pod in await stage.heads(MODEL)}
    if not tried or not tried <= now:
        raise SceneFailedError(f"{len(tried - now)} of {len(tried)} pods that were tried do not serve")
    tell.say("the pods that were tried serve")
    await _rollout(stage, "status", MODEL)


async def candidate_without_room(stage: Stage) -> None:
    """A refusal before anything starts; needs `good_candidate`, and takes the model away."""
    tell = stage.tell
    tell.scene(
        "A new revision that does not fit beside what serves",
        "The room for the whole trial is asked for first. It says what is missing and what could be done.",
    )
    before = {pod["metadata"]["uid"] for pod in await stage.heads(MODEL)}
    patch = json.dumps({"spec": {"parallelism": {"tensor": 8}}})
    await tell.kubectl(f"patch imodel {MODEL} --type merge -p '{patch}'")
    rollout = await _follow(
        stage, lambda found: condition(found, "SurgeFits").get("reason") == "SurgeDoesNotFit", what="SurgeDoesNotFit"
    )
    tell.say(condition(rollout, "SurgeFits")["message"])
    if {pod["metadata"]["uid"] for pod in await stage.heads(MODEL)} != before:
        raise SceneFailedError("pods changed although the candidate does not fit")
    await tell.kubectl(f"delete rollouts.bayplan.dev/{MODEL} imodel/{MODEL}")


# -- inside


async def _change(stage: Stage, what: str, **environment: str) -> None:
    """Ask for another revision, as a change in Git would."""
    stage.tell.say(f"{what}: {', '.join(f'{name}={value}' for name, value in environment.items())}")
    raw = json.loads(await stage.tell.kubectl(f"get imodel {MODEL} -o json", quiet=True))
    kept = [entry for entry in raw["spec"]["engine"]["env"] if entry["name"] not in environment]
    entries = [*kept, *({"name": name, "value": value} for name, value in environment.items())]
    patch = json.dumps({"spec": {"engine": {"env": entries}}})
    await stage.tell.kubectl(f"patch imodel {MODEL} --type merge -p '{patch}'")


async def _follow(stage: Stage, reached: Callable[[Json], bool], *, what: str) -> Json:
    """Show each change of the Rollout until `reached` holds; raises SceneFailedError after the time limit."""
    began, last = time.monotonic(), ""
    while time.monotonic() - began < STAGE_SECONDS:
        found: Json = await stage.system.api.get(f"{ROLLOUTS}/{MODEL}")
        line = _line(found)
        if line != last:
            stage.tell.console.print(f"  [cyan]{time.monotonic() - began:5.1f} s[/cyan]  {MODEL}: {line}", markup=True)
            last = line
        if reached(found):
            return found
        await asyncio.sleep(0.2)
    raise SceneFailedError(f"{MODEL}: not seen in {STAGE_SECONDS:g} s: {what}; last seen: {last}")


def _line(rollout: Json) -> str:
    """Stage, share and the first hold in one line."""
    status = rollout.get("status") or {}
    plan, holds = status.get("plan") or {}, status.get("holds") or ()
    name = (status.get("stage") or {}).get("name") if status.get("phase") in ("Warm", "Shadow", "Canary") else None
    copied = plan.get("shadowShare")
    share = f"{copied} % copied" if copied else f"{plan.get('weight', 0)} %"
    why = holds[0]["reason"] if holds else ""
    return " · ".join(part for part in (name or status.get("phase") or "no status yet", share, why) if part)


def _in_stage(name: str) -> Callable[[Json], bool]:
    def check(rollout: Json) -> bool:
        status = rollout.get("status") or {}
        return bool((status.get("stage") or {}).get("name") == name and (status.get("plan") or {}).get("weight"))

    return check


def _is_current(rollout: Json) -> bool:
    status = rollout.get("status") or {}
    return bool(
        status.get("phase") == "Steady"
        and not (status.get("plan") or {}).get("previous")
        and status["plan"]["serving"] in (status.get("proven") or ())
    )


async def _slow_down(address: str) -> None:
    url = f"http://{address}:{names.ENGINE_PORT}/_enginesim/faults"
    async with aiohttp.ClientSession() as session, session.post(url, json={"slow_tpot_factor": SLOWER}) as answer:
        if answer.status != 200:
            raise SceneFailedError(f"the engine took no fault: {await answer.text()}")


async def _rollout(stage: Stage, *arguments: str) -> None:
    """Run `bayplan rollout …` and show it as the plugin it is."""
    stage.tell.typed(f"kubectl bayplan rollout {' '.join(arguments)}")
    _, shown = await stage.tell.bayplan("rollout", *arguments)
    stage.tell.came_back(shown)


def _all_as_it_should(stage: Stage, answers: Counter[str], traffic: TrafficWatch) -> None:
    if set(answers) != {"200"}:
        raise SceneFailedError(f"answers during the trial: {dict(answers)}")
    stage.tell.say(f"{answers['200']} requests meanwhile, all answered whole")
    if traffic.violations or not traffic.checked or not traffic.candidate_requests:
        raise SceneFailedError(f"traffic outside the plan: {traffic.violations or 'nothing was seen'}")
    stage.tell.say(f"{traffic.candidate_requests} of them by a candidate, never more than its weight allows")


@asynccontextmanager
async def _watched(stage: Stage, gateway: str) -> AsyncIterator[tuple[Counter[str], TrafficWatch]]:
    """Load for the length of the block, and a look at who gets it."""
    evidence = f"http://{urlsplit(gateway).hostname}:{names.GATEWAY_PORT}/evidence"
    watch = TrafficWatch.on(
        stage.system.api, rollout=f"{ROLLOUTS}/{MODEL}", model=f"default/{MODEL}", evidence_url=evidence
    )
    async with watch as traffic, _load(gateway) as answers:
        yield answers, traffic


@asynccontextmanager
async def _load(gateway: str) -> AsyncIterator[Counter[str]]:
    """Stream completions at a steady rate for the length of the block; counts what they ended as."""
    answers: Counter[str] = Counter()
    tasks: set[asyncio.Task[None]] = set()
    stopped = asyncio.Event()

    async def ask(session: aiohttp.ClientSession, number: int) -> None:
        try:
            status, text = await complete(
                session, gateway, model=SERVED, prompt=f"Bay {number}", max_tokens=OUTPUT_TOKENS
            )
        except aiohttp.ClientError as error:
            answers[type(error).__name__] += 1
        else:
            answers[str(status) if status != 200 or text.rstrip().endswith("[DONE]") else "cut"] += 1

    async def send(session: aiohttp.ClientSession) -> None:
        began, number = time.monotonic(), 0
        while not stopped.is_set():
            while number < (time.monotonic() - began) * PER_SECOND:
                number += 1
                task = asyncio.create_task(ask(session, number))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            await asyncio.sleep(0.5 / PER_SECOND)

    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        sender = asyncio.create_task(send(session))
        try:
            yield answers
            stopped.set()
            await asyncio.gather(sender, *tasks)
        finally:
            for task in (sender, *tasks):
                task.cancel()
            await asyncio.gather(sender, *tasks, return_exceptions=True)
