"""Gates that nothing can ever judge: said when they are declared, not after a stage has waited for them."""

from collections.abc import Iterable
from fractions import Fraction

from bayplan.api.rolloutwords import GateName, Handling, Outcome
from bayplan.planning.gates.records import LATENCY_GATES, QUALITY_GATES, Gate, GateResult
from bayplan.planning.measurements import Unknown


def check_gates(
    gates: Iterable[Gate], *, ttft_edges: Iterable[Fraction], tpot_edges: Iterable[Fraction], has_prompts: bool
) -> tuple[GateResult, ...]:
    """The gates that nothing can ever judge: a limit between two edges, quality without a prompt set."""
    edges = {GateName.TTFT: tuple(ttft_edges), GateName.TPOT: tuple(tpot_edges)}
    invalid = []
    for gate in gates:
        why = ""
        if gate.name in QUALITY_GATES and not has_prompts:
            why = "no prompt set measures quality"
        elif gate.name in LATENCY_GATES and gate.limit not in edges[gate.name]:
            near = _nearest(edges[gate.name], gate.limit)
            nearest = " and ".join(f"{float(edge):g}" for edge in near) or "none"
            why = f"{float(gate.limit):g} s is no edge of the gateways' histogram; the nearest are {nearest}"
        if why:
            invalid.append(GateResult(gate, Outcome.INVALID, Handling.TUNE_SERVING, why, Unknown(why)))
    return tuple(invalid)


def _nearest(edges: Iterable[Fraction], limit: Fraction) -> list[Fraction]:
    """The edge below and the edge above."""
    ordered = sorted(edges)
    return [edge for edge in ordered if edge < limit][-1:] + [edge for edge in ordered if edge > limit][:1]
