"""Quality: answers to a prompt set, each right or wrong by a check that needs no opinion.

Both arms answer the same prompts at temperature 0. A check says right or wrong; one that cannot be carried out says
Unknown, and one Unknown makes the arm's quality Unknown: left out, it could hide the very answers that differ. Only
counts are kept.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Any

from bayplan.planning.gates.jsonschema import compile_schema, parse_answer
from bayplan.planning.gates.patterns import compile_pattern
from bayplan.planning.measurements import Measured, Unknown
from bayplan.planning.numbers import InvalidInput, count, exact, named

MAX_ANSWER_CHARACTERS = 16_384
"""A longer answer is Unknown: a pattern could take too long on it."""


class CheckKind(StrEnum):
    """How an answer is compared. White space around it never counts."""

    EXACT = "exact"
    """Equal to the expected text."""
    REGEX = "regex"
    """The pattern is found somewhere in it; anchors are the pattern's own."""
    JSON_SCHEMA = "jsonSchema"
    """It is JSON of that schema, and nothing around it."""


class Check:
    """One check, compiled. Raises InvalidInput that names what is wrong with it, below `name`."""

    __slots__ = ("_test", "kind")

    def __init__(self, kind: CheckKind, expected: Any, *, name: str = "check") -> None:
        self.kind = kind
        self._test = _TESTS[kind](expected, f"{name}.{kind}")

    def score(self, answer: object) -> bool | Unknown:
        """Whether the answer is right; Unknown without one, with one too long, or when the check itself fails."""
        if not isinstance(answer, str):
            return Unknown("no answer")
        if len(answer) > MAX_ANSWER_CHARACTERS:
            return Unknown(f"the answer has {len(answer)} characters, at most {MAX_ANSWER_CHARACTERS} are checked")
        try:
            return self._test(answer.strip())
        except Exception as error:  # whatever a check raises, it is no wrong answer
            return Unknown(f"the {self.kind} check raised {type(error).__name__}")


def _exact_test(expected: Any, name: str) -> Callable[[str], bool]:
    wanted = named(expected, name).strip()
    return lambda answer: answer == wanted


def _regex_test(expected: Any, name: str) -> Callable[[str], bool]:
    pattern: re.Pattern[str] = compile_pattern(expected, name)
    return lambda answer: pattern.search(answer) is not None


def _schema_test(expected: Any, name: str) -> Callable[[str], bool]:
    test = compile_schema(expected, name)

    def fits(answer: str) -> bool:
        try:
            value = parse_answer(answer)
        except (ValueError, RecursionError):
            return False
        return test(value)

    return fits


_TESTS: dict[CheckKind, Callable[[Any, str], Callable[[str], bool]]] = {
    CheckKind.EXACT: _exact_test,
    CheckKind.REGEX: _regex_test,
    CheckKind.JSON_SCHEMA: _schema_test,
}


@dataclass(frozen=True, slots=True)
class QualityCounts:
    """One arm's answers to the whole prompt set. Raises InvalidInput that names the field."""

    revision: str
    prompt_set: str
    """Digest of prompts and checks."""
    passed: int
    failed: int
    unknown: int
    observed_at_seconds: Fraction
    """When the last answer was given."""
    reason: str = ""
    """Why the first of the unknown ones is."""

    def __post_init__(self) -> None:
        named(self.revision, "revision")
        named(self.prompt_set, "prompt_set")
        for name in ("passed", "failed", "unknown"):
            object.__setattr__(self, name, count(getattr(self, name), name, least=0))
        object.__setattr__(self, "observed_at_seconds", exact(self.observed_at_seconds, "observed_at_seconds"))

    @property
    def prompts(self) -> int:
        """Prompts with a known score."""
        return self.passed + self.failed

    @property
    def score(self) -> Measured:
        """Share of right answers; Unknown with any unknown one, or without an answer."""
        if self.unknown:
            return Unknown(f"{self.unknown} of {self.prompts + self.unknown} answers not scored: {self.reason}")
        return Fraction(self.passed, self.prompts) if self.prompts else Unknown("no prompt was answered")


def count_scores(
    scores: Iterable[bool | Unknown], *, revision: str, prompt_set: str, observed_at_seconds: Fraction
) -> QualityCounts:
    """Count the scores of one arm."""
    every: Sequence[bool | Unknown] = tuple(scores)
    reasons = [score.reason for score in every if isinstance(score, Unknown)]
    return QualityCounts(
        revision,
        prompt_set,
        passed=sum(score is True for score in every),
        failed=sum(score is False for score in every),
        unknown=len(reasons),
        observed_at_seconds=observed_at_seconds,
        reason=reasons[0] if reasons else "",
    )


def current_quality(
    counts: QualityCounts | None,
    *,
    revision: str,
    prompt_set: str,
    since_seconds: Fraction,
    oldest_seconds: Fraction,
    now_seconds: Fraction,
) -> Measured:
    """The arm's quality, if the counts are of this revision and prompt set, later than `since` and not too old."""
    if counts is None:
        return Unknown("the prompts were not answered yet")
    age = now_seconds - counts.observed_at_seconds
    doubts = {
        f"the answers are those of revision {counts.revision}": counts.revision != revision,
        "the answers are those to another prompt set": counts.prompt_set != prompt_set,
        "the answers are dated later than now": age < 0,
        "the answers are older than this attempt": counts.observed_at_seconds < since_seconds,
        f"the answers are older than {float(oldest_seconds):g} s": age > oldest_seconds,
    }
    doubt = next((why for why, holds in doubts.items() if holds), None)
    return counts.score if doubt is None else Unknown(doubt)


def read_check(raw: object, name: str) -> Check:
    """Read a check as prompt sets write it: exactly one of exact, regex, jsonSchema. Raises InvalidInput."""
    kinds = [kind for kind in CheckKind if isinstance(raw, dict) and kind.value in raw]
    if not isinstance(raw, dict) or len(kinds) != 1 or len(raw) != 1:
        raise InvalidInput(name, f"must have exactly one of {', '.join(CheckKind)}")
    return Check(kinds[0], raw[kinds[0].value], name=name)
