"""What gateways have counted of one model, as a rollout's gates read it: `/evidence`, asked of each gateway itself.

The answer is judged, not trusted: one that has another form than agreed is Unknown as a whole, because what is missing
of it may have been the errors.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol

from bayplan.api.names import GATEWAY_PORT
from bayplan.planning.gates.counts import Arm, Row, SourceCounts
from bayplan.planning.gates.servicemetrics import Histogram
from bayplan.planning.measurements import Unknown
from bayplan.planning.numbers import InvalidInput, exact
from bayplan.telemetry.evidence import PATH
from bayplan.telemetry.http import PodClient, PodError, json_object, pod_url
from bayplan.telemetry.sources import GatewaySource

MAX_ROWS = 100_000
NO_FAULT = frozenset({"refused", "cancelled"})
"""Causes for which the caller answers, not the engine."""


@dataclass(frozen=True, slots=True)
class ModelCounts:
    """One gateway's counts of one model."""

    counts: SourceCounts
    running: Mapping[str, int] = field(default_factory=dict)
    """Requests and copies under way, by the uid of the engine's pod."""
    ended: Mapping[str, int] = field(default_factory=dict)
    """Requests that were answered without a fault, by the uid of the engine's pod."""
    ttft_edges: tuple[Fraction, ...] = ()
    tpot_edges: tuple[Fraction, ...] = ()


@dataclass(frozen=True, slots=True)
class CountedModel:
    """Whose counts are asked for."""

    namespace: str
    name: str
    uid: str


class CountsPort(Protocol):
    """Where counts come from. Never raises."""

    async def read(self, sources: Sequence[GatewaySource], model: CountedModel) -> Mapping[str, ModelCounts | Unknown]:
        """Return what each gateway has counted of the model, by the gateway's uid."""

    async def close(self) -> None:
        """Close connections."""


class ScrapedCounts:
    """Asks each gateway. `now_seconds` gives the Unix seconds that answers are stamped with."""

    def __init__(
        self,
        *,
        now_seconds: Callable[[], Fraction],
        most_at_once: int = 16,
        timeout_seconds: float = 5.0,
        port: int = GATEWAY_PORT,
    ) -> None:
        self._now_seconds = now_seconds
        self._turns = asyncio.Semaphore(most_at_once)
        self._timeout_seconds = timeout_seconds
        self._port = port
        self._client = PodClient()

    async def close(self) -> None:
        """See `CountsPort`."""
        await self._client.close()

    async def read(self, sources: Sequence[GatewaySource], model: CountedModel) -> Mapping[str, ModelCounts | Unknown]:
        """See `CountsPort`."""
        answers = await asyncio.gather(*(self._one(source, model) for source in sources))
        return {source.uid: answer for source, answer in zip(sources, answers, strict=True)}

    async def _one(self, source: GatewaySource, model: CountedModel) -> ModelCounts | Unknown:
        async with self._turns:
            # As of the question, not of the answer: nothing in it is older than that.
            at = self._now_seconds()
            try:
                url = pod_url(source.address, self._port, PATH)
                raw = await self._client.request("GET", url, PATH, timeout_seconds=self._timeout_seconds)
                body = json_object(raw, PATH)
            except PodError as error:
                return Unknown(f"gateway {source.pod}: {error}")
        return read_counts(source, body, model, at_seconds=at)


def read_counts(
    source: GatewaySource, body: Mapping[str, object], model: CountedModel, *, at_seconds: Fraction
) -> ModelCounts | Unknown:
    """Read one answer, asked for at `at_seconds`."""
    try:
        return _counts(source, body, model, at_seconds)
    except (InvalidInput, KeyError, TypeError, ValueError, AttributeError) as error:
        return Unknown(f"gateway {source.pod}: {PATH} is not of the agreed form: {error!r:.120}")


def _counts(
    source: GatewaySource, body: Mapping[str, object], model: CountedModel, at_seconds: Fraction
) -> ModelCounts | Unknown:
    gateway, edges, rows = _mapping(body["gateway"]), _mapping(body["edgesSeconds"]), body["rows"]
    known = _mapping(_mapping(body["models"]).get(f"{model.namespace}/{model.name}") or {})
    if gateway["uid"] != source.uid:
        return Unknown(f"gateway {source.pod}: it is the answer of gateway {str(gateway['uid'])[:40]}")
    if known.get("uid") != model.uid:
        return Unknown(f"gateway {source.pod}: it does not know the model yet")
    if not isinstance(rows, list) or len(rows) > MAX_ROWS:
        return Unknown(f"gateway {source.pod}: rows must be a list of at most {MAX_ROWS}")
    ttft, tpot = (_edges(edges[name], name) for name in ("ttft", "tpot"))
    found: list[Row] = []
    running: dict[str, int] = {}
    ended: dict[str, int] = {}
    for raw in rows:
        entry = _mapping(raw)
        if (entry["namespace"], entry["model"]) != (model.namespace, model.name):
            continue
        faults = {str(cause): _whole(number, "errors") for cause, number in _mapping(entry["errors"]).items()}
        row = Row(
            pod=str(entry["pod"]),
            arm=Arm(str(entry["arm"])),
            workload_class=str(entry["class"]),
            requests=_whole(entry["requests"], "requests"),
            errors=sum(number for cause, number in faults.items() if cause not in NO_FAULT),
            output_tokens=_whole(entry["outputTokens"], "outputTokens"),
            loaded_seconds=exact(entry["loadedSeconds"], "loadedSeconds"),
            ttft=_histogram(ttft, entry["ttft"]),
            tpot=_histogram(tpot, entry["tpot"]),
        )
        found.append(row)
        under_way = _whole(entry["running"], "running")
        running[row.pod] = running.get(row.pod, 0) + under_way
        if row.arm is not Arm.SHADOW:
            answered = max(0, row.requests - under_way - sum(faults.values()))
            ended[row.pod] = ended.get(row.pod, 0) + answered
    incarnation = f"{source.uid} {str(gateway['startedAt'])[:40]}"
    return ModelCounts(SourceCounts(at_seconds, incarnation, tuple(found)), running, ended, ttft, tpot)


def _histogram(edges: tuple[Fraction, ...], raw: object) -> Histogram:
    entry = _mapping(raw)
    counts = entry["counts"]
    if not isinstance(counts, list):
        raise InvalidInput("counts", "must be a list")
    return Histogram(edges, tuple(counts), _whole(entry["total"], "total"))


def _edges(raw: object, name: str) -> tuple[Fraction, ...]:
    if not isinstance(raw, list):
        raise InvalidInput(name, "must be a list")
    return tuple(exact(edge, name) for edge in raw)


def _whole(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidInput(name, f"must be a whole number, not {value!r:.40}")
    return value


def _mapping(value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise InvalidInput("evidence", "must be an object")
    return value
