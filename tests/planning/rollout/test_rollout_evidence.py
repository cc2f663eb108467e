"""Nothing but whole, fresh, counted-once evidence of both arms advances a candidate, in whatever order things go wrong.

Every sequence of events up to a length is tried. Decisions are pure, so sequences that have led to equal states go on
as one. What may advance is decided by a few sums that share nothing with the code under test.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache

import pytest

from bayplan.api.rolloutwords import StageKind
from bayplan.planning.gates.counts import Arm, ArmPods, Row, Snapshot, SourceCounts, Window
from bayplan.planning.gates.records import EVERY_CLASS
from bayplan.planning.gates.servicemetrics import Histogram
from bayplan.planning.gates.thresholds import LeastSamples
from bayplan.planning.gates.windows import window_between
from bayplan.planning.measurements import Unknown
from bayplan.planning.rollout.machine import decide
from bayplan.planning.rollout.policy import Stage
from bayplan.planning.rollout.proof import GatewayAck
from bayplan.planning.rollout.state import RolloutState
from bayplan.planning.rollout.verdicts import Advance, Rollback
from bayplan.planning.rollout.world import World
from tests.planning.rollout.fleet import STEP, Fleet, heads
from tests.planning.rollout.policies import DEADLINE, PROMOTE, WARM, policy

LEAST = 70
FRESH = 30
PER_STEP = 40
POLICY = policy(
    stages=(WARM, Stage(StageKind.CANARY, DEADLINE, weight=20, bake_seconds=Fraction(50)), PROMOTE),
    least=LeastSamples(requests=LEAST),
    max_evidence_age_seconds=Fraction(FRESH),
)
"""Two windows are enough, and by the end of the third step it has baked: so the last ones may be anything."""
GATES = POLICY.gates
PODS = ArmPods(candidate=frozenset({"c"}), baseline=frozenset({"b"}))
LENGTH = 5


SERVING, CANDIDATE = heads("r1", 4), heads("r2", 2)


@dataclass(frozen=True)
class Counters:
    """A gateway's counters as they stand: one pod per arm."""

    at: Fraction
    incarnation: int
    candidate: int
    baseline: int

    @cache  # noqa: B019 - a test's handful
    def snapshot(self) -> Snapshot:
        rest = 3 * self.baseline  # of all requests a fifth goes to the candidate, as the plan says
        rows = (
            _row("c", Arm.CANDIDATE, self.candidate),
            _row("b", Arm.BASELINE, self.baseline),
            _row("s", Arm.SERVING, rest),
        )
        return Snapshot({"g": SourceCounts(self.at, str(self.incarnation), rows)})


def _row(pod: str, arm: Arm, requests: int) -> Row:
    seen = Histogram((Fraction(1),), (requests,), requests)
    return Row(pod, arm, "chat", requests, 0, requests, Fraction(requests), seen, seen)


@dataclass(frozen=True)
class Path:
    """Where a sequence has led: the stored state, the gateway, what the operator remembers, and what truly counts."""

    state: RolloutState
    now: Fraction
    gateway: Counters
    earlier: Counters
    last: Window | None = None
    candidate: int = 0
    baseline: int = 0
    end: Fraction | None = None

    def served(self, candidate: int = PER_STEP, baseline: int = PER_STEP, seconds: Fraction = STEP) -> "Path":
        """Time goes on and requests are answered."""
        now, old = self.now + seconds, self.gateway
        grown = replace(old, at=now, candidate=old.candidate + candidate, baseline=old.baseline + baseline)
        return replace(self, now=now, gateway=grown)

    def scraped(self, *, valid: bool) -> tuple["Path", Window]:
        """The operator looks, and remembers what it saw."""
        found = _between(self.earlier, self.gateway)
        path = replace(self, earlier=self.gateway, last=found)
        if valid and self.earlier.incarnation == self.gateway.incarnation:
            path = replace(
                path,
                candidate=self.candidate + self.gateway.candidate - self.earlier.candidate,
                baseline=self.baseline + self.gateway.baseline - self.earlier.baseline,
                end=self.gateway.at,
            )
        return path, found

    @property
    def proven(self) -> bool:
        """Whether a candidate may advance on what truly counts."""
        fresh = self.end is not None and self.now - self.end <= FRESH
        return fresh and self.candidate >= LEAST and self.baseline >= LEAST


@cache
def _between(earlier: Counters, later: Counters) -> Window:
    return window_between(earlier.snapshot(), later.snapshot(), expected=["g"], pods=PODS, gates=GATES)


Step = tuple[Path, Window | None]


def counted(path: Path) -> Step:
    return path.served().scraped(valid=True)


def missing(path: Path) -> Step:
    return path.served(), None


def stale(path: Path) -> Step:
    return path.served(seconds=Fraction(FRESH + 1)), None


def not_a_number(path: Path) -> Step:
    path = path.served()
    unread = Snapshot({"g": Unknown("requests is NaN")})
    return path, window_between(path.earlier.snapshot(), unread, expected=["g"], pods=PODS, gates=GATES)


def restarted(path: Path) -> Step:
    path = path.served()
    anew = Counters(path.now, path.gateway.incarnation + 1, PER_STEP, PER_STEP)
    return replace(path, gateway=anew).scraped(valid=False)


def duplicated(path: Path) -> Step:
    return path.served(), path.last


def reordered(path: Path) -> Step:
    path = path.served()
    return path, _between(path.gateway, path.earlier)


def overlapping(path: Path) -> Step:
    """A window over everything since the beginning, where a part of it was counted already."""
    path = path.served()
    whole = _between(Counters(START.now, path.gateway.incarnation, 0, 0), path.gateway)
    return path, whole if path.end is not None else None


def fallen(path: Path) -> Step:
    path = path.served()
    lower = replace(path.gateway, baseline=max(0, path.earlier.baseline - 1))
    return path, _between(path.earlier, lower) if path.earlier.baseline else None


def unlike(path: Path) -> Step:
    return path.served(candidate=PER_STEP, baseline=20 * PER_STEP).scraped(valid=False)


EVENTS: tuple[Callable[[Path], Step], ...] = (
    counted,
    missing,
    stale,
    not_a_number,
    restarted,
    duplicated,
    reordered,
    overlapping,
    fallen,
    unlike,
)


def _start() -> Path:
    """A candidate whose canary has its share, which every gateway carries out."""
    fleet = Fleet(policy=POLICY)
    fleet.until("canary-20")
    for _ in range(2):
        fleet.step(window=None)
    assert (fleet.plan.weight, fleet.stored.settled_at_seconds) == (20, fleet.now)
    counters = Counters(fleet.now, 1, 0, 0)
    return Path(fleet.stored, fleet.now, counters, counters)


START = _start()


def _world(path: Path, window: Window | None) -> World:
    return World(
        now_seconds=path.now,
        wanted="r2",
        desired=4,
        floor=2,
        serving=SERVING,
        candidate=CANDIDATE,
        gateways=(GatewayAck("g", START.state.plan.epoch),),
        window=window,
    )


def _follow(path: Path, event: Callable[[Path], Step]) -> Path | None:
    """The path after the event; None where it has ended by a promotion that the truth allows."""
    path, window = event(path)
    decision = decide(POLICY, path.state, _world(path, window), rollout_uid="u")
    assert not isinstance(decision.verdict, Rollback), decision.verdict
    if isinstance(decision.verdict, Advance):
        assert path.proven, f"{event.__name__}: advanced on {path.candidate} and {path.baseline} requests"
        return None
    tally = decision.state.evidence.tally(Arm.CANDIDATE, EVERY_CLASS)
    assert tally.requests == path.candidate, f"{event.__name__}: counted {tally.requests}, true are {path.candidate}"
    counted_so_far = replace(decision.state.evidence, dropped=0)  # shown to people, and merges what differs in it alone
    return replace(path, state=replace(decision.state, evidence=counted_so_far))


@pytest.mark.property
def test_of_all_short_sequences_only_true_evidence_advances() -> None:
    level, promoted = {START}, 0
    for _ in range(LENGTH):
        following: set[Path] = set()
        for path in level:
            for event in EVENTS:
                found = _follow(path, event)
                promoted += found is None
                if found is not None:
                    following.add(found)
        level = following

    assert len(EVENTS) ** LENGTH >= 10**5
    assert promoted > 0
