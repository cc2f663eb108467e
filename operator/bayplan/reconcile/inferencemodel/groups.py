"""Writes of the group protocol: reserve, complete, release, warm, drain, remove.

Each answer of the API server goes straight into the cache, so the next decision of this process never stands on a
state older than its own last write. A write whose outcome is unknown is followed by a read of that very object.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from bayplan.api import names
from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.api.meta import rfc3339
from bayplan.cluster.cache import version_number
from bayplan.cluster.errors import AlreadyExists, ApiError, Conflict, Invalid, NotFound
from bayplan.cluster.port import Json, Port
from bayplan.cluster.resources import PODS, Key
from bayplan.planning.admission.bounds import AdmissionBounds
from bayplan.planning.groups.assignment import Assignment
from bayplan.planning.groups.members import Group, Member
from bayplan.reconcile.background import run_all
from bayplan.reconcile.fleet import Fleet
from bayplan.reconcile.inferencemodel import manifests, podpatches
from bayplan.reconcile.inferencemodel.manifests import ModelIdentity
from bayplan.reconcile.pods import view_pod

IDLE_GRACE_SECONDS = 2
"""For groups that serve nothing: preStop and the engine's own shutdown would wait for requests that are not there, and
hold GPUs meanwhile. The kubelet gives SIGTERM two seconds of its own after it."""
BUSY_GRACE_SECONDS = 30
"""For groups whose drain was cut off by its deadline."""
WARM_REASON = "GenerationSucceeded"

DRAINING_REASON = "Draining"


class WorldChangedError(Exception):
    """A guarded write met another state than the one decided on: read again and decide again."""


class GroupWriter:
    """Pod writes for replica groups."""

    def __init__(self, port: Port, fleet: Fleet, *, now: Callable[[], datetime]) -> None:
        self._port = port
        self._fleet = fleet
        self._now = now

    # --- reserve ---------------------------------------------------------------------------------------------------

    async def reserve(
        self, model: ModelIdentity, spec: InferenceModelSpec, assignment: Assignment, bounds: AdmissionBounds
    ) -> None:
        """Create rank 0: the reservation of the whole group.

        Raises WorldChangedError when the name is taken, ApiError otherwise. The caller has assumed the claims, and
        settles them.
        """
        await self._create(model, manifests.pod(model, spec, assignment, 0, bounds), assignment.plan_id)

    async def complete(
        self,
        model: ModelIdentity,
        spec: InferenceModelSpec,
        assignment: Assignment,
        bounds: AdmissionBounds,
        ranks: Iterable[int],
    ) -> None:
        """Create the remaining ranks of a reserved group; raises the first ApiError after all have been tried."""
        await run_all(
            self._create(model, manifests.pod(model, spec, assignment, rank, bounds), assignment.plan_id)
            for rank in ranks
        )

    async def _create(self, model: ModelIdentity, body: Json, plan_id: str) -> None:
        meta = body["metadata"]
        try:
            self._seen(await self._port.create(PODS, meta["namespace"], body))
        except AlreadyExists:
            found = await self._reread(meta["namespace"], meta["name"])
            if not _is_planned(found, model, plan_id):
                raise WorldChangedError(f"the name {meta['name']} is taken by another pod or plan") from None
        except ApiError as error:
            if not error.outcome_unknown:
                raise
            found = await self._reread(meta["namespace"], meta["name"])
            if not _is_planned(found, model, plan_id):
                raise

    async def _reread(self, namespace: str, name: str) -> Member | None:
        try:
            raw = await self._port.get(PODS, namespace, name)
        except NotFound:
            return None
        self._seen(raw)
        return view_pod(raw).member

    # --- release ---------------------------------------------------------------------------------------------------

    async def release(self, group: Group, ranks: Iterable[int]) -> None:
        """Remove our gate from the given ranks that still have it, pinning each to its assigned node."""
        assignment = group.assignment
        if assignment is None:
            return
        wanted = set(ranks)
        await run_all(
            self._patch(member, podpatches.ungate_patch(member, assignment.ranks[member.rank].node, now=self._now()))
            for member in group.members
            if member.rank is not None and member.rank in wanted and member.gated
        )

    # --- warm ------------------------------------------------------------------------------------------------------

    async def mark_warm(self, group: Group) -> None:
        """Set the warm condition on every rank, naming its container."""
        await run_all(
            self._set_warm(member, container_id=member.container_id, reason=WARM_REASON)
            for member in group.members
            if not member.warm and member.container_id is not None
        )

    async def mark_warmup_failed(self, group: Group, message: str) -> None:
        """Leave the failure on the head, where a restarted operator and `kubectl describe` find it."""
        await self._set_warm(group.head, container_id=None, reason=names.WARMUP_FAILED, message=message)

    async def _set_warm(self, member: Member, *, container_id: str | None, reason: str, message: str = "") -> None:
        condition = podpatches.warm_condition(
            container_id=container_id, now=self._now(), reason=reason, message=message
        )
        body = {"metadata": {"uid": member.uid}, "status": {"conditions": [condition]}}
        try:
            raw = await self._port.patch_strategic(PODS, member.namespace, member.name, body, subresource="status")
        except (NotFound, Conflict, Invalid) as error:
            raise WorldChangedError(f"pod {member.name}: {error}") from None
        self._seen(raw)

    # --- drain -----------------------------------------------------------------------------------------------------

    async def mark_draining(self, group: Group) -> None:
        """Say on every rank that the group leaves, and unroute it. The head goes first: it is what readers watch."""
        path = f"/metadata/annotations/{podpatches.pointer(names.ANNOTATION_DRAINING)}"
        for member in group.members:
            if member.draining_since is None and not member.deleting:
                ops = [
                    {"op": "test", "path": "/metadata/uid", "value": member.uid},
                    {"op": "add", "path": path, "value": rfc3339(self._now())},
                ]
                await self._patch(member, ops)
        await self.unroute(group)

    async def take_back(self, group: Group) -> None:
        """Say that the group does not leave after all. It is warmed again before it is routed."""
        path = f"/metadata/annotations/{podpatches.pointer(names.ANNOTATION_DRAINING)}"
        # The head last: it is what readers watch, and what says that something is left to do here.
        for member in reversed(group.members):
            if member.draining_since is not None:
                ops: list[Json] = [
                    {"op": "test", "path": "/metadata/uid", "value": member.uid},
                    {"op": "remove", "path": path},
                ]
                await self._patch(member, ops)

    async def unroute(self, group: Group) -> None:
        """Turn warm False wherever it is still True, so that Services drop the group."""
        await run_all(
            self._set_warm(member, container_id=None, reason=DRAINING_REASON)
            for member in group.members
            if member.warm_container_id is not None and not member.deleting
        )

    # --- remove ----------------------------------------------------------------------------------------------------

    async def remove(self, group: Group, *, grace_seconds: int = IDLE_GRACE_SECONDS) -> None:
        """Delete every member that is not already on its way out, by uid; rank 0 goes last.

        While the reservation stands, the group's GPUs stay counted.
        """
        head, others = group.members[0], group.members[1:]
        await run_all(self._delete(member, grace_seconds) for member in others if not member.deleting)
        if not head.deleting:
            await self._delete(head, grace_seconds)

    async def _delete(self, member: Member, grace_seconds: int) -> None:
        key, version = Key(member.namespace, member.name), version_number(member.resource_version)
        try:
            raw = await self._port.delete(
                PODS, member.namespace, member.name, uid=member.uid, grace_seconds=grace_seconds
            )
        except NotFound:
            self._fleet.pods.discard(key, member.uid, version)
            return
        except Conflict as error:
            # Another pod has the name, or this one was changed just then: only a read tells whether it is gone.
            found = await self._reread(member.namespace, member.name)
            if found is not None and found.uid == member.uid:
                raise WorldChangedError(f"pod {member.name}: {error}") from None
            self._fleet.pods.discard(key, member.uid, version)
            return
        meta = raw.get("metadata") or {}
        if raw.get("kind") == "Pod" and meta.get("deletionTimestamp") and meta.get("deletionGracePeriodSeconds"):
            self._seen(raw)
        else:
            # Nothing ran: the object is gone with the answer.
            gone_at = version_number(meta.get("resourceVersion"))
            self._fleet.pods.discard(key, member.uid, max(version, gone_at))

    # --- shared ----------------------------------------------------------------------------------------------------

    async def _patch(self, member: Member, ops: Sequence[Json]) -> None:
        try:
            raw = await self._port.patch_json(PODS, member.namespace, member.name, ops)
        except (Invalid, NotFound, Conflict) as error:
            raise WorldChangedError(f"pod {member.name}: {error}") from None
        self._seen(raw)

    def _seen(self, raw: Json) -> None:
        self._fleet.pods.put(view_pod(raw))


def _is_planned(found: Member | None, model: ModelIdentity, plan_id: str) -> bool:
    """Whether a pod that has the name is the one that was to be created: a successor's or leaving one is not."""
    return found is not None and found.owner_uid == model.uid and found.plan_id == plan_id and not found.deleting
