"""A whole process: caches, barrier, Lease, controllers, probes and the end of it, on a real API server."""

import asyncio
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from bayplan.cluster.cache import Store, object_key, version_number
from bayplan.cluster.client import ApiClient
from bayplan.cluster.controller import Controller, Result
from bayplan.cluster.credentials import Credentials, load_kubeconfig
from bayplan.cluster.events import EventRecorder, Subject
from bayplan.cluster.lease import Elector
from bayplan.cluster.metrics import Metrics
from bayplan.cluster.reflector import Reflector
from bayplan.cluster.resources import INFERENCE_MODELS, LEASES, PODS, Key
from bayplan.cluster.resync import Resync
from bayplan.cluster.runtime import EXIT_CLEAN, EXIT_FAILED, Runtime
from e2e.localcluster import Cluster
from tests.cluster.conftest import make_model
from tests.fakes.clock import until

READS = {"get", "list", "watch"}


@dataclass(frozen=True, slots=True)
class Model:
    key: Key
    uid: str
    resource_version: int
    generation: int
    observed: int


def project(raw: dict[str, Any]) -> Model:
    metadata = raw["metadata"]
    return Model(
        object_key(raw),
        metadata["uid"],
        version_number(metadata["resourceVersion"]),
        metadata.get("generation", 0),
        (raw.get("status") or {}).get("observedGeneration", 0),
    )


@dataclass
class Operator:
    """The smallest operator that is one: it writes each model's observedGeneration, once."""

    cluster: Cluster
    lease_namespace: str
    name: str
    metrics: Metrics = field(default_factory=Metrics)
    reconciled: Counter[Key] = field(default_factory=Counter)
    synced_at_first: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        credentials = Credentials(lambda: load_kubeconfig(str(self.cluster.kubeconfig_path)))
        self.client = ApiClient(credentials, on_request=self.metrics.request_made)
        self.elector = Elector(self.client, namespace=self.lease_namespace, name="operator", identity=self.name)
        self.writer = self.client.fenced(self.elector.is_held)
        self.models: Store[Model] = Store(INFERENCE_MODELS)
        self.pods: Store[Model] = Store(PODS)
        self.resync = Resync(self.client, self.models, project)
        self.reflector = Reflector(self.client, self.pods, project)
        self.recorder = EventRecorder(self.client, controller="bayplan-operator", instance=self.name)
        self.controller = Controller(
            "InferenceModel",
            self.reconcile,
            keys=self.models.keys,
            observer=self.metrics.of_controller("InferenceModel"),
            queue_observer=self.metrics.of_queue("InferenceModel"),
        )
        self.models.subscribe(lambda old, new: self.controller.enqueue((new or old).key))  # type: ignore[union-attr]
        self.runtime = Runtime(
            self.client,
            elector=self.elector,
            resyncs=[self.resync],
            reflectors=[self.reflector],
            controllers=[self.controller],
            recorder=self.recorder,
            metrics=self.metrics,
        )
        self.task: asyncio.Task[int] | None = None

    async def reconcile(self, key: Key) -> Result:
        self.synced_at_first.append(self.resync.synced.is_set() and self.reflector.synced.is_set())
        self.reconciled[key] += 1
        model = self.models.get(key)
        if key.namespace != self.lease_namespace:  # of another test in the same cluster
            return Result()
        if model is None or model.observed == model.generation or self.models.is_behind(key):
            return Result()
        body = {"metadata": {"uid": model.uid}, "status": {"observedGeneration": model.generation}}
        done = await self.writer.apply(
            INFERENCE_MODELS, key.namespace, key.name, body, manager="bayplan-status", subresource="status"
        )
        self.models.expect(key, done["metadata"]["resourceVersion"])
        self.recorder.record(Subject(INFERENCE_MODELS, key, model.uid), "Normal", "Seen", "observed")
        return Result()

    def start(self) -> None:
        self.task = asyncio.create_task(self.runtime.run())

    async def end(self) -> int:
        assert self.task is not None
        self.runtime.stop()
        return await asyncio.wait_for(self.task, 30)

    def writes(self) -> dict[tuple[str, str], int]:
        found: Counter[tuple[str, str]] = Counter()
        for (verb, target, _), count in self.client.requests.items():
            if verb not in READS and target not in ("leases", "events"):
                found[verb, target] += count
        return dict(found)

    def converged(self, namespace: str, count: int) -> bool:
        mine = [model for model in self.models.values() if model.key.namespace == namespace]
        return len(mine) == count and all(model.observed == model.generation for model in mine)


@pytest.fixture
async def operators(cluster: Cluster, namespace: str) -> AsyncIterator[Any]:
    made: list[Operator] = []

    def make(name: str) -> Operator:
        made.append(Operator(cluster, namespace, name))
        return made[-1]

    yield make
    for operator in made:
        if operator.task is not None and not operator.task.done():
            await operator.end()
        await operator.client.close()


async def test_a_process_reconciles_once_rests_and_ends_clean(
    operators: Any, client: ApiClient, namespace: str
) -> None:
    for number in range(20):
        await client.create(INFERENCE_MODELS, namespace, make_model(f"m{number}"))
    operator = operators("one")
    operator.start()
    await until(lambda: operator.converged(namespace, 20))
    await client.create(INFERENCE_MODELS, namespace, make_model("late"))
    await until(lambda: operator.converged(namespace, 21))
    assert all(operator.synced_at_first), "a reconcile ran before the start barrier"
    await until(lambda: len(operator.controller.queue) == 0 and operator.controller.queue.in_flight == 0)
    before, leases = operator.writes(), operator.client.requests["patch", "leases", 200]
    assert before == {("apply", "inferencemodels/status"): 21}
    await until(lambda: operator.client.requests["patch", "leases", 200] >= leases + 2)
    assert operator.writes() == before, "at rest nothing is written"
    assert await operator.end() == EXIT_CLEAN
    lease = await client.get(LEASES, namespace, "operator")
    assert not lease["spec"].get("holderIdentity")
    assert lease["spec"]["leaseDurationSeconds"] == 1

    again = operators("two")
    again.start()
    await until(again.runtime.leading.is_set)
    await until(lambda: all(again.reconciled[Key(namespace, f"m{number}")] for number in range(20)))
    assert again.writes() == {}, "a restart writes nothing"


async def test_a_standby_is_warm_and_takes_over_within_two_seconds_of_a_clean_stop(
    operators: Any, client: ApiClient, namespace: str
) -> None:
    first, second = operators("first"), operators("second")
    first.start()
    await until(first.runtime.leading.is_set)
    second.start()
    await until(second.resync.synced.is_set)
    await until(second.reflector.synced.is_set)
    await client.create(INFERENCE_MODELS, namespace, make_model("m"))
    await until(lambda: first.converged(namespace, 1) and second.converged(namespace, 1))
    assert second.reconciled == Counter()
    started = time.perf_counter()
    first.runtime.stop()
    await until(second.runtime.leading.is_set)
    seconds = time.perf_counter() - started
    print(f"\nhandover: {seconds:.2f} s")  # noqa: T201
    assert seconds < 5
    assert await first.task == EXIT_CLEAN
    await client.create(INFERENCE_MODELS, namespace, make_model("after"))
    await until(lambda: second.converged(namespace, 2))


async def test_a_stolen_lease_ends_the_process_and_its_writes(
    operators: Any, client: ApiClient, namespace: str
) -> None:
    operator = operators("one")
    operator.start()
    await until(operator.runtime.leading.is_set)
    await client.patch_merge(LEASES, namespace, "operator", {"spec": {"holderIdentity": "thief"}})
    assert await asyncio.wait_for(operator.task, 30) == EXIT_FAILED
    assert not operator.elector.is_held()
    lease = await client.get(LEASES, namespace, "operator")
    assert lease["spec"]["holderIdentity"] == "thief"


async def test_sigterm_is_a_clean_stop(operators: Any) -> None:
    operator = operators("one")
    operator.start()
    await until(operator.runtime.leading.is_set)
    signal.raise_signal(signal.SIGTERM)
    assert await asyncio.wait_for(operator.task, 30) == EXIT_CLEAN


async def test_probes_and_metrics_tell_the_truth(operators: Any, client: ApiClient, namespace: str) -> None:
    operator = operators("one")
    operator.start()
    await until(operator.runtime.serving.is_set)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{operator.runtime.port}") as session:

        async def read(path: str) -> tuple[int, str]:
            async with session.get(path) as response:
                return response.status, await response.text()

        await until(operator.runtime.leading.is_set)
        await client.create(INFERENCE_MODELS, namespace, make_model("m"))
        await until(lambda: operator.converged(namespace, 1))
        assert await read("/healthz") == (200, "[+] inferencemodels ok\n[+] pods ok\n")
        assert await read("/readyz") == (200, "[+] inferencemodels ok\n[+] pods ok\n[+] lease ok\n")
        status, text = await read("/metrics")
    assert status == 200
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values['controller_runtime_reconcile_total{controller="InferenceModel",result="success"}']) >= 1
    assert values['leader_election_master_status{name="' + namespace + '/operator"}'] == "1.0"
    assert float(values['rest_client_requests_total{code="200",method="PATCH"}']) >= 1
    assert float(values['bayplan_cache_objects{kind="inferencemodels"}']) >= 1
    assert float(values['bayplan_cache_progress_age_seconds{kind="pods"}']) < 60
    for name in (
        'workqueue_depth{name="InferenceModel"}',
        'workqueue_adds_total{name="InferenceModel"}',
        'workqueue_retries_total{name="InferenceModel"}',
        'workqueue_queue_duration_seconds_count{name="InferenceModel"}',
        'controller_runtime_reconcile_time_seconds_count{controller="InferenceModel"}',
        "bayplan_event_loop_lag_seconds_count",
        "process_resident_memory_bytes",
    ):
        assert name in values
