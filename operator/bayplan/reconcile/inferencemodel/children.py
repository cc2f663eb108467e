"""The other children of a model: revision snapshots, services, disruption budgets.

Their names are deterministic, and they are ours alone: what somebody else changes of what Bayplan states is put back,
what others add beside it stays. Every patch has the uid as a guard.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from bayplan.api import names
from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.api.meta import owner_uid
from bayplan.cluster.cache import Store, version_number
from bayplan.cluster.codec import dumps, loads
from bayplan.cluster.errors import AlreadyExists, ApiError, Conflict, NotFound
from bayplan.cluster.port import Json, Port
from bayplan.cluster.resources import CONTROLLER_REVISIONS, PDBS, SERVICES, Key, Resource
from bayplan.planning.groups.members import Group
from bayplan.planning.layout.records import Recorded, RecordedLayout, read_layouts, with_evidence, write_layouts
from bayplan.reconcile.fleet import BY_OWNER
from bayplan.reconcile.inferencemodel import manifests, podpatches
from bayplan.reconcile.inferencemodel.groups import WorldChangedError
from bayplan.reconcile.inferencemodel.manifests import ModelIdentity

_IMMUTABLE = frozenset({"clusterIP"})
KEPT_REVISIONS = 10
"""Snapshots kept besides those that pods still run."""


@dataclass(frozen=True, slots=True)
class ChildView:
    """What the cache keeps of a child."""

    key: Key
    uid: str
    resource_version: int
    owner_uid: str
    revision: str = ""
    number: int = 0
    layouts: str = ""
    deleting: bool = False
    inspected: str = ""
    """Of a ControllerRevision: what was read of the model's own files."""
    snapshot: bytes = b""
    """Of a ControllerRevision: the part of the spec that its hash covers, as JSON."""
    spec: bytes = b""
    """Of a Service or PodDisruptionBudget: its spec, as JSON."""


def view_child(raw: Mapping[str, Any]) -> ChildView:
    """Project a Service, PodDisruptionBudget or ControllerRevision."""
    meta = raw["metadata"]
    number = raw.get("revision")
    return ChildView(
        key=Key(meta["namespace"], meta["name"]),
        uid=meta["uid"],
        resource_version=version_number(meta["resourceVersion"]),
        owner_uid=owner_uid(meta) or "",
        revision=str((meta.get("labels") or {}).get(names.LABEL_REVISION, "")),
        number=number if isinstance(number, int) else 0,
        layouts=str((meta.get("annotations") or {}).get(names.ANNOTATION_LAYOUTS, "")),
        deleting=meta.get("deletionTimestamp") is not None,
        inspected=str((meta.get("annotations") or {}).get(names.ANNOTATION_INSPECTED, "")),
        snapshot=dumps(raw["data"]) if isinstance(raw.get("data"), Mapping) else b"",
        spec=dumps(raw["spec"]) if isinstance(raw.get("spec"), Mapping) else b"",
    )


def child_store(resource: Resource) -> Store[ChildView]:
    """Return an empty cache for one kind of child."""
    return Store(resource, indexes={BY_OWNER: lambda child: (child.owner_uid,)})


class ChildWriter:
    """Creates and removes the children that are not pods."""

    def __init__(
        self,
        port: Port,
        *,
        services: Store[ChildView],
        budgets: Store[ChildView],
        revisions: Store[ChildView],
    ) -> None:
        self._port = port
        self.services = services
        self.budgets = budgets
        self.revisions = revisions
        self._by_us = False
        self._checked: dict[tuple[Resource, Key], int] = {}
        """Versions of services and budgets that have been held against what Bayplan states."""

    def subscribe(self, changed: Callable[[str], None]) -> None:
        """Call `changed` with the owner's uid when somebody else makes, changes or deletes a child."""

        def heard(old: ChildView | None, new: ChildView | None) -> None:
            child = new or old
            if old is not None and new is None:
                for resource in (SERVICES, PDBS):
                    self._checked.pop((resource, old.key), None)
            if child is None or self._by_us:
                return
            if old is not None and new is not None and replace(old, resource_version=new.resource_version) == new:
                return  # its own controller wrote its status
            changed(child.owner_uid)

        for store in (self.services, self.budgets, self.revisions):
            store.subscribe(heard)

    @contextmanager
    def _own_write(self) -> Iterator[None]:
        """What the cache takes in here is no news to us."""
        self._by_us = True
        try:
            yield
        finally:
            self._by_us = False

    # --- revisions -------------------------------------------------------------------------------------------------

    def recorded_layouts(self, model: ModelIdentity, revision: str) -> dict[str, RecordedLayout]:
        """Return the layouts recorded for a revision, by GPU product."""
        found = self._own(self.revisions, Key(model.namespace, manifests.revision_name(model.name, revision)), model)
        return read_layouts(found.layouts) if found else {}

    def snapshot(self, model: ModelIdentity, revision: str) -> Mapping[str, Any]:
        """Return the part of the spec that a revision's hash covers; empty where it was not kept."""
        found = self._own(self.revisions, Key(model.namespace, manifests.revision_name(model.name, revision)), model)
        if found is None or not found.snapshot:
            return {}
        data: Mapping[str, Any] = loads(found.snapshot, exact_numbers=True)
        return data

    def has_revision(self, model: ModelIdentity, revision: str) -> bool:
        """Whether the snapshot of a revision is there."""
        key = Key(model.namespace, manifests.revision_name(model.name, revision))
        return self._own(self.revisions, key, model) is not None

    def revision_number(self, model: ModelIdentity, revision: str) -> int:
        """Return a number that rises with each new revision of a model; 0 for one that was not kept."""
        found = self._own(self.revisions, Key(model.namespace, manifests.revision_name(model.name, revision)), model)
        return found.number if found is not None else 0

    async def ensure_revision(
        self,
        model: ModelIdentity,
        spec: InferenceModelSpec,
        *,
        revision: str,
        generation: int,
        records: Recorded,
        in_use: Iterable[str],
    ) -> None:
        """Have the snapshot of `revision` with these layouts recorded, and drop snapshots long out of use.

        A snapshot is numbered by the model's `generation`: it rises with each change of the spec, and needs no other
        snapshot to be seen, which a restarted operator may not see yet.
        """
        key = Key(model.namespace, manifests.revision_name(model.name, revision))
        mine = self.revisions.by_index(BY_OWNER, model.uid)
        found = self._own(self.revisions, key, model)
        if found is None:
            body = manifests.controller_revision(model, spec, revision=revision, number=generation, records=records)
            await self._create(CONTROLLER_REVISIONS, self.revisions, body, model)
        else:
            kept = with_evidence(read_layouts(found.layouts), records)
            if found.layouts != write_layouts(kept):
                await self._record(found, kept)
        used = {revision, *in_use}
        spare = sorted((c for c in mine if c.revision not in used and not c.deleting), key=lambda c: -c.number)
        for child in spare[KEPT_REVISIONS:]:
            await self._delete(CONTROLLER_REVISIONS, self.revisions, child)

    def inspected(self, model: ModelIdentity, revision: str) -> str:
        """Return what was read of a revision's files; empty while nothing was."""
        found = self._own(self.revisions, Key(model.namespace, manifests.revision_name(model.name, revision)), model)
        return found.inspected if found is not None else ""

    async def record_inspection(
        self, model: ModelIdentity, spec: InferenceModelSpec, *, revision: str, generation: int, text: str
    ) -> None:
        """Keep what was read of a revision's files beside its snapshot, once."""
        key = Key(model.namespace, manifests.revision_name(model.name, revision))
        records = self.recorded_layouts(model, revision)
        others = {child.revision for child in self.revisions.by_index(BY_OWNER, model.uid)}
        await self.ensure_revision(
            model, spec, revision=revision, generation=generation, records=records, in_use=others
        )
        found = self._own(self.revisions, key, model)
        if found is not None:
            await self._annotate(found, names.ANNOTATION_INSPECTED, text)

    async def record_evidence(
        self, model: ModelIdentity, revision: str, *, gpu_product: str, record: RecordedLayout
    ) -> None:
        """Note what an engine reported of its cache beside the layout of the revision."""
        found = self._own(self.revisions, Key(model.namespace, manifests.revision_name(model.name, revision)), model)
        if found is not None:
            await self._record(found, {**read_layouts(found.layouts), gpu_product: record})

    async def _record(self, child: ChildView, records: Recorded) -> None:
        await self._annotate(child, names.ANNOTATION_LAYOUTS, write_layouts(records))

    async def _annotate(self, child: ChildView, name: str, text: str) -> None:
        path = f"/metadata/annotations/{podpatches.pointer(name)}"
        ops = [
            {"op": "test", "path": "/metadata/uid", "value": child.uid},
            {"op": "add", "path": path, "value": text},
        ]
        raw = await self._port.patch_json(CONTROLLER_REVISIONS, child.key.namespace, child.key.name, ops)
        with self._own_write():
            self.revisions.put(view_child(raw))

    def lacks(
        self, model: ModelIdentity, *, multi_node: bool, revisions: Iterable[str], serving: Iterable[Group]
    ) -> bool:
        """Whether a child is to be made for groups that are there already: a first budget, or what somebody deleted."""
        if not self.has_service(model) or not all(self.has_revision(model, revision) for revision in revisions):
            return True
        if multi_node and self._own(self.services, _ranks_key(model), model) is None:
            return True
        budgets = {child.key.name for child in self.budgets.by_index(BY_OWNER, model.uid)}
        return any(group.name not in budgets for group in serving)

    # --- services --------------------------------------------------------------------------------------------------

    async def ensure_services(self, model: ModelIdentity, *, multi_node: bool) -> None:
        """Have the model's service and, for groups over several nodes, the one that names their ranks."""
        bodies = [manifests.model_service(model)]
        if multi_node:
            bodies.append(manifests.ranks_service(model))
        for body in bodies:
            found = self._own(self.services, Key(model.namespace, body["metadata"]["name"]), model)
            if found is None:
                await self._create(SERVICES, self.services, body, model)
            elif not self._is_checked(SERVICES, found):
                await self._put_back(SERVICES, self.services, found, body)

    async def drop_ranks_service(self, model: ModelIdentity) -> None:
        """Have none that names ranks: no group is over several nodes any more, and none can be."""
        found = self._own(self.services, _ranks_key(model), model)
        if found is not None and not found.deleting:
            await self._delete(SERVICES, self.services, found)

    def has_service(self, model: ModelIdentity) -> bool:
        """Whether the model's service is there."""
        return self._own(self.services, Key(model.namespace, model.name), model) is not None

    # --- disruption budgets ----------------------------------------------------------------------------------------

    async def sync_budgets(self, model: ModelIdentity, serving: Iterable[Group], others: Iterable[Group]) -> None:
        """Have one budget per serving group, keep those that `others` may have, delete the rest."""
        wanted = {group.name: len(group.members) for group in serving}
        kept = {*wanted, *(group.name for group in others)}
        present = {child.key.name: child for child in self.budgets.by_index(BY_OWNER, model.uid)}
        for name, pods in wanted.items():
            found = present.get(name)
            if found is not None and self._is_checked(PDBS, found):
                continue
            body = manifests.disruption_budget(model, group=name, pods=pods)
            if found is None:
                await self._create(PDBS, self.budgets, body, model)
            else:
                await self._put_back(PDBS, self.budgets, found, body)
        for name, child in present.items():
            if name not in kept and not child.deleting:
                await self._delete(PDBS, self.budgets, child)

    # --- shared ----------------------------------------------------------------------------------------------------

    @staticmethod
    def _own(store: Store[ChildView], key: Key, model: ModelIdentity) -> ChildView | None:
        """Return the cached child if it is this model's; a stranger of that name is left to the create to find."""
        found = store.get(key)
        return found if found is not None and found.owner_uid == model.uid else None

    async def _create(self, resource: Resource, store: Store[ChildView], body: Json, model: ModelIdentity) -> None:
        meta = body["metadata"]
        try:
            created = view_child(await self._port.create(resource, meta["namespace"], body))
            with self._own_write():
                store.put(created)
        except AlreadyExists:
            raw = await self._port.get(resource, meta["namespace"], meta["name"])
            found = view_child(raw)
            store.put(found)
            if found.owner_uid == model.uid:
                return
            if _is_left_over(raw, model):
                text = f"{resource} {found.key} belongs to a deleted model of this name and is not gone yet"
                raise WorldChangedError(text) from None
            raise NameTakenError(resource, found.key) from None
        except ApiError as error:
            if not error.outcome_unknown:
                raise
            store.put(view_child(await self._port.get(resource, meta["namespace"], meta["name"])))

    async def _put_back(self, resource: Resource, store: Store[ChildView], child: ChildView, body: Json) -> None:
        """Write what `child` has otherwise than `body` states. What is still otherwise after it is left alone: an
        admission webhook wants it so, and writing again would have no end."""
        changed = _changed(loads(child.spec, exact_numbers=False) if child.spec else {}, body["spec"])
        if not changed or child.deleting:
            self._checked[resource, child.key] = child.resource_version
            return
        ops = [
            {"op": "test", "path": "/metadata/uid", "value": child.uid},
            *({"op": "add", "path": f"/spec/{name}", "value": body["spec"][name]} for name in changed),
        ]
        written = view_child(await self._port.patch_json(resource, child.key.namespace, child.key.name, ops))
        with self._own_write():
            store.put(written)
        self._checked[resource, child.key] = written.resource_version

    def _is_checked(self, resource: Resource, child: ChildView) -> bool:
        return self._checked.get((resource, child.key)) == child.resource_version

    async def _delete(self, resource: Resource, store: Store[ChildView], child: ChildView) -> None:
        try:
            await self._port.delete(resource, child.key.namespace, child.key.name, uid=child.uid)
        except NotFound:
            pass
        except Conflict as error:
            # Another object has the name, or this one was changed just then: only a read tells whether it is gone.
            with suppress(NotFound):
                found = view_child(await self._port.get(resource, child.key.namespace, child.key.name))
                store.put(found)
                if found.uid == child.uid:
                    raise WorldChangedError(f"{resource} {child.key}: {error}") from None
        self._checked.pop((resource, child.key), None)
        with self._own_write():
            store.discard(child.key, child.uid, child.resource_version)


def _changed(spec: Mapping[str, Any], stated: Mapping[str, Any]) -> list[str]:
    """Names of the fields that are otherwise than stated, but for those that the API server lets nobody change."""
    return [name for name, value in stated.items() if name not in _IMMUTABLE and not _as_stated(spec.get(name), value)]


def _as_stated(actual: object, stated: object) -> bool:
    """Items of a list may have further fields, which the API server fills in; anything else is exact."""
    if not isinstance(stated, list):
        return actual == stated
    if not isinstance(actual, list) or len(actual) != len(stated):
        return False
    pairs = zip(actual, stated, strict=True)
    return all(isinstance(one, dict) and one | item == one for one, item in pairs)


def _ranks_key(model: ModelIdentity) -> Key:
    return Key(model.namespace, manifests.ranks_service_name(model.name))


def _is_left_over(raw: Mapping[str, Any], model: ModelIdentity) -> bool:
    """Whether an object of another owner waits for the garbage collector: its owner had this model's name."""
    owners = raw["metadata"].get("ownerReferences") or ()
    return any(
        owner.get("controller") and (owner.get("kind"), owner.get("name")) == (names.INFERENCEMODEL_KIND, model.name)
        for owner in owners
    )


class NameTakenError(Exception):
    """A child's name belongs to an object that this model does not own; it is never adopted or overwritten."""

    def __init__(self, resource: Resource, key: Key) -> None:
        super().__init__(f"{resource} {key} exists and is not owned by this model; rename the model or remove it")
        self.key = key
