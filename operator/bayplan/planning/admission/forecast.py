"""How long things will take, from how long they took.

Room comes free at the rate at which reservations end. By Little's law that is reserved tokens / mean time that a
reserved token is held (weighted by tokens), so no separate measurement under load is needed. Averages forget with every
observation; without one the answer is None, which sheds nobody.
"""

import math
from dataclasses import dataclass
from typing import Protocol

from bayplan.planning.admission.records import AdmissionRequest, Footprint

FORGET = 0.98
"""What an older observation keeps of its weight when a new one comes: about the last 50 count."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What a request finds when it arrives. Tokens are worst-case reservations.

    `tokens_ahead` is what will be let in before it, by its tenant's share.
    """

    fits_now: bool
    tokens_ahead: int
    reserved_tokens: int


@dataclass(frozen=True, slots=True)
class Prediction:
    """Expected waiting time, and from admission on: time to the first token and to the end. None is unknown."""

    wait_ns: int | None = None
    first_token_ns: int | None = None
    completion_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Service:
    """One ended reservation: how long it was held and what it used. `output_tokens` None: not known, or cut short."""

    footprint: Footprint
    request: AdmissionRequest
    held_ns: int
    first_token_ns: int | None
    output_tokens: int | None


class Forecast(Protocol):
    """Predicts from what it is told."""

    def predict(self, request: AdmissionRequest, footprint: Footprint, situation: Situation) -> Prediction:
        """Predict wait and service of a request that is about to be decided on."""

    def drain_ns(self, tokens: int, reserved_tokens: int) -> int | None:
        """Time until so many of the reserved tokens will have been given back."""

    def expected_output(self, request: AdmissionRequest) -> int:
        """Output tokens that the answer will have, of all its sequences."""

    def observe(self, service: Service) -> None:
        """Learn from an ended reservation."""


class _Mean:
    """A mean of ratios whose older observations fade: sum of numerators / sum of denominators."""

    __slots__ = ("_above", "_below")

    def __init__(self) -> None:
        self._above = 0.0
        self._below = 0.0

    def add(self, above: float, below: float) -> None:
        self._above = self._above * FORGET + above
        self._below = self._below * FORGET + below

    @property
    def value(self) -> float | None:
        return self._above / self._below if self._below else None


class ObservedService:
    """The forecast of a live pool.

    First token: the mean time to it, longer in proportion for prompts above the mean. Completion: first token + maximum
    output × observed use of promised output × observed time per token.
    """

    def __init__(self) -> None:
        self._held = _Mean()
        self._first_token = _Mean()
        self._prompt = _Mean()
        self._per_token = _Mean()
        self._use = _Mean()

    @property
    def output_use(self) -> float | None:
        """Observed output tokens / promised maximum output tokens."""
        return self._use.value

    def predict(self, request: AdmissionRequest, footprint: Footprint, situation: Situation) -> Prediction:
        """Predict wait and service of a request that is about to be decided on."""
        wait = 0
        if not situation.fits_now:
            needed = situation.tokens_ahead + footprint.tokens
            drained = self.drain_ns(needed, situation.reserved_tokens)
            if drained is None:
                return Prediction(None, *self._service(request))
            wait = drained
        return Prediction(wait, *self._service(request))

    def drain_ns(self, tokens: int, reserved_tokens: int) -> int | None:
        """Time until so many of the reserved tokens will have been given back."""
        held = self._held.value
        if held is None or reserved_tokens <= 0:
            return None
        return math.ceil(tokens * held / reserved_tokens)

    def expected_output(self, request: AdmissionRequest) -> int:
        """Output tokens that the answer will have, of all its sequences."""
        promised = request.max_output_tokens * request.sequences
        use = self._use.value
        return promised if use is None else min(promised, math.ceil(promised * use))

    def observe(self, service: Service) -> None:
        """Learn from an ended reservation."""
        request, tokens = service.request, service.footprint.tokens
        self._held.add(float(tokens) * service.held_ns, tokens)
        first = service.first_token_ns
        if first is not None:
            self._first_token.add(first, 1)
            self._prompt.add(request.prompt_tokens, 1)
        if service.output_tokens is None:
            return
        promised = request.max_output_tokens * request.sequences
        if promised:
            self._use.add(min(service.output_tokens, promised), promised)
        # Without a stream nobody saw the first token: the whole time counts for all tokens then.
        later = service.output_tokens / request.sequences - (0 if first is None else 1)
        if later > 0:
            self._per_token.add(service.held_ns - (first or 0), later)

    def _service(self, request: AdmissionRequest) -> tuple[int | None, int | None]:
        first = self._first_token_of(request)
        per_token = self._per_token.value
        if per_token is None:
            return first, None
        outputs = self.expected_output(request) / request.sequences
        if first is None:
            return None, math.ceil(outputs * per_token)
        return first, math.ceil(first + max(0.0, outputs - 1) * per_token)

    def _first_token_of(self, request: AdmissionRequest) -> int | None:
        mean, prompt = self._first_token.value, self._prompt.value
        if mean is None:
            return None
        return math.ceil(mean * max(1.0, request.prompt_tokens / prompt if prompt else 1.0))
