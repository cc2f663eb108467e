"""What a Rollout is decided on, measured beside the reconcile workers: one task per Rollout that is at work.

Gateways are asked for their counts, engines of a leaving candidate for what they still run. A task that fails measures
nothing and goes on; what is not measured is Unknown. Nothing in here outlives the process but by the status.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from bayplan.cluster.errors import ApiError, NotFound
from bayplan.cluster.port import ReadPort
from bayplan.cluster.resources import CONFIG_MAPS, Key
from bayplan.planning.gates.counts import Snapshot
from bayplan.planning.gates.promptset import PromptSet
from bayplan.planning.measurements import Measured, Unknown
from bayplan.planning.numbers import InvalidInput
from bayplan.planning.rollout.observing import Look
from bayplan.reconcile.background import TaskTable
from bayplan.reconcile.qualityruns import parse_prompt_set
from bayplan.telemetry.engine import EngineError, EngineNotListeningError, EnginePort
from bayplan.telemetry.rolloutcounts import CountedModel, CountsPort, ModelCounts
from bayplan.telemetry.sources import GatewaySource

logger = logging.getLogger(__name__)

MOST_PROBED = 64
"""Pods of a leaving candidate that are asked at once: as many as a candidate may have."""
PROBE_SECONDS = 30.0
PROMPTS_SECONDS = 30
"""Time after which the ConfigMap with prompts is read again."""
LEAST_SECONDS = 1.5
"""Decisions are asked for at most so often, however often is measured: what was counted meanwhile is one window."""
_NOT_MEASURED = Unknown("not measured yet")


@dataclass(frozen=True, slots=True)
class EnginePod:
    """A head pod and where it answers; without an address nothing was ever sent to it."""

    uid: str
    address: str


@dataclass(frozen=True, slots=True)
class Round:
    """How a Rollout is measured now."""

    model: CountedModel
    served_name: str
    gateways: Sequence[GatewaySource]
    serving: Callable[[], frozenset[str]]
    """Uids of the head pods, of whatever revision, that can take requests at the moment of the call."""
    answering: Sequence[EnginePod] = ()
    """Heads of the revision that serves."""
    leaving: Sequence[EnginePod] | None = None
    """Heads of the revision that is being rolled back; None while none is."""
    measurements: str | None = None
    """Name of the ConfigMap with measurements, where they are needed now."""
    prompts: str | None = None
    """Name of the ConfigMap with prompts."""
    news: Callable[["Memory"], object] = lambda memory: memory.rounds
    """What of the measurements a decision rests on now: while that stays equal, nobody is asked to decide again."""


@dataclass(slots=True)
class Memory:
    """What was measured of one Rollout."""

    uid: str
    rounds: int = 0
    """Measurements so far."""
    told: object = None
    """What was new when a decision was last asked for; and when that was."""
    told_at_seconds: Fraction = Fraction(0)
    look: Look | None = None
    """The latest one."""
    counted: Look | None = None
    """The one up to which everything was counted."""
    edges: tuple[frozenset[Fraction], frozenset[Fraction]] | None = None
    """Edges of TTFT and TPOT that every gateway has; None until one has answered."""
    streams: Measured = _NOT_MEASURED
    """Requests under way at the leaving revision."""
    streams_at_seconds: Fraction = Fraction(0)
    answered_at_seconds: Fraction | None = None
    """A moment after which serving was seen to have answered a request."""
    measurements: Mapping[str, str] | str | None = None
    """Texts by key; or why there are none; None: not read yet."""
    prompts: PromptSet | str | None = None
    """The prompt set; or why there is none; None: not read yet."""
    prompts_read_at: Fraction = Fraction(0)
    answered: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Requests that were answered, by gateway's incarnation and pod; and when that was asked."""
    answered_asked_at: Fraction = Fraction(0)


class RolloutSampler:
    """Measures each Rollout that it was told of, at its pace. `now_seconds` are Unix seconds."""

    def __init__(
        self,
        counts: CountsPort,
        engine: EnginePort,
        port: ReadPort,
        *,
        now_seconds: Callable[[], Fraction],
        sleep: Callable[[float], Awaitable[None]],
        pace_seconds: float,
    ) -> None:
        self._counts = counts
        self._engine = engine
        self._port = port
        self._now_seconds = now_seconds
        self._sleep = sleep
        self._pace_seconds = pace_seconds
        self._tasks = TaskTable()
        self._memories: dict[Key, Memory] = {}

    async def close(self) -> None:
        """Cancel everything and wait for it."""
        await self._tasks.close()

    def ensure(self, key: Key, uid: str, *, ask: Callable[[], Round | None], changed: Callable[[], None]) -> Memory:
        """Have a Rollout measured from now on, and return what was measured of it; idempotent.

        `ask` says what to measure, None: nothing now. `changed` is called after each measurement that brought news.
        """
        memory = self._memories.get(key)
        if memory is None or memory.uid != uid:
            self._tasks.retain(key, ())
            memory = self._memories[key] = Memory(uid)
        if not self._tasks.running(key, uid):
            self._tasks.start(key, uid, self._run(memory, ask, changed), name=f"measure rollout {key}")
        return memory

    def forget(self, key: Key) -> None:
        """Measure a Rollout no more."""
        self._memories.pop(key, None)
        self._tasks.retain(key, ())

    async def _run(self, memory: Memory, ask: Callable[[], Round | None], changed: Callable[[], None]) -> None:
        while True:
            try:
                round_ = ask()
                if round_ is not None:
                    await self._measure(memory, round_)
                    memory.rounds += 1
                    self._tell(memory, round_.news(memory), changed)
            except Exception:
                logger.exception("a measurement failed; the next one is due in %g s", self._pace_seconds)
            await self._sleep(self._pace_seconds)

    def _tell(self, memory: Memory, news: object, changed: Callable[[], None]) -> None:
        """Ask for a decision on what is new; what comes too soon after the last time is news of a later measurement."""
        at = self._now_seconds()
        if news != memory.told and at >= memory.told_at_seconds + Fraction(LEAST_SECONDS):
            memory.told, memory.told_at_seconds = news, at
            changed()

    async def _measure(self, memory: Memory, round_: Round) -> None:
        at = self._now_seconds()
        found = await self._counts.read(round_.gateways, round_.model)
        sources = {uid: one.counts if isinstance(one, ModelCounts) else one for uid, one in found.items()}
        memory.look = Look(Snapshot(sources), round_.serving())
        known = [one for one in found.values() if isinstance(one, ModelCounts)]
        if known:
            memory.edges = (
                frozenset.intersection(*(frozenset(one.ttft_edges) for one in known)),
                frozenset.intersection(*(frozenset(one.tpot_edges) for one in known)),
            )
        self._see_answers(memory, round_, known)
        await self._read_config_maps(memory, round_, at)
        if round_.leaving is not None:
            memory.streams = await self._streams(round_.leaving, found.values())
            memory.streams_at_seconds = at
            if memory.answered_at_seconds is None or memory.answered_at_seconds <= at - Fraction(PROBE_SECONDS):
                await self._probe(memory, round_)

    def _see_answers(self, memory: Memory, round_: Round, known: Sequence[ModelCounts]) -> None:
        """Note when serving has answered more than before, by the counts of the same gateway process."""
        serving = {pod.uid for pod in round_.answering}
        now = {(one.counts.incarnation, pod): ended for one in known for pod, ended in one.ended.items()}
        grew = (now[key] > before for key, before in memory.answered.items() if key in now and key[1] in serving)
        if any(grew):
            # Some time after the earlier look: which of both it is nearer to, nobody knows.
            memory.answered_at_seconds = memory.answered_asked_at
        memory.answered = now
        memory.answered_asked_at = min((one.counts.at_seconds for one in known), default=Fraction(0))

    async def _probe(self, memory: Memory, round_: Round) -> None:
        """Have a serving replica answer a request of ours where no client's is seen to be answered."""
        pod = next((pod for pod in round_.answering if pod.address), None)
        if pod is None:
            return
        try:
            await self._engine.generate(
                pod.address, model=round_.served_name, prompt="ready?", max_tokens=1, timeout_seconds=PROBE_SECONDS
            )
        except EngineError as error:
            logger.info("%s: the serving replica does not answer: %s", round_.model.name, error)
        else:
            memory.answered_at_seconds = self._now_seconds()

    async def _streams(self, leaving: Sequence[EnginePod], found: Iterable[ModelCounts | Unknown]) -> Measured:
        """What gateways and engines show to be under way; whichever shows more."""
        uids = {pod.uid for pod in leaving}
        at_gateways = 0
        for one in found:
            if isinstance(one, Unknown):
                return one
            at_gateways += sum(number for pod, number in one.running.items() if pod in uids)
        at_engines = await asyncio.gather(*(self._load(pod) for pod in list(leaving)[:MOST_PROBED]))
        unknown = next((one for one in at_engines if isinstance(one, Unknown)), None)
        if unknown is not None:
            return unknown
        return max(Fraction(at_gateways), sum((one for one in at_engines if isinstance(one, Fraction)), Fraction(0)))

    async def _load(self, pod: EnginePod) -> Measured:
        if not pod.address:
            return Fraction(0)
        try:
            load = await self._engine.load(pod.address)
        except EngineNotListeningError:
            return Fraction(0)
        except EngineError as error:
            return Unknown(f"engine at {pod.address}: {error}")
        return Fraction(load.running + load.waiting)

    async def _read_config_maps(self, memory: Memory, round_: Round, at: Fraction) -> None:
        """Read what users bring. A request that fails changes nothing that was read before."""
        namespace = round_.model.namespace
        try:
            if round_.measurements is not None:
                memory.measurements = await self._data(namespace, round_.measurements)
            if round_.prompts is not None and (
                memory.prompts is None or at >= memory.prompts_read_at + PROMPTS_SECONDS
            ):
                memory.prompts = _prompt_set(round_.prompts, await self._data(namespace, round_.prompts))
                memory.prompts_read_at = at
        except ApiError as error:
            logger.info("%s: a ConfigMap could not be read: %s", round_.model.name, error)
            # Without an answer nothing would be decided, not even to go back.
            memory.prompts = memory.prompts or f"ConfigMap {round_.prompts} could not be read: {error}"

    async def _data(self, namespace: str, name: str) -> Mapping[str, str] | str:
        """The texts of a ConfigMap, or why there are none."""
        try:
            raw = await self._port.get(CONFIG_MAPS, namespace, name)
        except NotFound:
            return f"ConfigMap {name} does not exist"
        return {str(key): str(text) for key, text in (raw.get("data") or {}).items()}


def _prompt_set(name: str, data: Mapping[str, str] | str) -> PromptSet | str:
    if isinstance(data, str):
        return data
    try:
        return parse_prompt_set(data)
    except InvalidInput as error:
        return f"ConfigMap {name}: {error}"
