"""`MetricsPort` from a Prometheus server, asked in threads: its client library blocks.

Asked are raw samples with the time at which Prometheus scraped them, never `rate()`: rates, restarts and coverage are
worked out where our own scrapes are. Targets carry the labels `namespace` and `pod`, as PodMonitors set them. A value
that is NaN, an empty answer and a refused query are Unknown, never zero.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from prometheus_api_client.exceptions import PrometheusApiClientException
from prometheus_api_client.prometheus_connect import PrometheusConnect
from requests import RequestException, Session
from urllib3.util.retry import Retry

from bayplan.telemetry.aliases import VLLM, Aliases
from bayplan.telemetry.doorseries import DOOR_NAMES, gateway_answers
from bayplan.telemetry.exposition import sums_of
from bayplan.telemetry.promql import selector
from bayplan.telemetry.readings import engine_answer
from bayplan.telemetry.series import Dates, Series, read_series
from bayplan.telemetry.sources import (
    EngineAnswer,
    EngineSource,
    GatewayAnswer,
    GatewaySource,
    Trouble,
    TroubleKind,
)

logger = logging.getLogger(__name__)

LOOKBACK_SECONDS: Final = 300
"""Oldest sample that is looked at; Prometheus' own instant queries look back as far."""
PODS_PER_QUERY: Final = 25
"""Queries travel in the URL, which must stay below what proxies take."""
WORKERS: Final = 4


@dataclass(frozen=True, slots=True)
class _Answer:
    series: list[Series]
    trouble: Trouble | None = None


class PrometheusSource:
    """Asks one Prometheus server.

    `clock` gives the monotonic seconds that samples are stamped with, `now` the date that scrape times are compared
    with.
    """

    def __init__(
        self,
        url: str,
        *,
        aliases: Aliases = VLLM,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        timeout_seconds: float = 10.0,
    ) -> None:
        self._url = url
        self._aliases = aliases
        self._clock = clock
        self._now = now
        self._timeout_seconds = timeout_seconds
        self._local = threading.local()
        self._threads = ThreadPoolExecutor(max_workers=WORKERS, thread_name_prefix="prometheus")

    async def close(self) -> None:
        """See `MetricsPort`; queries on their way end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def read_engines(self, sources: Sequence[EngineSource]) -> Mapping[str, EngineAnswer]:
        """See `MetricsPort`."""
        found: dict[str, EngineAnswer] = {}
        for namespace in {source.namespace for source in sources}:
            mine = [source for source in sources if source.namespace == namespace]
            for start in range(0, len(mine), PODS_PER_QUERY):
                found |= await self._engines(namespace, mine[start : start + PODS_PER_QUERY])
        return found

    async def read_gateways(self, sources: Sequence[GatewaySource]) -> Mapping[str, GatewayAnswer]:
        """See `MetricsPort`. Prometheus does not say what is reserved per pod."""
        found: dict[str, GatewayAnswer] = {}
        for start in range(0, len(sources), PODS_PER_QUERY):
            some = sources[start : start + PODS_PER_QUERY]
            query = selector(names=DOOR_NAMES, one_of={"pod": [source.pod for source in some]})
            answer = await self._ask(query)
            if answer.trouble is not None:
                found |= {source.uid: GatewayAnswer(trouble=answer.trouble) for source in some}
            else:
                found |= gateway_answers(some, answer.series, dates=self._dates())
        return found

    async def _engines(self, namespace: str, sources: Sequence[EngineSource]) -> dict[str, EngineAnswer]:
        pods = [source.pod for source in sources]
        answer = await self._ask(
            selector(names=self._aliases.names, equal={"namespace": namespace}, one_of={"pod": pods})
        )
        if answer.trouble is not None:
            return {source.uid: EngineAnswer(None, answer.trouble) for source in sources}
        by_pod: dict[str, list[Series]] = {pod: [] for pod in pods}
        for series in answer.series:
            if series.labels.get("pod") in by_pod:
                by_pod[series.labels["pod"]].append(series)
        dates = self._dates()
        found = {source.uid: self._engine(source, by_pod[source.pod], dates, ()) for source in sources}
        if any(one.trouble is not None and one.trouble.kind is TroubleKind.MISSING for one in found.values()):
            present = await self._names(namespace, pods)
            found = {source.uid: self._engine(source, by_pod[source.pod], dates, present) for source in sources}
        return found

    def _engine(
        self, source: EngineSource, series: Sequence[Series], dates: Dates, present: Iterable[str]
    ) -> EngineAnswer:
        if not series:
            text = f"Prometheus has no sample of pod {source.pod}; is it a target, with labels namespace and pod?"
            return EngineAnswer(None, Trouble(TroubleKind.UNREACHABLE, text))
        # One scrape stamps all series alike: an older one is of a scrape before, and counts no more.
        stamp = max(one.stamp for one in series)
        if dates.is_future(stamp):
            return EngineAnswer(None, Trouble(TroubleKind.INVALID, f"pod {source.pod}: scraped in the future"))
        values = sums_of((one.name, one.value) for one in series if one.stamp == stamp)
        return engine_answer(
            source, values, aliases=self._aliases, at_seconds=dates.to_clock(stamp), present=lambda: present
        )

    async def _names(self, namespace: str, pods: Sequence[str]) -> list[str]:
        """Names of everything that the pods report, for a message that helps."""
        query = selector(equal={"namespace": namespace}, one_of={"pod": pods})
        answer = await self._ask(f"count by (__name__) ({query})", instant=True)
        return sorted({series.name for series in answer.series})

    def _dates(self) -> Dates:
        return Dates(clock_seconds=self._clock(), date_seconds=self._now().timestamp())

    async def _ask(self, query: str, *, instant: bool = False) -> _Answer:
        text = query if instant else f"{query}[{LOOKBACK_SECONDS}s]"
        loop = asyncio.get_running_loop()
        try:
            result = await loop.run_in_executor(self._threads, self._query, text)
            return _Answer(read_series(result))
        except (ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
            # An answer that is no JSON comes as a ValueError that is a RequestException, too.
            text = f"Prometheus at {self._url} did not answer with samples: {type(error).__name__}"
            return _Answer([], Trouble(TroubleKind.INVALID, text))
        except (PrometheusApiClientException, RequestException) as error:
            logger.debug("prometheus: %s", error)
            kind = type(error).__name__
            return _Answer([], Trouble(TroubleKind.UNREACHABLE, f"Prometheus at {self._url}: {kind}"))

    def _query(self, query: str) -> Any:
        """Runs in a thread; each has a connection of its own."""
        connection: PrometheusConnect | None = getattr(self._local, "connection", None)
        if connection is None:
            session = Session()
            session.trust_env = False
            connection = PrometheusConnect(
                url=self._url.rstrip("/"),
                session=session,
                retry=Retry(total=0),
                timeout=max(1, round(self._timeout_seconds)),
            )
            self._local.connection = connection
        return connection.custom_query(query)
