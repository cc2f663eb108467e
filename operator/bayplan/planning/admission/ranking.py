"""Members kept in the order of a whole number that changes: the first, the last and a walk cost nothing to find.

A sorted list beats a heap here: members leave from the middle at once instead of lingering until they surface, and the
walk in order is a plain loop. Moving one member costs two binary searches and a shift of pointers.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Generic, TypeVar

Member = TypeVar("Member")


class Ranking(Generic[Member]):
    """Members in ascending order of their rank; among equals the one that came first is first."""

    __slots__ = ("_next", "_order", "_place")

    def __init__(self) -> None:
        self._order: list[tuple[int, int, Member]] = []
        self._place: dict[Member, tuple[int, int]] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, member: Member) -> bool:
        return member in self._place

    @property
    def ascending(self) -> Iterator[tuple[int, int, Member]]:
        """(rank, age, member), lowest rank first; plain list iteration, since callers walk it on every request."""
        return iter(self._order)

    @property
    def descending(self) -> Iterator[tuple[int, int, Member]]:
        """(rank, age, member), highest rank first."""
        return reversed(self._order)

    @property
    def first(self) -> Member | None:
        """The member of lowest rank."""
        return self._order[0][2] if self._order else None

    @property
    def last(self) -> Member | None:
        """The member of highest rank."""
        return self._order[-1][2] if self._order else None

    def put(self, member: Member, rank: int) -> None:
        """Add the member, or give it another rank; it keeps its age among equals."""
        place = self._place.get(member)
        if place is None:
            tie = self._next
            self._next += 1
        elif place[0] == rank:
            return
        else:
            tie = place[1]
            del self._order[bisect_left(self._order, place)]  # a shorter tuple sorts right before its own entry
        self._place[member] = (rank, tie)
        insort(self._order, (rank, tie, member))

    def discard(self, member: Member) -> None:
        """Take the member out, if it is there."""
        place = self._place.pop(member, None)
        if place is not None:
            del self._order[bisect_left(self._order, place)]
