"""From what is required, and what was observed, to a report that says what of it is proven now."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from bayplan.api.capacitywords import ClaimState, Control
from bayplan.planning.evidencecontract.canonical import digest_of
from bayplan.planning.evidencecontract.claims import (
    RESTS_ON,
    WORKLOAD_RESTS_ON,
    Evaluator,
    EvidenceInput,
    Finding,
    InputName,
    missing,
    workload_claim,
)
from bayplan.planning.numbers import InvalidInput


@dataclass(frozen=True, slots=True)
class Requirement:
    """What must be proven. It names classes by itself: a class that vanishes from the plan stays required.

    Raises InvalidInput for a blank class, and for nothing at all.
    """

    classes: tuple[str, ...]
    controls: tuple[Control, ...] = tuple(Control)

    def __post_init__(self) -> None:
        for name in self.classes:
            workload_claim(name)
        if not self.classes and not self.controls:
            raise InvalidInput("required", "must not be empty: nothing would be proven")

    @property
    def claims(self) -> tuple[str, ...]:
        """The names of all claims, sorted."""
        return tuple(sorted({*map(str, self.controls), *map(workload_claim, self.classes)}))


@dataclass(frozen=True, slots=True)
class JudgedClaim:
    """One claim, what became of it, and the digests of what it rests on."""

    name: str
    required: bool
    state: ClaimState
    message: str
    inputs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class EvidenceReport:
    """All claims by name. Equal inputs give equal reports; the time of the evaluation is not part of it."""

    claims: tuple[JudgedClaim, ...]
    changes_at_seconds: Fraction | None = None
    """When an input becomes too old, or one from the future counts; None when time alone changes nothing."""

    @property
    def unproven(self) -> tuple[JudgedClaim, ...]:
        """Required claims that are not earned."""
        return tuple(claim for claim in self.claims if claim.required and claim.state is not ClaimState.EARNED)

    @property
    def earned(self) -> tuple[str, ...]:
        """Names of the claims that are earned, required or not."""
        return tuple(claim.name for claim in self.claims if claim.state is ClaimState.EARNED)

    @property
    def proven(self) -> bool:
        """Whether every required claim is earned."""
        return not self.unproven

    @property
    def worst(self) -> ClaimState:
        """The worst state of a required claim: a fault of ours first, what is merely missing last."""
        order = list(ClaimState)
        return min((claim.state for claim in self.unproven), key=order.index, default=ClaimState.EARNED)

    @property
    def digest(self) -> str:
        """Of the claims with their inputs."""
        return digest_of(self.claims)


def evaluate_contract(
    requirement: Requirement,
    evaluators: Mapping[str, Evaluator],
    *,
    inputs: Iterable[EvidenceInput],
    greatest_ages: Mapping[InputName, Fraction],
    now_seconds: Fraction,
    needless: frozenset[InputName] = frozenset(),
) -> EvidenceReport:
    """Judge every claim that is required or can be evaluated.

    A claim whose inputs are missing, contradicted or too old is not evaluated. `needless` inputs may be missing, such
    as a price where no cost is asked for; one that is there must be good all the same.
    """
    known = {one.name: one for one in inputs}
    required = set(requirement.claims)
    claims = []
    for name in sorted(required | set(evaluators)):
        rests_on = RESTS_ON.get(name, WORKLOAD_RESTS_ON)
        finding = _doubt(rests_on, known, greatest_ages, now_seconds, needless)
        if finding is None or (name not in evaluators and name not in RESTS_ON):
            finding = _run(name, evaluators.get(name))
        claims.append(
            JudgedClaim(
                name=str(name),
                required=name in required,
                state=finding.state,
                message=finding.message,
                inputs={one.value: known[one].digest for one in rests_on if one in known},
            )
        )
    return EvidenceReport(tuple(claims), _next_change(known, greatest_ages, now_seconds))


def _doubt(
    rests_on: Iterable[InputName],
    known: Mapping[InputName, EvidenceInput],
    greatest_ages: Mapping[InputName, Fraction],
    now_seconds: Fraction,
    needless: frozenset[InputName],
) -> Finding | None:
    order = list(ClaimState)
    found = []
    for name in rests_on:
        one = known.get(name)
        if one is not None:
            found.append(one.doubt(now_seconds, greatest_ages.get(name)))
        elif name not in needless:
            found.append(missing(f"{name}: there is none"))
    doubts = [doubt for doubt in found if doubt is not None]
    return min(doubts, key=lambda doubt: order.index(doubt.state), default=None)


def _run(name: str, evaluator: Evaluator | None) -> Finding:
    if evaluator is None:
        what = "no class of that name is planned" if name not in RESTS_ON else "nothing decides it here"
        return missing(what)
    try:
        return evaluator()
    except Exception as error:
        return Finding(ClaimState.EVALUATOR_FAILED, f"{type(error).__name__}: {error}")


def _next_change(
    known: Mapping[InputName, EvidenceInput], greatest_ages: Mapping[InputName, Fraction], now_seconds: Fraction
) -> Fraction | None:
    moments = []
    for one in known.values():
        if one.observed_at_seconds is None:
            continue
        moments.append(one.observed_at_seconds)  # one from the future counts from then on
        if one.name in greatest_ages:
            moments.append(one.observed_at_seconds + greatest_ages[one.name])
    return min((moment for moment in moments if moment >= now_seconds), default=None)
