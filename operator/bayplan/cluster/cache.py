"""`Store`: what is known of one resource, indexed, versioned, and aware of our own last writes.

Only projections are kept. Every source (watch, list, resync) goes through the same three doors - `put`, `discard`,
`prune` - which never let an older version replace a newer one and never bring a deleted object back, so sources may
overlap. Everything is synchronous and belongs to one event loop.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from bayplan.api.meta import owner_uid
from bayplan.cluster.resources import Key, Resource

logger = logging.getLogger(__name__)

REMEMBERED_DELETIONS = 1024


class Projection(Protocol):
    """What every projection carries; the rest is the reader's business."""

    @property
    def key(self) -> Key:
        """Namespace and name."""

    @property
    def uid(self) -> str:
        """The uid: a name may come back, a uid never does."""

    @property
    def resource_version(self) -> int:
        """The resourceVersion as a number; comparable within one resource."""


P = TypeVar("P", bound=Projection)
Handler = Callable[[P | None, P | None], None]
"""Called synchronously with (old, new); new is None for a deletion, old is None for an addition."""


def version_number(text: object) -> int:
    """Read a resourceVersion as the integer that it is; 0 for anything else (a list without one)."""
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() else 0


def object_key(obj: Mapping[str, Any]) -> Key:
    """Return the key of a raw object."""
    metadata = obj["metadata"]
    return Key(metadata.get("namespace") or "", metadata["name"])


def controller_uid(obj: Mapping[str, Any]) -> str:
    """Return the uid of a raw object's controlling owner, or an empty string."""
    return owner_uid(obj["metadata"]) or ""


class Store(Generic[P]):
    """The objects of one resource by key, by uid and by named secondary indexes.

    `indexes` maps an index name to a function from a projection to the values under which it is found; empty values
    are left out.
    """

    def __init__(
        self, resource: Resource, *, indexes: Mapping[str, Callable[[P], Iterable[str]]] | None = None
    ) -> None:
        self.resource = resource
        self.stream_version = 0
        """Every change up to this resourceVersion is in the store. Only ordered sources advance it."""
        self.revision = 0
        """Counts changes of the content."""
        self._objects: dict[Key, P] = {}
        self._by_uid: dict[str, Key] = {}
        self._index_functions = dict(indexes or {})
        self._indexes: dict[str, dict[str, dict[Key, None]]] = {name: {} for name in self._index_functions}
        self._handlers: list[Handler[P]] = []
        self._unguarded: set[Key] = set()
        self._deleted: OrderedDict[str, int] = OrderedDict()
        self._expected: dict[Key, tuple[int, str | None]] = {}
        self._expected_gone: dict[str, str | None] = {}
        self._expected_by_owner: dict[str, set[Key | str]] = {}

    # --- reading -------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, key: object) -> bool:
        return key in self._objects

    def get(self, key: Key) -> P | None:
        """Return the object of that name, or None."""
        return self._objects.get(key)

    def by_uid(self, uid: str) -> P | None:
        """Return the object with that uid, or None."""
        key = self._by_uid.get(uid)
        return None if key is None else self._objects[key]

    def by_index(self, index: str, value: str) -> list[P]:
        """Return the objects found under `value`, in no order; raises KeyError for an unknown index."""
        return [self._objects[key] for key in self._indexes[index].get(value, ())]

    def has_index_value(self, index: str, value: str) -> bool:
        """Whether at least one object is found under `value`."""
        return value in self._indexes[index]

    def keys(self) -> list[Key]:
        """Return a snapshot of all keys."""
        return list(self._objects)

    def values(self) -> list[P]:
        """Return a snapshot of all objects."""
        return list(self._objects.values())

    # --- feeding -------------------------------------------------------------------------------------------------

    def subscribe(self, handler: Handler[P]) -> None:
        """Call `handler` after each change."""
        self._handlers.append(handler)

    def is_news(self, key: Key, uid: str, resource_version: int) -> bool:
        """Whether `put` would take in that version: mostly it is the echo of a write of our own."""
        if resource_version <= self._deleted.get(uid, -1):
            return False
        old = self._objects.get(key)
        return old is None or old.resource_version < resource_version or key in self._unguarded

    def put(self, obj: P) -> bool:
        """Take in a version of an object; return False when it is not newer than what is known."""
        if not self.is_news(obj.key, obj.uid, obj.resource_version):
            return False
        old = self._objects.get(obj.key)
        if old is not None and old.uid != obj.uid:
            # The name was given away: its old bearer is gone although nobody said so.
            self._remove(old, obj.resource_version)
            old = None
        self._objects[obj.key] = obj
        self._by_uid[obj.uid] = obj.key
        self._unguarded.discard(obj.key)
        if old is not None:
            self._unindex(old)
        self._index(obj)
        self._meet(obj.key, obj.resource_version)
        self.revision += 1
        self._notify(old, obj)
        return True

    def discard(self, key: Key, uid: str, resource_version: int) -> bool:
        """Take in that `uid` was deleted, or left the selection, at `resource_version`; False when it was not known.

        Older versions of it, from a late event or a list read earlier, are ignored from now on.
        """
        self._bury(uid, resource_version)
        self._meet(key, resource_version)
        old = self._objects.get(key)
        if old is None or old.uid != uid:
            return False
        self._remove(old, resource_version)
        return True

    def prune(self, listed: Iterable[str], list_version: int) -> list[P]:
        """Remove, and return, what a complete list of `list_version` does not contain.

        `listed` holds the uids of the list. Objects that are newer than the list stay.
        """
        present = set(listed)
        vanished = [
            obj
            for obj in self.values()
            if obj.uid not in present and (obj.resource_version <= list_version or obj.key in self._unguarded)
        ]
        for obj in vanished:
            self._remove(obj, list_version)
        self._unguarded.clear()
        for key in list(self._expected):
            self._meet(key, list_version)
        return vanished

    def advance(self, version: int) -> None:
        """Note that an ordered source has delivered everything up to `version`."""
        self.stream_version = max(self.stream_version, version)

    def restart_history(self) -> None:
        """Let the next complete list win over newer versions: the server's history restarted (a restored backup)."""
        self._unguarded = set(self._objects)
        self._deleted.clear()
        self._expected.clear()
        self._expected_gone.clear()
        self._expected_by_owner.clear()
        self.stream_version = 0

    # --- our own writes ------------------------------------------------------------------------------------------

    def expect(self, key: Key, resource_version: str, *, owner: str | None = None) -> None:
        """Remember our own write: until the cache shows `resource_version` or later of `key`, it is behind.

        `owner` (a uid) lets one question cover all children: `is_behind_for(owner)`.
        """
        version = version_number(resource_version)
        known = self._expected.get(key)
        if known is None or known[0] < version:
            self._expected[key] = (version, owner)
            if owner:
                self._expected_by_owner.setdefault(owner, set()).add(key)

    def expect_gone(self, uid: str, *, owner: str | None = None) -> None:
        """Remember our own deletion: while the cache still shows that uid, it is behind.

        Only for deletions that end at once. One with a grace period is a new version: `expect` that.
        """
        if uid in self._by_uid:
            self._expected_gone[uid] = owner
            if owner:
                self._expected_by_owner.setdefault(owner, set()).add(uid)

    def is_behind(self, key: Key) -> bool:
        """Whether the cache is older than our own last write to `key`."""
        obj = self._objects.get(key)
        if obj is not None and obj.uid in self._expected_gone:
            return True
        expected = self._expected.get(key)
        if expected is None:
            return False
        version, _ = expected
        if (obj is not None and obj.resource_version >= version) or self.stream_version >= version:
            self._meet(key, version)
            return False
        return True

    def is_behind_for(self, owner: str) -> bool:
        """Whether the cache is older than any of our own writes that named this owner."""
        for item in list(self._expected_by_owner.get(owner, ())):
            if self.is_behind(item) if isinstance(item, Key) else item in self._by_uid:
                return True
            self._settle(owner, item)
        return False

    # --- inside --------------------------------------------------------------------------------------------------

    def _remove(self, obj: P, version: int) -> None:
        self._bury(obj.uid, version)
        del self._objects[obj.key]
        del self._by_uid[obj.uid]
        self._unindex(obj)
        self.revision += 1
        if obj.uid in self._expected_gone:
            self._settle(self._expected_gone.pop(obj.uid), obj.uid)
        self._notify(obj, None)

    def _meet(self, key: Key, version: int) -> None:
        if (expected := self._expected.get(key)) is not None and expected[0] <= version:
            del self._expected[key]
            self._settle(expected[1], key)

    def _bury(self, uid: str, version: int) -> None:
        self._deleted[uid] = max(version, self._deleted.pop(uid, -1))
        if len(self._deleted) > REMEMBERED_DELETIONS:
            self._deleted.popitem(last=False)

    def _settle(self, owner: str | None, item: Key | str) -> None:
        if owner and (items := self._expected_by_owner.get(owner)):
            items.discard(item)
            if not items:
                del self._expected_by_owner[owner]

    def _index(self, obj: P) -> None:
        for name, function in self._index_functions.items():
            for value in function(obj):
                if value:
                    self._indexes[name].setdefault(value, {})[obj.key] = None

    def _unindex(self, obj: P) -> None:
        for name, function in self._index_functions.items():
            index = self._indexes[name]
            for value in function(obj):
                if (keys := index.get(value)) is not None:
                    keys.pop(obj.key, None)
                    if not keys:
                        del index[value]

    def _notify(self, old: P | None, new: P | None) -> None:
        for handler in self._handlers:
            try:
                handler(old, new)
            except Exception:
                # The caller is a stream: it must outlive a defect in one of its readers.
                logger.exception("a handler of %s failed", self.resource)
