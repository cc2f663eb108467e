"""Recheck and release: reserved groups go to the scheduler only on live reads begun after their last POST.

Rechecks of many groups share one set of reads. A set that is under way serves nobody who arrives meanwhile, because it
began before their POST.

The order of the reads matters. A pod only ever moves from unbound to bound, so unbound pods are listed first and the
nodes' pods after that: whoever is bound in between is seen twice, never missed. A list that is older than the group's
own pods, or than the list before it, would miss others, too: it is refused.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bayplan.api import names
from bayplan.cluster.cache import version_number
from bayplan.cluster.errors import ApiError, NotFound
from bayplan.cluster.port import Port
from bayplan.cluster.resources import NODES, PODS, Key
from bayplan.planning.groups.members import Group
from bayplan.planning.groups.reservation import LivePod, LiveReads, Recheck, recheck_group
from bayplan.planning.placement.inventory import Node
from bayplan.planning.placement.nodes import node_from_api
from bayplan.planning.placement.topology import Topology
from bayplan.reconcile.inferencemodel.manifests import pod_name
from bayplan.reconcile.pods import view_pod

UNBOUND = "spec.nodeName="
"""Field selector of pods without a node: gated members are found by it and by our label."""


@dataclass(slots=True)
class _Ticket:
    group: Group
    admits: Callable[[Node], str]
    predecessors: Sequence[str]
    answer: "asyncio.Future[Recheck]" = field(repr=False)


class Rechecker:
    """Batches rechecks over one set of live reads at a time."""

    def __init__(self, port: Port, *, topology: Topology) -> None:
        self._port = port
        self._topology = topology
        self._waiting: list[_Ticket] = []
        self._worker: asyncio.Task[None] | None = None

    async def recheck(self, group: Group, *, admits: Callable[[Node], str], predecessors: Sequence[str]) -> Recheck:
        """Return the verdict on one group.

        `admits` is placement's rule for a single node: the reason why it does not admit the group, or "". Raises
        ApiError when the reads fail: nothing is known then, and nothing was done.
        """
        ticket = _Ticket(group, admits, predecessors, asyncio.get_running_loop().create_future())
        self._waiting.append(ticket)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work(), name="rechecks")
        return await ticket.answer

    async def close(self) -> None:
        """Cancel the worker; open tickets are cancelled with it."""
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)

    async def _work(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                reads = await self._read(batch)
            except Exception as error:  # every waiting worker gets it and counts it as its own
                for ticket in batch:
                    if not ticket.answer.done():
                        ticket.answer.set_exception(error)
                continue
            except asyncio.CancelledError:
                for ticket in (*batch, *self._waiting):
                    ticket.answer.cancel()
                raise
            for ticket in batch:
                _answer(ticket, reads)

    async def _read(self, batch: Sequence[_Ticket]) -> LiveReads:
        wanted = sorted(
            {
                place.node
                for ticket in batch
                if ticket.group.assignment is not None
                for place in ticket.group.assignment.ranks
            }
        )
        members = [member for ticket in batch for member in ticket.group.members]
        written = max((version_number(member.resource_version) for member in members), default=0)
        unbound, listed = await self._pods(UNBOUND, not_before=written, label_selector=names.LABEL_MODEL)
        heads = await asyncio.gather(*(self._pod(key) for key in _unseen_heads(unbound)))
        nodes = await asyncio.gather(*(self._node(name) for name in wanted))
        bound = await asyncio.gather(*(self._pods(f"spec.nodeName={name}", not_before=listed) for name in wanted))
        pods = [*unbound, *(head for head in heads if head is not None), *(pod for found, _ in bound for pod in found)]
        return LiveReads.of((node for node in nodes if node is not None), pods)

    async def _pod(self, key: Key) -> LivePod | None:
        try:
            return view_pod(await self._port.get(PODS, key.namespace, key.name)).live()
        except NotFound:
            return None

    async def _node(self, name: str) -> Node | None:
        try:
            raw = await self._port.get(NODES, "", name)
        except NotFound:
            return None
        return node_from_api(raw, topology=self._topology)

    async def _pods(
        self, field_selector: str, *, not_before: int, label_selector: str | None = None
    ) -> tuple[list[LivePod], int]:
        """List pods; return them and the version of the list."""
        found: list[LivePod] = []
        version = 0
        pages = self._port.list_pages(PODS, field_selector=field_selector, label_selector=label_selector)
        async for items, listed in pages:
            version = version_number(listed)
            if version < not_before:
                raise ApiError(f"the server lists pods as of version {version}, but {not_before} was seen before")
            found += [view_pod(raw).live() for raw in items]
        return found, version


def _unseen_heads(unbound: Sequence[LivePod]) -> set[Key]:
    """Names of the rank 0 of gated pods whose group was released in part: it is bound, perhaps to a node not read."""
    members = [pod.member for pod in unbound if pod.member is not None]
    seen = {member.group_key for member in members if member.rank == 0}
    return {
        Key(member.namespace, pod_name(member.group, 0))
        for member in members
        if member.gated and member.group and member.group_key not in seen
    }


def _answer(ticket: _Ticket, reads: LiveReads) -> None:
    """Decide one ticket; whatever goes wrong with it is its own affair."""
    if ticket.answer.done():
        return
    try:
        admits = {name: ticket.admits(node) for name, node in reads.nodes.items()}
        verdict = recheck_group(ticket.group, reads, admits=admits, predecessors=ticket.predecessors)
    except Exception as error:
        ticket.answer.set_exception(error)
    else:
        ticket.answer.set_result(verdict)
