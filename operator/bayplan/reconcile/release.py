"""Recheck and release: reserved groups go to the scheduler only on live reads begun after their last POST.

Rechecks of many groups share one set of reads. A set that is under way serves nobody who arrives meanwhile, because it
began before their POST.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bayplan.api import names
from bayplan.cluster.errors import NotFound
from bayplan.cluster.port import Port
from bayplan.cluster.resources import NODES, PODS
from bayplan.planning.inventory import Node
from bayplan.planning.members import Group
from bayplan.planning.nodes import node_from_api
from bayplan.planning.reservation import LivePod, LiveReads, Recheck, recheck_group
from bayplan.planning.topology import Topology
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

    def __init__(self, port: Port, *, topology: Topology, is_ours: Callable[[str], bool]) -> None:
        self._port = port
        self._topology = topology
        self._is_ours = is_ours
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
                if not ticket.answer.done():
                    ticket.answer.set_result(_verdict(ticket, reads))

    async def _read(self, batch: Sequence[_Ticket]) -> LiveReads:
        wanted = sorted(
            {
                place.node
                for ticket in batch
                if ticket.group.assignment is not None
                for place in ticket.group.assignment.ranks
            }
        )
        nodes_read = await asyncio.gather(*(self._node(name) for name in wanted))
        per_node = await asyncio.gather(*(self._pods(f"spec.nodeName={name}") for name in wanted))
        unbound = await self._pods(UNBOUND, label_selector=names.LABEL_MODEL)
        pods = [pod for found in (*per_node, unbound) for pod in found]
        return LiveReads.of((node for node in nodes_read if node is not None), pods)

    async def _node(self, name: str) -> Node | None:
        try:
            raw = await self._port.get(NODES, "", name)
        except NotFound:
            return None
        return node_from_api(raw, topology=self._topology)

    async def _pods(self, field_selector: str, label_selector: str | None = None) -> list[LivePod]:
        found: list[LivePod] = []
        pages = self._port.list_pages(PODS, field_selector=field_selector, label_selector=label_selector)
        async for items, _ in pages:
            for raw in items:
                live = view_pod(raw).live()
                if live.member is not None and not self._is_ours(live.member.owner_uid or ""):
                    # Somebody else's pod with our labels holds what it holds, but its annotations are no reservation.
                    live = LivePod(
                        uid=live.uid,
                        node=live.node,
                        gpus=live.gpus,
                        cpu_millis=live.cpu_millis,
                        memory_bytes=live.memory_bytes,
                        terminal=live.terminal,
                    )
                found.append(live)
        return found


def _verdict(ticket: _Ticket, reads: LiveReads) -> Recheck:
    admits = {name: ticket.admits(node) for name, node in reads.nodes.items()}
    return recheck_group(ticket.group, reads, admits=admits, predecessors=ticket.predecessors)
