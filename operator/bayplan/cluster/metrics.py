"""The operator's own measurements, under the names that dashboards for controller-runtime know where such exist."""

import platform
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bayplan.cluster.cache import Store
from bayplan.cluster.controller import Controller

_METHODS = {"create": "POST", "patch": "PATCH", "apply": "PATCH", "delete": "DELETE"}
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_LAG_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class Source(Protocol):
    """What keeps a store up to date: a `Reflector` or a `Resync`."""

    @property
    def name(self) -> str:
        """The resource's plural name."""

    @property
    def store(self) -> Store[Any]:
        """The store that it feeds."""

    @property
    def failures(self) -> int:
        """Failures in a row."""

    @property
    def projection_errors(self) -> int:
        """Objects that could not be read."""

    def progress_age(self) -> float:
        """Seconds since the server was last heard of."""


class Metrics:
    """One registry for one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._reconciles = self._counter(
            "controller_runtime_reconcile", "Reconciles by controller and result", "controller", "result"
        )
        self._errors = self._counter("controller_runtime_reconcile_errors", "Failed reconciles", "controller")
        self._reconcile_seconds = self._histogram(
            "controller_runtime_reconcile_time_seconds", "Duration of reconciles", "controller"
        )
        self._hot = self._gauge("bayplan_hot_keys", "Keys reconciled too often in the last window", "controller")
        self._adds = self._counter("workqueue_adds", "Keys queued", "name")
        self._retries = self._counter("workqueue_retries", "Keys queued again with backoff", "name")
        self._queue_seconds = self._histogram(
            "workqueue_queue_duration_seconds", "How long keys waited for a worker", "name"
        )
        self._work_seconds = self._histogram("workqueue_work_duration_seconds", "How long workers held keys", "name")
        self._rest = self._counter("rest_client_requests", "Requests to the API server", "code", "method")
        self._api = self._counter(
            "bayplan_api_requests", "Requests to the API server by what they are about", "verb", "resource", "code"
        )
        self._api_seconds = self._histogram("rest_client_request_duration_seconds", "Time to the answer", "verb")
        self._leader = self._gauge("leader_election_master_status", "1 while this process is the leader", "name")
        self.loop_lag = Histogram(
            "bayplan_event_loop_lag_seconds",
            "How late the event loop was",
            buckets=_LAG_SECONDS,
            registry=self.registry,
        )
        build = self._gauge("bayplan_build_info", "Always 1; the labels tell the build", "version", "python_version")
        build.labels(version("bayplan"), platform.python_version()).set(1)
        ProcessCollector(registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(name, text, labels, buckets=_SECONDS, registry=self.registry)

    def request_made(self, verb: str, target: str, status: int, seconds: float) -> None:
        """Count one API request; pass this as `on_request` to the client."""
        code = str(status) if status else "<error>"
        self._rest.labels(code, _METHODS.get(verb, "GET")).inc()
        self._api.labels(verb, target, code).inc()
        self._api_seconds.labels(verb).observe(seconds)

    def leading(self, name: str, *, leads: bool) -> None:
        """Set whether this process is the leader."""
        self._leader.labels(name).set(1 if leads else 0)

    def of_controller(self, name: str) -> "ControllerMetrics":
        """Return the observer for one controller, its series present from the start."""
        for result in ("success", "requeue_after", "conflict", "error"):
            self._reconciles.labels(name, result)
        self._hot.labels(name).set(0)
        return ControllerMetrics(
            self._reconciles,
            self._errors.labels(name),
            self._reconcile_seconds.labels(name),
            self._hot.labels(name),
            name,
        )

    def of_queue(self, name: str) -> "QueueMetrics":
        """Return the observer for one work queue."""
        return QueueMetrics(
            self._adds.labels(name),
            self._retries.labels(name),
            self._queue_seconds.labels(name),
            self._work_seconds.labels(name),
        )

    def collect_from(self, collector: Collector) -> None:
        """Add a collector that is asked at every scrape."""
        self.registry.register(collector)

    def render(self) -> bytes:
        """Return everything in the text format."""
        return generate_latest(self.registry)


class ControllerMetrics:
    """See `controller.ControllerObserver`."""

    def __init__(self, results: Counter, errors: Counter, seconds: Histogram, hot: Gauge, name: str) -> None:
        self._results = results
        self._errors = errors
        self._seconds = seconds
        self._hot = hot
        self._name = name

    def reconciled(self, result: str, seconds: float) -> None:
        """Count one reconcile."""
        self._results.labels(self._name, result).inc()
        self._seconds.observe(seconds)
        if result == "error":
            self._errors.inc()

    def hot_keys(self, count: int) -> None:
        """Set how many keys ran hot."""
        self._hot.set(count)


class QueueMetrics:
    """See `queue.QueueObserver`."""

    def __init__(self, adds: Counter, retries: Counter, waited: Histogram, worked: Histogram) -> None:
        self._adds = adds
        self._retries = retries
        self._waited = waited
        self._worked = worked

    def added(self) -> None:
        """Count a key queued."""
        self._adds.inc()

    def retried(self) -> None:
        """Count a key queued with backoff."""
        self._retries.inc()

    def started(self, waited_seconds: float) -> None:
        """Measure a key's wait."""
        self._waited.observe(waited_seconds)

    def finished(self, worked_seconds: float) -> None:
        """Measure a worker's hold."""
        self._worked.observe(worked_seconds)


class EngineCollector(Collector):
    """Reads queues and caches at the moment of the scrape."""

    def __init__(self, sources: list[Source], controllers: list[Controller]) -> None:
        self._sources = sources
        self._controllers = controllers

    def collect(self) -> Iterator[Metric]:
        """Yield gauges of caches and queues."""
        objects = GaugeMetricFamily("bayplan_cache_objects", "Objects in the cache", labels=["kind"])
        age = GaugeMetricFamily(
            "bayplan_cache_progress_age_seconds", "Seconds since the server was heard of", labels=["kind"]
        )
        failing = GaugeMetricFamily("bayplan_cache_failures", "Failed lists or watches in a row", labels=["kind"])
        unread = CounterMetricFamily("bayplan_projection_errors", "Objects that could not be read", labels=["kind"])
        for source in self._sources:
            objects.add_metric([source.name], len(source.store))
            age.add_metric([source.name], source.progress_age())
            failing.add_metric([source.name], source.failures)
            unread.add_metric([source.name], source.projection_errors)
        depth = GaugeMetricFamily("workqueue_depth", "Keys waiting for a worker", labels=["name"])
        oldest = GaugeMetricFamily("bayplan_workqueue_oldest_seconds", "Wait of the oldest key", labels=["name"])
        longest = GaugeMetricFamily(
            "workqueue_longest_running_processor_seconds", "Age of the longest work in flight", labels=["name"]
        )
        delayed = GaugeMetricFamily("bayplan_workqueue_delayed", "Keys waiting for a time", labels=["name"])
        active = GaugeMetricFamily("controller_runtime_active_workers", "Workers at work", labels=["controller"])
        for controller in self._controllers:
            queue, labels = controller.queue, [controller.kind]
            depth.add_metric(labels, len(queue))
            oldest.add_metric(labels, queue.oldest_seconds())
            longest.add_metric(labels, queue.longest_running_seconds())
            delayed.add_metric(labels, queue.delayed)
            active.add_metric(labels, queue.in_flight)
        yield from (objects, age, failing, unread, depth, oldest, longest, delayed, active)
