"""Totals for metrics and scaling."""

from collections import Counter
from collections.abc import Mapping

from bayplan.planning.admission.records import (
    AdmissionRequest,
    Admitted,
    Decision,
    Demand,
    End,
    Outcome,
    Queued,
    ReleaseOutcome,
    Replayed,
)
from bayplan.planning.admission.sheds import Shed, ShedCode

_OF_END = {End.COMPLETED: Outcome.COMPLETED, End.CANCELLED: Outcome.CANCELLED, End.FAILED: Outcome.FAILED}


class Tally:
    """Counts outcomes, refusals and the demand at the door."""

    def __init__(self) -> None:
        self._outcomes: Counter[Outcome] = Counter()
        self._sheds: Counter[ShedCode] = Counter()
        self._requests = 0
        self._prompt = 0
        self._output = 0
        self._expected = 0

    @property
    def demand(self) -> Demand:
        """The demand so far."""
        return Demand(self._requests, self._prompt, self._output, self._expected)

    @property
    def outcomes(self) -> Mapping[Outcome, int]:
        """The outcomes so far, every member named."""
        return {outcome: self._outcomes[outcome] for outcome in Outcome}

    @property
    def sheds(self) -> Mapping[ShedCode, int]:
        """The refusals so far, every code named."""
        return {code: self._sheds[code] for code in ShedCode}

    def demanded(self, request: AdmissionRequest, expected_output_tokens: int) -> None:
        """Count a request that more replicas could serve."""
        self._requests += 1
        self._prompt += request.prompt_tokens * request.sequences
        self._output += request.max_output_tokens * request.sequences
        self._expected += expected_output_tokens

    def decided(self, decision: Decision) -> None:
        """Count a decision."""
        match decision:
            case Admitted():
                self._outcomes[Outcome.ADMITTED] += 1
            case Queued():
                self._outcomes[Outcome.QUEUED] += 1
            case Replayed():
                self._outcomes[Outcome.REPLAYED] += 1
            case Shed():
                self.shed(decision)

    def shed(self, shed: Shed) -> None:
        """Count a refusal; a repeated one counts as replayed."""
        if shed.replay:
            self._outcomes[Outcome.REPLAYED] += 1
        else:
            self._sheds[shed.code] += 1

    def released(self, outcome: ReleaseOutcome, end: End) -> None:
        """Count a release. A dropped reservation was counted as lost when its replica went."""
        if outcome is ReleaseOutcome.RELEASED:
            self._outcomes[_OF_END[end]] += 1
        elif outcome is ReleaseOutcome.WITHDRAWN:
            self._outcomes[Outcome.WITHDRAWN] += 1
        elif outcome is ReleaseOutcome.NOT_HELD:
            self._outcomes[Outcome.NOT_HELD] += 1

    def lost(self, holds: int) -> None:
        """Count reservations that went with their replica."""
        self._outcomes[Outcome.LOST] += holds
