"""Choosing the best set of equal members from candidates: the ranking behind every placement.

A group takes `size` distinct candidates. Required levels must hold all of them in one domain; preferred levels are
wishes, the first one weighing most. Then, in this order: few groups of the model per touched failure domain, few
members on nodes without the weights, few GPUs left over, little GPU memory left over, names. The search is exact: it
finds a group whenever one exists, and the best one by that order.
"""

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

Amount = int | Fraction


@dataclass(frozen=True, slots=True)
class Candidate:
    """A place that could take one member of the group."""

    name: str
    domains: Mapping[str, str]
    resident: bool = False
    """Whether the exact revision's weights are there already."""
    gpus_left: int = 0
    memory_left_mib: Amount = 0
    """GPU memory beyond the need, over the GPUs that the member takes."""


@dataclass(frozen=True, slots=True)
class SearchRules:
    """What a group must and should look like."""

    size: int
    required: tuple[str, ...] = ()
    preferred: tuple[str, ...] = ()
    spread_level: str = ""
    groups_in_domain: Mapping[str, int] | None = None
    """Domain of the spread level → groups of the same model that it already holds."""
    kept: frozenset[str] = frozenset()
    """Candidates that must be in the group."""


@dataclass(frozen=True, slots=True, order=True)
class Score:
    """How good a group is; smaller is better, compared field by field."""

    unmet: tuple[bool, ...]
    spread: int
    cold: int
    gpus_left: int
    memory_left_mib: Amount
    names: tuple[str, ...]

    @property
    def resident(self) -> int:
        """Members on nodes that hold the weights."""
        return len(self.names) - self.cold


def best_group(candidates: Sequence[Candidate], rules: SearchRules) -> Score | None:
    """Return the best group of `rules.size` distinct candidates, or None when no group satisfies the required levels.

    Deterministic, and independent of the order of `candidates`, whose names must differ.
    """
    for unmet in product((False, True), repeat=len(rules.preferred)):
        wished = (level for level, missed in zip(rules.preferred, unmet, strict=True) if not missed)
        levels = (*rules.required, *wished)
        scores = [score for bucket in buckets(candidates, levels, rules) if (score := _best_in(bucket, rules, unmet))]
        if scores:
            return min(scores)
    return None


def second_best_group(candidates: Sequence[Candidate], rules: SearchRules, best: Score) -> Score | None:
    """Return the best group other than `best`: it lacks at least one of its members."""
    alternatives = [
        best_group([other for other in candidates if other.name != name], rules)
        for name in best.names
        if name not in rules.kept
    ]
    return min((score for score in alternatives if score is not None), default=None)


def buckets(
    candidates: Iterable[Candidate], levels: Collection[str], rules: SearchRules
) -> Iterable[Sequence[Candidate]]:
    """Split candidates into those that share a domain on every level. A single member shares all of them with itself.

    Candidates without a domain on one of the levels are in no bucket, and a bucket without a kept member is left out.
    """
    if rules.size == 1 or not levels:
        found: Iterable[Sequence[Candidate]] = [tuple(candidates)]
    else:
        by_domain: dict[tuple[str, ...], list[Candidate]] = defaultdict(list)
        for candidate in candidates:
            key = tuple(candidate.domains.get(level, "") for level in levels)
            if all(key):
                by_domain[key].append(candidate)
        found = by_domain.values()
    if not rules.kept:
        return found
    return (bucket for bucket in found if rules.kept <= {candidate.name for candidate in bucket})


def _order(candidate: Candidate) -> tuple[bool, int, Amount, str]:
    return (not candidate.resident, candidate.gpus_left, candidate.memory_left_mib, candidate.name)


def _best_in(bucket: Sequence[Candidate], rules: SearchRules, unmet: tuple[bool, ...]) -> Score | None:
    """Best group inside one bucket: how many members each spread domain gives, then its best ones.

    Inside a domain the best j members are the first j in `_order`, because every criterion is a sum over members. Over
    domains, partial sums compare like whole ones, so a table over "members taken so far" is exact.
    """
    if len(bucket) < rules.size:
        return None
    by_domain: dict[str, list[Candidate]] = defaultdict(list)
    for candidate in bucket:
        by_domain[candidate.domains.get(rules.spread_level, "")].append(candidate)
    empty = Score(unmet=unmet, spread=0, cold=0, gpus_left=0, memory_left_mib=0, names=())
    table: list[Score | None] = [empty, *[None] * rules.size]
    for domain, members in by_domain.items():
        first = [member for member in members if member.name in rules.kept]
        rest = [member for member in members if member.name not in rules.kept]
        ranked = first + heapq.nsmallest(rules.size - len(first), rest, key=_order)
        table = _with_domain(table, ranked, len(first), _cost(domain, rules))
    return table[rules.size]


def _cost(domain: str, rules: SearchRules) -> int:
    """Groups that the loss of this domain would hit, once this one uses it."""
    return (rules.groups_in_domain or {}).get(domain, 0) + 1


def _with_domain(table: list[Score | None], ranked: Sequence[Candidate], least: int, cost: int) -> list[Score | None]:
    """One step of the table: take the first j members of this domain, j at least `least`."""
    after: list[Score | None] = [None] * len(table)
    for taken, score in enumerate(table):
        if score is None:
            continue
        for j in range(least, min(len(ranked), len(table) - 1 - taken) + 1):
            extended = _extended(score, ranked[:j], cost if j else 0)
            rival = after[taken + j]
            if rival is None or extended < rival:
                after[taken + j] = extended
    return after


def _extended(score: Score, members: Sequence[Candidate], cost: int) -> Score:
    return Score(
        unmet=score.unmet,
        spread=score.spread + cost,
        cold=score.cold + sum(not member.resident for member in members),
        gpus_left=score.gpus_left + sum(member.gpus_left for member in members),
        memory_left_mib=score.memory_left_mib + sum(member.memory_left_mib for member in members),
        names=tuple(sorted((*score.names, *(member.name for member in members)))),
    )
