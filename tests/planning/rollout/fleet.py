"""A fleet that does what the plan says, with whatever goes wrong as attributes to set."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from bayplan.api.rolloutwords import Phase
from bayplan.planning.gates.counts import Arm, ArmTally, Tally, TimedCounts, Window
from bayplan.planning.gates.quality import QualityCounts
from bayplan.planning.gates.records import EVERY_CLASS
from bayplan.planning.measurements import Measured
from bayplan.planning.rollout.machine import decide
from bayplan.planning.rollout.plan import Plan
from bayplan.planning.rollout.policy import RolloutPolicy
from bayplan.planning.rollout.proof import GatewayAck
from bayplan.planning.rollout.state import RolloutState
from bayplan.planning.rollout.surge import SurgeAnswer
from bayplan.planning.rollout.verdicts import Advance, Decision, Holding, HoldReason, Rest, Rollback
from bayplan.planning.rollout.world import ArmHeads, Head, World
from tests.planning.rollout.policies import POLICY

STEP = Fraction(10)


def heads(revision: str, count: int, *, warm: bool = True, nodes: int = 4, trouble: str = "") -> ArmHeads:
    found = [Head(uid=f"{revision}-{index}", node=f"n{index % nodes}", ready=warm, warm=warm) for index in range(count)]
    return ArmHeads(tuple(found), trouble)


def tally(requests: int, *, late: int = 0, errors: int = 0, tokens: int = 10) -> Tally:
    timed = TimedCounts(requests - late, requests)
    return Tally(requests, errors, requests * tokens, Fraction(requests), timed, TimedCounts(requests, requests))


def evidence(
    start: Any,
    end: Any,
    *,
    requests: int = 200,
    late: int = 0,
    errors: int = 0,
    baseline_late: int = 0,
    weight: int = 10,
    **of: Any,
) -> Window:
    """`requests` at each arm, of all those that the weight makes of it; `late` and `errors` are the candidate's."""
    given: dict[str, Any] = {
        "tallies": (
            ArmTally(Arm.BASELINE, EVERY_CLASS, tally(requests, late=baseline_late)),
            ArmTally(Arm.CANDIDATE, EVERY_CLASS, tally(requests, late=late, errors=errors)),
        ),
        "routed_requests": requests * 100 // weight if weight else 10 * requests,
        "candidate_requests": requests if weight else 0,
    }
    return Window(start, end, **(given | of))


def room(*placeable: int, missing: str = "", nodes: int = 2) -> SurgeAnswer:
    """What placement says of so many groups, on at most so many nodes."""
    names = ("n1", "n2", "n3")
    apart = tuple(names[: min(groups, nodes)] for groups in placeable)
    return SurgeAnswer(placeable, apart, missing, "no second node has 8 GPUs free" if nodes < 2 else "")


@dataclass
class Fleet:
    policy: RolloutPolicy = POLICY
    wanted: str = "r2"
    desired: int = 4
    floor: int = 2
    now: Fraction = Fraction(1000)
    state: RolloutState | None = None
    served: str | None = "r1"
    ready: dict[str, int] = field(default_factory=dict)
    """Replicas that a revision has at most; others have what the plan asks for."""
    trouble: str = ""
    candidate_nodes: int = 4
    acknowledging: bool = True
    epoch: int = 0
    expired: bool = False
    """Whether a further gateway, which acknowledges nothing, has lost its Lease."""
    requests: int = 200
    late: int = 0
    errors: int = 0
    streams: Measured = Fraction(0)
    answering: bool = True
    quality: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    surge: SurgeAnswer | None = field(default_factory=lambda: room(9))
    history: list[str] = field(default_factory=list)
    """What it advanced to and why it rolled back."""
    seen: list[Decision] = field(default_factory=list)

    @property
    def stored(self) -> RolloutState:
        assert self.state is not None
        return self.state

    @property
    def plan(self) -> Plan:
        return self.stored.plan

    @property
    def phase(self) -> Phase:
        return self.stored.phase

    def asked(self, revision: str | None) -> int:
        """Replicas that the plan asks for."""
        plan = self.plan
        if revision is None:
            return 0
        if revision == plan.candidate:
            return plan.candidate_replicas
        if revision == plan.serving:
            return max(plan.stable_min, self.desired - plan.candidate_replicas * self.stored.drain_first)
        return self.desired if revision == plan.previous else 0

    def heads(self, revision: str | None) -> ArmHeads:
        if revision is None:
            return ArmHeads()
        count = min(self.asked(revision), self.ready.get(revision, 99))
        own = revision == self.plan.candidate
        nodes = self.candidate_nodes if own else 4
        return heads(revision, count, nodes=nodes, trouble=self.trouble if own else "")

    def world(self, **of: Any) -> World:
        given: dict[str, Any] = {
            "now_seconds": self.now,
            "wanted": self.wanted,
            "desired": self.desired,
            "floor": self.floor,
            "served": self.served,
            "surge": self.surge,
            "leaving_streams": self.streams,
            "answered_at_seconds": self.now if self.answering else None,
            "gateways": (GatewayAck("g", self.epoch), *((GatewayAck("h", 0, live=False),) if self.expired else ())),
        }
        if self.state is not None:
            plan = self.plan
            given |= {
                "serving": self.heads(plan.serving),
                "previous": self.heads(plan.previous),
                "candidate": self.heads(plan.candidate),
            }
            promoted = self.phase in (Phase.REPLACING, Phase.RETAINED)
            if promoted or self.phase in (Phase.SHADOW, Phase.CANARY):
                given["window"] = self.window()
            ours = plan.serving if promoted else self.stored.candidate
            theirs = plan.previous if promoted else plan.serving
            given |= {"candidate_quality": self.answers(ours), "baseline_quality": self.answers(theirs)}
        return World(**(given | of))

    def answers(self, revision: str | None) -> QualityCounts | None:
        if revision is None or revision not in self.quality:
            return None
        passed, failed = self.quality[revision]
        return QualityCounts(revision, "set", passed, failed, 0, observed_at_seconds=self.now)

    def window(self, **of: Any) -> Window:
        given = {"requests": self.requests, "late": self.late, "errors": self.errors, "weight": self.plan.weight}
        return evidence(self.now - STEP, self.now, **(given | of))

    def step(self, **of: Any) -> Decision:
        """Time goes on, the world is looked at, a decision is made and stored, and gateways carry it out."""
        self.now += STEP
        decision = decide(self.policy, self.state, self.world(**of), rollout_uid="u")
        self.state = decision.state
        if self.acknowledging:
            self.epoch = self.plan.epoch
        match decision.verdict:
            case Advance(to):
                self.history.append(to)
            case Rollback(reason, _):
                self.history.append(reason)
        self.seen.append(decision)
        return decision

    def run(self, steps: int = 60) -> Decision:
        """Go on until there is nothing to do, or so many steps."""
        for _ in range(steps):
            decision = self.step()
            if isinstance(decision.verdict, Rest) and len(self.seen) > 1:
                return decision
        return decision

    def until(self, *names: str, steps: int = 60) -> Decision:
        """Go on until it has advanced to that stage or phase."""
        for _ in range(steps):
            decision = self.step()
            if isinstance(decision.verdict, Advance) and decision.verdict.to in names:
                return decision
        raise AssertionError(f"never reached {names}: {self.history}, {decision.verdict}")

    def settle(self, steps: int = 3) -> Decision:
        """Let a stage shift its traffic and count something."""
        for _ in range(steps):
            decision = self.step()
        return decision

    def change(self, **of: Any) -> None:
        """Change the policy."""
        self.policy = replace(self.policy, **of)


def reasons(decision: Decision) -> list[HoldReason]:
    """Why it holds; empty when it does not."""
    return [one.reason for one in decision.verdict.holds] if isinstance(decision.verdict, Holding) else []


BEFOREHAND = {"desired", "floor", "surge", "quality"}


def at(stage: str, asked: RolloutPolicy = POLICY, **of: Any) -> Fleet:
    """A fleet whose candidate r2 has just entered that stage; what goes wrong does so from then on."""
    fleet = Fleet(policy=asked, **{name: value for name, value in of.items() if name in BEFOREHAND})
    fleet.until(stage)
    for name in of.keys() - BEFOREHAND:
        setattr(fleet, name, of[name])
    return fleet
