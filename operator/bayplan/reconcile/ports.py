"""What every reconciler is given beside caches and the API: its queue, and where events about its objects go."""

from typing import Protocol

from bayplan.cluster.resources import Key


class KeyQueue(Protocol):
    """The controller's queue as a reconciler uses it."""

    def enqueue(self, key: Key) -> None:
        """Reconcile soon."""

    def enqueue_after(self, key: Key, seconds: float) -> None:
        """Reconcile after some time."""


class Named(Protocol):
    """An object that events can be about."""

    @property
    def key(self) -> Key:
        """Its namespace and name."""

    @property
    def uid(self) -> str:
        """Its uid: events about a former bearer of the name are not about it."""


class EventSink(Protocol):
    """Where events about the objects of one kind go; never blocks, never fails."""

    def emit(self, view: Named, *, reason: str, message: str, warning: bool) -> None:
        """Record one event."""
