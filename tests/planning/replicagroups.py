"""Replica groups in any stage, built from the pods that would show it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from bayplan.api.inferencemodel_status import Stage
from bayplan.planning.groups.assignment import Assignment, RankAssignment
from bayplan.planning.groups.members import EngineExit, Group, GroupLimits, Member, build_groups, group_name

NOW = datetime(2026, 5, 6, 7, 8, 9, tzinfo=UTC)
MODEL, REVISION, TEMPLATE = "llama", "0a1b2c3d4e", "t0"


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def assignment(*, nodes: Sequence[str] = ("n1",), gpus: int = 1, ordinal: int = 0, **more: Any) -> Assignment:
    """A reservation of `gpus` on each of `nodes`, with as many pipeline stages as nodes."""
    revision, attempt = more.pop("revision", REVISION), more.get("attempt", 0)
    fields: dict[str, Any] = {
        "group": group_name(model=MODEL, revision=revision, ordinal=ordinal, attempt=attempt),
        "revision": revision,
        "template": TEMPLATE,
        "tensor": gpus,
        "pipeline": len(nodes),
        "gpu_product": "NVIDIA-H100-80GB-HBM3",
        "gpu_resource": "nvidia.com/gpu",
        "ranks": tuple(RankAssignment(node=node, gpus=gpus) for node in nodes),
    }
    return Assignment(**{**fields, **more})


def member(plan: Assignment, rank: int = 0, **changes: Any) -> Member:
    """One gated pod of a reservation, created a second ago."""
    name = f"{plan.group}-{rank}"
    fields: dict[str, Any] = {
        "namespace": "team",
        "name": name,
        "uid": f"uid-{name}",
        "resource_version": "1",
        "owner_uid": "model-uid",
        "model": MODEL,
        "revision": plan.revision,
        "template": plan.template,
        "group": plan.group,
        "rank": rank,
        "plan_id": plan.plan_id,
        "created": ago(1),
        "assignment": plan if rank == 0 else None,
        "gated": True,
        "gate_index": 0,
        "owned": True,
        "gpus": plan.ranks[rank].gpus if rank < len(plan.ranks) else 1,
    }
    return Member(**{**fields, **changes})


def members(plan: Assignment, **changes: Any) -> list[Member]:
    return [member(plan, rank, **changes) for rank in range(len(plan.ranks))]


def released(plan: Assignment, *, since: datetime = NOW, **changes: Any) -> list[Member]:
    """All members released to the scheduler, none bound."""
    return [
        replace(m, gated=False, gate_index=-1, ungated_at=since, pinned_node=plan.ranks[m.rank or 0].node)
        for m in members(plan, **changes)
    ]


def running(plan: Assignment, *, since: datetime = NOW, **changes: Any) -> list[Member]:
    """All members bound, their containers running since `since`."""
    return [
        replace(
            m,
            node=plan.ranks[m.rank or 0].node,
            phase="Running",
            pod_ip=f"10.0.0.{m.rank}",
            container_id=f"c-{m.name}",
            container_started=since,
            **changes,
        )
        for m in released(plan, since=since)
    ]


def ready(plan: Assignment, *, since: datetime = NOW, **changes: Any) -> list[Member]:
    """All members warm on the container that runs, the head Ready."""
    return [
        replace(m, warm_container_id=m.container_id, warm_since=since, ready=m.rank == 0, **changes)
        for m in running(plan, since=since)
    ]


def exited(plan: Assignment, *, at: datetime = NOW, code: int = 1, warm_since: datetime | None = None) -> list[Member]:
    """The head's engine container ended at `at`, perhaps after having been warm; the other ranks still run."""
    head, *others = running(plan) if warm_since is None else ready(plan, since=warm_since)
    return [replace(head, phase="Failed", ready=False, exit=EngineExit(code, "Error", at)), *others]


def build(
    pods: Iterable[Member], *, lost: Mapping[str, datetime] | None = None, limits: GroupLimits | None = None
) -> tuple[Group, ...]:
    return build_groups(pods, now=NOW, lost_nodes=lost or {}, limits=limits or GroupLimits())


def build_one(pods: Iterable[Member], **more: Any) -> Group:
    (group,) = build(pods, **more)
    return group


def in_stage(stage: Stage, plan: Assignment, *, since: datetime = NOW) -> list[Member]:
    """Pods that put the group into `stage` since then (Lost needs the lost node beside it)."""
    match stage:
        case Stage.RESERVED:
            return members(plan, created=since)
        case Stage.BINDING:
            return released(plan, since=since, created=since)
        case Stage.WARMING:
            return running(plan, since=since, created=since)
        case Stage.READY | Stage.LOST:
            return ready(plan, since=since, created=since)
        case Stage.DRAINING:
            return [replace(m, draining_since=since) for m in ready(plan, since=since)]
        case Stage.FAILED:
            return exited(plan, at=since)
