"""Values of nodes that could not be read, said once each: a Warning event on the node, by the leader alone.

Placement goes on without such a value, and somebody who wonders why a node is passed over finds the reason there.
"""

from collections.abc import Callable, Iterable

from bayplan.cluster.cache import Store
from bayplan.cluster.controller import Result
from bayplan.cluster.resources import Key
from bayplan.reconcile.fleet import NodeView

NODE_VALUE_IGNORED = "NodeValueIgnored"
"""Reason of the events."""


class NodeReports:
    """A reconciler of nodes that writes nothing but events; needs `enqueue` set before use."""

    def __init__(self, nodes: Store[NodeView], report: Callable[[NodeView, str], None]) -> None:
        """`report` takes a node and one fact about it, such as `label nvidia.com/gpu.memory is 'lots': ignored`."""
        self._nodes = nodes
        self._report = report
        self._reported: dict[str, frozenset[str]] = {}
        self.enqueue: Callable[[Key], None] = lambda _: None
        nodes.subscribe(self._changed)

    def keys(self) -> Iterable[Key]:
        """The nodes with something unsaid."""
        return [view.key for view in self._nodes.values() if self._unsaid(view)]

    async def reconcile(self, key: Key) -> Result:
        """Say what is new about one node; what was said and is gone is forgotten, and said again if it comes back."""
        view = self._nodes.get(key)
        if view is not None:
            for fact in self._unsaid(view):
                self._report(view, fact)
            self._remember(view)
        return Result()

    def _unsaid(self, view: NodeView) -> list[str]:
        said = self._reported.get(view.uid, frozenset())
        return [fact for fact in view.node.facts if fact not in said]

    def _remember(self, view: NodeView) -> None:
        if view.node.facts:
            self._reported[view.uid] = frozenset(view.node.facts)
        else:
            self._reported.pop(view.uid, None)

    def _changed(self, old: NodeView | None, new: NodeView | None) -> None:
        if old is not None and (new is None or new.uid != old.uid):
            self._reported.pop(old.uid, None)
        if new is not None and (self._unsaid(new) or (old is not None and old.node.facts != new.node.facts)):
            self.enqueue(new.key)
