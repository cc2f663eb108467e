"""Runners of the areas about requests and replicas: metrics, batching, prefix, admission, autoscaling.

A case that states what a real system does (`production_expect`) is given to the product as it is; any other one to the
product with the course's simplification as its parameter: whole stored sequences in the prefix cache, no limit on the
age and the gaps of observations.
"""

import math
from collections.abc import Mapping
from typing import Any

from bayplan.planning.admission.core import AdmissionCore
from bayplan.planning.admission.forecast import ObservedService, Prediction, Situation
from bayplan.planning.admission.prefix import PrefixScope, ReuseGranularity, block_chain, find_reuse, stored_tokens
from bayplan.planning.admission.records import (
    NANOSECONDS,
    AdmissionPolicy,
    AdmissionRequest,
    Admitted,
    Decision,
    End,
    Footprint,
    Queued,
    Replayed,
    Resources,
)
from bayplan.planning.admission.sheds import Shed, ShedCode
from bayplan.planning.batching import BatchingMode, BatchRequest, schedule
from bayplan.planning.gates.servicemetrics import Objectives, Trace, evaluate
from bayplan.planning.numbers import InvalidInput, exact, not_negative
from bayplan.planning.scaling.seed import Observation, ScalingPolicy, ScalingReason, ScalingState, decide_scaling

Values = Mapping[str, Any]

FIELDS = {
    "lanes": "capacity",
    "ids": "id-duplicate",
    "trust_domain": "tenant",
    "weights_revision": "model_revision",
    "token_ids": "tokens",
    "idempotency_key": "id",
    "footprint": "zero-footprint",
    "kv_blocks": "max_live_tokens",
    "at_seconds": "timestamp",
    "last_scale_at_seconds": "last_scale_at",
    "now_seconds": "now",
    "service_tokens_per_second": "service_tokens_per_second_per_replica",
}
"""Our field names in the course's words, where they differ."""


def run_metrics(values: Values) -> dict[str, Any]:
    objectives = Objectives(**values["objectives"])
    report = evaluate([Trace(**trace) for trace in values["traces"]], objectives)
    return {
        "meets_objectives": report.meets_objectives,
        "p95_ttft_seconds": report.p95_ttft_seconds,
        "p95_tpot_seconds": report.p95_tpot_seconds,
        "p95_e2e_seconds": report.p95_e2e_seconds,
        "output_tokens_per_second": report.output_tokens_per_second,
        "violations": [violation.value for violation in report.violations],
    }


def run_batching(values: Values) -> dict[str, Any]:
    requests = [BatchRequest(**request) for request in values["requests"]]
    found = schedule(requests, lanes=values["capacity"], mode=BatchingMode(values["mode"]))
    return {
        "completions": {
            name: {"first_service_step": done.first_service_step, "completion_step": done.completion_step}
            for name, done in found.completions.items()
        },
        "makespan_steps": found.makespan_steps,
        "total_wait_steps": found.total_wait_steps,
    }


def run_prefix(values: Values) -> dict[str, Any]:
    return _prefix(values, ReuseGranularity(values["reuse_granularity"]))


def run_prefix_in_production(values: Values) -> dict[str, Any]:
    return _prefix(values, ReuseGranularity.BLOCK)


def _prefix(values: Values, granularity: ReuseGranularity) -> dict[str, Any]:
    size = values["block_size"]
    stores = [block_chain(_scope(store["scope"]), store["tokens"], block_size=size) for store in values["stores"]]
    found: dict[str, Any] = {
        "stored_tokens": [stored_tokens(len(store["tokens"]), block_size=size) for store in values["stores"]]
    }
    wanted = values.get("lookup")
    if wanted is not None:
        chain = block_chain(_scope(wanted["scope"]), wanted["tokens"], block_size=size)
        reuse = find_reuse(stores, chain, tokens=len(wanted["tokens"]), block_size=size, granularity=granularity)
        found |= {
            "hit": reuse.hit,
            "reused_tokens": reuse.reused_tokens,
            "recompute_tokens": reuse.recompute_tokens,
            "reused_blocks": reuse.reused_blocks,
        }
    return found


def _scope(scope: Values) -> PrefixScope:
    return PrefixScope(
        weights_revision=scope["model_revision"],
        tokenizer_revision=scope["tokenizer_revision"],
        template_revision="none",
        adapter_revision=scope["adapter_revision"],
        trust_domain=scope["tenant"],
    )


class _GivenWait(ObservedService):
    """The course hands the predicted wait in with each request and knows no service time."""

    wait_ns = 0

    def predict(self, request: AdmissionRequest, footprint: Footprint, situation: Situation) -> Prediction:
        return Prediction(wait_ns=self.wait_ns)


class Desk:
    """The course's admission: one budget of tokens, every request under its own id."""

    def __init__(self, policy: Values) -> None:
        self.forecast = _GivenWait()
        self.core = AdmissionCore(
            AdmissionPolicy(
                block_size=1,
                max_tokens_per_request=policy["max_tokens_per_request"],
                max_queued_requests=policy["max_queued_requests"],
                max_wait_seconds=10**9,
            ),
            self.forecast,
        )
        budget = Resources(kv_blocks=policy["max_live_tokens"], sequences=10**6)
        self.core.set_replica("pool", capacity=budget, now_ns=0)
        self.core.policy.require_room(budget)
        self.tickets: dict[str, int | None] = {}
        """Ticket by id; None for a request that was shed."""
        self.now_ns = 0

    def step(self, step: Values) -> dict[str, Any]:
        try:
            found = self.decide(step) if step["op"] == "decide" else self.release(step["id"])
        except InvalidInput as error:
            found = {"error": "invalid-input", "field": FIELDS.get(error.field, error.field)}
        readings = self.core.readings()
        return found | {"live_tokens": readings.live_tokens, "queued_requests": readings.queued_requests}

    def decide(self, step: Values) -> dict[str, Any]:
        return outcome(self.ask(step))

    def ask(self, step: Values) -> Decision:
        wait = not_negative(step["estimated_queue_seconds"], "estimated_queue_seconds")
        now = exact(step["now"], "now")
        request = AdmissionRequest(
            tenant="course",
            prompt_tokens=step["prompt_tokens"],
            max_output_tokens=step["max_output_tokens"],
            complete_by_ns=math.floor(exact(step["deadline_at"], "deadline_at") * NANOSECONDS),
            idempotency_key=step["id"],
            payload_digest=f"{step['prompt_tokens']} + {step['max_output_tokens']}",
        )
        self.forecast.wait_ns = math.ceil(wait * NANOSECONDS)
        self.now_ns = math.floor(now * NANOSECONDS)
        decision = self.core.decide(request, self.now_ns).decision
        self._remember(step["id"], decision)
        return decision

    def _remember(self, name: str, decision: Decision) -> None:
        match decision:
            case Admitted() | Queued():
                self.tickets[name] = decision.ticket
            case Shed(replay=False) if decision.code is not ShedCode.IDEMPOTENCY_CONFLICT:
                self.tickets[name] = None

    def release(self, name: str) -> dict[str, Any]:
        if name not in self.tickets:
            return {"error": "unknown-id"}
        ticket = self.tickets[name]
        if ticket is None:
            return {"error": "shed-is-permanent"}
        del self.tickets[name]
        self.core.release(ticket, self.now_ns, end=End.CANCELLED)
        return {"released": True}


def outcome(decision: Decision) -> dict[str, Any]:
    match decision:
        case Admitted():
            reserved = decision.footprint.tokens
            return {"action": "admit", "reserved_tokens": reserved, "reason_category": "reserved"}
        case Queued():
            return {"action": "queue", "reserved_tokens": 0, "reason_category": "queued-live-budget-full"}
        case Replayed():
            return outcome(decision.original) | {"replay": True}
        case Shed(code=ShedCode.IDEMPOTENCY_CONFLICT):
            return {"action": "conflict"}
        case Shed():
            shed = {"action": "shed", "reserved_tokens": 0, "reason_category": _SHED_REASONS[decision.code]}
            return shed | ({"replay": True} if decision.replay else {})


_SHED_REASONS = {
    ShedCode.REQUEST_TOO_LARGE: "request-too-large",
    ShedCode.DEADLINE_UNMEETABLE: "deadline-unreachable",
    ShedCode.QUEUE_FULL: "queue-full",
    ShedCode.QUEUE_TIMEOUT: "queue-timeout",
}


def run_admission(values: Values) -> dict[str, Any]:
    desk = Desk(values["policy"])
    outcomes = [desk.step(step) for step in values["steps"]]
    readings = desk.core.readings()
    found = {
        "outcomes": outcomes,
        "final_live_tokens": readings.live_tokens,
        "final_queued_requests": readings.queued_requests,
        "last_action": outcomes[-1].get("action"),
    }
    if len(outcomes) > 1:
        found["second_outcome"] = outcomes[1].get("action")
    return found


_SCALING_REASONS = {
    ScalingReason.SCALE_UP: "scale-up",
    ScalingReason.SCALE_DOWN: "scale-down",
    ScalingReason.STEADY: "steady",
    ScalingReason.HOLD_COOLDOWN: "hold-cooldown",
    ScalingReason.HOLD_STABILIZATION: "hold-stabilization",
    ScalingReason.HOLD_STALE_METRICS: "hold-stale-metrics",
}


def run_autoscaling(values: Values) -> dict[str, Any]:
    return _autoscaling(values, {"max_sample_gap_seconds": None, "max_sample_age_seconds": None})


def run_autoscaling_in_production(values: Values) -> dict[str, Any]:
    return _autoscaling(values, {})


def _autoscaling(values: Values, limits: Values) -> dict[str, Any]:
    given = dict(values["policy"])
    given["service_tokens_per_second"] = given.pop("service_tokens_per_second_per_replica")
    state = dict(values["state"])
    state["last_scale_at_seconds"] = state.pop("last_scale_at")
    observations = [
        Observation(
            at_seconds=seen["timestamp"],
            queued_tokens=seen["queued_tokens"],
            arrival_tokens_per_second=seen["arrival_tokens_per_second"],
        )
        for seen in values["observations"]
    ]
    decision = decide_scaling(
        observations, ScalingState(**state), ScalingPolicy(**given, **limits), now_seconds=values["now"]
    )
    return {
        "target_replicas": decision.target_replicas,
        "unclamped_demand_replicas": decision.raw_demand_replicas,
        "calculated_demand_replicas": decision.demand_replicas,
        "ready_capacity_tokens_per_second": decision.ready_capacity_tokens_per_second,
        "reason_category": _SCALING_REASONS[decision.reason],
        "clamped": decision.clamped,
    }
