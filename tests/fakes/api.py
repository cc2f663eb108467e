"""`FakeApi`: the port, in memory.

It keeps what reconcilers rely on: uid, resourceVersion, generation, creationTimestamp, the status subresource,
preconditions, the patches, graceful deletion of bound pods, finalizers, selectors, watches, 410 after `compact`.

It lacks schemas and defaulting, CEL, admission (set `refuse` for quota), RBAC, most immutability, garbage collection
(call `collect_garbage`), real field ownership (each manager's last apply is remembered, nobody conflicts), and every
controller. What depends on those is tested against the real API server.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import jsonpatch

from bayplan.api.meta import rfc3339
from bayplan.cluster.errors import AlreadyExists, ApiError, Conflict, Gone, Invalid, NotFound
from bayplan.cluster.port import Json, WatchEvent
from bayplan.cluster.resources import EVENTS, PODS, Key, Resource
from tests.fakes.merging import apply_merge, copy_json, merge_patch, strategic_merge
from tests.fakes.selectors import selected

WITHOUT_STATUS = frozenset({"controllerrevisions", "leases", "events", "configmaps"})
WITHOUT_GENERATION = frozenset({"pods", "nodes", "services", "leases", "events", "configmaps", "controllerrevisions"})

Refuse = Callable[[str, Resource, Json], ApiError | None]
"""Called with verb, resource and the object about to be stored; an error refuses it."""


class FakeApi:
    """An API server in memory. `now` stamps creations; `writes` counts what was stored, by verb and plural."""

    def __init__(self, *, now: Callable[[], datetime] = lambda: datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self.refuse: Refuse | None = None
        self.log: list[tuple[str, str, Key]] = []
        """Every call in order: verb, plural[/subresource], key."""
        self._now = now
        self._objects: dict[Resource, dict[Key, Json]] = {}
        self._applied: dict[tuple[Resource, Key, str, str | None], Json] = {}
        self._history: dict[Resource, list[tuple[int, str, Json | None, Json]]] = {}
        self._version = 1000
        self._compacted = 0
        self._serial = itertools.count(1)
        self._failures: list[tuple[str, str, ApiError, bool]] = []
        self._news = asyncio.Event()
        self._epoch = 0

    # --- for tests -----------------------------------------------------------------------------------------------

    def fail_next(self, verb: str, plural: str, error: ApiError, *, after_success: bool = False) -> None:
        """Let the next such call raise `error`, before doing anything or after having done it."""
        self._failures.append((verb, plural, error, after_success))

    def forget_failures(self) -> None:
        """Let nothing fail any more."""
        self._failures.clear()

    def objects(self, resource: Resource) -> list[Json]:
        """Return copies of all objects."""
        return [copy_json(obj) for obj in self._objects.get(resource, {}).values()]

    def write_count(self) -> int:
        """Return how many writes were asked for, Events and Leases not counted."""
        reads = {"get", "list", "watch"}
        return sum(v not in reads and p.split("/")[0] not in ("events", "leases") for v, p, _ in self.log)

    def seed(self, resource: Resource, body: Json) -> Json:
        """Store an object as it is (status included) without it counting as a call."""
        key = Key(body["metadata"].get("namespace", ""), body["metadata"]["name"])
        return copy_json(self._store(resource, key, copy_json(body)))

    def changes(self, resource: Resource, since: int) -> list[WatchEvent]:
        """Return what a watch from version `since` would have delivered by now, for tests that deliver by hand."""
        return [
            WatchEvent("DELETED" if kind == "DELETED" else "ADDED" if before is None else "MODIFIED", copy_json(obj))
            for version, kind, before, obj in self._history.get(resource, [])
            if version > since
        ]

    @property
    def version(self) -> int:
        """The newest resourceVersion."""
        return self._version

    def edit(self, resource: Resource, key: Key, change: Callable[[Json], None]) -> Json:
        """Let somebody else change an object in place."""
        obj = copy_json(self._find(resource, key))
        change(obj)
        return copy_json(self._store(resource, key, obj))

    def remove(self, resource: Resource, key: Key) -> None:
        """Let an object vanish, finalizers and grace notwithstanding."""
        self._drop(resource, key)

    def compact(self) -> None:
        """Forget history: watches from before now get 410, open ones end."""
        self._compacted = self._version
        self.cut_watches()

    def cut_watches(self) -> None:
        """End every open watch as a server time-out does."""
        self._epoch += 1
        self._wake()

    def collect_garbage(self) -> int:
        """Delete objects whose owner is gone, as the garbage collector does; return how many."""
        count = 0
        while True:
            uids = {obj["metadata"]["uid"] for objects in self._objects.values() for obj in objects.values()}
            orphans = [
                (resource, key)
                for resource, objects in self._objects.items()
                for key, obj in objects.items()
                if (owners := obj["metadata"].get("ownerReferences")) and all(o["uid"] not in uids for o in owners)
            ]
            for resource, key in orphans:
                self._drop(resource, key)
            count += len(orphans)
            if not orphans:
                return count

    # --- reads ---------------------------------------------------------------------------------------------------

    async def get(self, resource: Resource, namespace: str, name: str) -> Json:
        key = Key(namespace, name)
        after = await self._call("get", resource, None, key)
        found = copy_json(self._find(resource, key))
        _raise(after)
        return found

    async def list_pages(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        limit: int = 500,
    ) -> AsyncGenerator[tuple[list[Json], str], None]:
        after = await self._call("list", resource, None, Key(namespace or "", ""))
        chosen = [
            copy_json(obj)
            for key, obj in sorted(self._objects.get(resource, {}).items())
            if not namespace or key.namespace == namespace
            if selected(obj, label_selector, field_selector)
        ]
        version = str(self._version)
        for start in range(0, max(1, len(chosen)), limit):
            yield chosen[start : start + limit], version
            await asyncio.sleep(0)
        _raise(after)

    async def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        resource_version: str,
        label_selector: str | None = None,
        field_selector: str | None = None,
        timeout_seconds: float = 300.0,
        idle_seconds: float = 70.0,
        on_open: Callable[[], None] | None = None,
    ) -> AsyncGenerator[WatchEvent, None]:
        after = await self._call("watch", resource, None, Key(namespace or "", ""))
        since = int(resource_version)
        if since < self._compacted:
            raise Gone("too old resource version", status=410, reason="Expired")
        if on_open is not None:
            on_open()
        _raise(after)
        epoch = self._epoch
        while epoch == self._epoch:
            news = self._news
            for version, kind, before, obj in self._history.get(resource, [])[:]:
                if version <= since or (namespace and obj["metadata"].get("namespace") != namespace):
                    continue
                since = version
                now_in = kind != "DELETED" and selected(obj, label_selector, field_selector)
                was_in = before is not None and selected(before, label_selector, field_selector)
                if now_in:
                    yield WatchEvent("MODIFIED" if was_in else "ADDED", copy_json(obj))
                elif was_in:
                    yield WatchEvent("DELETED", copy_json(obj))
            await news.wait()

    # --- writes --------------------------------------------------------------------------------------------------

    async def create(self, resource: Resource, namespace: str, body: Mapping[str, Any]) -> Json:
        obj = copy_json(dict(body))
        metadata = obj.setdefault("metadata", {})
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = f"{metadata['generateName']}{next(self._serial):05d}"
        key = Key(namespace, metadata["name"])
        after = await self._call("create", resource, None, key)
        if key in self._objects.get(resource, {}):
            message = f'{resource.plural} "{key.name}" already exists'
            raise AlreadyExists(message, status=409, reason="AlreadyExists")
        if resource.namespaced:
            metadata["namespace"] = namespace
        for field in ("uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp"):
            metadata.pop(field, None)
        if resource.plural not in WITHOUT_STATUS:
            obj.pop("status", None)
        if resource is PODS:
            obj["status"] = {"phase": "Pending"}
        self._admit("create", resource, obj)
        stored = copy_json(self._store(resource, key, obj))
        _raise(after)
        return stored

    async def patch_json(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        ops: Sequence[Mapping[str, Any]],
        *,
        subresource: str | None = None,
    ) -> Json:
        def change(obj: Json) -> Json:
            try:
                return dict(jsonpatch.apply_patch(obj, [dict(op) for op in ops]))
            except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
                message = f"the server rejected our request due to an error in our request: {error}"
                raise Invalid(message, status=422, reason="Invalid") from error

        return await self._update("patch", resource, Key(namespace, name), change, subresource)

    async def patch_strategic(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        body: Mapping[str, Any],
        *,
        subresource: str | None = None,
    ) -> Json:
        return await self._update(
            "patch", resource, Key(namespace, name), lambda obj: dict(strategic_merge(obj, body)), subresource
        )

    async def patch_merge(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        body: Mapping[str, Any],
        *,
        subresource: str | None = None,
    ) -> Json:
        return await self._update(
            "patch", resource, Key(namespace, name), lambda obj: dict(merge_patch(obj, body)), subresource
        )

    async def apply(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        body: Mapping[str, Any],
        *,
        manager: str,
        subresource: str | None = None,
        force: bool = True,
    ) -> Json:
        key = Key(namespace, name)
        full = {**body, "apiVersion": resource.api_version, "kind": resource.kind}
        full["metadata"] = {**(full.get("metadata") or {}), "name": name}
        memory = (resource, key, manager, subresource)
        if key not in self._objects.get(resource, {}) and subresource is None:
            if (full["metadata"].get("uid")) is not None:
                raise Conflict("uid mismatch: no such object", status=409, reason="Conflict")
            self.log.append(("apply", resource.plural, key))
            self._admit("apply", resource, full)
            if resource.namespaced:
                full["metadata"]["namespace"] = namespace
            self._applied[memory] = copy_json(full)
            return copy_json(self._store(resource, key, copy_json(full)))
        previous = self._applied.get(memory, {})
        done = await self._update(
            "apply", resource, key, lambda obj: dict(apply_merge(obj, full, previous)), subresource
        )
        self._applied[memory] = copy_json(full)
        return done

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_seconds: int | None = None,
    ) -> Json:
        key = Key(namespace, name)
        after = await self._call("delete", resource, None, key)
        obj = copy_json(self._find(resource, key))
        metadata = obj["metadata"]
        for field, wanted in (("uid", uid), ("resourceVersion", resource_version)):
            if wanted is not None and metadata[field] != wanted:
                raise Conflict(f"precondition failed: {field} is {metadata[field]}", status=409, reason="Conflict")
        ended = obj.get("status", {}).get("phase") in ("Failed", "Succeeded")
        running = resource is PODS and obj["spec"].get("nodeName") and grace_seconds != 0 and not ended
        if running or metadata.get("finalizers"):
            grace = grace_seconds if grace_seconds is not None else obj["spec"].get("terminationGracePeriodSeconds", 30)
            metadata.setdefault("deletionTimestamp", rfc3339(self._now()))
            metadata.setdefault("deletionGracePeriodSeconds", grace)
            obj = self._store(resource, key, obj)
        else:
            self._drop(resource, key)
        _raise(after)
        return copy_json(obj)

    async def create_event(self, namespace: str, body: Mapping[str, Any]) -> Json:
        return await self.create(EVENTS, namespace, body)

    # --- inside --------------------------------------------------------------------------------------------------

    async def _call(self, verb: str, resource: Resource, subresource: str | None, key: Key) -> ApiError | None:
        await asyncio.sleep(0)
        target = f"{resource.plural}/{subresource}" if subresource else resource.plural
        self.log.append((verb, target, key))
        for failure in self._failures:
            if failure[0] == verb and failure[1] in (target, "*"):
                self._failures.remove(failure)
                if failure[3]:
                    return failure[2]
                raise failure[2]
        return None

    async def _update(
        self, verb: str, resource: Resource, key: Key, change: Callable[[Json], Json], subresource: str | None
    ) -> Json:
        after = await self._call(verb, resource, subresource, key)
        old = self._find(resource, key)
        new = change(copy_json(old))
        for field in ("uid", "resourceVersion"):
            if new["metadata"].get(field, old["metadata"][field]) != old["metadata"][field]:
                raise Conflict(f"{field} does not match", status=409, reason="Conflict")
        if subresource == "status":
            new = {**copy_json(old), "status": new.get("status", {})}
        elif resource.plural not in WITHOUT_STATUS:
            new.pop("status", None)
            if "status" in old:
                new["status"] = copy_json(old["status"])
        for field in ("uid", "resourceVersion", "generation", "creationTimestamp"):
            if field in old["metadata"]:
                new["metadata"][field] = old["metadata"][field]
        self._admit(verb, resource, new)
        if new != old:
            new = self._store(resource, key, new)
            metadata = new["metadata"]
            if metadata.get("deletionTimestamp") and not metadata.get("finalizers") and resource is not PODS:
                self._drop(resource, key)
        _raise(after)
        return copy_json(new)

    def _admit(self, verb: str, resource: Resource, obj: Json) -> None:
        if self.refuse is not None and (error := self.refuse(verb, resource, obj)) is not None:
            raise error

    def _find(self, resource: Resource, key: Key) -> Json:
        try:
            return self._objects[resource][key]
        except KeyError:
            raise NotFound(f'{resource.plural} "{key.name}" not found', status=404, reason="NotFound") from None

    def _store(self, resource: Resource, key: Key, obj: Json) -> Json:
        old = self._objects.setdefault(resource, {}).get(key)
        metadata = obj.setdefault("metadata", {})
        self._version += 1
        if old is None:
            metadata.setdefault("uid", f"uid-{next(self._serial)}")
            metadata.setdefault("creationTimestamp", rfc3339(self._now()))
        if resource.plural not in WITHOUT_GENERATION:
            before = old["metadata"].get("generation", 1) if old is not None else 0
            changed = old is None or old.get("spec") != obj.get("spec")
            metadata["generation"] = before + 1 if changed else before
        metadata["resourceVersion"] = str(self._version)
        obj.setdefault("apiVersion", resource.api_version)
        obj.setdefault("kind", resource.kind)
        self._objects[resource][key] = obj
        self._record(resource, "ADDED" if old is None else "MODIFIED", old, obj)
        return obj

    def _drop(self, resource: Resource, key: Key) -> None:
        old = self._objects[resource].pop(key)
        for memory in [memory for memory in self._applied if memory[:2] == (resource, key)]:
            del self._applied[memory]
        self._version += 1
        last = copy_json(old)
        last["metadata"]["resourceVersion"] = str(self._version)
        self._record(resource, "DELETED", old, last)

    def _record(self, resource: Resource, kind: str, old: Json | None, obj: Json) -> None:
        self._history.setdefault(resource, []).append((self._version, kind, old, obj))
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


def _raise(error: ApiError | None) -> None:
    if error is not None:
        raise error
