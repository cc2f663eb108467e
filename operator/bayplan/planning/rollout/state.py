"""What is stored between decisions. Everything: a restarted operator goes on where the status says, with no timer."""

from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from bayplan.api.rolloutwords import Phase
from bayplan.planning.gates.counts import StageEvidence
from bayplan.planning.rollout.plan import Plan
from bayplan.planning.rollout.proof import RollbackProof

TRYING = frozenset({Phase.WARM, Phase.SHADOW, Phase.CANARY})
"""Phases in which the candidate has pods and is not promoted."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """A revision that is not tried again until a retry asks for it."""

    revision: str
    reason: str
    message: str
    at_seconds: Fraction


@dataclass(frozen=True, slots=True)
class StageClock:
    """Since when the stage lasts, without pauses."""

    started_at_seconds: Fraction
    paused_at_seconds: Fraction | None = None
    paused_seconds: Fraction = Fraction(0)
    passed_at_seconds: Fraction | None = None
    """Since when nothing but an approval is missing."""

    def elapsed(self, now_seconds: Fraction) -> Fraction:
        """Seconds in the stage, pauses left out."""
        until = now_seconds if self.paused_at_seconds is None else self.paused_at_seconds
        return until - self.started_at_seconds - self.paused_seconds

    def ticked(self, now_seconds: Fraction, *, paused: bool) -> "StageClock":
        """Stop or start it as the pause begins or ends."""
        if paused and self.paused_at_seconds is None:
            return replace(self, paused_at_seconds=now_seconds)
        if not paused and self.paused_at_seconds is not None:
            return replace(
                self,
                paused_at_seconds=None,
                paused_seconds=self.paused_seconds + now_seconds - self.paused_at_seconds,
            )
        return self


MAX_REJECTED = 20
"""Rejected and proven revisions that are remembered, the latest ones."""


@dataclass(frozen=True, slots=True)
class RolloutState:
    """`phase` and, in SHADOW and CANARY, `stage` (an index into the policy's stages) say where it stands."""

    plan: Plan
    phase: Phase
    clock: StageClock
    stage: int = 0
    candidate: str | None = None
    """The revision on trial or being rolled back; the plan names it only while it may have pods."""
    attempt: int = 0
    digest: str = ""
    """Of the stages and gates that the candidate was first seen under."""
    judged_since_seconds: Fraction = Fraction(0)
    """Answers to prompts that are older say nothing about this attempt."""
    settled_at_seconds: Fraction | None = None
    """Since when every live gateway carries out the plan's epoch."""
    evidence: StageEvidence = field(default_factory=StageEvidence)
    frozen: str = ""
    """The gates that froze the stage."""
    late: bool = False
    """The stage has outlasted its deadline and pauses."""
    drain_first: bool = False
    """Whether the candidate takes the place of serving groups."""
    retained: str | None = None
    """Revision that is kept without traffic."""
    retained_at_seconds: Fraction | None = None
    cause: Rejection | None = None
    """Why the last rollback began; kept until the next candidate."""
    proof: RollbackProof | None = None
    proven: tuple[str, ...] = ()
    rejected: tuple[Rejection, ...] = ()
    retry_seen: str = ""

    def change(self, **fields: Any) -> "RolloutState":
        """The state with these fields; another plan has yet to be acknowledged."""
        changed = replace(self, **fields)
        if changed.plan.epoch != self.plan.epoch:
            changed = replace(changed, settled_at_seconds=None)
        return changed

    def restarted(self, now_seconds: Fraction, **fields: Any) -> "RolloutState":
        """The same with the stage at its beginning: empty counts, a new clock, neither frozen nor late."""
        return self.change(
            **{
                "clock": StageClock(now_seconds),
                "evidence": StageEvidence(),
                "settled_at_seconds": None,
                "frozen": "",
                "late": False,
            }
            | fields
        )

    def rejection(self, revision: str) -> Rejection | None:
        """Why that revision is not tried, if it is not."""
        return next((entry for entry in self.rejected if entry.revision == revision), None)

    def with_rejected(self, rejection: Rejection) -> "RolloutState":
        """The state that remembers it."""
        others = [entry for entry in self.rejected if entry.revision != rejection.revision]
        return replace(self, rejected=(*others, rejection)[-MAX_REJECTED:])

    def without_rejected(self, revision: str) -> "RolloutState":
        """The state that has forgotten it."""
        return replace(self, rejected=tuple(entry for entry in self.rejected if entry.revision != revision))

    def with_proven(self, revision: str) -> "RolloutState":
        """The state that remembers that this revision has passed all stages."""
        others = [name for name in self.proven if name != revision]
        return replace(self, proven=(*others, revision)[-MAX_REJECTED:])
