"""What others may read: `/metrics` in Prometheus' text format and `/evidence` as JSON, from the same rows.

Nothing is counted twice and nothing is counted for the scrape alone: a collector reads the pools and the evidence at
the moment it is asked. Labels are names of models that exist, revisions, classes of the configuration, and enums.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from bayplan.api.meta import rfc3339
from bayplan.gateway.copies import CopyOutcome
from bayplan.gateway.directory import Directory
from bayplan.gateway.evidence import NANOSECONDS, Cause, Evidence, Row, RowKey, TimeCounts
from bayplan.gateway.outcomes import Outcomes, RequestOutcome
from bayplan.gateway.pools import Pool
from bayplan.gateway.refusals import RefusalCode
from bayplan.planning.admission.sheds import ShedCode

_MODEL = ("namespace", "model")
ENGINE_FAULTS = (Cause.UNREACHABLE, Cause.FAILED, Cause.CUT, Cause.TIMEOUT)
"""Causes that are the engine's; what a caller got wrong or gave up is none of its errors."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Which gateway process this is: counts of another one cannot be compared with these."""

    uid: str
    started_at: datetime


class GatewayCollector(Collector):
    """Reads everything at a scrape."""

    def __init__(
        self,
        directory: Directory,
        evidence: Evidence,
        outcomes: Outcomes,
        copies: Mapping[tuple[str, str, CopyOutcome], int],
        *,
        now_ns: Callable[[], int],
    ) -> None:
        self._directory = directory
        self._evidence = evidence
        self._outcomes = outcomes
        self._copies = copies
        self._now_ns = now_ns

    def collect(self) -> Iterator[Metric]:
        """Yield all families."""
        pools = list(self._directory)
        yield from self._of_pools(pools)
        yield from self._of_requests(pools)
        yield from self._of_times()

    def _of_pools(self, pools: Iterable[Pool]) -> Iterator[Metric]:
        demand = CounterMetricFamily(
            "bayplan_gateway_demand_tokens",
            "Tokens asked for at the door: of prompts, and at most of outputs, whatever became of the requests.",
            labels=[*_MODEL, "kind"],
        )
        asked = CounterMetricFamily("bayplan_gateway_demand_requests", "Requests behind those tokens.", labels=_MODEL)
        queued = GaugeMetricFamily("bayplan_gateway_queued_tokens", "Tokens of requests that wait.", labels=_MODEL)
        waiting = GaugeMetricFamily("bayplan_gateway_queued_requests", "Requests that wait.", labels=_MODEL)
        reserved = GaugeMetricFamily(
            "bayplan_gateway_reserved_tokens", "Tokens reserved on all replicas.", labels=_MODEL
        )
        held = GaugeMetricFamily("bayplan_gateway_reserved_requests", "Requests that hold a place.", labels=_MODEL)
        replicas = GaugeMetricFamily(
            "bayplan_gateway_replicas", "Replicas that take new requests, or drain.", labels=[*_MODEL, "state"]
        )
        sheds = CounterMetricFamily(
            "bayplan_gateway_sheds", "Requests that admission refused, by reason.", labels=[*_MODEL, "reason"]
        )
        for pool in pools:
            key, readings = pool.model.key, pool.readings()
            own = [key.namespace, key.name]
            demand.add_metric([*own, "prompt"], readings.demand.prompt_tokens)
            demand.add_metric([*own, "output"], readings.demand.max_output_tokens)
            asked.add_metric(own, readings.demand.requests)
            queued.add_metric(own, readings.queued_tokens)
            waiting.add_metric(own, readings.queued_requests)
            reserved.add_metric(own, readings.live_tokens)
            held.add_metric(own, pool.held)
            routable = sum(replica.routable for replica in pool.replicas.values())
            replicas.add_metric([*own, "routable"], routable)
            replicas.add_metric([*own, "draining"], len(pool.replicas) - routable)
            for code in ShedCode:
                sheds.add_metric([*own, code.value], readings.sheds[code])
        yield from (demand, asked, queued, waiting, reserved, held, replicas, sheds)

    def _of_requests(self, pools: Sequence[Pool]) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "bayplan_gateway_requests", "Requests by what became of them.", labels=[*_MODEL, "outcome"]
        )
        for pool in pools:
            key = pool.model.key
            for outcome in RequestOutcome:
                count = self._outcomes.requests[key.namespace, key.name, outcome]
                requests.add_metric([key.namespace, key.name, outcome.value], count)
        refusals = CounterMetricFamily(
            "bayplan_gateway_refusals", "Refusals beside admission, by reason.", labels=["reason"]
        )
        for code in RefusalCode:
            refusals.add_metric([code.value], self._outcomes.refusals[code])
        rerouted = CounterMetricFamily(
            "bayplan_gateway_rerouted_requests", "Requests sent on because an engine did not serve them."
        )
        rerouted.add_metric([], self._outcomes.rerouted)
        undercounted = CounterMetricFamily(
            "bayplan_gateway_undercounted_prompts", "Prompts in which the engine found more tokens than were reserved."
        )
        undercounted.add_metric([], self._outcomes.undercounted_prompts)
        copies = CounterMetricFamily(
            "bayplan_gateway_copies",
            "Requests that a plan wants copied, by what became of the copy.",
            labels=[*_MODEL, "outcome"],
        )
        epochs = GaugeMetricFamily("bayplan_gateway_plan_epoch", "Epoch of the plan that is routed by.", labels=_MODEL)
        for pool in pools:
            key, routed = pool.model.key, pool.routed_by
            if routed is not None:
                epochs.add_metric([key.namespace, key.name], routed.plan.epoch)
                for result in CopyOutcome:
                    number = self._copies[key.namespace, key.name, result]
                    copies.add_metric([key.namespace, key.name, result.value], number)
        yield from (requests, refusals, rerouted, undercounted, copies, epochs)

    def _of_times(self) -> Iterator[Metric]:
        labels = [*_MODEL, "revision", "arm", "class"]
        families = {
            "ttft": HistogramMetricFamily(
                "bayplan_gateway_ttft_seconds", "From arrival at the gateway to the first token.", labels=labels
            ),
            "tpot": HistogramMetricFamily(
                "bayplan_gateway_tpot_seconds", "Mean time per further token of a request.", labels=labels
            ),
            "e2e": HistogramMetricFamily(
                "bayplan_gateway_e2e_seconds", "From arrival at the gateway to the end of the body.", labels=labels
            ),
        }
        tokens = CounterMetricFamily("bayplan_gateway_output_tokens", "Output tokens relayed.", labels=labels)
        sent = CounterMetricFamily(
            "bayplan_gateway_sent_requests", "Requests sent to an engine, each attempt, and copies.", labels=labels
        )
        failed = CounterMetricFamily(
            "bayplan_gateway_failed_requests",
            "Those that the engine did not serve, by cause.",
            labels=[*labels, "cause"],
        )
        for key, row in self._evidence.totals(self._now_ns()).items():
            own = [key.namespace, key.model, key.revision, key.arm.value, key.workload_class]
            for name, family in families.items():
                counts: TimeCounts = getattr(row, name)
                family.add_metric(
                    own, _buckets(counts, getattr(self._evidence.edges, name)), counts.sum_ns / NANOSECONDS
                )
            tokens.add_metric(own, row.output_tokens)
            sent.add_metric(own, row.requests)
            for cause in ENGINE_FAULTS:
                failed.add_metric([*own, cause.value], row.errors[cause])
        yield from families.values()
        yield from (tokens, sent, failed)


def _buckets(counts: TimeCounts, edges: tuple[float, ...]) -> list[tuple[str, float]]:
    bounds = [*(f"{edge:g}" for edge in edges), "+Inf"]
    return list(zip(bounds, map(float, counts.cumulative), strict=True))


class Exposition:
    """Renders both documents."""

    def __init__(
        self,
        directory: Directory,
        evidence: Evidence,
        outcomes: Outcomes,
        copies: Mapping[tuple[str, str, CopyOutcome], int],
        *,
        identity: Identity,
        now: Callable[[], datetime],
        now_ns: Callable[[], int],
    ) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(GatewayCollector(directory, evidence, outcomes, copies, now_ns=now_ns))
        ProcessCollector(registry=self.registry)
        self._directory = directory
        self._evidence = evidence
        self._identity = identity
        self._now = now
        self._now_ns = now_ns

    def metrics(self) -> bytes:
        """Return Prometheus' text."""
        return generate_latest(self.registry)

    def evidence(self) -> bytes:
        """Return the JSON document; all counts are since `gateway.startedAt`."""
        edges = self._evidence.edges
        document = {
            "gateway": {"uid": self._identity.uid, "startedAt": rfc3339(self._identity.started_at)},
            "observedAt": rfc3339(self._now()),
            "edgesSeconds": {"ttft": edges.ttft, "tpot": edges.tpot, "e2e": edges.e2e},
            "models": {str(pool.model.key): self._model(pool) for pool in self._directory},
            "rows": [self._row(key, row) for key, row in self._evidence.rows()],
        }
        return orjson.dumps(document)

    def _model(self, pool: Pool) -> dict[str, Any]:
        readings, running, routed = pool.readings(), pool.running(), pool.routed_by
        return {
            "uid": pool.model.uid,
            "plan": None if routed is None else {"rollout": routed.rollout, "epoch": routed.plan.epoch},
            "demandRequests": readings.demand.requests,
            "demandPromptTokens": readings.demand.prompt_tokens,
            "demandOutputTokens": readings.demand.max_output_tokens,
            "queuedRequests": readings.queued_requests,
            "queuedTokens": readings.queued_tokens,
            "reservedTokens": readings.live_tokens,
            "pods": {
                uid: {
                    "reservedTokens": replica.tokens,
                    "reservedRequests": replica.holds,
                    "reservedKvBlocks": replica.kv_blocks,
                    "budgetKvBlocks": replica.budget.kv_blocks,
                    "budgetSequences": replica.budget.sequences,
                    "running": running[uid],
                    "draining": replica.draining,
                }
                for uid, replica in readings.replicas.items()
            },
        }

    def _row(self, key: RowKey, row: Row) -> dict[str, Any]:
        return {
            "namespace": key.namespace,
            "model": key.model,
            "pod": key.pod,
            "revision": key.revision,
            "arm": key.arm,
            "class": key.workload_class,
            "requests": row.requests,
            "running": row.running,
            "errors": {cause.value: count for cause, count in row.errors.items()},
            "outputTokens": row.output_tokens,
            "loadedSeconds": row.loaded_seconds(self._now_ns()),
            "ttft": row.ttft.to_wire(),
            "tpot": row.tpot.to_wire(),
            "e2e": row.e2e.to_wire(),
        }
