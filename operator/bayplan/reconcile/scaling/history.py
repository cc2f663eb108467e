"""What was measured of one model since this process began to look."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TypeVar

from bayplan.planning.measurements import Measured, Unknown
from bayplan.planning.scaling.demand import DoorReading, EngineReading, Sources, measure_demand
from bayplan.planning.scaling.seed import Observation, ScalingPolicy
from bayplan.telemetry.sources import EngineAnswer, GatewayAnswer, Trouble, TroubleKind

STAMP_SECONDS = 1
"""Resolution of the dates in pods."""
_NONE = Fraction(0)
Reading = TypeVar("Reading", DoorReading, EngineReading)
_SEVERITY = tuple(TroubleKind)


@dataclass(frozen=True, slots=True)
class Answers:
    """What came back at one time of asking, by the uids of those that should answer."""

    engines: Mapping[str, EngineAnswer]
    gateways: Mapping[str, GatewayAnswer]
    ready_seconds: Mapping[str, float] = field(default_factory=dict)
    """How long each engine has been ready."""


class DemandHistory:
    """Observations of one model, as many as its window needs."""

    def __init__(self, model: str) -> None:
        self.observations: list[Observation] = []
        self.since: Fraction | None = None
        """Time of the first answer; nothing falls before a window has passed since."""
        self.trouble: Trouble | None = None
        """The worst of what was wrong with the last answers."""
        self.nobody = False
        """Nobody was there to ask the last time."""
        self.remaining_tokens: dict[str, Measured] = {}
        """Work left by the uid of the head, as of the last answers."""
        self._model = model
        self._asked = 0
        self._last: tuple[Fraction, Answers] | None = None
        self._doors: dict[str, tuple[DoorReading | None, DoorReading]] = {}
        self._engines: dict[str, tuple[EngineReading | None, EngineReading]] = {}

    @property
    def collecting(self) -> bool:
        """Whether it is too early for a rate, and nothing is wrong so far."""
        return self._asked < 2 and self.trouble is None and not self.nobody

    def take(self, answers: Answers, policy: ScalingPolicy, *, now_seconds: Fraction) -> None:
        """Take in the answers of all expected sources, or what is wrong with them."""
        self.nobody = not answers.gateways and not answers.engines
        self._asked += not self.nobody
        self.since = now_seconds if self.since is None else self.since
        troubles: list[Trouble] = []
        doors, engines = {}, {}
        for uid, gateway in answers.gateways.items():
            door = gateway.models.get(self._model)
            if door is None:
                unknown = Trouble(TroubleKind.MISSING, f"a gateway does not know the model {self._model}")
                troubles.append(gateway.trouble or unknown)
            else:
                troubles += _unknown_at(door)
                if self._is_fresh(door, policy, now_seconds, troubles):
                    doors[uid] = door
        for uid, engine in answers.engines.items():
            troubles += [] if engine.trouble is None else [engine.trouble]
            if engine.reading is not None and self._is_fresh(engine.reading, policy, now_seconds, troubles):
                engines[uid] = engine.reading
        self._meet_newcomers(doors, engines, answers)
        oldest = now_seconds - policy.scale_down_stabilization_seconds
        observation = measure_demand(
            Sources(gateways=frozenset(answers.gateways), engines=frozenset(answers.engines)),
            doors=_paired(self._doors, doors, oldest),
            engines=_paired(self._engines, engines, oldest),
            now_seconds=now_seconds,
            least_coverage=policy.least_coverage,
        )
        self.trouble = min(troubles, key=lambda t: (_SEVERITY.index(t.kind), t.message), default=None)
        self.remaining_tokens = _remaining(answers)
        self._last = now_seconds, answers
        self._keep(observation, policy, now_seconds)

    def _meet_newcomers(
        self, doors: Mapping[str, DoorReading], engines: Mapping[str, EngineReading], answers: Answers
    ) -> None:
        """Who began between the last time of asking and this one had counted nothing then.

        So a replica that has just become ready does not make the demand unknown. At the first time of asking nobody
        knows who is new.
        """
        if self._last is None:
            return
        then, before = self._last
        for uid, door in doors.items():
            if uid not in self._doors and uid not in before.gateways:
                self._doors[uid] = (None, replace(door, at_seconds=then, prompt_tokens=_NONE, output_tokens=_NONE))
        for uid, engine in engines.items():
            ready = answers.ready_seconds.get(uid, math.inf)
            began = ready <= engine.at_seconds - then + STAMP_SECONDS
            if began and uid not in self._engines and uid not in before.engines:
                self._engines[uid] = (None, replace(engine, at_seconds=then, served_tokens=_NONE, waiting_tokens=_NONE))

    def _is_fresh(
        self,
        reading: DoorReading | EngineReading,
        policy: ScalingPolicy,
        now: Fraction,
        troubles: list[Trouble],
    ) -> bool:
        oldest = policy.max_sample_age_seconds
        if oldest is None or now - reading.at_seconds <= oldest:
            return True
        troubles.append(Trouble(TroubleKind.STALE, f"the newest sample of a source is older than {float(oldest):g} s"))
        return False

    def _keep(self, observation: Observation, policy: ScalingPolicy, now: Fraction) -> None:
        known = not isinstance(observation.arrival_tokens_per_second, Unknown)
        if self.observations and observation.at_seconds <= self.observations[-1].at_seconds and known:
            return  # Prometheus has not scraped again: no news
        self.observations.append(observation)
        start = now - policy.scale_down_stabilization_seconds
        # The last one before the window shows that it was watched from its beginning.
        while len(self.observations) > 1 and self.observations[1].at_seconds <= start:
            del self.observations[0]


def _unknown_at(door: DoorReading) -> list[Trouble]:
    return [
        Trouble(TroubleKind.INVALID, f"a gateway: {value.reason}")
        for value in (door.prompt_tokens, door.output_tokens, door.queued_tokens)
        if isinstance(value, Unknown)
    ]


def _paired(
    stored: dict[str, tuple[Reading | None, Reading]], fresh: Mapping[str, Reading], oldest: Fraction
) -> dict[str, tuple[Reading | None, Reading]]:
    """Move the stored readings on; return the fresh ones with those before them.

    Readings of those that do not answer are kept for a window: a replica whose drain is taken back is no newcomer.
    """
    for uid in [uid for uid, (_, last) in stored.items() if last.at_seconds < oldest and uid not in fresh]:
        del stored[uid]
    pairs: dict[str, tuple[Reading | None, Reading]] = {}
    for uid, new in fresh.items():
        earlier, last = stored.get(uid, (None, None))
        if last is None or new.at_seconds > last.at_seconds:
            earlier = last
        stored[uid] = pairs[uid] = (earlier, new)
    return pairs


def _remaining(answers: Answers) -> dict[str, Measured]:
    """The larger of what the gateways hold on a pod and what its engine has to do; Unknown where neither is known."""
    holds = [gateway.reserved_tokens for gateway in answers.gateways.values()]
    held = [one for one in holds if one is not None]
    found: dict[str, Measured] = {}
    for uid, engine in answers.engines.items():
        own = engine.reading.remaining_tokens if engine.reading is not None else Unknown("its engine did not answer")
        known = [own] if isinstance(own, Fraction) else []
        if holds and len(held) == len(holds):
            known.append(sum((one.get(uid, Fraction(0)) for one in held), start=Fraction(0)))
        found[uid] = max(known) if known else own
    return found
