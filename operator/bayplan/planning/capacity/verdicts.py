"""The conditions of a CapacityPlan, each with the numbers that decided."""

from collections.abc import Sequence

from bayplan.api.capacitywords import ClaimState
from bayplan.api.conditions import ConditionType, Reason, Status
from bayplan.planning.capacity.decide import CapacityDecision, Sizing
from bayplan.planning.capacity.model import Conflict
from bayplan.planning.evidencecontract.contract import EvidenceReport
from bayplan.planning.sizing.limits import money
from bayplan.planning.words import plural

Verdict = tuple[ConditionType, Status, Reason, str]
_T = ConditionType
_EVIDENCE_REASONS = {
    ClaimState.EVALUATOR_FAILED: Reason.EVALUATOR_FAILED,
    ClaimState.CONTRADICTED: Reason.EVIDENCE_CONTRADICTED,
    ClaimState.FAILED: Reason.EVIDENCE_FAILED,
    ClaimState.STALE: Reason.EVIDENCE_STALE,
    ClaimState.MISSING: Reason.EVIDENCE_MISSING,
}
MOST_SAID = 160
"""Characters of one reason; `status.evidence` has all of it."""


def verdicts_of(decision: CapacityDecision) -> tuple[Verdict, ...]:
    """Return the conditions in their order; Ready repeats the first that is not True."""
    found: list[Verdict] = [_inputs_complete(decision)]
    sizing = decision.sizing
    if sizing is None:
        blocked = "InputsComplete says why nothing was sized"
        found += [(kind, "Unknown", Reason.BLOCKED, blocked) for kind in (_T.SIZED, _T.PLACEABLE)]
        found += [(kind, "Unknown", Reason.BLOCKED, blocked) for kind in (_T.WITHIN_QUOTA, _T.WITHIN_BUDGET)]
    else:
        found += [_sized(decision, sizing), _placeable(sizing), _within_quota(decision), _within_budget(sizing)]
    found.append(evidence_verdict(decision.evidence))
    found.append(_ready(found, sizing))
    if decision.invalid:
        found.append((_T.STALLED, "True", Reason.INVALID_SPEC, decision.invalid))
    return tuple(found)


def _inputs_complete(decision: CapacityDecision) -> Verdict:
    if decision.invalid:
        return _T.INPUTS_COMPLETE, "False", Reason.INVALID_SPEC, decision.invalid
    if decision.input_problems:
        return _T.INPUTS_COMPLETE, "False", decision.input_problems[0].reason, _texts(decision.input_problems)
    model = decision.model
    name = f"InferenceModel {model.name}" if model is not None and model.name else "the model inside the plan"
    return _T.INPUTS_COMPLETE, "True", Reason.COMPLETE, f"planned for {name}"


def _sized(decision: CapacityDecision, sizing: Sizing) -> Verdict:
    text = _size_text(sizing)
    over = _of(decision.conflicts, Reason.ABOVE_MAX_REPLICAS, Reason.PLAN_EXCEEDS_MODEL)
    if over:
        return _T.SIZED, "False", over[0].reason, f"{_texts(over)}; {text}"
    return _T.SIZED, "True", Reason.SIZED, text


def _size_text(sizing: Sizing) -> str:
    load, fleet = sizing.load, sizing.fleet
    needs = ", ".join(f"{need} {replicas}" for need, replicas in fleet.needs.items())
    least = "at least " if fleet.at_least else ""
    return f"{least}{plural(fleet.replicas, 'replica')} ({needs}); binding: {', '.join(load.binding)}"


def _placeable(sizing: Sizing) -> Verdict:
    fleet = sizing.fleet
    if sizing.shape is None:
        reason = sizing.fit.reason
        message = sizing.fit.message
        if sizing.layout is None and sizing.fit.layouts:
            reason, message = Reason.NO_MATCHING_GPU, f"no node has the GPU that was measured: {message}"
        elif sizing.layout is not None:
            reason, message = sizing.layout.reason, sizing.layout.message
        return _T.PLACEABLE, "False", reason, message
    if fleet.bounded:
        text = (
            f"{fleet.placement.replicas} replicas have a place at the same time; further ones are not placed one by one"
        )
        return _T.PLACEABLE, "Unknown", Reason.TOO_MANY_TO_PLACE, text
    if fleet.at_least:
        return _T.PLACEABLE, "False", Reason.DOMAIN_LOSS_NOT_COVERED, fleet.message
    placed = fleet.placement.replicas
    if placed < fleet.replicas:
        refusal = fleet.placement.refusal
        reason = refusal.reason if refusal is not None else Reason.INSUFFICIENT_GPU
        message = refusal.message if refusal is not None else ""
        return _T.PLACEABLE, "False", reason, f"{placed} of {plural(fleet.replicas, 'replica')} have a place: {message}"
    text = f"all {plural(placed, 'replica')} have a place at the same time; none is reserved"
    return _T.PLACEABLE, "True", Reason.PLACEABLE, f"{text}{'; ' if fleet.message else ''}{fleet.message}"


def _within_quota(decision: CapacityDecision) -> Verdict:
    over = _of(decision.conflicts, Reason.QUOTA_EXCEEDED)
    if over:
        return _T.WITHIN_QUOTA, "False", Reason.QUOTA_EXCEEDED, _texts(over)
    return _T.WITHIN_QUOTA, "True", Reason.WITHIN_QUOTA, "within limits.maxGpus and the ResourceQuotas"


def _within_budget(sizing: Sizing) -> Verdict:
    budget, cost = sizing.records.limits.max_hourly_cost, sizing.cost
    if budget is None:
        return _T.WITHIN_BUDGET, "True", Reason.NO_BUDGET, "limits.maxHourlyCost sets none"
    if cost is None:
        return _T.WITHIN_BUDGET, "Unknown", Reason.BLOCKED, "no layout to price"
    price = sizing.records.price
    currency = price.currency if price is not None else ""
    over = [breach for breach in sizing.breaches if breach.bound == "hourly-budget"]
    if over:
        return _T.WITHIN_BUDGET, "False", Reason.BUDGET_EXCEEDED, f"{over[0].message} ({currency})"
    text = f"{money(cost.per_hour)} of {money(budget)} {currency} per hour"
    return _T.WITHIN_BUDGET, "True", Reason.WITHIN_BUDGET, text


def evidence_verdict(report: EvidenceReport | None) -> Verdict:
    """`EvidenceCurrent`: every required claim is earned now; else the worst kind of lack, with the claims by name."""
    if report is None:
        return _T.EVIDENCE_CURRENT, "False", Reason.EVIDENCE_MISSING, "nothing could be judged: see InputsComplete"
    if report.proven:
        required = sum(claim.required for claim in report.claims)
        return _T.EVIDENCE_CURRENT, "True", Reason.EVIDENCE_CURRENT, f"all {plural(required, 'required claim')} earned"
    return _T.EVIDENCE_CURRENT, "False", _EVIDENCE_REASONS[report.worst], unproven_text(report)


def unproven_text(report: EvidenceReport) -> str:
    """The claims that are not earned: those that lack the same thing together, and all names before any cut."""
    groups: dict[tuple[ClaimState, str], list[str]] = {}
    for claim in report.unproven:
        groups.setdefault((claim.state, claim.message), []).append(claim.name)
    parts = [f"{', '.join(names)} {state}: {message[:MOST_SAID]}" for (state, message), names in groups.items()]
    return "; ".join(parts)


def _ready(others: Sequence[Verdict], sizing: Sizing | None) -> Verdict:
    for _, status, reason, message in others:
        if status != "True" and reason is not Reason.BLOCKED:
            return _T.READY, "False", reason, message
    return _T.READY, "True", Reason.READY, _size_text(sizing) if sizing is not None else ""


def _of(conflicts: Sequence[Conflict], *reasons: Reason) -> list[Conflict]:
    return [conflict for conflict in conflicts if conflict.reason in reasons]


def _texts(conflicts: Sequence[Conflict]) -> str:
    return "; ".join(conflict.message for conflict in conflicts)
