"""What the user asks for: stages, gates and choices. A standing policy; it acts whenever the revision changes."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise

from bayplan.api.rolloutwords import CapacityMode, OnDeadline, StageKind, Waiver
from bayplan.planning.gates.records import Gate, require_distinct
from bayplan.planning.gates.thresholds import LeastSamples
from bayplan.planning.numbers import InvalidInput, count, not_negative, positive


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage. Raises InvalidInput that names the field."""

    kind: StageKind
    deadline_seconds: Fraction
    """Longest time in the stage, pauses left out."""
    weight: int = 0
    """Percent of the requests: those that the candidate gets in a canary stage, those that are copied in a shadow."""
    bake_seconds: Fraction = Fraction(0)
    """Least time in the stage."""
    approval: bool = False
    """Whether somebody must approve before it is entered."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "deadline_seconds", positive(self.deadline_seconds, "deadline_seconds"))
        object.__setattr__(self, "bake_seconds", not_negative(self.bake_seconds, "bake_seconds"))
        if self.bake_seconds >= self.deadline_seconds:
            raise InvalidInput("deadline_seconds", "must be longer than bake_seconds, or the stage could never end")
        shares = self.kind in (StageKind.SHADOW, StageKind.CANARY)
        count(self.weight, "weight", least=1 if shares else 0)
        most = {StageKind.CANARY: 99, StageKind.SHADOW: 100}.get(self.kind, 0)
        if self.weight > most:
            raise InvalidInput("weight", f"must be at most {most} in a stage {self.kind}, not {self.weight}")

    @property
    def name(self) -> str:
        """What approvals and messages call it: warm, shadow, canary-10, promote."""
        return f"canary-{self.weight}" if self.kind is StageKind.CANARY else self.kind.value.lower()


@dataclass(frozen=True)
class RolloutPolicy:
    """Raises InvalidInput that names the field."""

    stages: tuple[Stage, ...]
    gates: tuple[Gate, ...]
    least: LeastSamples
    capacity: CapacityMode = CapacityMode.AUTO
    on_deadline: OnDeadline = OnDeadline.PAUSE
    max_surge: int = 2
    """Most candidate replicas before promotion."""
    retain_seconds: Fraction = Fraction(0)
    """How long the replaced revision is kept without traffic."""
    waivers: frozenset[Waiver] = frozenset()
    prompt_set: str | None = None
    """Digest of prompts and checks; None: nothing measures quality."""
    max_evidence_age_seconds: Fraction = Fraction(60)
    max_quality_age_seconds: Fraction = Fraction(86_400)
    paused: bool = False
    approvals: frozenset[tuple[str, str]] = frozenset()
    """(revision, stage name)."""
    abort: str | None = None
    """The revision that is to lose its traffic."""
    retry: str = ""
    """A new token lets a rejected revision, or a stage that stopped, start again."""

    def __post_init__(self) -> None:
        _require_order(self.stages)
        require_distinct(self.gates)
        count(self.max_surge, "max_surge")
        object.__setattr__(self, "retain_seconds", not_negative(self.retain_seconds, "retain_seconds"))
        for name in ("max_evidence_age_seconds", "max_quality_age_seconds"):
            object.__setattr__(self, name, positive(getattr(self, name), name))

    @property
    def least_candidates(self) -> int:
        """Fewest candidate replicas that can be judged."""
        return 1 if Waiver.SINGLE_REPLICA in self.waivers else 2

    @cached_property
    def digest(self) -> str:
        """Of everything that says what a candidate must pass: 16 hexadecimal digits.

        A change while a candidate runs starts its stage again, with empty counts.
        """
        parts = (self.stages, self.gates, self.least, sorted(self.waivers), self.prompt_set)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    def replicas_for(self, stage: Stage, *, serving_replicas: int) -> int:
        """Candidate replicas that carry the stage's weight beside so many serving ones, at least what can be judged.

        n / (n + serving) ≥ weight, so n = ceil(serving × weight / (100 − weight)).
        """
        if stage.kind is not StageKind.CANARY:
            return self.least_candidates
        return max(self.least_candidates, -(-serving_replicas * stage.weight // (100 - stage.weight)))

    def approved(self, revision: str, stage: Stage) -> bool:
        """Whether nothing stands in the way of entering the stage but evidence."""
        return not stage.approval or (revision, stage.name) in self.approvals


def _require_order(stages: Iterable[Stage]) -> None:
    kinds = [stage.kind for stage in stages]
    if kinds[:1] != [StageKind.WARM] or kinds[-1:] != [StageKind.PROMOTE]:
        raise InvalidInput("stages", "must begin with Warm and end with Promote")
    middle = kinds[1:-1]
    canaries = middle[1:] if middle[:1] == [StageKind.SHADOW] else middle
    if not canaries or any(kind is not StageKind.CANARY for kind in canaries):
        raise InvalidInput("stages", "must have canaries between Warm and Promote, after at most one Shadow")
    weights = [stage.weight for stage in stages if stage.kind is StageKind.CANARY]
    if any(low >= high for low, high in pairwise(weights)):
        raise InvalidInput("weight", f"must increase from canary to canary, not {', '.join(map(str, weights))}")
