"""`bayplan plan` and the operator say the same of generated manifests, given the same nodes and the same evidence."""

from random import Random
from typing import Any

import pytest

from bayplan.api.meta import rfc3339
from bayplan.cli.offline.collect import reduce_cluster
from bayplan.cli.offline.evaluate import Evaluation, ObjectReport
from bayplan.cli.offline.manifests import Manifest
from bayplan.cluster.errors import ApiError, Forbidden
from bayplan.cluster.resources import CAPACITY_PLANS, NODES, PODS, RESOURCE_QUOTAS, Key, Resource
from bayplan.planning.placement.topology import DEFAULT_TOPOLOGY
from tests.planning.capacity.plans import PLAN, changed
from tests.reconcile.world import NAMESPACE, Json, World, foreign_pod, gpus_of, model_spec

MANIFESTS = 100
CONTROLS = ["memory-fit", "capacity-plan", "parallel-layout", "gpu-placement", "benign-admission", "queue-scaling"]


def generated(random: Random) -> tuple[Json, Json, World]:
    """A model, a plan that it names, and a cluster in which some of it goes wrong."""
    made = World()
    for index in range(random.randint(1, 3)):
        labels = random.choice([{}, {}, {"nvidia.com/gpu.memory": "24000"}, {"nvidia.com/gpu.memory": "lots"}])
        made.add_node(f"n{index}", zone=f"zone-{random.randint(0, 1)}", gpus=random.choice([1, 2, 4]), labels=labels)
    if random.random() < 0.3:
        made.api.seed(PODS, foreign_pod("other", "n0", gpus=1))
    if random.random() < 0.2:
        hard = {"requests.nvidia.com/gpu": str(random.randint(0, 6))}
        used = {"requests.nvidia.com/gpu": "0"}
        meta = {"namespace": NAMESPACE, "name": "quota"}
        quota = {"metadata": meta, "spec": {"hard": hard}, "status": {"hard": hard, "used": used}}
        made.api.seed(RESOURCE_QUOTAS, quota)
    spec = model_spec(
        concurrency=random.choice([1, 8, 64, 512]),
        **random.choice([{}, {}, {"parallelism": {"tensor": random.choice([1, 2, 4, 3])}}]),
    )
    placement = random.choice([None, None, None, {"spread": {"level": "hall"}}, {"gpuProducts": ["NVIDIA-L4"]}])
    if placement is not None:
        spec["placement"] = placement
    if random.random() < 0.5:
        spec["replicas"] = random.randint(0, 6)
    else:
        spec["autoscaling"] = {"maxReplicas": random.choice([2, 8]), "serviceTokensPerSecond": 100}
    if random.random() < 0.9:
        spec["capacityPlanRef"] = {"name": "peak"}
    edits: dict[str, Any] = {
        "benchmark.observedTime": rfc3339(made.now()),
        "price.date": rfc3339(made.now()),
        "evidence.controls": CONTROLS,
    }
    edits |= random.choice(
        [
            {},
            {},
            {"limits.maxHourlyCost": 10},
            {"limits.maxReplicas": 3},
            {"limits.maxGpus": 2},
            {"benchmark.modelRevision": "other"},
            {"benchmark.tensor": 2},
            {"benchmark.observedTime": "2020-01-01T00:00:00Z"},
            {"benchmark.observedTime": "2199-01-01T00:00:00Z"},
            {"benchmark.observedTime": "2026-13-01T00:00:00Z"},
            {"workloadClasses.1": None},
            {"resilience.surviveLossOf": "zone"},
            {"resilience.surviveLossOf": "hall"},
            {"resilience.maintenanceReplicas": 2},
            {"workloadClasses.0.outputTokens": 9000},
        ]
    )
    return spec, changed(PLAN, edits), made


def enforce_quota(made: World) -> None:
    """Refuse pods beyond the quota and count those that there are, as admission and its controller do."""

    def refuse(verb: str, resource: Resource, obj: Json) -> ApiError | None:
        if verb != "create" or resource != PODS:
            return None
        for quota in made.api.objects(RESOURCE_QUOTAS):
            used = sum(gpus_of(pod) for pod in made.pods()) + gpus_of(obj)
            if used > int(quota["spec"]["hard"]["requests.nvidia.com/gpu"]):
                return Forbidden("pods is forbidden: exceeded quota: quota")
        return None

    made.api.refuse = refuse


def count_quota(made: World) -> None:
    for quota in made.api.objects(RESOURCE_QUOTAS):
        held = str(sum(gpus_of(pod) for pod in made.pods()))
        key = Key(NAMESPACE, quota["metadata"]["name"])
        used = {"requests.nvidia.com/gpu": held}
        made.api.edit(RESOURCE_QUOTAS, key, lambda obj, used=used: obj["status"].update(used=used))


def offline(spec: Json, plan: Json, made: World) -> dict[str, ObjectReport]:
    document = reduce_cluster(
        nodes=made.api.objects(NODES),
        pods=made.api.objects(PODS),
        quotas=made.api.objects(RESOURCE_QUOTAS),
        ours={},
        topology=DEFAULT_TOPOLOGY,
        now=made.now(),
    )
    manifests = [
        Manifest("generated", "CapacityPlan", NAMESPACE, "peak", plan),
        Manifest("generated", "InferenceModel", NAMESPACE, "llama", spec),
    ]
    reports = Evaluation(document, topology=DEFAULT_TOPOLOGY, now=made.now(), live=True).run(manifests)
    return {report.manifest.kind: report for report in reports}


def said(conditions: list[Json]) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["reason"]) for c in conditions}


def told(report: ObjectReport) -> dict[str, tuple[str, str]]:
    return {kind.value: (status, reason.value) for kind, status, reason, _ in report.conditions}


@pytest.mark.parametrize("seed", range(MANIFESTS))
async def test_command_and_operator_agree(seed: int) -> None:
    spec, plan, made = generated(Random(seed))
    reports = offline(spec, plan, made)

    made.api.seed(CAPACITY_PLANS, {"metadata": {"namespace": NAMESPACE, "name": "peak"}, "spec": plan})
    key = Key(NAMESPACE, "llama")
    enforce_quota(made)
    made.add_model(**spec)
    await made.advance(10)
    count_quota(made)
    await made.advance(10)

    theirs = said(made.status(key)["conditions"])
    ours = told(reports["InferenceModel"])
    compared = [kind for kind in ("Accepted", "MemoryFit", "Placed", "EvidenceCurrent") if kind in theirs]
    assert {kind: ours.get(kind) for kind in compared} == {kind: theirs[kind] for kind in compared}

    stored = next(o for o in made.api.objects(CAPACITY_PLANS) if o["metadata"]["name"] == "peak")
    assert told(reports["CapacityPlan"]) == said(stored["status"]["conditions"])
    numbers = reports["CapacityPlan"].numbers
    assert numbers.get("replicas") == stored["status"].get("replicas")
    if not made.api.objects(RESOURCE_QUOTAS):  # what is used of a quota is an input, and has changed by now
        assert numbers.get("reportDigest") == stored["status"]["reportDigest"]


def test_generated_manifests_are_of_every_kind() -> None:
    """The hundred are worth comparing: every condition is True in some and False in others."""
    found: set[tuple[str, str]] = set()
    for seed in range(MANIFESTS):
        spec, plan, made = generated(Random(seed))
        for report in offline(spec, plan, made).values():
            found |= {(kind.value, status) for kind, status, _, _ in report.conditions}
    kinds = ("Accepted", "MemoryFit", "Placed", "InputsComplete", "Sized", "Placeable", "WithinQuota", "WithinBudget")
    for kind in (*kinds, "EvidenceCurrent", "Ready"):
        assert {(kind, "True"), (kind, "False")} <= found, kind
