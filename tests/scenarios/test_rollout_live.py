"""Candidates on a real control plane, behind a real gateway, under real requests: the good one serves with the same
pods, bad ones lose their traffic by the name of their gate, and clients see none of it.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Any

import aiohttp
import pytest

from bayplan.api import names
from bayplan.api.meta import parse_rfc3339
from e2e.localcluster import ApiError
from e2e.scenarios.audit import quiet_writes
from e2e.scenarios.gatewaypod import complete, gateway_pod, start_gateway
from e2e.scenarios.restart import PATH, model, pods_of
from e2e.scenarios.stack import INVENTORIES, Stack, stack
from tests.fakes.clock import until

Json = dict[str, Any]
ROLLOUTS = f"/apis/{names.API_VERSION}/namespaces/default/{names.ROLLOUT_PLURAL}"
OUTPUT_TOKENS = 8
PROMPT = "x" * 64
REQUESTS_PER_SECOND = 10
PACE_SECONDS = 1.0
SPEED = {"STEP_SECONDS": "0.07", "LOAD_SECONDS": "1"}
"""TPOT 70 ms, TTFT up to 140 ms. Limits stand where a busy machine does not reach and the fault does: one and a half
times the TPOT is 105 ms, twice the TTFT up to 280 ms."""
SPEC: Json = {
    "stages": [
        {"kind": "Warm", "deadlineSeconds": 60},
        {"kind": "Shadow", "weight": 50, "bakeSeconds": 2, "deadlineSeconds": 120},
        {"kind": "Canary", "weight": 40, "bakeSeconds": 2, "deadlineSeconds": 120},
        {"kind": "Promote", "deadlineSeconds": 120},
    ],
    "gates": [
        {"name": "ttft", "limit": 0.2},
        {"name": "tpot", "limit": 0.1},
        {"name": "error-rate", "limit": 0.02},
    ],
    "samples": {"requests": 30, "prompts": 2},
    "waivers": ["SingleReplica"],
    "onDeadline": "Rollback",
    "maxSurge": 1,
}

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(500)]


def environment(**faults: str) -> list[Json]:
    """The engine's environment: part of the revision, so another fault is another candidate."""
    return [{"name": f"ENGINESIM_{name}", "value": value} for name, value in (SPEED | faults).items()]


def served(name: str, **changes: Any) -> Json:
    manifest = model(name, replicas=1)
    manifest["spec"]["model"]["name"] = f"{name}-served"
    manifest["spec"] |= {"update": "Rollout", "drain": {"deadlineSeconds": 30}, **changes}
    manifest["spec"]["warmup"] = {"deadlineSeconds": 5}
    manifest["spec"]["engine"]["env"] = environment()
    return manifest


def policy(name: str, **changes: Any) -> Json:
    spec = {"modelRef": {"name": name}, **SPEC, **changes}
    return {"apiVersion": names.API_VERSION, "kind": names.ROLLOUT_KIND, "metadata": {"name": name}, "spec": spec}


class Trial:
    """One model with its Rollout, watched, under a steady load."""

    def __init__(self, system: Stack, session: aiohttp.ClientSession, url: str, name: str) -> None:
        self.system = system
        self.name = name
        self.status: Json = {}
        self.model: Json = {}
        self.weights: list[int] = []
        self.answers: list[int] = []
        self.fewest_ready = 99
        self.shares: list[Json] = []
        """Everything that was counted in canaries."""
        self._session = session
        self._url = url
        self._sent = 0

    async def watch(self) -> None:
        while True:
            with suppress(ApiError):
                self.status = (await self.system.api.get(f"{ROLLOUTS}/{self.name}")).get("status") or {}
            self.model = (await self.system.api.get(f"{PATH}/{self.name}")).get("status") or {}
            weight = (self.status.get("plan") or {}).get("weight", 0)
            if self.weights[-1:] != [weight]:
                self.weights.append(weight)
            if self.phase == "Canary" and self.status.get("evidence"):
                self.shares.append(self.status["evidence"])
            if self.phase and self.model.get("readyReplicas") is not None:
                self.fewest_ready = min(self.fewest_ready, self.model["readyReplicas"])
            await asyncio.sleep(0.1)

    async def load(self) -> None:
        tasks: set[asyncio.Task[None]] = set()
        try:
            while True:
                task = asyncio.create_task(self._one(self._sent))
                self._sent += 1
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                await asyncio.sleep(1 / REQUESTS_PER_SECOND)
        finally:
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _one(self, number: int) -> None:
        # Requests that begin alike are one conversation, and so one cohort.
        prompt = f"{number:08d}{PROMPT}"
        status, text = await complete(
            self._session, self._url, model=f"{self.name}-served", prompt=prompt, max_tokens=OUTPUT_TOKENS
        )
        self.answers.append(status if "[DONE]" in text or status != 200 else 0)

    async def answer_to(self, prompt: str, *, max_tokens: int) -> str:
        """What serving answers at temperature 0."""
        body = {"model": f"{self.name}-served", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "seed": 0}
        async with self._session.post(f"{self._url}/v1/completions", json=body) as answer:
            return str((await answer.json())["choices"][0]["text"])

    @property
    def phase(self) -> str:
        return str(self.status.get("phase", ""))

    @property
    def failed(self) -> list[int]:
        """Statuses of requests that were not answered whole; 0 stands for a stream that broke off."""
        return [status for status in self.answers if status != 200]

    def condition(self, kind: str, of: Json | None = None) -> tuple[str, str]:
        found = ((of or self.status).get("conditions") or ()) if of is not None or self.status else ()
        return next(((c["status"], c["reason"]) for c in found if c["type"] == kind), ("", ""))

    async def until(self, *phases: str, seconds: float = 120) -> None:
        def reached() -> bool:
            return self.phase in phases

        try:
            await until(reached, seconds=seconds, what=f"phase {phases}")
        except (AssertionError, TimeoutError) as error:
            raise AssertionError(f"{error}; {json.dumps(self.status, indent=1)}") from None

    async def change(self, **faults: str) -> None:
        """A new revision in Git."""
        await self.system.api.patch(f"{PATH}/{self.name}", {"spec": {"engine": {"env": environment(**faults)}}})

    async def pods(self) -> dict[str, str]:
        """Revision by uid of the pods that do not leave."""
        found = await pods_of(self.system.api, self.name)
        return {
            pod["metadata"]["uid"]: pod["metadata"]["labels"][names.LABEL_REVISION]
            for pod in found
            if names.ANNOTATION_DRAINING not in pod["metadata"]["annotations"]
            and not pod["metadata"].get("deletionTimestamp")
        }

    async def until_pods(self, wanted: dict[str, str]) -> None:
        async def so() -> bool:
            return await self.pods() == wanted

        await self.system.api.wait_until(so, what="the same pods as before", timeout_seconds=60)

    def proof(self) -> dict[str, datetime]:
        times = {key: value for key, value in (self.status.get("proof") or {}).items() if key.endswith("Time")}
        return {key.removesuffix("Time"): parse_rfc3339(value) for key, value in times.items()}


@asynccontextmanager
async def trial(
    system: Stack,
    session: aiohttp.ClientSession,
    url: str,
    name: str,
    *,
    model_changes: Json | None = None,
    **rollout: Any,
) -> AsyncIterator[Trial]:
    """A model that serves under load with a Rollout at rest; all of it is gone after the block."""
    case = Trial(system, session, url, name)
    await system.api.apply([served(name, **(model_changes or {})), policy(name, **rollout)], namespace="default")
    tasks = [asyncio.create_task(case.watch())]
    try:
        await until(lambda: case.condition("Ready", case.model)[0] == "True", seconds=60, what=f"{name} ready")
        await until(lambda: case.condition("Ready") == ("True", "Current"), seconds=30, what=f"{name}'s Rollout")
        tasks.append(asyncio.create_task(case.load()))
        await until(lambda: 200 in case.answers, seconds=30, what="a first answer")
        case.answers.clear()
        case.fewest_ready = 99
        yield case
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for path in (f"{ROLLOUTS}/{name}", f"{PATH}/{name}"):
            with suppress(ApiError):
                await system.api.delete(path)


@asynccontextmanager
async def town() -> AsyncIterator[Callable[..., Any]]:
    """A system with a gateway; yields what starts a trial in it."""
    telemetry = {"rolloutSeconds": PACE_SECONDS}
    async with (
        stack(name="rollout", inventory=INVENTORIES / "demo.yaml", telemetry=telemetry) as system,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session,
    ):
        url = await start_gateway(system.api, gateway_pod(system.cluster.kubeconfig_path))
        yield lambda name, **rollout: trial(system, session, url, name, **rollout)


def owned_by_the_operator(obj: Json) -> set[str]:
    """Top members of an object that one of the operator's field managers owns."""
    entries = obj["metadata"]["managedFields"]
    return {member for entry in entries if entry["manager"].startswith("bayplan") for member in entry["fieldsV1"]}


def check_rolled_back(case: Trial, gate: str) -> None:
    assert case.status["cause"]["reason"] == "GateFailed", case.status
    assert case.status["cause"]["message"].startswith(gate), case.status["cause"]
    assert case.condition("RollbackProven") == ("True", "Proven")
    assert case.condition("Stalled") == ("True", "RevisionRejected")
    proof = case.proof()
    assert set(proof) == {"since", "acknowledged", "drained", "restored", "answered"}
    assert (proof["acknowledged"] - proof["since"]).total_seconds() <= 2
    assert case.weights[-1] == 0
    assert case.fewest_ready >= 1


BAD: dict[str, tuple[str, dict[str, str], Json]] = {
    "tpot": ("tpot", {"SLOW_TPOT_FACTOR": "1.5"}, {}),
    "tpot-canary": ("tpot", {"SLOW_TPOT_FACTOR": "1.5"}, {"stages": [SPEC["stages"][0], *SPEC["stages"][2:]]}),
    "ttft": ("ttft", {"SLOW_TTFT_FACTOR": "2"}, {}),
    # One in twenty: the engine's lots are drawn from a seed, and from the fortieth on more than one in fifty lost.
    "errors": ("error-rate", {"ERROR_SHARE": "0.05"}, {"samples": {"requests": 60, "prompts": 2}}),
}


async def test_bad_candidates_are_rolled_back_by_name_and_no_client_notices() -> None:
    async with town() as begin:
        for name, (gate, faults, rollout) in BAD.items():
            async with begin(name, **rollout) as case:
                before = await case.pods()
                await case.change(**faults)
                await case.until("RolledBack")
                check_rolled_back(case, gate)
                await until(lambda case=case: case.condition("Ready", case.model)[0] == "True", what="serving")
                assert before.keys() <= (await case.pods()).keys()
                assert case.failed == []


async def test_answers_that_are_worse_are_rolled_back_by_quality() -> None:
    async with town() as begin:
        gates = [{"name": "quality-drop", "limit": 0.1}]
        async with begin("quality", gates=gates, promptSet={"name": "prompts"}) as case:
            asked = [{"name": word, "prompt": word, "maxTokens": 8} for word in ("one", "two")]
            for prompt in asked:
                prompt["check"] = {"exact": await case.answer_to(str(prompt["prompt"]), max_tokens=8)}
            config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "prompts"}}
            await case.system.api.apply([{**config_map, "data": {"prompts": json.dumps(asked)}}], namespace="default")
            await case.change(SEED="1")
            await case.until("RolledBack")
            check_rolled_back(case, "quality-drop")
            assert case.failed == []


STUCK: dict[str, dict[str, str]] = {"hang": {"HANG_REQUESTS": "1000"}, "crash": {"CRASH_AFTER_SECONDS": "0"}}


async def test_candidates_that_never_get_warm_hold_by_name_until_the_deadline_takes_them_back() -> None:
    stages = [{"kind": "Warm", "deadlineSeconds": 25}, *SPEC["stages"][1:]]
    async with town() as begin:
        for name, faults in STUCK.items():
            async with begin(name, stages=stages) as case:
                before = await case.pods()
                await case.change(**faults)
                await case.until("Warm")

                def troubled(case: Trial = case) -> bool:
                    return case.condition("CandidateWarm") == ("False", "CandidateTrouble")

                await until(troubled, seconds=24, what=f"{name}: trouble")
                assert case.condition("Ready", case.model) == ("True", "Ready")
                await case.until("RolledBack")
                assert case.status["cause"]["reason"] == "DeadlineExceeded"
                assert case.weights == [0]
                await asyncio.sleep(2)
                assert before.keys() <= (await case.pods()).keys()
                assert case.failed == []


async def test_a_candidate_without_room_starts_nothing_and_says_so() -> None:
    async with town() as begin, begin("nofit", capacity="Surge") as case:
        before = await case.pods()
        await case.system.api.patch(f"{PATH}/nofit", {"spec": {"parallelism": {"tensor": 4, "pipeline": 4}}})
        await until(lambda: case.condition("SurgeFits") == ("False", "SurgeDoesNotFit"), seconds=30, what="no fit")
        assert case.phase == "Paper"
        assert "choices: " in next(c["message"] for c in case.status["conditions"] if c["type"] == "SurgeFits")
        await asyncio.sleep(3)
        assert await case.pods() == before
        assert case.failed == []


async def test_a_restart_of_operator_and_gateway_in_every_stage_changes_nothing() -> None:
    # A second gateway is the one that comes and goes: clients of one that ends would see that.
    stages = [
        SPEC["stages"][0] | {"bakeSeconds": 8},
        *(stage | {"bakeSeconds": 15} for stage in SPEC["stages"][1:3]),
        SPEC["stages"][3],
    ]
    async with town() as begin, begin("restart", stages=stages) as case:
        api, kubeconfig = case.system.api, case.system.cluster.kubeconfig_path
        await start_gateway(api, gateway_pod(kubeconfig, name="second-0"))
        await case.change(SEED="1")
        for number, phase in enumerate(("Warm", "Shadow", "Canary")):
            await case.until(phase)
            await case.system.kill_operator(case.system.operators[0])
            await api.delete(f"/api/v1/namespaces/default/pods/second-{number}")
            await case.system.start_operator()
            await start_gateway(api, gateway_pod(kubeconfig, name=f"second-{number + 1}"))
        await case.until("Steady")
        assert case.condition("Ready") == ("True", "Current")
        assert case.fewest_ready >= 1
        assert case.failed == []
        assert [entry["to"] for entry in case.status["history"]] == [
            "Paper",
            "warm",
            "shadow",
            "canary-40",
            "promote",
            "Steady",
        ]


async def test_deleting_the_rollout_mid_way_returns_the_traffic_and_abandons_the_candidate() -> None:
    stages = [*SPEC["stages"][:2], SPEC["stages"][2] | {"bakeSeconds": 60}, SPEC["stages"][3]]
    async with town() as begin, begin("deleted", stages=stages) as case:
        before = await case.pods()
        await case.change(SEED="1")
        await case.until("Canary")
        await until(lambda: 40 in case.weights, seconds=60, what="the weight")
        await case.system.api.delete(f"{ROLLOUTS}/deleted")
        await until(lambda: (case.model.get("revisions") or {}).get("rejected"), seconds=20, what="abandoned")

        await case.until_pods(before)
        assert case.model["revisions"]["rejected"][0]["reason"] == "RolloutDeleted"
        assert case.condition("Current", case.model) == ("False", "RevisionRejected")
        assert case.failed == []


async def test_a_good_candidate_serves_with_the_same_pods_and_the_old_ones_are_kept_as_asked() -> None:
    async with town() as begin, begin("good", retainSeconds=15) as case:
        await case.change(SEED="1")
        await case.until("Canary")
        await until(lambda: 40 in case.weights, seconds=60, what="the weight")
        candidates = {
            uid for uid, revision in (await case.pods()).items() if revision == case.status["plan"]["candidate"]
        }
        old = (await case.pods()).keys() - candidates
        await case.until("Retained", "Steady")
        assert candidates <= (await case.pods()).keys()
        assert old <= (await case.pods()).keys()
        await case.until("Steady")
        await asyncio.sleep(3)
        assert (await case.pods()).keys() == candidates
        assert case.fewest_ready >= 1
        assert case.failed == []
        for counted in case.shares:
            # Each window may go one request beyond the weight.
            most = 0.4 * counted["routedRequests"] + counted["windows"]
            assert counted["candidateRequests"] <= most, counted
        assert any(counted["candidateRequests"] for counted in case.shares)
        await until(lambda: case.condition("Reconciling", case.model) == ("", ""), seconds=60, what="rest")
        await asyncio.sleep(2)
        assert await quiet_writes(case.system.cluster, 8) == [], "at rest nothing is written, under load or not"
        for path in (f"{PATH}/good", f"{ROLLOUTS}/good"):
            owned = owned_by_the_operator(await case.system.api.get(path))
            assert owned == {"f:status"}, "no field that users own"
        target = case.model["revisions"]["target"]
        assert (case.model["revisions"]["serving"], case.status["proven"]) == ([target], [target])


LONG = [*SPEC["stages"][:2], SPEC["stages"][2] | {"bakeSeconds": 60}, SPEC["stages"][3]]


async def test_what_people_do_in_mid_way_ends_the_trial_and_keeps_what_serves() -> None:
    async with town() as begin:
        async with begin("revert", stages=LONG) as case:
            before = await case.pods()
            await case.change(SEED="1")
            await case.until("Canary")
            await until(lambda: 40 in case.weights, seconds=60, what="the weight")
            await case.change()
            await case.until("Steady")
            await case.until_pods(before)
            assert case.status["rejected"] == []
            assert (case.fewest_ready >= 1, case.failed) == (True, [])
        async with begin("abort", stages=LONG) as case:
            before = await case.pods()
            await case.change(SEED="1")
            await case.until("Shadow", "Canary")
            target = case.status["trial"]["candidate"]
            await case.system.api.patch(f"{ROLLOUTS}/abort", {"spec": {"abort": target}})
            await case.until("RolledBack")
            assert case.status["cause"]["reason"] == "Aborted"
            await case.until_pods(before)
            assert (case.fewest_ready >= 1, case.failed) == (True, [])
        async with begin("third", stages=LONG) as case:
            before = await case.pods()
            await case.change(SEED="1")
            await case.until("Canary")
            await case.system.api.patch(f"{ROLLOUTS}/third", {"spec": {"stages": SPEC["stages"]}})
            second = case.status["plan"]["candidate"]
            await case.change(SEED="2")
            await until(lambda: case.status["plan"].get("candidate") not in (None, second), seconds=90, what="a third")
            pods = await case.pods()
            assert before.keys() <= pods.keys()
            await case.until("Steady")

            def promoted(case: Trial = case) -> bool:
                return bool(case.model["revisions"]["serving"] == [case.model["revisions"]["target"]])

            await until(promoted, seconds=10, what="the third revision serves")
            assert (case.fewest_ready >= 1, case.failed) == (True, [])


async def test_on_a_full_node_the_candidate_takes_the_place_of_serving_replicas_down_to_the_floor() -> None:
    async with town() as begin:
        full = {"replicas": 4, "placement": {"gpuProducts": ["NVIDIA-A100-SXM4-80GB"]}}
        stages = [*SPEC["stages"][:2], SPEC["stages"][2] | {"weight": 20}, SPEC["stages"][3]]
        async with begin("full", model_changes=full, stages=stages, capacity="DrainFirst", minReady=3) as case:
            await case.change(SEED="1")
            await case.until("Warm")
            assert case.condition("SurgeFits") == ("True", "DrainsFirst")
            await case.until("Steady", seconds=200)
            await until(lambda: case.model["readyReplicas"] == 4, seconds=60, what="full size")
            target = case.model["revisions"]["target"]
            assert set((await case.pods()).values()) == {target}
            assert case.fewest_ready == 3
            assert case.failed == []
