"""What a finished rollout proves of a revision: the claim `canary-gate` on the numbers of its gates.

Only a promotion by gates that were enforced counts. A gate with `enforce: false` decides nothing, a frozen stage was
never passed, and an aborted or rolled-back candidate proves the opposite.
"""

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from bayplan.api.rolloutwords import Outcome
from bayplan.planning.evidencecontract.claims import Finding, earned, failed
from bayplan.planning.numbers import exact, named
from bayplan.planning.words import plural


class CanaryEnd(StrEnum):
    """How the trial of a revision ended."""

    PROMOTED = "Promoted"
    ROLLED_BACK = "RolledBack"
    FROZEN = "Frozen"
    ABORTED = "Aborted"


@dataclass(frozen=True, slots=True)
class CanaryGate:
    """One gate of the trial, as it stood at the end."""

    name: str
    enforce: bool
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class CanaryResult:
    """The end of one revision's trial. Raises InvalidInput for a blank revision."""

    revision: str
    end: CanaryEnd
    decided_at_seconds: Fraction
    gates: tuple[CanaryGate, ...]

    def __post_init__(self) -> None:
        named(self.revision, "revision")
        object.__setattr__(self, "decided_at_seconds", exact(self.decided_at_seconds, "decided_at_seconds"))


def judge_canary(result: CanaryResult) -> Finding:
    """`canary-gate`: promoted, with at least one enforced gate, and every enforced gate passed."""
    if result.end is not CanaryEnd.PROMOTED:
        return failed(f"the trial of {result.revision} ended as {result.end}")
    enforced = [gate for gate in result.gates if gate.enforce]
    if not enforced:
        return failed(f"{result.revision} was promoted, but no gate was enforced")
    open_gates = [f"{gate.name} {gate.outcome}" for gate in enforced if gate.outcome is not Outcome.PASSED]
    if open_gates:
        return failed(f"{result.revision} was promoted without {', '.join(open_gates)}")
    return earned(f"{result.revision} was promoted by {plural(len(enforced), 'enforced gate')}")
