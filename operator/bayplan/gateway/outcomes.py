"""What became of requests, counted under closed labels."""

from collections import Counter
from enum import StrEnum

from bayplan.gateway.refusals import RefusalCode


class RequestOutcome(StrEnum):
    """Closed set; every request of a known model ends as exactly one of them."""

    COMPLETED = "completed"
    REPLAYED = "replayed"
    SHED = "shed"
    REFUSED = "refused"
    CANCELLED = "cancelled"
    CUT = "cut"
    FAILED = "failed"


class Outcomes:
    """Counters since the start."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, RequestOutcome]] = Counter()
        """By namespace, model and outcome."""
        self.refusals: Counter[RefusalCode] = Counter()
        """Answers of the gateway's own, before and beside admission."""
        self.rerouted = 0
        """Requests sent to another replica because the first did not serve them."""
        self.undercounted_prompts = 0
        """Answers whose engine counted more prompt tokens than were reserved."""

    def retain(self, models: set[tuple[str, str]]) -> None:
        """Forget what is about models that exist no more."""
        for key in [key for key in self.requests if key[:2] not in models]:
            del self.requests[key]
