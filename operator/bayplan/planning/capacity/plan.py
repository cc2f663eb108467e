"""The one decision on a CapacityPlan: inputs in, everything that is said of them out."""

from fractions import Fraction

from bayplan.planning.capacity.decide import (
    CapacityDecision,
    breach_conflicts,
    evidence_inputs,
    greatest_ages,
    layout_conflict,
    model_conflict,
    read_inputs,
    size_plan,
)
from bayplan.planning.capacity.evaluators import evaluators_of
from bayplan.planning.capacity.inputs import CapacityInputs
from bayplan.planning.evidencecontract.claims import InputName
from bayplan.planning.evidencecontract.contract import Requirement, evaluate_contract
from bayplan.planning.numbers import InvalidInput


def decide_capacity(inputs: CapacityInputs) -> CapacityDecision:
    """Decide. Valid input always gets a decision; what cannot be read is one as well, and names the field."""
    read = read_inputs(inputs)
    if isinstance(read, CapacityDecision):
        return read
    records, model, problems = read
    try:
        sizing = size_plan(inputs, records, model)
    except InvalidInput as error:
        return CapacityDecision(inputs, model, None, problems, invalid=str(error), input_problems=problems)
    odd_layout = layout_conflict(inputs, sizing.layout)
    if odd_layout is not None:
        problems = (*problems, odd_layout)
    over = model_conflict(model, sizing.fleet.replicas)
    given = evidence_inputs(inputs, records, model, problems)
    ages = greatest_ages(inputs)
    report = evaluate_contract(
        Requirement(inputs.spec.evidence.required_classes, inputs.spec.evidence.controls),
        evaluators_of(inputs, model, sizing),
        inputs=given,
        greatest_ages=ages,
        now_seconds=inputs.now_seconds,
        needless=frozenset() if inputs.spec.price is not None else frozenset({InputName.PRICE}),
    )
    measured = (one for one in given if one.name in (InputName.BENCHMARK, InputName.INVENTORY))
    return CapacityDecision(
        inputs,
        model,
        sizing,
        (*problems, *((over,) if over is not None else ()), *breach_conflicts(sizing.breaches)),
        evidence=report,
        evidence_inputs=given,
        input_problems=problems,
        measured_inputs_hold=all(one.doubt(inputs.now_seconds, ages.get(one.name)) is None for one in measured),
    )


def next_change_seconds(decision: CapacityDecision) -> Fraction | None:
    """Seconds until a decision changes by time alone: an input becomes too old. None: never."""
    if decision.evidence is None or decision.evidence.changes_at_seconds is None:
        return None
    return decision.evidence.changes_at_seconds - decision.inputs.now_seconds
