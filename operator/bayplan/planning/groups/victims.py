"""Which replicas leave first when the target falls."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from bayplan.planning.measurements import Measured, Unknown


class VictimStage(StrEnum):
    """How far a replica has come, in the order in which replicas leave."""

    PENDING = "pending"
    WARMING = "warming"
    READY = "ready"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica that could leave; one that drains already is none.

    `since_seconds` is its creation, `remaining_tokens` what it has still to serve: reserved or running and waiting.
    """

    name: str
    stage: VictimStage
    since_seconds: Fraction
    remaining_tokens: Measured = Fraction(0)


_ORDER = tuple(VictimStage)


def order_victims(candidates: Iterable[Candidate]) -> tuple[str, ...]:
    """Names in the order in which to leave: pending, then warming, youngest first; then those with the least work left.

    Nothing is cut by a replica that serves nobody yet. Work that is not known counts as more than any known one. Of
    equals the one with the last name goes, which was added last.
    """

    def rank(candidate: Candidate) -> tuple[int, bool, Fraction, Fraction]:
        work = Fraction(0)
        unknown = False
        if candidate.stage is VictimStage.READY:
            unknown = isinstance(candidate.remaining_tokens, Unknown)
            work = Fraction(0) if isinstance(candidate.remaining_tokens, Unknown) else candidate.remaining_tokens
        return _ORDER.index(candidate.stage), unknown, work, -candidate.since_seconds

    by_name = sorted(candidates, key=lambda candidate: candidate.name, reverse=True)
    return tuple(candidate.name for candidate in sorted(by_name, key=rank))
