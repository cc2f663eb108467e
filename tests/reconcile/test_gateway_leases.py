"""Which gateways are live, at which address, and what all of them have acknowledged."""

import json
from typing import Any

import pytest

from bayplan.api import names
from bayplan.api.acknowledgements import write_epochs
from bayplan.cluster.resources import LEASES, Key
from bayplan.planning.rollout.proof import GatewayAck, lagging
from bayplan.reconcile.fleet import pod_store
from bayplan.reconcile.gateways import Gateways, gateway_store, view_gateway
from bayplan.reconcile.pods import view_pod
from bayplan.telemetry.sources import GatewaySource
from tests.fakes.api import FakeApi
from tests.fakes.clock import FakeClock

Json = dict[str, Any]
NAMESPACE = "system"


def lease(
    name: str = "gateway-0",
    *,
    namespace: str = NAMESPACE,
    uid: str = "g0",
    draining: Any = None,
    epochs: Any = None,
    **spec: Any,
) -> Json:
    labels = {names.LABEL_GATEWAY: uid}
    meta: Json = {"namespace": namespace, "name": name, "uid": f"lease of {name}", "labels": labels, "annotations": {}}
    if draining is not None:
        meta["annotations"][names.ANNOTATION_DRAINING_PODS] = draining
    if epochs is not None:
        meta["annotations"][names.ANNOTATION_PLAN_EPOCHS] = epochs
    return {"metadata": meta, "spec": {"holderIdentity": name, "leaseDurationSeconds": 15, **spec}}


def gateway_pod(name: str = "gateway-0", *, uid: str = "g0", phase: str = "Running", address: str = "10.1.0.1") -> Json:
    meta = {"namespace": NAMESPACE, "name": name, "uid": uid, "resourceVersion": "1"}
    return {"metadata": meta, "spec": {}, "status": {"phase": phase, "podIP": address}}


class Bench:
    def __init__(self) -> None:
        self.clock, self.api = FakeClock(), FakeApi()
        self.leases, self.pods = gateway_store(), pod_store()
        self.gateways = Gateways(self.leases, self.pods, home=NAMESPACE, clock=self.clock.time)

    def renew(self, body: Json) -> None:
        self.leases.put(view_gateway(self.api.seed(LEASES, body)))

    def run(self, body: Json) -> None:
        self.pods.put(view_pod(body))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_gateway_is_asked_at_the_address_of_its_pod_alone(bench: Bench) -> None:
    bench.renew(lease(address="10.9.9.9"))
    bench.run(gateway_pod())

    assert bench.gateways.live("team") == [GatewaySource("g0", NAMESPACE, "gateway-0", "10.1.0.1")]


@pytest.mark.parametrize(("seconds", "live"), [(15, 1), (15.001, 0)])
def test_it_lives_for_the_duration_of_its_lease_after_we_last_heard_of_it(
    bench: Bench, seconds: float, live: int
) -> None:
    bench.renew(lease(renewTime="2020-01-01T00:00:00Z"))
    bench.run(gateway_pod())
    bench.clock.jump(10)
    bench.renew(lease(renewTime="2019-01-01T00:00:00Z"))
    bench.clock.jump(seconds)

    assert len(bench.gateways.live("team")) == live


@pytest.mark.parametrize(
    "pod", [gateway_pod(phase="Failed"), gateway_pod(phase="Succeeded"), gateway_pod(uid="a later one")]
)
def test_a_gateway_whose_pod_has_ended_or_is_another_is_not_waited_for(bench: Bench, pod: Json) -> None:
    bench.renew(lease())
    bench.run(pod)

    assert bench.gateways.live("team") == []
    assert bench.gateways.acknowledged("team", "e1")


def test_a_gateway_whose_pod_is_not_known_yet_has_no_address_and_is_waited_for(bench: Bench) -> None:
    bench.renew(lease())

    assert [one.address for one in bench.gateways.live("team")] == [""]
    assert not bench.gateways.acknowledged("team", "e1")


@pytest.mark.parametrize("changes", [{"holderIdentity": ""}, {"holderIdentity": None}])
def test_a_lease_that_was_given_up_is_nobodys(bench: Bench, changes: Json) -> None:
    bench.renew(lease(**changes))

    assert bench.gateways.live("team") == []


def test_every_live_gateway_must_have_acknowledged(bench: Bench) -> None:
    assert bench.gateways.acknowledged("team", "e1"), "without a gateway nobody routes"
    for number, draining in enumerate((["e1", "e2"], ["e1"])):
        bench.renew(lease(f"gateway-{number}", uid=f"g{number}", draining=json.dumps(draining)))
        bench.run(gateway_pod(f"gateway-{number}", uid=f"g{number}"))

    assert bench.gateways.acknowledged("team", "e1")
    assert not bench.gateways.acknowledged("team", "e2")
    bench.leases.discard(Key(NAMESPACE, "gateway-1"), bench.leases.get(Key(NAMESPACE, "gateway-1")).uid, 10**9)  # type: ignore[union-attr]
    assert bench.gateways.acknowledged("team", "e2")


@pytest.mark.parametrize("text", ["", "{", "{}", "null", '"e1"', 7])
def test_what_is_no_list_acknowledges_nothing(bench: Bench, text: Any) -> None:
    bench.renew(lease(draining=text))

    assert not bench.gateways.acknowledged("team", "e1")


@pytest.mark.parametrize("duration", [0, -1, None, "15", 10**9])
def test_a_duration_that_is_none_is_short_and_one_without_end_is_cut(bench: Bench, duration: Any) -> None:
    bench.renew(lease(leaseDurationSeconds=duration))
    bench.run(gateway_pod())
    bench.clock.jump(61)

    assert bench.gateways.live("team") == []


def test_pods_are_projected_with_their_address() -> None:
    raw = gateway_pod()
    raw["metadata"]["resourceVersion"] = "5"

    assert view_pod(raw).address == "10.1.0.1"


def test_a_gateway_in_a_teams_namespace_speaks_for_that_teams_models_alone(bench: Bench) -> None:
    bench.renew(lease(namespace="team"))

    assert len(bench.gateways.live("team")) == 1
    assert bench.gateways.live("other") == []
    assert not bench.gateways.acknowledged("team", "e1")
    assert bench.gateways.acknowledged("other", "e1")


def test_each_live_gateway_tells_which_epoch_of_a_plan_it_routes_by(bench: Bench) -> None:
    bench.renew(lease(epochs=write_epochs({"rollout": 7, "another": 2})))
    bench.run(gateway_pod())
    bench.renew(lease("gateway-1", uid="g1"))

    acknowledged = bench.gateways.plan_epochs("team", "rollout")
    assert set(acknowledged) == {GatewayAck("g0", 7), GatewayAck("g1", 0)}
    assert lagging(acknowledged, 7) == ("g1",)


def test_gateway_whose_lease_ran_out_is_not_asked_for_an_epoch(bench: Bench) -> None:
    bench.renew(lease(epochs=write_epochs({"rollout": 7})))
    bench.run(gateway_pod())
    bench.clock.jump(15)
    assert bench.gateways.plan_epochs("team", "rollout") == (GatewayAck("g0", 7),)
    bench.clock.jump(0.001)
    assert bench.gateways.plan_epochs("team", "rollout") == ()


@pytest.mark.parametrize("text", ["", "{", "[]", '"7"', 7, '{"rollout": "7"}', '{"rollout": true}', '{"rollout": 0}'])
def test_what_is_no_object_of_epochs_acknowledges_none(bench: Bench, text: Any) -> None:
    bench.renew(lease(epochs=text))
    bench.run(gateway_pod())

    assert bench.gateways.plan_epochs("team", "rollout") == (GatewayAck("g0", 0),)
