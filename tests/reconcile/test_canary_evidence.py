"""What a real trial leaves in its Rollout's status, read as the claim `canary-gate`; and SurgeFits said beforehand."""

from random import Random
from typing import Any

import pytest

from bayplan.api.capacitywords import ClaimState
from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.api.inferencemodel_status import PlanEvidenceStatus
from bayplan.api.meta import rfc3339
from bayplan.api.revision import revision_hash
from bayplan.api.rollout import RolloutSpec
from bayplan.api.rollout_status import RolloutStatus
from bayplan.api.validation import parse_rollout_spec, parse_spec
from bayplan.cli.offline.collect import reduce_cluster
from bayplan.cli.offline.evaluate import Evaluation
from bayplan.cli.offline.manifests import Manifest
from bayplan.cluster.resources import CAPACITY_PLANS, INFERENCE_MODELS, NODES, PODS, ROLLOUTS, Key
from bayplan.planning.evidencecontract.canary import CanaryResult, judge_canary
from bayplan.planning.placement.topology import DEFAULT_TOPOLOGY
from bayplan.planning.rollout.paper import PaperOutcome, PaperVerdict
from bayplan.reconcile.capacityplan.canary import canary_of
from bayplan.reconcile.rollout.paper import with_evidence
from tests.planning.capacity.plans import PLAN, changed
from tests.reconcile.staging import NEW_ENGINE, SPEC, Staging, staged

pytestmark = pytest.mark.slow

NEW_IMAGE = NEW_ENGINE["image"]


def canary(cluster: Staging, key: Key, revision: str) -> CanaryResult | None:
    stored = next(obj for obj in cluster.api.objects(ROLLOUTS) if obj["metadata"]["name"] == key.name)
    spec = parse_rollout_spec(stored["spec"])
    assert isinstance(spec, RolloutSpec)
    return canary_of(spec, RolloutStatus.read(stored.get("status")), revision)


def proves(cluster: Staging, key: Key, revision: str) -> ClaimState | None:
    result = canary(cluster, key, revision)
    return None if result is None else judge_canary(result).state


async def tried(phase: str, *, trouble: str = "", **rollout: Any) -> tuple[Staging, Key, Key, str]:
    cluster, model, key = await staged(**rollout)
    if trouble:
        cluster.bad_images[NEW_IMAGE] = trouble
    cluster.edit_spec(model, engine=NEW_ENGINE)
    assert await cluster.flow(400, until=lambda: cluster.rollout(key).get("phase") == phase), cluster.rollout(key)
    return cluster, model, key, cluster.status(model)["revisions"]["target"]


async def test_a_promoted_revision_earns_it_and_the_first_one_that_nobody_tried_does_not() -> None:
    cluster, model, key = await staged()
    first = cluster.status(model)["revisions"]["target"]
    assert canary(cluster, key, first) is None

    cluster.edit_spec(model, engine=NEW_ENGINE)
    await cluster.flow(10)
    new = cluster.status(model)["revisions"]["target"]
    assert canary(cluster, key, new) is None, "a trial under way proves nothing yet"
    assert await cluster.flow(400, until=lambda: cluster.rollout(key)["phase"] == "Steady")
    assert proves(cluster, key, new) is ClaimState.EARNED
    assert canary(cluster, key, first) is None


async def test_gates_that_are_not_enforced_earn_nothing_however_well_it_went() -> None:
    gates = [{**gate, "enforce": False} for gate in SPEC["gates"]]

    cluster, _, key, revision = await tried("Steady", gates=gates)

    assert proves(cluster, key, revision) is ClaimState.FAILED


async def test_a_rolled_back_revision_proves_the_opposite() -> None:
    cluster, _, key, revision = await tried("RolledBack", trouble="errors")

    assert proves(cluster, key, revision) is ClaimState.FAILED


async def test_an_aborted_revision_earns_nothing() -> None:
    cluster, _, key, revision = await tried("Canary")
    cluster.edit_rollout(key, abort=revision)
    assert await cluster.flow(200, until=lambda: cluster.rollout(key)["phase"] == "RolledBack")

    result = canary(cluster, key, revision)
    assert result is not None
    assert result.end == "Aborted"
    assert proves(cluster, key, revision) is ClaimState.FAILED


async def test_a_frozen_stage_earns_nothing() -> None:
    cluster, model, key = await staged(onRegression="Freeze")
    cluster.bad_images[NEW_IMAGE] = "errors"
    cluster.edit_spec(model, engine=NEW_ENGINE)
    frozen = await cluster.flow(400, until=lambda: bool(cluster.rollout(key).get("stage", {}).get("frozenBy")))
    assert frozen, cluster.rollout(key)
    revision = cluster.status(model)["revisions"]["target"]

    result = canary(cluster, key, revision)
    assert result is not None
    assert result.end == "Frozen"
    assert proves(cluster, key, revision) is ClaimState.FAILED


# --- requireEvidence ------------------------------------------------------------------------------------------------


def add_plan(cluster: Staging, **changes: Any) -> None:
    """A plan of the model that is proven but for what is changed; measured with the new engine."""
    every: dict[str, Any] = {
        "benchmark.observedTime": rfc3339(cluster.now()),
        "benchmark.engineImage": NEW_IMAGE,
        "price": None,
        "limits": None,
        "evidence.controls": ["memory-fit", "gpu-placement", "canary-gate"],
        "workloadClasses.1": None,
        "evidence.requiredClasses": ["interactive"],
    }
    spec = changed(PLAN, every | {path.replace("__", "."): value for path, value in changes.items()})
    cluster.api.seed(CAPACITY_PLANS, {"metadata": {"namespace": "team", "name": "peak"}, "spec": spec})


async def asked_for_evidence() -> tuple[Staging, Key, Key]:
    cluster, model, key = await staged(requireEvidence=True)
    cluster.edit_spec(model, engine=NEW_ENGINE, capacityPlanRef={"name": "peak"})
    return cluster, model, key


async def test_a_candidate_without_proof_touches_no_gpu_until_it_is_there() -> None:
    cluster, model, key = await asked_for_evidence()
    await cluster.flow(60)
    assert cluster.rollout(key)["phase"] == "Paper"
    assert cluster.uids("v0.33.0") == set()
    assert "no CapacityPlan has judged the model" in cluster.rollout_message(key, "Progressing")

    add_plan(cluster, evidence__requiredClasses=["interactive", "night"])
    await cluster.flow(60)
    assert "not proven: workload:night" in cluster.rollout_message(key, "Progressing")
    assert cluster.uids("v0.33.0") == set()

    cluster.api.edit(
        CAPACITY_PLANS,
        Key("team", "peak"),
        lambda plan: plan["spec"]["evidence"].update(requiredClasses=["interactive"]),
    )
    assert await cluster.flow(400, until=lambda: cluster.rollout(key)["phase"] == "Steady")
    await cluster.flow(30)
    # The trial itself has earned what could not be asked for before it.
    assert cluster.status(model)["evidence"] == {
        "revision": cluster.status(model)["revisions"]["target"],
        "unproven": [],
    }
    assert cluster.reason(model, "EvidenceCurrent") == ("True", "EvidenceCurrent")


async def test_proof_of_another_revision_lets_no_candidate_start() -> None:
    cluster, _, key = await asked_for_evidence()
    add_plan(cluster, benchmark__engineImage="vllm/vllm-openai:v0.32.0")
    await cluster.flow(60)

    assert cluster.rollout(key)["phase"] == "Paper"
    assert "not proven: " in cluster.rollout_message(key, "Progressing")
    assert "workload:interactive" in cluster.rollout_message(key, "Progressing")


def test_what_was_rejected_on_paper_stays_rejected_and_an_older_judgement_is_none() -> None:
    rejected = PaperVerdict(PaperOutcome.REJECTED, ("throughput",))
    assert with_evidence(rejected, None, revision="r2") is rejected
    older = with_evidence(PaperVerdict(), PlanEvidenceStatus(revision="r1"), revision="r2")
    assert older.outcome is PaperOutcome.MISSING
    assert "judged revision r1, not r2 yet" in older.messages[0]
    proven = PlanEvidenceStatus(revision="r2", unproven=("canary-gate",))
    assert with_evidence(PaperVerdict(), proven, revision="r2").passes


# --- SurgeFits -------------------------------------------------------------------------------------------------------


def foretold(cluster: Staging, model: Key, key: Key) -> tuple[str, str] | None:
    """What `bayplan plan` says of the Rollout when the model is about to get the new engine."""
    ours = {resource: cluster.api.objects(resource) for resource in (INFERENCE_MODELS, ROLLOUTS)}
    document = reduce_cluster(
        nodes=cluster.api.objects(NODES),
        pods=cluster.api.objects(PODS),
        quotas=[],
        ours=ours,
        topology=DEFAULT_TOPOLOGY,
        now=cluster.now(),
    )
    spec = {**ours[INFERENCE_MODELS][0]["spec"], "engine": NEW_ENGINE}
    parsed = parse_spec(spec)
    assert isinstance(parsed, InferenceModelSpec)
    assert revision_hash(parsed) != document.objects[0].revision
    manifests = [
        Manifest("generated", "InferenceModel", model.namespace, model.name, spec),
        Manifest("generated", "Rollout", key.namespace, key.name, ours[ROLLOUTS][0]["spec"]),
    ]
    reports = Evaluation(document, topology=DEFAULT_TOPOLOGY, now=cluster.now(), live=True).run(manifests)
    (report,) = (one for one in reports if one.manifest.kind == "Rollout")
    return next(((status, reason.value) for kind, status, reason, _ in report.conditions if kind == "SurgeFits"), None)


async def agreed(seed: int) -> tuple[str, str]:
    """Both verdicts of one generated rollout, which must be equal."""
    random = Random(seed)
    replicas = random.randint(1, 4)
    rollout: dict[str, Any] = {
        "capacity": random.choice(["Surge", "DrainFirst", "Auto"]),
        "maxSurge": random.choice([2, 3]),
        "waivers": random.choice([["NoBaseline"], ["SingleReplica", "NoBaseline"]]),
    }
    if random.random() < 0.5:
        rollout["minReady"] = random.randint(0, replicas)
    cluster, model, key = await staged(replicas=replicas, nodes=random.randint(2, 3), gpus=2, **rollout)
    expected = foretold(cluster, model, key)

    cluster.edit_spec(model, engine=NEW_ENGINE)

    def told() -> bool:
        return cluster.rollout_condition(key, "SurgeFits") != ("", "")

    assert await cluster.flow(60, until=told), cluster.rollout(key)
    seen = cluster.rollout_condition(key, "SurgeFits")
    assert expected == seen, f"seed {seed}"
    return seen


async def test_command_and_operator_agree_whether_a_candidate_fits() -> None:
    outcomes = {await agreed(seed) for seed in range(24)}

    assert outcomes == {("True", "Fits"), ("True", "DrainsFirst"), ("False", "SurgeDoesNotFit")}
