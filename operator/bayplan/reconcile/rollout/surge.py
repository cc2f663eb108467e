"""Whether a candidate fits, asked of placement itself before anything of it exists."""

from collections.abc import Sequence

from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.api.inferencemodel_status import Stage
from bayplan.cluster.cache import Store
from bayplan.planning.forecast import group_request
from bayplan.planning.groups.members import Group
from bayplan.planning.groups.replicas import ALIVE
from bayplan.planning.placement.apart import ApartPlacer
from bayplan.planning.placement.fleet import FleetPlacer
from bayplan.planning.placement.inventory import Inventory
from bayplan.planning.placement.place import PlacementDecision
from bayplan.planning.placement.quota import quota_shortfall
from bayplan.planning.quantities import PodRequest
from bayplan.planning.rollout.surge import SurgeAnswer
from bayplan.reconcile.fleet import Fleet
from bayplan.reconcile.inferencemodel.plan import ModelPlan
from bayplan.reconcile.quotas import QuotaView

MOST_DRAINED = 256
"""Serving replicas whose place is tried; more would take longer than a worker may."""


class SurgeQuestion:
    """How many groups of a candidate can be placed at once, when so many serving ones have made room."""

    def __init__(
        self,
        fleet: Fleet,
        quotas: Store[QuotaView],
        *,
        namespace: str,
        revision: str,
        spec: InferenceModelSpec,
        plan: ModelPlan,
        groups: Sequence[Group],
    ) -> None:
        """`groups` are the model's own; those of other revisions than `revision` stay where they are."""
        self._namespace = namespace
        self._plan = plan
        self._groups = groups
        self._inventory = fleet.inventory()
        self._request = group_request("candidate", revision, spec, plan.shapes) if plan.placeable else None
        self._quotas = [view.quota for view in quotas.values() if view.key.namespace == namespace]

    def answer(self, *, most: int, compared: int, drains: bool, retained: str | None) -> SurgeAnswer:
        """Place up to `most` groups; with `drains`, also with ever more serving groups gone, those first that go first.

        The heads of the first `compared` groups are to be on as many nodes. A `retained` revision's groups leave as
        soon as the candidate starts, so they are not in its way.
        """
        leaving = [group for group in self._groups if group.revision == retained]
        serving = sorted(
            (group for group in self._groups if group not in leaving and group.stage in ALIVE),
            key=lambda group: (group.stage is Stage.READY, -group.created.timestamp(), group.name),
        )
        placeable: list[int] = []
        nodes: list[tuple[str, ...]] = []
        missing = ""
        apart = ApartPlacer(self._request, compared) if self._request is not None else None
        for drained in range(min(len(serving), MOST_DRAINED) + 1 if drains else 1):
            gone = [*leaving, *serving[:drained]]
            inventory = self._inventory.without_owners([group.key for group in gone])
            staying = self._nodes_of_staying(gone)
            groups, why = self._place(inventory, most, staying, freed=len(gone))
            placeable.append(max(groups, placeable[-1] if placeable else 0))
            missing = missing or why
            if apart is not None:
                apart.add(inventory, staying)
            nodes.append(apart.head_nodes if apart is not None else ())
            if placeable[-1] >= most:
                break
        return SurgeAnswer(tuple(placeable), tuple(nodes), missing, apart.missing if apart is not None else "")

    def _place(
        self, inventory: Inventory, most: int, standing: Sequence[Sequence[str]], *, freed: int
    ) -> tuple[int, str]:
        """How many of `most` groups have a place, and why the next one has none."""
        if self._request is None:
            return 0, self._plan.verdict()[2]
        placer = FleetPlacer(self._request, inventory, standing)
        for number in range(most):
            if not placer.add():
                return number, placer.refusal.message if placer.refusal is not None else ""
            short = self._quota_shortfall(placer.placed[-1], groups=number + 1 - freed)
            if short:
                return number, short
        return most, ""

    def _nodes_of_staying(self, gone: Sequence[Group]) -> list[list[str]]:
        staying = [group for group in self._groups if group not in gone and group.stage in ALIVE]
        return [[rank.node for rank in group.assignment.ranks] for group in staying if group.assignment is not None]

    def _quota_shortfall(self, decision: PlacementDecision, *, groups: int) -> str:
        """What quotas leave too little for; groups that make room give back as much as one of the candidate takes."""
        if not self._quotas or decision.shape is None or groups <= 0:
            return ""
        first = self._inventory.by_name[decision.nodes[0]]
        return quota_shortfall(
            self._quotas,
            pods=groups * len(decision.nodes),
            per_pod=PodRequest(
                gpus=decision.shape.gpus_per_pod,
                cpu_millis=decision.shape.cpu_millis,
                memory_bytes=decision.shape.memory_bytes,
            ),
            gpu_resource=first.gpu_resource,
        )
