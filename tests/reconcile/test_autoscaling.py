"""Replicas follow demand on a cluster in memory: one step per change, no fall on Unknown, drains in two phases."""

import json
from fractions import Fraction
from typing import Any

import pytest

from bayplan.api import names
from bayplan.api.autoscaling import ScalingReason
from bayplan.cluster.resources import INFERENCE_MODELS, LEASES, PODS, Key
from bayplan.planning.measurements import Unknown
from bayplan.telemetry.sources import Trouble, TroubleKind
from tests.reconcile.test_model_changes import draining, ready_pods, set_load
from tests.reconcile.world import World

Json = dict[str, Any]

AUTOSCALING: Json = {
    "minReplicas": 1,
    "maxReplicas": 4,
    "serviceTokensPerSecond": 100,
    "targetUtilization": 0.8,
    "queueDrainSeconds": 60,
    "scaleUpCooldownSeconds": 15,
    "scaleDownStabilizationSeconds": 60,
    "sampleSeconds": 10,
}
GATEWAY, GATEWAY_UID = "gateway-0", "g0"


async def autoscaled(*, nodes: int = 4, gateway: bool = True, **changes: Any) -> tuple[World, Key]:
    """One replica that serves, with demand known."""
    cluster = World()
    for number in range(1, nodes + 1):
        cluster.add_node(f"n{number}", gpus=1, zone=f"zone-{number % 2}")
    if gateway:
        add_gateway(cluster)
    key = cluster.add_model(drain={"deadlineSeconds": 300}, autoscaling=AUTOSCALING | changes)
    await pass_time(cluster, 40)
    assert cluster.status(key)["readyReplicas"] == 1
    assert cluster.reason(key, "ScalingActive") == ("True", "DemandKnown")
    return cluster, key


def add_gateway(cluster: World, name: str = GATEWAY, uid: str = GATEWAY_UID) -> None:
    status = {"phase": "Running", "podIP": "10.1.0.1"}
    pod = {"metadata": {"namespace": "system", "name": name, "uid": uid, "labels": {}}, "spec": {}, "status": status}
    cluster.api.seed(PODS, pod | {"spec": {"containers": [{"name": "gateway"}], "nodeName": "n1"}})
    renew(cluster, name=name, uid=uid)


def renew(cluster: World, *, name: str = GATEWAY, uid: str = GATEWAY_UID, acknowledged: Any = ()) -> None:
    """What a gateway does every few seconds."""
    labels = {names.LABEL_GATEWAY: uid}
    annotations = {names.ANNOTATION_DRAINING_PODS: json.dumps(list(acknowledged))}
    meta = {"namespace": "system", "name": name, "uid": f"lease of {name}", "labels": labels}
    spec = {"holderIdentity": name, "leaseDurationSeconds": 15, "renewTime": f"at {cluster.clock.time()}"}
    cluster.api.seed(LEASES, {"metadata": meta | {"annotations": annotations}, "spec": spec})


async def pass_time(cluster: World, seconds: float, *, acknowledge: bool = True) -> None:
    """Let time pass with the gateways alive, which acknowledge what drains."""
    for _ in range(round(seconds / 5)):
        for lease in cluster.objects(LEASES):
            uids = [p["metadata"]["uid"] for p in cluster.pods() if p["metadata"]["name"] in draining(cluster)]
            name, uid = lease["metadata"]["name"], lease["metadata"]["labels"][names.LABEL_GATEWAY]
            renew(cluster, name=name, uid=uid, acknowledged=uids if acknowledge else ())
        await cluster.advance(5)


def demand(cluster: World, tokens_per_second: float) -> None:
    cluster.metrics.gateways[GATEWAY_UID].rate = tokens_per_second


def scaling(cluster: World, key: Key) -> Json:
    found: Json = cluster.status(key)["scaling"]
    return found


def desired(cluster: World, key: Key) -> int:
    found: int = cluster.status(key)["desiredReplicas"]
    return found


def targets(cluster: World, key: Key) -> list[int]:
    """Every number that was ever desired, repeats left out."""
    found: list[int] = []
    for event in cluster.api.changes(INFERENCE_MODELS, 0):
        number = event.object.get("status", {}).get("desiredReplicas")
        if number is not None and event.object["metadata"]["name"] == key.name and found[-1:] != [number]:
            found.append(number)
    return found


# --- up ---------------------------------------------------------------------------------------------------------------


async def test_a_change_of_demand_is_one_decision_and_warming_replicas_count() -> None:
    cluster, key = await autoscaled()
    (serving,) = cluster.pods()
    cluster.dead_nodes.update({"n1", "n2", "n3", "n4"} - {serving["spec"]["nodeName"]})  # what comes is not ready yet
    demand(cluster, 230)
    cluster.metrics.gateways[GATEWAY_UID].queued = Fraction(3000)
    await pass_time(cluster, 30)
    assert (desired(cluster, key), len(ready_pods(cluster))) == (4, 1)
    cluster.metrics.gateways[GATEWAY_UID].queued = Fraction(90_000)
    await pass_time(cluster, 60)
    cluster.dead_nodes.clear()
    await pass_time(cluster, 30)

    assert cluster.status(key)["readyReplicas"] == 4
    assert targets(cluster, key) == [1, 4]


async def test_the_decision_stands_in_status_with_its_numbers() -> None:
    cluster, key = await autoscaled(maxReplicas=3)
    demand(cluster, 500)
    cluster.metrics.gateways[GATEWAY_UID].queued = Fraction(3000)
    await pass_time(cluster, 60)

    found = scaling(cluster, key)
    assert (found["desiredReplicas"], found["reason"]) == (3, ScalingReason.STEADY)
    assert (found["arrivalTokensPerSecond"], found["queuedTokens"], found["coverage"]) == (500, 3000, 1)
    assert (found["rateReplicas"], found["queueReplicas"]) == (7, 1)
    assert found["lastScaleTime"] < found["decidedTime"]
    assert [e.reason for e in cluster.operator.events.emitted if e.reason == "ScaleUp"] == ["ScaleUp"]


async def test_the_target_is_written_before_anything_is_done_for_it() -> None:
    cluster, key = await autoscaled()
    demand(cluster, 150)
    cluster.api.log.clear()
    await pass_time(cluster, 40)

    verbs = [(verb, plural) for verb, plural, _ in cluster.writes() if plural.startswith(("inferencemodels", "pods"))]
    created = verbs.index(("create", "pods"))
    assert ("apply", "inferencemodels/status") in verbs[:created]
    assert desired(cluster, key) == 2


async def test_work_past_the_gateway_counts_and_without_a_gateway_it_is_all() -> None:
    cluster, key = await autoscaled(gateway=False)
    (pod,) = cluster.pod_names()
    cluster.metrics.engines[cluster.address(pod)].rate = 150
    await pass_time(cluster, 40)

    assert desired(cluster, key) == 2


async def test_limits_that_the_user_changes_count_at_once() -> None:
    cluster, key = await autoscaled()
    cluster.edit_spec(key, autoscaling=AUTOSCALING | {"minReplicas": 3})
    await cluster.run()
    assert (desired(cluster, key), len(ready_pods(cluster))) == (3, 3)
    cluster.edit_spec(key, autoscaling=AUTOSCALING | {"maxReplicas": 2})
    await pass_time(cluster, 10)
    assert desired(cluster, key) == 2


async def test_a_model_that_was_fixed_begins_where_it_is() -> None:
    cluster = World()
    cluster.add_node("n1", gpus=4)
    key = cluster.add_model(replicas=3)
    await cluster.run()
    cluster.edit_spec(key, replicas=None, autoscaling=AUTOSCALING)
    await cluster.run()
    assert (desired(cluster, key), scaling(cluster, key)["desiredReplicas"]) == (3, 3)

    cluster.edit_spec(key, replicas=1, autoscaling=None)
    await pass_time(cluster, 10)
    assert "scaling" not in cluster.status(key)
    assert cluster.condition(key, "ScalingActive") is None
    assert desired(cluster, key) == 1


async def test_suspended_means_no_replicas_and_no_measurements() -> None:
    cluster, key = await autoscaled()
    cluster.edit_spec(key, suspend=True)
    await pass_time(cluster, 20)
    reads = cluster.metrics.reads
    await pass_time(cluster, 60)

    assert (desired(cluster, key), cluster.pods()) == (0, [])
    assert cluster.reason(key, "ScalingActive") == ("False", "Suspended")
    assert cluster.metrics.reads == reads
    cluster.edit_spec(key, suspend=False)
    await pass_time(cluster, 30)
    assert desired(cluster, key) == 1


# --- down -------------------------------------------------------------------------------------------------------------


async def risen(**changes: Any) -> tuple[World, Key]:
    """Three replicas that serve."""
    cluster, key = await autoscaled(**changes)
    demand(cluster, 220)
    await pass_time(cluster, 60)
    assert (desired(cluster, key), len(ready_pods(cluster))) == (3, 3)
    return cluster, key


async def test_demand_must_stay_low_for_a_whole_window() -> None:
    cluster, key = await risen()
    demand(cluster, 10)
    await pass_time(cluster, 50)
    assert desired(cluster, key) == 3
    assert scaling(cluster, key)["reason"] == ScalingReason.HOLD_STABILIZATION
    await pass_time(cluster, 40)

    assert (desired(cluster, key), len(ready_pods(cluster)), len(cluster.pods())) == (1, 1, 1)
    assert targets(cluster, key) == [1, 3, 1]


async def test_the_replica_with_the_least_work_left_goes() -> None:
    cluster, key = await risen()
    busy, idle, busier = cluster.pods()
    work = {busy["metadata"]["uid"]: Fraction(500), busier["metadata"]["uid"]: Fraction(900)}
    cluster.metrics.gateways[GATEWAY_UID].reserved = work
    cluster.metrics.engines[cluster.address(idle["metadata"]["name"])].remaining = Fraction(100)
    demand(cluster, 100)
    await pass_time(cluster, 90)

    assert desired(cluster, key) == 2
    assert cluster.pod_names() == [busy["metadata"]["name"], busier["metadata"]["name"]]


async def test_a_replica_leaves_only_after_every_gateway_has_acknowledged_and_it_was_idle_since() -> None:
    cluster, key = await risen()
    demand(cluster, 10)
    await pass_time(cluster, 100, acknowledge=False)
    assert desired(cluster, key) == 1
    assert len(draining(cluster)) == 2
    assert cluster.status(key)["drainingReplicas"] == 2
    for pod in draining(cluster):
        set_load(cluster, pod, 1)
    await pass_time(cluster, 30)
    assert len(draining(cluster)) == 2, "a stream still runs"
    for pod in draining(cluster):
        set_load(cluster, pod, 0)
    await pass_time(cluster, 10)

    assert (len(cluster.pods()), cluster.status(key)["drainingReplicas"]) == (1, 0)


async def test_a_gateway_that_is_dead_is_not_waited_for() -> None:
    cluster, key = await risen()
    demand(cluster, 10)
    await pass_time(cluster, 80, acknowledge=False)
    assert len(draining(cluster)) == 2
    await cluster.advance(20)

    assert len(cluster.pods()) == 1
    assert desired(cluster, key) == 1


async def test_demand_that_returns_takes_the_drain_back() -> None:
    cluster, key = await risen()
    before = cluster.pod_names()
    demand(cluster, 10)
    await pass_time(cluster, 100, acknowledge=False)
    assert len(draining(cluster)) == 2
    demand(cluster, 230)
    await pass_time(cluster, 40)

    assert (desired(cluster, key), draining(cluster), cluster.pod_names()) == (3, [], before)
    assert len(ready_pods(cluster)) == 3


# --- Unknown ----------------------------------------------------------------------------------------------------------


SILENT = Trouble(TroubleKind.UNREACHABLE, "gateway gateway-0: no answer")


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (SILENT, "MetricsUnreachable"),
        (Trouble(TroubleKind.MISSING, "reports no vllm:a; the nearest that it has is vllm:b"), "MetricsMissing"),
        (Trouble(TroubleKind.INVALID, "vllm:a is nan"), "MetricsInvalid"),
        (Trouble(TroubleKind.STALE, "old"), "MetricsStale"),
    ],
)
async def test_an_outage_lowers_nothing_and_says_why(trouble: Trouble, reason: str) -> None:
    cluster, key = await risen()
    demand(cluster, 0)
    cluster.metrics.gateways[GATEWAY_UID].trouble = trouble
    await pass_time(cluster, 300)

    assert (desired(cluster, key), len(ready_pods(cluster))) == (3, 3)
    assert cluster.reason(key, "ScalingActive") == ("False", reason)
    found = cluster.condition(key, "ScalingActive")
    assert found is not None
    assert trouble.message in found["message"]
    assert cluster.reason(key, "Ready") == ("True", "Ready")

    cluster.metrics.gateways[GATEWAY_UID].trouble = None
    await pass_time(cluster, 50)
    assert desired(cluster, key) == 3, "the window begins anew"
    await pass_time(cluster, 60)
    assert desired(cluster, key) == 1


async def test_during_an_outage_what_is_known_may_raise() -> None:
    cluster, key = await autoscaled()
    cluster.metrics.gateways[GATEWAY_UID].trouble = SILENT
    (pod,) = cluster.pod_names()
    cluster.metrics.engines[cluster.address(pod)].rate = 150
    await pass_time(cluster, 40)

    assert desired(cluster, key) == 2


async def test_a_number_that_is_not_known_lowers_nothing() -> None:
    cluster, key = await risen()
    demand(cluster, 0)
    cluster.metrics.engines[cluster.address(cluster.pod_names()[0])].served = Unknown("vllm:a is nan")
    cluster.metrics.engines[cluster.address(cluster.pod_names()[1])].waiting = Unknown("vllm:b is nan")  # type: ignore[assignment]
    await pass_time(cluster, 200)

    assert desired(cluster, key) == 3


async def test_a_counter_that_begins_anew_is_no_fall_and_no_jump() -> None:
    cluster, key = await risen()
    demand(cluster, 0)
    for round_ in range(20):
        for pod in cluster.pod_names():
            cluster.metrics.engines[cluster.address(pod)].run = f" run {round_}"
        await pass_time(cluster, 10)

    assert desired(cluster, key) == 3


async def test_a_restart_holds_for_one_window() -> None:
    cluster, key = await risen()
    demand(cluster, 10)
    await pass_time(cluster, 50)
    await cluster.restart()
    await pass_time(cluster, 55)
    assert desired(cluster, key) == 3
    assert scaling(cluster, key)["reason"] == ScalingReason.HOLD_AFTER_RESTART
    await pass_time(cluster, 30)

    assert desired(cluster, key) == 1


async def test_operators_that_are_restarted_again_and_again_lower_nothing() -> None:
    cluster, key = await risen()
    demand(cluster, 10)
    for _ in range(6):
        await pass_time(cluster, 50)
        await cluster.restart()

    assert (desired(cluster, key), len(ready_pods(cluster))) == (3, 3)


async def test_no_gateway_and_no_ready_replica_is_not_idle() -> None:
    cluster, key = await autoscaled(gateway=False)
    cluster.edit_spec(key, autoscaling=AUTOSCALING | {"minReplicas": 3})
    await pass_time(cluster, 30)
    cluster.crashing_images.add(cluster.pods()[0]["spec"]["containers"][0]["image"])
    await pass_time(cluster, 30)
    cluster.edit_spec(key, autoscaling=AUTOSCALING)
    await pass_time(cluster, 200)

    assert desired(cluster, key) == 3
    assert cluster.reason(key, "ScalingActive") == ("False", "NoReadyReplica")


# --- at rest ----------------------------------------------------------------------------------------------------------


async def test_at_rest_nothing_is_written() -> None:
    cluster, key = await risen()
    await pass_time(cluster, 60)
    before = len(cluster.writes())
    demand(cluster, 225)
    await pass_time(cluster, 300)
    assert cluster.writes()[before:] == []

    cluster.metrics.gateways[GATEWAY_UID].trouble = SILENT
    await pass_time(cluster, 60)
    during = len(cluster.writes())
    await pass_time(cluster, 300)
    assert cluster.writes()[during:] == []
    assert desired(cluster, key) == 3


async def test_a_restart_at_rest_writes_nothing() -> None:
    cluster, _ = await risen()
    await pass_time(cluster, 60)
    before = len(cluster.writes())
    await cluster.restart()
    await pass_time(cluster, 120)

    assert cluster.writes()[before:] == []


async def test_status_names_the_endpoint_once_there_is_a_service() -> None:
    cluster = World()
    key = cluster.add_model(autoscaling=AUTOSCALING)
    await cluster.run()
    assert cluster.status(key)["endpoint"] == ""
    cluster.add_node("n1")
    await cluster.run()

    assert cluster.status(key)["endpoint"] == "http://llama.team.svc:8000/v1"
