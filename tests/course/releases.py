"""Runners of the areas about new revisions: quantization, speculative, rollout."""

from collections.abc import Mapping
from typing import Any

from bayplan.api.rolloutwords import GateName
from bayplan.planning.gates.release import (
    ReleaseAction,
    ReleaseMeasurement,
    ReleaseRequirements,
    decide_release,
)
from bayplan.planning.rollout.quantization import (
    QuantizationMeasurement,
    QuantizationRequirements,
    decide_quantization,
)
from bayplan.planning.rollout.speculation import DraftRound, SpeculationCosts, decide_speculation

Values = Mapping[str, Any]


def run_quantization(values: Values) -> dict[str, Any]:
    decision = decide_quantization(
        QuantizationMeasurement(**values["baseline"]),
        QuantizationMeasurement(**values["candidate"]),
        QuantizationRequirements(**values["requirements"]),
    )
    return {
        "action": "stage" if decision.stages else "reject",
        "quality_drop": decision.quality_drop,
        "relative_throughput": decision.relative_throughput,
        "failed_gates": [gate.value for gate in decision.failed],
    }


def run_speculative(values: Values) -> dict[str, Any]:
    """One round."""
    costs = {name: values[name] for name in SpeculationCosts.__slots__}
    one = DraftRound(tuple(values["draft_tokens"]), tuple(values["target_tokens"]))
    decision = decide_speculation([one], SpeculationCosts(**costs), minimum_speedup=values.get("minimum_speedup", 1))
    return {
        "enable": decision.enable,
        "accepted_tokens": decision.accepted_tokens,
        "drafted_tokens": decision.drafted_tokens,
        "emitted_tokens": decision.emitted_tokens,
        "acceptance_rate": decision.acceptance_rate,
        "baseline_cost_seconds": decision.baseline_cost_seconds,
        "speculative_cost_seconds": decision.speculative_cost_seconds,
        "speedup": decision.speedup,
        "emitted_sequence": list(decision.emitted[0]),
    }


def run_rollout(values: Values) -> dict[str, Any]:
    """The deciding controls in the course's order; ours is the worst first."""
    decision = decide_release(
        ReleaseMeasurement(**values["baseline"]),
        ReleaseMeasurement(**values["candidate"]),
        ReleaseRequirements(**values["requirements"]),
    )
    failed = {result.gate.name for result in decision.failed}
    controls = [hold.value for hold in decision.holds] + [name.value for name in GateName if name in failed]
    if decision.action is ReleaseAction.PROMOTE:
        controls = ["all-gates-passed"]
    return {"action": decision.action.value, "deciding_controls": controls}
