"""Two records of the same checks against each other, and against the list of differences that have a reason."""

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from e2e.conformance.records import Json, Record, flatten

KNOWN_DIFFERENCES = Path(__file__).with_name("known_differences.yaml")
ABSENT = "(absent)"
"""Stands where one engine has nothing at a path."""


class KnownDifferencesError(ValueError):
    """The list of known differences is not what it should be; the message names entry and field."""


class KnownDifference(BaseModel):
    """Paths at which the engines may differ, and why that is right."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: Annotated[str, Field(min_length=3, pattern=r"^[^.*\[]+\.")]
    """`check.path.of.the.value` as the table prints it; `*` and `?` as in a shell, but the check is named."""
    reason: Annotated[str, Field(min_length=20)]

    @property
    def check(self) -> str:
        """Name of the check that the entry is about."""
        return self.path.split(".", 1)[0]

    def covers(self, path: str) -> bool:
        """Whether the entry is about this path."""
        return fnmatch.fnmatchcase(path, self.path)


@dataclass(frozen=True)
class Difference:
    """One value that the two engines do not agree on."""

    path: str
    simulator: Json
    real: Json
    reason: str | None = None
    """Why it is right; None when nobody said so, which is a failure."""


@dataclass(frozen=True)
class Comparison:
    """Outcome of a run."""

    values: int
    """Values compared, over all checks."""
    differences: tuple[Difference, ...]
    stale: tuple[KnownDifference, ...]
    """Listed differences that did not appear although their check ran."""

    @property
    def unlisted(self) -> tuple[Difference, ...]:
        """Differences without a reason."""
        return tuple(difference for difference in self.differences if difference.reason is None)

    @property
    def passed(self) -> bool:
        """Whether every difference has a reason and every reason a difference."""
        return not self.unlisted and not self.stale


def read_known(text: str) -> tuple[KnownDifference, ...]:
    """Parse the list: a YAML sequence of mappings with `path` and `reason`.

    Raises:
        KnownDifferencesError: wrong form, or the same path twice.
    """
    entries = yaml.safe_load(text)
    if not isinstance(entries, list):
        raise KnownDifferencesError("the file must be a list of entries with `path` and `reason`")
    known: list[KnownDifference] = []
    for number, entry in enumerate(entries, start=1):
        try:
            known.append(KnownDifference.model_validate(entry))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = ".".join(str(part) for part in first["loc"]) or "entry"
            raise KnownDifferencesError(f"entry {number}: {field}: {first['msg']}") from None
    paths = [entry.path for entry in known]
    for path in paths:
        if paths.count(path) > 1:
            raise KnownDifferencesError(f"{path} is listed twice")
    return tuple(known)


def compare(
    *, simulator: Mapping[str, Record], real: Mapping[str, Record], known: Sequence[KnownDifference]
) -> Comparison:
    """Compare two engines' records by check name. Only entries whose check ran on both can be stale.

    Where two answers have different statuses, only that is reported: the rest of them is not about the same thing.
    """
    left = flatten(dict(simulator)) if simulator else {}
    right = flatten(dict(real)) if real else {}
    ran = simulator.keys() & real.keys()
    paths = sorted(left.keys() | right.keys())
    incomparable = tuple(
        path.removesuffix("status")
        for path in paths
        if path.endswith(".status") and not _same(left.get(path), right.get(path))
    )
    used: set[str] = set()
    differences: list[Difference] = []
    for path in paths:
        pair = (left.get(path, ABSENT), right.get(path, ABSENT))
        if _same(*pair) or (path.startswith(incomparable) and not path.endswith(".status")):
            continue
        entries = [entry for entry in known if entry.covers(path)]
        used.update(entry.path for entry in entries)
        differences.append(Difference(path, *pair, reason=entries[0].reason if entries else None))
    stale = tuple(entry for entry in known if entry.path not in used and entry.check in ran)
    return Comparison(values=len(paths), differences=tuple(differences), stale=stale)


def _same(left: Json, right: Json) -> bool:
    # Python holds True equal to 1 and 1 equal to 1.0; in JSON they are different answers.
    return type(left) is type(right) and left == right
