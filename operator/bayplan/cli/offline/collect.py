"""Reading a cluster into a document, through the operator's own projections and its own account of what is taken."""

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.api.inferencemodel_status import Stage
from bayplan.api.revision import revision_hash
from bayplan.api.validation import parse_spec
from bayplan.cli.offline.document import ClusterDocument, Json, KnownObject, node_json, without_values
from bayplan.cluster.client import ApiClient
from bayplan.cluster.errors import Forbidden, NotFound
from bayplan.cluster.resources import (
    CAPACITY_PLANS,
    INFERENCE_MODELS,
    NODES,
    PODS,
    RESOURCE_QUOTAS,
    ROLLOUTS,
    Resource,
)
from bayplan.planning.groups.members import GroupLimits
from bayplan.planning.placement.quota import Quota
from bayplan.planning.placement.topology import Topology
from bayplan.reconcile.fleet import Fleet, FleetLimits, node_store, pod_store, view_node
from bayplan.reconcile.inferencemodel.view import view_model
from bayplan.reconcile.pods import view_pod
from bayplan.reconcile.quotas import view_quota

OURS: Mapping[Resource, str] = {
    INFERENCE_MODELS: "InferenceModel",
    ROLLOUTS: "Rollout",
    CAPACITY_PLANS: "CapacityPlan",
}


async def collect(client: ApiClient, *, topology: Topology, now: datetime) -> ClusterDocument:
    """Read nodes, pods, quotas and our kinds once; kinds that the cluster does not know, or hides, are left out."""
    found = {resource: [raw async for raw in _all(client, resource)] for resource in (NODES, PODS, RESOURCE_QUOTAS)}
    ours = {resource: [raw async for raw in _ours(client, resource)] for resource in OURS}
    return reduce_cluster(
        nodes=found[NODES], pods=found[PODS], quotas=found[RESOURCE_QUOTAS], ours=ours, topology=topology, now=now
    )


def reduce_cluster(
    *,
    nodes: Sequence[Json],
    pods: Sequence[Json],
    quotas: Sequence[Json],
    ours: Mapping[Resource, Sequence[Json]],
    topology: Topology,
    now: datetime,
) -> ClusterDocument:
    """Reduce API objects to a document."""
    models = {raw["metadata"]["uid"]: raw for raw in ours.get(INFERENCE_MODELS, ())}
    fleet = _fleet(nodes, pods, frozenset(models), topology=topology, now=now)
    objects = []
    for resource, raws in ours.items():
        for raw in raws:
            if raw["metadata"].get("deletionTimestamp") is None:
                objects.append(_known(OURS[resource], raw, fleet))
    views = [view_quota(raw) for raw in quotas]
    by_namespace: dict[str, list[Quota]] = {}
    for view in views:
        by_namespace.setdefault(view.key.namespace, []).append(view.quota)
    claims = sorted(fleet.inventory().claims, key=lambda claim: (claim.node, claim.owner, claim.gpus))
    return ClusterDocument(
        saved_at=now,
        nodes=tuple(sorted((node_json(raw) for raw in nodes), key=lambda raw: str(raw["metadata"]["name"]))),
        claims=tuple(claims),
        quotas={namespace: tuple(found) for namespace, found in by_namespace.items()},
        objects=tuple(sorted(objects, key=lambda one: (one.kind, one.namespace, one.name))),
    )


def _fleet(
    nodes: Sequence[Json], pods: Sequence[Json], owners: frozenset[str], *, topology: Topology, now: datetime
) -> Fleet:
    node_cache, pod_cache = node_store(), pod_store()
    fleet = Fleet(
        nodes=node_cache, pods=pod_cache, is_ours=lambda uid: uid in owners, now=lambda: now, limits=FleetLimits()
    )
    for raw in nodes:
        node_cache.put(view_node(raw, topology))
    for raw in pods:
        pod_cache.put(view_pod(raw))
    return fleet


def _known(kind: str, raw: Json, fleet: Fleet) -> KnownObject:
    meta = raw["metadata"]
    spec, status = raw.get("spec") or {}, raw.get("status") or {}
    revision, pods = "", 0
    groups: tuple[str, ...] = ()
    if kind == OURS[INFERENCE_MODELS]:
        parsed = parse_spec(view_model(raw).read_spec())
        revision = revision_hash(parsed) if isinstance(parsed, InferenceModelSpec) else ""
        # Those first that would make room first.
        held = sorted(
            fleet.groups_of(meta["uid"], GroupLimits()),
            key=lambda group: (group.stage is Stage.READY, -group.created.timestamp(), group.name),
        )
        groups, pods = tuple(group.key for group in held), sum(len(group.members) for group in held)
    return KnownObject(
        kind=kind,
        namespace=meta["namespace"],
        name=meta["name"],
        generation=meta.get("generation") or 0,
        spec=without_values(spec),
        status=dict(status),
        revision=revision,
        groups=groups,
        pods=pods,
    )


async def _all(client: ApiClient, resource: Resource) -> AsyncIterator[dict[str, Any]]:
    async for page, _ in client.list_pages(resource, None):
        for raw in page:
            yield raw


async def _ours(client: ApiClient, resource: Resource) -> AsyncIterator[dict[str, Any]]:
    try:
        async for raw in _all(client, resource):
            yield raw
    except (NotFound, Forbidden):
        return
