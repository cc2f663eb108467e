"""What a decision must say to earn its claim. Each takes the decision itself, never somebody's word for it."""

from collections.abc import Sequence
from fractions import Fraction

from bayplan.planning.admission.records import Admitted, Decision
from bayplan.planning.admission.sheds import Shed, ShedCode
from bayplan.planning.evidencecontract.claims import Finding, earned, failed, missing
from bayplan.planning.evidencecontract.scalingloop import ScalingLoop
from bayplan.planning.gates.release import ReleaseAction, ReleaseDecision
from bayplan.planning.layout.split import Split
from bayplan.planning.memory import Fit
from bayplan.planning.placement.fleet import FleetPlacement
from bayplan.planning.sizing.limits import Breach
from bayplan.planning.sizing.records import WorkloadClass
from bayplan.planning.words import plural


def judge_memory(fit: Fit, message: str) -> Finding:
    """`memory-fit`: a proven fit. Unknown memory proves nothing."""
    if fit.fits is None:
        return missing(f"the memory of the GPU is unknown: {message}")
    return earned(message) if fit.fits else failed(message)


def judge_capacity(breaches: Sequence[Breach], replicas: int) -> Finding:
    """`capacity-plan`: the sized fleet is within every bound."""
    if breaches:
        return failed("; ".join(breach.message for breach in breaches))
    return earned(f"{plural(replicas, 'replica')} within every bound")


def judge_layout(chosen: Split | None, measured: Split, *, supplied: int, required: int) -> Finding:
    """`parallel-layout`: the layout is of the kind and width that was measured or assumed, and room for all replicas.

    Two layouts of equal width differ if one splits by tensor and the other by pipeline.
    """
    if chosen is None:
        return failed("no layout fits")
    if widths(chosen) != widths(measured):
        return failed(f"the layout is {chosen}, the plan rests on {measured}")
    if supplied < required:
        return failed(f"the GPUs make up {plural(supplied, 'replica')}, {required} are needed")
    return earned(f"{chosen} for {plural(required, 'replica')}")


def widths(split: Split) -> tuple[int, int, int]:
    """Kind and width: GPUs by tensor, by pipeline, by data."""
    return split.tensor, split.pipeline, split.data


def judge_placement(placement: FleetPlacement | None, required: int, why_not: str = "") -> Finding:
    """`gpu-placement`: every replica has concrete nodes at the same time."""
    if placement is None:
        return failed(why_not or "no layout to place")
    if placement.replicas < required:
        message = placement.refusal.message if placement.refusal is not None else why_not
        return failed(f"{placement.replicas} of {plural(required, 'replica')} placed: {message}")
    return earned(f"{plural(required, 'replica')} placed at the same time")


def judge_benign(decision: Decision) -> Finding:
    """`benign-admission`: an ordinary request is admitted. Who blocks everything proves nothing."""
    if isinstance(decision, Admitted):
        return earned(f"a request of {decision.footprint.tokens} tokens is admitted")
    if isinstance(decision, Shed):
        return failed(f"an ordinary request is shed: {decision.code}")
    return failed("an ordinary request is not admitted at once although nothing runs")


def judge_oversize(decision: Decision) -> Finding:
    """`oversize-shedding`: a request beyond the bound of one request is shed for that very reason."""
    if isinstance(decision, Shed):
        if decision.code is ShedCode.REQUEST_TOO_LARGE:
            return earned("a request beyond the bound is shed as too large")
        return failed(f"a request beyond the bound is shed for another reason: {decision.code}")
    return failed("a request beyond the bound is let in")


def judge_scaling(loop: ScalingLoop) -> Finding:
    """`queue-scaling`: demand alone brings the autoscaler from below to the planned number."""
    text = f"from {loop.started_at} it reaches {loop.reached} of {loop.planned_replicas}"
    return earned(text) if loop.arrives else failed(f"{text}: {loop.message or 'it was never below'}")


def judge_release(decision: ReleaseDecision) -> Finding:
    """`canary-gate` from two summaries: the decision is to promote."""
    if decision.action is ReleaseAction.PROMOTE:
        return earned("every gate passed")
    why = [hold.value for hold in decision.holds] + [result.message for result in decision.failed]
    return failed(f"{decision.action}: {'; '.join(why)}")


def judge_workload(
    workload: WorkloadClass, *, p95_ttft_seconds: Fraction | None = None, p95_tpot_seconds: Fraction | None = None
) -> Finding:
    """`workload:NAME`: the class is planned for, and what was measured keeps its objectives."""
    for name, measured, limit in (
        ("TTFT", p95_ttft_seconds, workload.max_p95_ttft_seconds),
        ("TPOT", p95_tpot_seconds, workload.max_p95_tpot_seconds),
    ):
        if limit is None:
            continue
        if measured is None:
            return missing(f"the benchmark states no p95 {name} for the objective of {float(limit):g} s")
        if measured > limit:
            return failed(f"p95 {name} {float(measured):g} s measured, at most {float(limit):g} s asked")
    peak = float(workload.peak_requests_per_second)
    return earned(f"{peak:g} requests/s of {workload.tokens} tokens are planned for")
