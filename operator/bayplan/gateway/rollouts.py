"""What a gateway watches of Rollouts: `status.plan` of each, and whose model it is about.

The plan is the only source of arms. One that cannot be carried out is not taken in: the last good one of that Rollout
goes on, unacknowledged as to its later epochs.
"""

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bayplan.api.meta import parse_rfc3339
from bayplan.api.rollout_status import RolloutPlan
from bayplan.cluster.cache import Store, version_number
from bayplan.cluster.errors import NotFound
from bayplan.cluster.port import Json, ReadPort, WatchEvent
from bayplan.cluster.resources import ROLLOUTS, Key, Resource
from bayplan.planning.rollout.plan import Plan

BY_MODEL = "model"


@dataclass(frozen=True, slots=True)
class RolloutView:
    """What is kept of a Rollout."""

    key: Key
    uid: str
    resource_version: int
    model: Key
    """The InferenceModel that it is about."""
    created_unix: int
    plan: Plan | None
    """None until the operator has made one."""
    model_uid: str = ""
    """uid of the InferenceModel that the plan was made for."""


@dataclass(frozen=True, slots=True)
class RoutedPlan:
    """A plan, the uid of the Rollout that it stands in, and that of the model that it was made for."""

    rollout: str
    plan: Plan
    model_uid: str


def view_rollout(raw: Mapping[str, Any]) -> RolloutView:
    """Project a Rollout. Raises ValueError or KeyError for a plan that nobody could carry out, and other nonsense."""
    meta, status = raw["metadata"], raw.get("status") or {}
    plan = status.get("plan")
    return RolloutView(
        key=Key(meta["namespace"], meta["name"]),
        uid=meta["uid"],
        resource_version=version_number(meta["resourceVersion"]),
        model=Key(meta["namespace"], str(raw["spec"]["modelRef"]["name"])),
        created_unix=int(parse_rfc3339(meta["creationTimestamp"]).timestamp()),
        plan=None if plan is None else read_plan(plan),
        model_uid=str(status.get("modelUid") or ""),
    )


def read_plan(raw: object) -> Plan:
    """Read `status.plan`. Raises ValueError (InvalidInput among them)."""
    return Plan.of(RolloutPlan.model_validate(raw, by_alias=True, by_name=False))


def rollout_store() -> Store[RolloutView]:
    """Return an empty cache of Rollouts."""
    return Store(ROLLOUTS, indexes={BY_MODEL: lambda rollout: (str(rollout.model),)})


class IfServed:
    """A `ReadPort` on which a kind that the cluster does not know (yet) has no objects.

    Definitions and gateways are upgraded one after the other; without Rollouts there is nothing that a gateway could
    miss. A reflector goes on trying, and finds the kind once it is there.
    """

    def __init__(self, api: ReadPort) -> None:
        self._api = api

    async def get(self, resource: Resource, namespace: str, name: str) -> Json:
        """See `ReadPort`."""
        return await self._api.get(resource, namespace, name)

    async def list_pages(
        self, resource: Resource, namespace: str | None = None, **options: Any
    ) -> AsyncGenerator[tuple[list[Json], str], None]:
        """See `ReadPort`."""
        try:
            async for page in self._api.list_pages(resource, namespace, **options):
                yield page
        except NotFound:
            yield [], "0"

    def watch(
        self, resource: Resource, namespace: str | None = None, **options: Any
    ) -> AsyncGenerator[WatchEvent, None]:
        """See `ReadPort`."""
        return self._api.watch(resource, namespace, **options)


class Plans:
    """Which plan each model is routed by. Of several Rollouts of one model the oldest that has a plan counts."""

    def __init__(self, rollouts: Store[RolloutView], *, on_change: Callable[[Key], None]) -> None:
        """`on_change` is called with the model whose plan may be another one."""
        self._rollouts = rollouts
        self._on_change = on_change
        rollouts.subscribe(self._changed)

    def of(self, model: Key) -> RoutedPlan | None:
        """Return the plan of a model; None while nothing is rolled out there."""
        oldest = min(
            (rollout for rollout in self._rollouts.by_index(BY_MODEL, str(model)) if rollout.plan is not None),
            key=lambda rollout: (rollout.created_unix, rollout.uid),
            default=None,
        )
        if oldest is None or oldest.plan is None:
            return None
        return RoutedPlan(oldest.uid, oldest.plan, oldest.model_uid)

    def __iter__(self) -> Iterator[RoutedPlan]:
        for model in dict.fromkeys(rollout.model for rollout in self._rollouts.values()):
            routed = self.of(model)
            if routed is not None:
                yield routed

    def _changed(self, old: RolloutView | None, new: RolloutView | None) -> None:
        if old is not None and new is not None:
            before, now = ((view.plan, view.model, view.model_uid) for view in (old, new))
            if before == now:
                return
        for model in dict.fromkeys(view.model for view in (old, new) if view is not None):
            self._on_change(model)
