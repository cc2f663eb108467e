"""The decision about every request of one pool, and everything that can happen to it afterwards.

The order of a decision, each step leaving every counter untouched when it refuses: validate (the records do) → answer a
known idempotency key → the request's own bound → tenant clamp and quota → deadline prediction → reserve on a replica,
or wait in the bounded queue → shed. One commit at the end, in one thread: nothing here awaits.

Repairs of the course's admission (its lesson 8): what waits is promoted when room appears; what could never run is
refused; a key is compared with its payload and expires; tenants share; a deadline covers the service time as well;
every refusal carries a hint; a reservation is of one replica.
"""

from collections.abc import Collection
from dataclasses import replace
from itertools import count

from bayplan.planning.admission import refusals
from bayplan.planning.admission.fairness import Fairness, Flow
from bayplan.planning.admission.forecast import Forecast, ObservedService, Situation
from bayplan.planning.admission.hints import RetryHints
from bayplan.planning.admission.identities import Identities, Identity
from bayplan.planning.admission.ledger import Account, Hold, Ledger
from bayplan.planning.admission.records import (
    AdmissionPolicy,
    AdmissionRequest,
    Admitted,
    Changed,
    Decided,
    Decision,
    End,
    Footprint,
    Preference,
    Queued,
    Readings,
    Released,
    ReleaseOutcome,
    Resources,
    Settled,
    TenantPolicy,
)
from bayplan.planning.admission.sheds import Shed
from bayplan.planning.admission.tally import Tally
from bayplan.planning.admission.turns import Turns
from bayplan.planning.admission.waiting import Entry, WaitingRoom
from bayplan.planning.numbers import InvalidInput


class AdmissionCore:
    """Admission of one pool: a ledger per replica, a bounded fair queue, and the answers to everything refused.

    `now_ns` is monotonic; an earlier moment than the last one counts as the last one. Every call that can let waiting
    requests in, or end their wait, returns them as `Settled`; each ticket settles at most once.
    """

    def __init__(self, policy: AdmissionPolicy, forecast: Forecast | None = None, tally: Tally | None = None) -> None:
        """`forecast` and `tally` of an earlier core of the same pool carry on what it learnt and counted."""
        self.forecast: Forecast = ObservedService() if forecast is None else forecast
        self._policy = policy
        self._ledger = Ledger()
        self._fairness = Fairness()
        self._waiting = WaitingRoom(self._fairness)
        self._turns = Turns(
            ledger=self._ledger, fairness=self._fairness, waiting=self._waiting, block_size=policy.block_size
        )
        self._identities = Identities(policy.max_remembered_keys)
        self._hints = RetryHints(self.forecast)
        self._tally = Tally() if tally is None else tally
        self._dropped: dict[int, Hold] = {}
        self._tickets = count(1)
        self._now_ns: int | None = None
        self._closed = False

    # -- requests

    def decide(self, request: AdmissionRequest, now_ns: int, preference: Preference | None = None) -> Decided:
        """Decide about one request. What is `Admitted` or `Queued` needs one `release` of its ticket, however it ends.

        Only what is admitted at once gets what it prefers. A request that waits and is let in by the very same call
        comes out as `Admitted`.
        """
        now = self._advance(now_ns)
        settled = self._end_waits(now)
        first = self._turns.first_in_line
        decision = self._decide(request, now, settled, preference)
        self._tally.decided(decision)
        if self._turns.first_in_line != first and (settled or isinstance(decision, Admitted)):
            settled += self._progress(now)
        return Decided.of(decision, settled)

    def copy(self, request: AdmissionRequest, now_ns: int, beside: Collection[str]) -> Admitted | None:
        """Hold room for a copy of a request on one of these replicas outside the pool: now, or not at all (None).

        It is charged to nobody, counted nowhere and teaches the forecast nothing. Nothing is copied while anybody
        waits. `release_copy` gives it back.
        """
        now = self._advance(now_ns)
        footprint = self._policy.footprint(request)
        busy = self._closed or len(self._waiting)
        account = None if busy else self._ledger.best_beside(footprint, beside)
        if account is None:
            return None
        ticket = next(self._tickets)
        hold = Hold(ticket, request, footprint, Flow("", 1), None, account, now, charged_tokens=0, copy=True)
        self._ledger.reserve(hold)
        return Admitted(ticket, account.uid, footprint)

    def release_copy(self, ticket: int) -> None:
        """Give back what a copy holds; what went with its replica, or was given back, is nothing."""
        hold = self._ledger.find(ticket)
        if hold is not None and hold.copy:
            self._ledger.give_back(hold)

    def first_token(self, ticket: int, now_ns: int) -> None:
        """Note the first output token of an admitted request, for predictions. Unknown tickets are ignored."""
        now = self._advance(now_ns)
        hold = self._ledger.find(ticket)
        if hold is not None and hold.first_token_ns is None:
            hold.first_token_ns = now

    def release(self, ticket: int, now_ns: int, *, end: End, output_tokens: int | None = None) -> Released:
        """Give back what the ticket holds, once; a waiting request leaves the queue.

        `output_tokens` is what the engine generated for all sequences of the request, when known: the tenant's share is
        then corrected to it. Raises InvalidInput for a negative number.
        """
        if output_tokens is not None and output_tokens < 0:
            raise InvalidInput("output_tokens", f"must not be negative, not {output_tokens}")
        now = self._advance(now_ns)
        outcome = self._give_back(ticket, now, end, output_tokens)
        self._tally.released(outcome, end)
        return Released(outcome, tuple(self._progress(now)))

    def relocate(self, ticket: int, now_ns: int, *, avoid: frozenset[str] = frozenset()) -> Decided:
        """Move an admitted request that has sent nothing yet to another replica, ahead of the queue.

        For a replica that refused it, or vanished with its hold. Answers `Admitted` under the same ticket, or a `Shed`
        and nothing is held any more. Raises KeyError for a ticket that holds nothing.
        """
        now = self._advance(now_ns)
        hold = self._dropped.pop(ticket, None)
        if hold is None:
            hold = self._ledger.find(ticket)
            if hold is None:
                raise KeyError(f"ticket {ticket} holds nothing")
            self._ledger.give_back(hold)
        account = self._ledger.best(hold.footprint, (*avoid, hold.account.uid))
        decision: Admitted | Shed
        if account is None:
            self._fairness.correct(hold.flow, -hold.charged_tokens)
            self._identities.forget(hold.identity)
            self._fairness.forget_idle(hold.flow)
            hint = self._hint_ms(hold.footprint, now)
            decision = refusals.refuse_move(
                hold.footprint, ledger=self._ledger, policy=self._policy, retry_after_ms=hint
            )
            self._tally.shed(decision)
        else:
            decision = Admitted(ticket, account.uid, hold.footprint)
            moved = replace(
                hold, account=account, flow=self._flow(hold.request.tenant), admitted_ns=now, first_token_ns=None
            )
            self._ledger.reserve(moved)
            self._identities.begin(hold.identity, decision)
        return Decided(decision, tuple(self._progress(now)))

    # -- time

    @property
    def next_expiry_ns(self) -> int | None:
        """When to call `expire` next; None while nothing waits."""
        return self._waiting.next_overdue_ns

    def expire(self, now_ns: int) -> Changed:
        """Shed what has waited in vain: a request may still start at its latest start, not after it."""
        now = self._advance(now_ns)
        settled = self._end_waits(now)
        return Changed(settled=tuple(settled + self._progress(now)))

    # -- replicas and policy

    def set_replica(
        self,
        uid: str,
        *,
        capacity: Resources,
        now_ns: int,
        budget: Resources | None = None,
        draining: bool = False,
        aside: bool = False,
    ) -> Changed:
        """Add a warm replica or change one: its physical capacity and what may be promised of it (as much, if None).

        A draining one keeps its holds and gets nothing new; a shrunken one keeps them as well. One `aside` is no part
        of the pool: only what prefers it beside the pool gets room there. Raises InvalidInput.
        """
        now = self._advance(now_ns)
        budget = capacity if budget is None else budget
        self._ledger.set(uid, capacity=capacity, budget=budget, draining=draining, aside=aside)
        return Changed(settled=tuple(self._shed_hopeless(now) + self._progress(now)))

    def remove_replica(self, uid: str, now_ns: int) -> Changed:
        """Forget a replica that vanished; its holds are dropped. An unknown one changes nothing."""
        now = self._advance(now_ns)
        lost = [hold for hold in self._ledger.remove(uid) if not hold.copy]
        for hold in lost:
            self._dropped[hold.ticket] = hold
            self._identities.forget(hold.identity)
        self._tally.lost(len(lost))
        settled = self._shed_hopeless(now) + self._progress(now)
        return Changed(tuple(hold.ticket for hold in lost), tuple(settled))

    def set_policy(self, policy: AdmissionPolicy) -> None:
        """Judge requests from now on by other bounds. Raises InvalidInput where footprints would change under way."""
        for name in ("block_size", "speculative_tokens", "max_remembered_keys"):
            if getattr(policy, name) != getattr(self._policy, name):
                raise InvalidInput(name, f"must stay {getattr(self._policy, name)} while the pool lives")
        self._policy = policy

    def close(self, now_ns: int) -> Changed:
        """Admit nothing more and send the queue away; what is admitted goes on."""
        now = self._advance(now_ns)
        self._closed = True
        return Changed(
            settled=tuple(self._send_away(entry, refusals.refuse_draining(), now) for entry in tuple(self._waiting))
        )

    # -- reads

    @property
    def policy(self) -> AdmissionPolicy:
        """The policy in force."""
        return self._policy

    def readings(self) -> Readings:
        """The pool now."""
        return Readings(
            replicas={uid: account.reading() for uid, account in self._ledger.accounts.items()},
            queued_requests=len(self._waiting),
            queued_tokens=self._waiting.tokens,
            queued_expected_tokens=self._waiting.expected_tokens,
            demand=self._tally.demand,
            outcomes=self._tally.outcomes,
            sheds=self._tally.sheds,
        )

    # -- the decision, step by step

    def _decide(
        self, request: AdmissionRequest, now: int, settled: list[Settled], preference: Preference | None
    ) -> Decision:
        known = self._identities.answer(request, now)
        if known is not None:
            return known
        if self._closed:
            return refusals.refuse_draining()
        tenant = self._policy.tenant(request.tenant)
        output = self.forecast.expected_output(request)
        entry = Entry(
            request=request,
            footprint=self._policy.footprint(request),
            flow=self._flow(request.tenant),
            identity=Identity.of(request),
            arrived_ns=now,
            expected_tokens=request.prompt_tokens * request.sequences + output,
        )
        shed = refusals.refuse_own_bound(
            request, entry.footprint, policy=self._policy, tenant=tenant, ledger=self._ledger
        ) or refusals.refuse_quota(
            entry.footprint,
            tenant=tenant,
            live_tokens=entry.flow.live_tokens,
            hints=self._hints,
            policy=self._policy,
        )
        if shed is None:
            self._tally.demanded(request, output)
            shed = refusals.refuse_not_ready(entry.footprint, ledger=self._ledger, policy=self._policy)
        if shed is None:
            decision = self._place(entry, tenant, now, settled, preference)
            if not isinstance(decision, Shed):
                return decision
            shed = decision
        self._identities.shed(entry.identity, shed, now_ns=now, remember_seconds=self._policy.remember_seconds)
        self._fairness.forget_idle(entry.flow)
        return shed

    def _place(
        self, entry: Entry, tenant: TenantPolicy, now: int, settled: list[Settled], preference: Preference | None
    ) -> Admitted | Queued | Shed:
        account = beside = None
        if preference is not None:
            account = beside = self._ledger.best_beside(entry.footprint, preference.beside)
        if account is None:
            account = self._turns.room_for(entry.footprint, entry.flow, preference)
        situation = Situation(
            fits_now=account is not None,
            tokens_ahead=0 if account is not None else self._turns.tokens_ahead(entry.footprint, entry.flow),
            reserved_tokens=self._ledger.tokens,
        )
        prediction = self.forecast.predict(entry.request, entry.footprint, situation)
        entry.start_by_ns = refusals.latest_start_ns(
            entry.request, prediction, policy=self._policy, tenant=tenant, now_ns=now
        )
        wait = prediction.wait_ns or 0
        if now + wait > entry.start_by_ns:
            hint = self._hint_ms(entry.footprint, now)
            return refusals.refuse_deadline(
                wait_ns=wait, start_by_ns=entry.start_by_ns, now_ns=now, retry_after_ms=hint
            )
        if account is not None:
            if beside is None:
                self._turns.note_passing(entry.footprint)
            entry.ticket = next(self._tickets)
            return self._reserve(entry, account, now)
        if not self._may_wait(entry, tenant, now, settled):
            return refusals.refuse_queue_full(len(self._waiting), retry_after_ms=self._hint_ms(entry.footprint, now))
        entry.ticket = next(self._tickets)
        self._waiting.join(entry)
        queued = Queued(entry.ticket, entry.start_by_ns, prediction.wait_ns)
        self._identities.begin(entry.identity, queued)
        return queued

    def _may_wait(self, entry: Entry, tenant: TenantPolicy, now: int, settled: list[Settled]) -> bool:
        """Whether the entry may wait. In a full queue the tenant with the most waiting yields its latest request."""
        flow = entry.flow
        if tenant.max_queued_requests is not None and len(flow.entries) >= tenant.max_queued_requests:
            return False
        if len(self._waiting) < self._policy.max_queued_requests:
            return True
        heaviest = self._fairness.heaviest
        if heaviest is None or heaviest.load <= flow.load + flow.units(entry.footprint.tokens):
            return False
        victim = heaviest.tail
        hint = self._hint_ms(victim.footprint, now)
        settled.append(
            self._send_away(victim, refusals.refuse_queue_full(len(self._waiting), retry_after_ms=hint), now)
        )
        return True

    # -- commits

    def _reserve(self, entry: Entry, account: Account, now: int) -> Admitted:
        admitted = Admitted(entry.ticket, account.uid, entry.footprint, now - entry.arrived_ns)
        self._fairness.charge(entry.flow, entry.expected_tokens)
        hold = Hold(
            ticket=entry.ticket,
            request=entry.request,
            footprint=entry.footprint,
            flow=entry.flow,
            identity=entry.identity,
            account=account,
            admitted_ns=now,
            charged_tokens=entry.expected_tokens,
        )
        self._ledger.reserve(hold)
        self._identities.begin(entry.identity, admitted)
        return admitted

    def _progress(self, now: int) -> list[Settled]:
        """Let in whatever may go in now."""
        settled: list[Settled] = []
        while len(self._waiting) and (pick := self._turns.pick()) is not None:
            entry, account = pick
            front = self._fairness.front
            if front is not None and front.head is not entry:
                self._turns.note_passing(entry.footprint)
            admitted = self._reserve(entry, account, now)
            self._waiting.leave(entry)
            self._tally.decided(admitted)
            settled.append(Settled(entry.ticket, admitted))
        return settled

    def _end_waits(self, now: int) -> list[Settled]:
        settled, first = [], self._turns.first_in_line
        while (entry := self._waiting.overdue(now)) is not None:
            hint = self._hint_ms(entry.footprint, now)
            shed = refusals.refuse_timeout(now - entry.arrived_ns, retry_after_ms=hint)
            settled.append(self._send_away(entry, shed, now))
        return settled + self._progress(now) if self._turns.first_in_line != first else settled

    def _send_away(self, entry: Entry, shed: Shed, now: int) -> Settled:
        self._waiting.leave(entry)
        self._identities.shed(entry.identity, shed, now_ns=now, remember_seconds=self._policy.remember_seconds)
        self._fairness.forget_idle(entry.flow)
        self._tally.shed(shed)
        return Settled(entry.ticket, shed)

    def _shed_hopeless(self, now: int) -> list[Settled]:
        """After a change of replicas: what none of the ready ones could ever hold does not go on waiting."""
        if not self._ledger.has_routable:
            return []
        sent = []
        for entry in tuple(self._waiting):
            shed = refusals.refuse_not_ready(entry.footprint, ledger=self._ledger, policy=self._policy)
            if shed is not None:
                sent.append(self._send_away(entry, shed, now))
        return sent

    def _give_back(self, ticket: int, now: int, end: End, output_tokens: int | None) -> ReleaseOutcome:
        entry = self._waiting.find(ticket)
        if entry is not None:
            self._waiting.leave(entry)
            self._identities.forget(entry.identity)
            self._fairness.forget_idle(entry.flow)
            return ReleaseOutcome.WITHDRAWN
        dropped = self._dropped.pop(ticket, None)
        if dropped is not None:
            self._fairness.forget_idle(dropped.flow)
            return ReleaseOutcome.DROPPED
        hold = self._ledger.find(ticket)
        if hold is None:
            return ReleaseOutcome.NOT_HELD
        self._ledger.give_back(hold)
        if not hold.account.aside:
            self.forecast.observe(hold.service(now, end, output_tokens))
        if output_tokens is not None:
            used = hold.request.prompt_tokens * hold.request.sequences + output_tokens
            self._fairness.correct(hold.flow, used - hold.charged_tokens)
        self._fairness.forget_idle(hold.flow)
        self._identities.ended(hold.identity, end, now_ns=now, remember_seconds=self._policy.remember_seconds)
        return ReleaseOutcome.RELEASED

    def _hint_ms(self, footprint: Footprint, now: int) -> int:
        return self._hints.for_room(
            footprint,
            waiting_tokens=self._waiting.tokens,
            live_tokens=self._ledger.tokens,
            policy=self._policy,
            now_ns=now,
        )

    def _flow(self, tenant: str) -> Flow:
        return self._fairness.flow(tenant, self._policy.tenant(tenant).weight)

    def _advance(self, now_ns: int) -> int:
        if self._now_ns is None or now_ns > self._now_ns:
            self._now_ns = now_ns
        return self._now_ns
