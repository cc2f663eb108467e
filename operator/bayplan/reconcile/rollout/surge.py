"""Whether a candidate fits, asked of placement itself before anything of it exists."""

from collections.abc import Sequence

from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.api.inferencemodel_status import Stage
from bayplan.cluster.cache import Store
from bayplan.planning.groups.members import Group
from bayplan.planning.groups.replicas import ALIVE
from bayplan.planning.placement.group import GroupRequest
from bayplan.planning.placement.inventory import Inventory
from bayplan.planning.placement.place import PlacementDecision, groups_per_domain, place
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
        self._revision = revision
        self._spec = spec
        self._plan = plan
        self._groups = groups
        self._inventory = fleet.inventory()
        self._quotas = [view.quota for view in quotas.values() if view.key.namespace == namespace]

    def answer(self, *, most: int, drains: bool, retained: str | None) -> SurgeAnswer:
        """Place up to `most` groups; with `drains`, also with ever more serving groups gone, those first that go first.

        A `retained` revision's groups leave as soon as the candidate starts, so they are not in its way.
        """
        leaving = [group for group in self._groups if group.revision == retained]
        serving = sorted(
            (group for group in self._groups if group not in leaving and group.stage in ALIVE),
            key=lambda group: (group.stage is Stage.READY, -group.created.timestamp(), group.name),
        )
        placeable: list[int] = []
        missing = ""
        for drained in range(min(len(serving), MOST_DRAINED) + 1 if drains else 1):
            gone = [*leaving, *serving[:drained]]
            groups, why = self._place(self._inventory.without_owners([group.key for group in gone]), most, gone)
            placeable.append(max(groups, placeable[-1] if placeable else 0))
            missing = missing or why
            if placeable[-1] >= most:
                break
        return SurgeAnswer(tuple(placeable), missing)

    def _place(self, inventory: Inventory, most: int, gone: Sequence[Group]) -> tuple[int, str]:
        """How many of `most` groups have a place, and why the next one has none."""
        if not self._plan.placeable:
            return 0, self._plan.verdict()[2]
        staying = [group for group in self._groups if group not in gone and group.stage in ALIVE]
        nodes = [[rank.node for rank in group.assignment.ranks] for group in staying if group.assignment is not None]
        level = self._spec.placement.spread.level
        for number in range(most):
            request = GroupRequest(
                name=f"candidate-{number}",
                revision=self._revision,
                shapes=self._plan.shapes,
                node_selector=self._spec.placement.node_selector,
                tolerations=self._spec.placement.tolerations,
                topology=self._spec.placement.topology,
                spread_level=level,
                groups_in_domain=groups_per_domain(inventory, nodes, level),
            )
            decision = place(request, inventory)
            if not decision.placed:
                return number, decision.message
            short = self._quota_shortfall(decision, groups=number + 1 - len(gone))
            if short:
                return number, short
            nodes.append(list(decision.nodes))
            inventory = inventory.with_claims(decision.claims(request.name))
        return most, ""

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
