"""Whether speculative decoding pays: replayed rounds of draft and target tokens against measured costs.

A round drafts k tokens; the longest agreeing prefix is accepted, and the target adds one token of its own: the
correction after a mismatch, or the bonus after full agreement, so that a full round emits k + 1. The plain decoder is
charged for exactly the tokens that were emitted. A round whose verification failed fails the evaluation: leaving it out
would flatter the draft. Source: the founding chapter's lesson 6.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from bayplan.planning.numbers import InvalidInput, named, positive


@dataclass(frozen=True, slots=True)
class DraftRound:
    """One round: k drafted tokens, and at least k + 1 tokens that the target gives at these positions.

    `failure` says why the target could not verify it, and then stands for the target tokens. Raises InvalidInput.
    """

    draft_tokens: tuple[int, ...]
    target_tokens: tuple[int, ...] = ()
    failure: str = ""

    def __post_init__(self) -> None:
        for name in ("draft_tokens", "target_tokens"):
            tokens = tuple(getattr(self, name))
            if any(type(token) is not int or token < 0 for token in tokens):
                raise InvalidInput(name, "must be whole numbers of at least 0")
            object.__setattr__(self, name, tokens)
        if not self.draft_tokens:
            raise InvalidInput("draft_tokens", "must not be empty")
        if self.failure:
            named(self.failure, "failure")
        elif len(self.target_tokens) <= len(self.draft_tokens):
            needed = len(self.draft_tokens) + 1
            raise InvalidInput(
                "target_tokens",
                f"must have at least {needed} tokens, one beyond the draft, not {len(self.target_tokens)}",
            )

    @property
    def accepted(self) -> int:
        """Length of the agreeing prefix."""
        pairs = enumerate(zip(self.draft_tokens, self.target_tokens, strict=False))
        return next((at for at, (draft, target) in pairs if draft != target), len(self.draft_tokens))


@dataclass(frozen=True, slots=True)
class SpeculationCosts:
    """Measured seconds. Raises InvalidInput unless all are above 0."""

    baseline_seconds_per_token: Fraction
    draft_seconds_per_token: Fraction
    verification_seconds_per_round: Fraction

    def __post_init__(self) -> None:
        for name in self.__slots__:
            object.__setattr__(self, name, positive(getattr(self, name), name))


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Of the rounds that drafted a token at this position, how many had it accepted."""

    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class SpeculationDecision:
    """Whether to enable it, and every number that decided."""

    enable: bool
    message: str
    accepted_tokens: int
    drafted_tokens: int
    emitted_tokens: int
    by_position: tuple[Acceptance, ...]
    baseline_cost_seconds: Fraction
    speculative_cost_seconds: Fraction
    emitted: tuple[tuple[int, ...], ...]
    """The tokens that each round emitted."""

    @property
    def acceptance_rate(self) -> Fraction:
        """Accepted / drafted tokens."""
        return Fraction(self.accepted_tokens, self.drafted_tokens)

    @property
    def speedup(self) -> Fraction:
        """Seconds of the plain decoder for the same tokens / seconds with speculation."""
        return self.baseline_cost_seconds / self.speculative_cost_seconds


def decide_speculation(
    rounds: Sequence[DraftRound], costs: SpeculationCosts, *, minimum_speedup: Fraction = Fraction(1)
) -> SpeculationDecision:
    """Judge all rounds together; equal to the minimum enables. Raises InvalidInput without a round."""
    least = positive(minimum_speedup, "minimum_speedup")
    if not rounds:
        raise InvalidInput("rounds", "must not be empty")
    failures = [one.failure for one in rounds if one.failure]
    accepted = [0 if one.failure else one.accepted for one in rounds]
    emitted = tuple(
        () if one.failure else one.target_tokens[: count + 1] for one, count in zip(rounds, accepted, strict=True)
    )
    drafted = sum(len(one.draft_tokens) for one in rounds)
    tokens = sum(map(len, emitted))
    plain = tokens * costs.baseline_seconds_per_token
    speculative = drafted * costs.draft_seconds_per_token + len(rounds) * costs.verification_seconds_per_round
    enable = not failures and plain >= least * speculative
    speedup = f"{float(plain / speculative):.3g} times as fast, at least {float(least):g} is asked for"
    if failures:
        speedup = f"{len(failures)} of {len(rounds)} rounds were not verified: {failures[0]}"
    return SpeculationDecision(
        enable=enable,
        message=speedup,
        accepted_tokens=sum(accepted),
        drafted_tokens=drafted,
        emitted_tokens=tokens,
        by_position=_by_position(rounds, accepted),
        baseline_cost_seconds=plain,
        speculative_cost_seconds=speculative,
        emitted=emitted,
    )


def _by_position(rounds: Sequence[DraftRound], accepted: Sequence[int]) -> tuple[Acceptance, ...]:
    longest = max(len(one.draft_tokens) for one in rounds)
    return tuple(
        Acceptance(
            drafted=sum(len(one.draft_tokens) > at for one in rounds), accepted=sum(count > at for count in accepted)
        )
        for at in range(longest)
    )
