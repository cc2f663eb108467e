"""A place: room that one request holds on one replica, from admission until its body has ended.

The place is given back exactly once, whatever the end was; giving back is synchronous, so that no cancellation can come
between.
"""

from collections.abc import Callable
from typing import Protocol

from bayplan.planning.admission.records import Admitted, End
from bayplan.planning.admission.sheds import Shed
from bayplan.planning.rollout.cohort import Cohort


class PlaceOwner(Protocol):
    """The pool that gave the place."""

    def first_token(self, place: "Place") -> None:
        """Note the first output token."""

    def give_back(self, place: "Place", end: End, output_tokens: int | None) -> None:
        """Release what the place holds."""

    def move(self, place: "Place", avoid: frozenset[str]) -> Shed | None:
        """Hold room on another replica instead; a Shed when there is none, and then nothing is held."""

    def answered(self, place: "Place") -> None:
        """Note that the replica has the request: it is counted among those that it runs."""


class Place:
    """Room on `replica` (a pod's uid) under `ticket`."""

    __slots__ = ("_owner", "cohort", "held", "lost", "on_lost", "replica", "ticket", "waited_ns", "waiting_for_answer")

    def __init__(self, owner: PlaceOwner, admitted: Admitted, cohort: Cohort = Cohort.REST) -> None:
        self._owner = owner
        self.cohort = cohort
        """Whose request it is while something is rolled out."""
        self.ticket = admitted.ticket
        self.replica = admitted.replica
        self.waited_ns = admitted.waited_ns
        self.held = True
        self.lost = False
        """The replica has vanished, and the room with it."""
        self.waiting_for_answer = True
        """The request may be under way to the replica: whoever looks there does not see it yet."""
        self.on_lost: Callable[[], None] | None = None
        """Called once when the replica vanishes."""

    def first_token(self) -> None:
        """Note the first output token."""
        self._owner.first_token(self)

    def answered(self) -> None:
        """Note the first sign of the replica that it has the request."""
        if self.waiting_for_answer:
            self.waiting_for_answer = False
            self._owner.answered(self)

    def release(self, end: End, output_tokens: int | None = None) -> None:
        """Give the place back; from the second time on nothing happens."""
        if self.held:
            self.held = False
            self._owner.give_back(self, end, output_tokens)

    def move(self, *avoid: str) -> Shed | None:
        """Take room on another replica instead of this one and `avoid`; a Shed ends the place."""
        return self._owner.move(self, frozenset(avoid))


class CopyPlace:
    """Room for a copy on `replica` under `ticket`, given back once. `on_lost` is called when the copy has to end."""

    __slots__ = ("_give_back", "on_lost", "replica", "ticket")

    def __init__(self, admitted: Admitted, give_back: Callable[["CopyPlace"], None]) -> None:
        self.ticket = admitted.ticket
        self.replica = admitted.replica
        self.on_lost: Callable[[], object] | None = None
        self._give_back = give_back

    def release(self) -> None:
        """Give the room back; from the second time on nothing happens."""
        self._give_back(self)
