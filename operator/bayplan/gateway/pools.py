"""One model's replicas behind one admission core: who is let in, who waits, and on which replica.

`planning.admission` decides; a pool wakes those that waited, keeps the core's picture of the replicas equal to what is
watched, and calls the core when a wait has to end. While a plan stands, its `Arms` say which replicas are the pool's,
and who may go to the candidate's, which are kept aside.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from bayplan.gateway.arms import Arms, Role
from bayplan.gateway.endpoints import EngineFacts, HeadView, ModelView
from bayplan.gateway.places import CopyPlace, Place
from bayplan.gateway.rollouts import RoutedPlan
from bayplan.gateway.settings import GatewaySettings
from bayplan.planning.admission.core import AdmissionCore
from bayplan.planning.admission.forecast import ObservedService
from bayplan.planning.admission.records import (
    AdmissionPolicy,
    AdmissionRequest,
    Admitted,
    Changed,
    End,
    Queued,
    Readings,
    Replayed,
    Resources,
    Settled,
    TenantPolicy,
)
from bayplan.planning.admission.sheds import Shed
from bayplan.planning.admission.tally import Tally
from bayplan.planning.gates.counts import Arm
from bayplan.planning.rollout.cohort import Cohort

DEFAULT_BLOCK_SIZE = 16
"""Tokens per KV block while no replica has told its own."""
NANOSECONDS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Replica:
    """One head that is known to the pool, and what its engine has."""

    head: HeadView
    facts: EngineFacts
    role: Role
    """Whose requests it takes."""

    @property
    def routable(self) -> bool:
        """Whether it takes new requests of anybody."""
        return self.role is not Role.NONE


class Pool:
    """Admission and replicas of one InferenceModel. All of it belongs to one event loop."""

    def __init__(
        self,
        model: ModelView,
        settings: GatewaySettings,
        tenants: Mapping[str, TenantPolicy],
        *,
        now_ns: Callable[[], int] = time.monotonic_ns,
        on_answered: Callable[[], None] = lambda: None,
        lapsed: Callable[[], bool] = lambda: False,
    ) -> None:
        """`on_answered` is called when something that was under way has arrived or ended while a replica drains;
        `lapsed` tells whether this gateway's Lease does not stand, so that candidates get nothing.
        """
        self.model = model
        self.replicas: dict[str, Replica] = {}
        """By pod uid."""
        self._settings = settings
        self._tenants = tenants
        self._now_ns = now_ns
        self._on_answered = on_answered
        self._lapsed = lapsed
        self._routed: RoutedPlan | None = None
        self._arms: Arms | None = None
        self._uncounted = False  # the rule has to look at the replicas before it is asked again
        self._copies: dict[int, CopyPlace] = {}
        self._tally = Tally()
        self._forecast = ObservedService()
        self._block_size = DEFAULT_BLOCK_SIZE
        self._core = self._new_core()
        self._places: dict[int, Place] = {}
        self._waiters: dict[int, asyncio.Future[Place | Shed]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._closed = False
        self._any_draining = False

    # -- requests

    async def enter(self, request: AdmissionRequest, key: str = "") -> Place | Shed:
        """Return a place, after a wait if need be, or the refusal. Cancelling it leaves the queue.

        `key` tells whose request it is and is needed while `splits`; what has waited is nobody's any more.
        """
        cohort, preference = Cohort.REST, None
        if self._arms is not None and self._arms.splits:
            rule = self._counted(self._arms)
            cohort = rule.cohort(key)
            preference = rule.preference(cohort, request)
        decided = self._core.decide(request, self._now_ns(), preference)
        self._settle(decided.settled)
        match decided.decision:
            case Admitted() as admitted:
                self._arm()
                return self._place(admitted, cohort)
            case Replayed() as replayed:
                return replayed.shed
            case Shed() as shed:
                return shed
            case Queued() as queued:
                return await self._wait(queued.ticket)

    async def _wait(self, ticket: int) -> Place | Shed:
        waiter: asyncio.Future[Place | Shed] = asyncio.get_running_loop().create_future()
        self._waiters[ticket] = waiter
        self._arm()
        try:
            return await waiter
        except asyncio.CancelledError:
            if self._waiters.pop(ticket, None) is not None:
                self._after(self._core.release(ticket, self._now_ns(), end=End.CANCELLED).settled)
            elif not waiter.cancelled() and isinstance(place := waiter.result(), Place):
                place.release(End.CANCELLED)
            raise

    # -- places

    def first_token(self, place: Place) -> None:
        """See `PlaceOwner`."""
        self._core.first_token(place.ticket, self._now_ns())

    def give_back(self, place: Place, end: End, output_tokens: int | None) -> None:
        """See `PlaceOwner`."""
        self._places.pop(place.ticket, None)
        released = self._core.release(place.ticket, self._now_ns(), end=end, output_tokens=output_tokens)
        self._after(released.settled)
        self.answered(place)

    def move(self, place: Place, avoid: frozenset[str]) -> Shed | None:
        """See `PlaceOwner`."""
        decided = self._core.relocate(place.ticket, self._now_ns(), avoid=avoid)
        decision = decided.decision
        shed = None
        if isinstance(decision, Admitted):
            place.replica, place.lost, place.waiting_for_answer = decision.replica, False, True
        else:
            place.held = False
            self._places.pop(place.ticket, None)
            shed = decision if isinstance(decision, Shed) else None
        self._after(decided.settled)
        self.answered(place)
        return shed

    def answered(self, place: Place) -> None:  # noqa: ARG002 - the signature is the protocol's
        """See `PlaceOwner`."""
        if self._any_draining:
            self._on_answered()

    def has_other(self, place: Place) -> bool:
        """Whether any other replica of the pool takes requests."""
        return any(uid != place.replica and replica.role is Role.POOL for uid, replica in self.replicas.items())

    def is_pooled(self, place: Place) -> bool:
        """Whether the place is on a replica that anybody may use."""
        replica = self.replicas.get(place.replica)
        return replica is not None and replica.role is Role.POOL

    def runs(self, place: Place) -> str:
        """What runs at the place: the model with the revision of that pod, which stays while the spec moves on."""
        replica = self.replicas.get(place.replica)
        return str(self.model.key) if replica is None else f"{self.model.key} {replica.head.revision}"

    # -- arms

    @property
    def splits(self) -> bool:
        """Whether it matters whose request it is."""
        return self._arms is not None and self._arms.splits

    @property
    def routed_by(self) -> RoutedPlan | None:
        """The plan in force."""
        return self._routed

    def arm(self, place: Place) -> Arm | None:
        """As which arm's the request may be sent to its replica now; None: it may not be sent there."""
        if self._arms is None:
            return Arm.SERVING
        replica = self.replicas.get(place.replica)
        return None if replica is None else self._counted(self._arms).arm(place.cohort, replica)

    def sent(self, arm: Arm) -> None:
        """Note that a request is being sent."""
        if self._arms is not None:
            self._counted(self._arms).sent(arm)

    def set_plan(self, routed: RoutedPlan | None) -> None:
        """Route by this plan from now on; None: to what the model's status lists. Heads have to be told again."""
        if routed == self._routed:
            return
        self._routed = routed
        self._arms = None if routed is None else Arms(routed.plan, lapsed=self._lapsed, former=self._arms)
        self._retell()

    def wants_copy(self, place: Place) -> bool:
        """Whether the plan wants a copy of this request at the candidate."""
        return self._arms is not None and self._arms.copies(place.cohort) and self.arm(place) is Arm.BASELINE

    def copy(self, request: AdmissionRequest) -> CopyPlace | None:
        """Room for a copy of a request on the candidate, if there is room right now."""
        if self._arms is None:
            return None
        bare = replace(request, idempotency_key=None, payload_digest="")
        beside = self._counted(self._arms).preference(Cohort.CANDIDATE, bare).beside
        admitted = self._core.copy(bare, self._now_ns(), beside)
        if admitted is None:
            return None
        copy = self._copies[admitted.ticket] = CopyPlace(admitted, self._release_copy)
        return copy

    def end_copies(self) -> None:
        """End all copies."""
        for copy in list(self._copies.values()):
            self._end_copy(copy)

    def unanswered(self, uid: str) -> bool:
        """Whether requests may be under way to this replica that it does not show yet."""
        return any(place.replica == uid and place.waiting_for_answer for place in self._places.values())

    # -- replicas

    def set_replica(self, head: HeadView, facts: EngineFacts) -> None:
        """Add a warm head or take in what has changed of it."""
        role = self._role(head)
        known = self.replicas.get(head.uid)
        if known is None and role is Role.NONE:
            return  # it never served here: nothing to route, nothing to drain
        if not self.replicas:
            self._adopt_block_size(facts.block_size)
        self.replicas[head.uid] = Replica(head, facts, role)
        if known is None or (known.facts, known.role) != (facts, role):
            self._note_replicas()
            self._core.set_policy(self._policy())
            self._tell_core(self.replicas[head.uid])

    def remove_replica(self, uid: str) -> None:
        """Forget a head that is gone; whoever held room there is told."""
        if self.replicas.pop(uid, None) is not None:
            self._note_replicas()
            self._apply(self._core.remove_replica(uid, self._now_ns()))

    def set_model(self, model: ModelView) -> None:
        """Take in a changed model."""
        self.model = model
        self._retell()

    def set_tenants(self, tenants: Mapping[str, TenantPolicy]) -> None:
        """Judge from now on by other tenants' policies."""
        self._tenants = tenants
        self._core.set_policy(self._policy())

    def close(self) -> None:
        """Admit nothing more; what waits is sent away, what runs goes on."""
        self._closed = True
        self.end_copies()
        self._apply(self._core.close(self._now_ns()))

    # -- reads

    @property
    def ready(self) -> bool:
        """Whether any replica takes requests."""
        return any(replica.routable for replica in self.replicas.values())

    @property
    def max_model_len(self) -> int:
        """Longest sequence in tokens that every replica of the pool takes."""
        pooled = (r.facts.max_model_len for r in self.replicas.values() if r.role is Role.POOL)
        return min(pooled, default=self._own_length)

    @property
    def held(self) -> int:
        """Requests that hold a place."""
        return len(self._places)

    def running(self) -> Counter[str]:
        """Requests that each replica has taken up, by pod uid."""
        return Counter(place.replica for place in self._places.values() if not place.waiting_for_answer)

    def readings(self) -> Readings:
        """Return the core's account."""
        return self._core.readings()

    # -- inside

    @property
    def _own_length(self) -> int:
        return self.model.max_model_len

    def _policy(self) -> AdmissionPolicy:
        settings = self._settings
        return AdmissionPolicy(
            block_size=self._block_size,
            max_tokens_per_request=self.max_model_len,
            max_queued_requests=settings.max_queued_requests,
            max_wait_seconds=settings.max_wait_seconds,
            remember_seconds=settings.remember_seconds,
            tenants=self._tenants,
        )

    def _new_core(self) -> AdmissionCore:
        return AdmissionCore(self._policy(), self._forecast, self._tally)

    def _adopt_block_size(self, block_size: int) -> None:
        """Count in the first replica's blocks. Without a replica nothing is held and nothing waits."""
        if block_size != self._block_size and not self._places and not self._waiters:
            self._block_size = block_size
            self._core = self._new_core()
            if self._closed:
                self._core.close(self._now_ns())

    def _capacity(self, facts: EngineFacts) -> Resources:
        """The engine's blocks in blocks of the pool.

        Where its own are larger, every sequence may waste up to the difference: that much is left out.
        """
        own, wasted = facts.block_size, 0
        if own > self._block_size:
            wasted = facts.max_num_seqs * -(-(own - self._block_size) // self._block_size)
        blocks = facts.kv_blocks * own // self._block_size - wasted
        return Resources(max(1, blocks), facts.max_num_seqs)

    def _place(self, admitted: Admitted, cohort: Cohort = Cohort.REST) -> Place:
        place = self._places[admitted.ticket] = Place(self, admitted, cohort)
        return place

    def _role(self, head: HeadView) -> Role:
        if not head.routable:
            return Role.NONE
        if self._arms is not None:
            return self._arms.role(head.revision)
        return Role.POOL if head.revision in self.model.serving else Role.NONE

    def _retell(self) -> None:
        """What replicas are may have changed for all of them: each is looked at, and those that differ are told."""
        others = []
        for uid, replica in self.replicas.items():
            role = self._role(replica.head)
            if role is not replica.role:
                self.replicas[uid] = replace(replica, role=role)
                others.append(uid)
        self._note_replicas()
        self._core.set_policy(self._policy())
        for uid in others:
            self._tell_core(self.replicas[uid])

    def _tell_core(self, replica: Replica) -> None:
        changed = self._core.set_replica(
            replica.head.uid,
            capacity=self._capacity(replica.facts),
            now_ns=self._now_ns(),
            draining=replica.role is Role.NONE,
            aside=replica.role is Role.CANDIDATE,
        )
        self._apply(changed)

    def _note_replicas(self) -> None:
        """The replicas, or what they are to the plan, have changed."""
        self._any_draining = not all(replica.routable for replica in self.replicas.values())
        self._uncounted = True
        for copy in list(self._copies.values()):
            replica = self.replicas.get(copy.replica)
            if replica is None or replica.role is not Role.CANDIDATE or not self._copying:
                self._end_copy(copy)

    def _counted(self, arms: Arms) -> Arms:
        """The rule, with the replicas that there are now. A change of many of them is counted once."""
        if self._uncounted:
            self._uncounted = False
            arms.recount(self.replicas)
        return arms

    @property
    def _copying(self) -> bool:
        return self._arms is not None and bool(self._arms.plan.shadow_share)

    def _end_copy(self, copy: CopyPlace) -> None:
        self._release_copy(copy)
        if copy.on_lost is not None:
            copy.on_lost()

    def _release_copy(self, copy: CopyPlace) -> None:
        if self._copies.pop(copy.ticket, None) is not None:
            self._core.release_copy(copy.ticket)

    def _apply(self, changed: Changed) -> None:
        self._after(changed.settled)
        for ticket in changed.dropped:
            place = self._places.get(ticket)
            if place is not None:
                place.lost = True
                if place.on_lost is not None:
                    place.on_lost()

    def _after(self, settled: tuple[Settled, ...]) -> None:
        self._settle(settled)
        self._arm()

    def _settle(self, settled: tuple[Settled, ...]) -> None:
        for one in settled:
            waiter = self._waiters.pop(one.ticket, None)
            outcome = self._place(one.decision) if isinstance(one.decision, Admitted) else one.decision
            if waiter is not None and not waiter.done():
                waiter.set_result(outcome)
            elif isinstance(outcome, Place):
                outcome.release(End.CANCELLED)

    def _arm(self) -> None:
        due = self._core.next_expiry_ns
        if due is None:
            return
        if self._timer is not None:
            if self._timer_ns <= due:
                return  # it fires early enough, and arms itself again
            self._timer.cancel()
        delay = max(0.0, (due - self._now_ns()) / NANOSECONDS)
        self._timer_ns = due
        self._timer = asyncio.get_running_loop().call_later(delay, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._apply(self._core.expire(self._now_ns()))
