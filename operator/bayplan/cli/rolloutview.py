"""What `bayplan rollout status` and `explain` show, as renderables. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from bayplan.api.conditions import Condition, ConditionType
from bayplan.api.rollout_status import GateStatus, RolloutPlan, RolloutStatus, TallyStatus
from bayplan.api.rolloutwords import Handling, Outcome, Phase
from bayplan.cli.wording import ago, conditions_panel, verdict

OUTCOME_COLOURS = {
    Outcome.PASSED: "green",
    Outcome.FAILED: "red",
    Outcome.UNKNOWN: "yellow",
    Outcome.INVALID: "magenta",
}
HANDLING_TEXT = {
    Handling.ROLL_BACK: "roll back",
    Handling.TUNE_SERVING: "tune serving",
    Handling.COLLECT: "collect evidence",
    Handling.WAIT: "wait",
}
_NOT_SEEN = "The operator has not looked at it yet: is it running? (kubectl get lease -A)"


@dataclass(frozen=True, slots=True)
class ShownRollout:
    """One Rollout as read from the API server."""

    namespace: str
    name: str
    model: str
    spec: Mapping[str, Any]
    status: RolloutStatus

    def condition(self, kind: ConditionType) -> Condition | None:
        """Return a condition, or None when nobody has written it."""
        return next((c for c in self.status.conditions if c.type == kind.value), None)

    @property
    def where(self) -> str:
        """Stage, or phase where there is none."""
        status = self.status
        if status.stage is not None and status.phase in (Phase.WARM, Phase.SHADOW, Phase.CANARY):
            return status.stage.name
        return status.phase.value if status.phase is not None else "-"

    @property
    def why(self) -> str:
        """The first thing that keeps it, or why it was rolled back."""
        status = self.status
        if status.holds:
            return status.holds[0].reason
        if status.cause is not None and status.phase in (Phase.ROLLING_BACK, Phase.ROLLED_BACK):
            return status.cause.reason
        ready = self.condition(ConditionType.READY)
        return ready.reason if ready is not None else "-"


def rollouts_table(rollouts: Sequence[ShownRollout], *, now: datetime) -> RenderableType:
    """Return one line per Rollout."""
    if not rollouts:
        return Text("No Rollouts (rollouts.bayplan.dev) found. Create one: kubectl apply -f FILE")
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for title in ("NAMESPACE", "NAME", "MODEL", "SERVING", "CANDIDATE", "WHERE", "WEIGHT", "REASON", "SINCE"):
        table.add_column(title, justify="right" if title == "WEIGHT" else "left", overflow="fold")
    for one in rollouts:
        plan, stage = one.status.plan, one.status.stage
        table.add_row(
            one.namespace,
            one.name,
            escape(one.model),
            plan.serving if plan is not None else "-",
            (one.status.trial.candidate if one.status.trial is not None else None) or "-",
            one.where,
            _share(plan),
            escape(one.why),
            ago(stage.started_time, now) if stage is not None else "-",
        )
    return table


def rollout_screen(rollout: ShownRollout, *, now: datetime) -> RenderableType:
    """Return where it stands and what is next."""
    status = rollout.status
    parts: list[RenderableType] = [_head(rollout, now)]
    if not status.conditions:
        parts.append(Text(_NOT_SEEN, "yellow"))
    if status.history:
        parts.append(_history(rollout, now))
    if status.conditions:
        parts.append(conditions_panel(status.conditions, now))
    return Group(*parts)


def explanation(rollout: ShownRollout, *, now: datetime) -> RenderableType:
    """Return everything that decides, with its numbers."""
    status = rollout.status
    parts: list[RenderableType] = [_head(rollout, now)]
    if not status.conditions:
        parts.append(Text(_NOT_SEEN, "yellow"))
    if status.holds:
        parts.append(_holds(rollout))
    if status.gates:
        parts.append(_gates(status.gates))
    if status.evidence.windows or status.evidence.dropped:
        parts.append(_evidence(status, now))
    if status.quality:
        parts.append(_quality(status, now))
    if status.surge is not None:
        surge = status.surge
        lines = [f"{surge.outcome}: {surge.message}", *(f"choose: {choice}" for choice in surge.choices)]
        parts.append(_panel("room for the candidate", lines))
    if status.proof is not None:
        parts.append(_proof(status, now))
    if status.rejected:
        lines = [f"{one.revision}: {one.reason} {ago(one.time, now)} ago: {one.message}" for one in status.rejected]
        parts.append(_panel("rejected, until a retry", lines))
    return Group(*parts)


def _panel(title: str, lines: Iterable[str]) -> RenderableType:
    return Panel(Text("\n".join(lines)), title=title, title_align="left")


def _share(plan: RolloutPlan | None) -> str:
    if plan is None or plan.candidate is None:
        return "-"
    return f"{plan.shadow_share} % copied" if plan.shadow_share else f"{plan.weight} %"


def _head(rollout: ShownRollout, now: datetime) -> RenderableType:
    status, ready = rollout.status, rollout.condition(ConditionType.READY)
    lines = [f"[bold]{rollout.where}[/bold]" + (" [yellow](paused)[/yellow]" if rollout.spec.get("paused") else "")]
    if status.stage is not None:
        lines[0] += f" for {ago(status.stage.started_time, now)}"
        if status.stage.frozen_by:
            lines.append(f"[yellow]frozen by {escape(status.stage.frozen_by)}[/yellow]")
        if status.stage.late:
            lines.append("[yellow]it has outlasted its deadline[/yellow]")
    plan = status.plan
    if plan is not None:
        lines.append(f"serving {plan.serving}" + (f", beside it {plan.previous}" if plan.previous else ""))
        if plan.candidate is not None:
            lines.append(
                f"candidate {plan.candidate}: {plan.candidate_replicas} replicas, {_share(plan)} of the requests, "
                f"compared with {len(plan.baseline)} serving pods"
            )
        lines.append(f"plan {plan.epoch}" + ("" if status.settled_time else ", not acknowledged by every gateway yet"))
    if status.cause is not None:
        lines.append(f"[red]{escape(status.cause.reason)}[/red]: {escape(status.cause.message)}")
    if ready is not None:
        lines.append(f"Ready={verdict(ready)} [bold]{escape(ready.reason)}[/bold]: {escape(ready.message)}")
    title = f"rollouts.bayplan.dev {rollout.namespace}/{rollout.name} of {rollout.model}"
    return Panel("\n".join(lines), title=escape(title), title_align="left")


def _holds(rollout: ShownRollout) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("WHAT KEEPS IT", "TO DO", "WHY"):
        table.add_column(column, no_wrap=column != "WHY")
    for hold in rollout.status.holds:
        table.add_row(escape(hold.reason), HANDLING_TEXT[hold.handling], escape(hold.message))
    return Panel(table, title="holds, the first thing to look at first", title_align="left")


def _gates(gates: Sequence[GateStatus]) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("GATE", "CLASS", "OUTCOME", "MEASURED", "SAMPLES", "TO DO", "WHY"):
        table.add_column(column, justify="right" if column in ("MEASURED", "SAMPLES") else "left")
    for gate in gates:
        colour = OUTCOME_COLOURS[gate.outcome]
        table.add_row(
            gate.name.value,
            escape(gate.workload_class or "all"),
            f"[{colour}]{gate.outcome.value}[/{colour}]",
            "-" if gate.measured is None else f"{float(gate.measured):g}",
            str(gate.samples),
            HANDLING_TEXT[gate.handling],
            escape(gate.message),
        )
    return Panel(table, title="gates, worst first", title_align="left")


def _evidence(status: RolloutStatus, now: datetime) -> RenderableType:
    evidence = status.evidence
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("ARM", "CLASS", "REQUESTS", "ERRORS", "TTFT WITHIN", "TPOT WITHIN", "TOKENS/S"):
        table.add_column(column, justify="left" if column in ("ARM", "CLASS") else "right")
    for tally in evidence.tallies:
        table.add_row(
            tally.arm,
            escape(tally.workload_class or "all"),
            str(tally.requests),
            str(tally.errors),
            _within(tally.ttft_within, tally.ttft_total),
            _within(tally.tpot_within, tally.tpot_total),
            _rate(tally),
        )
    share = f"{evidence.candidate_requests} of {evidence.routed_requests} requests went to the candidate"
    windows = f"{evidence.windows} windows counted, {evidence.dropped} dropped"
    last = f", the last one {ago(evidence.through_time, now)} ago" if evidence.through_time else ""
    lines = [f"{windows}{last}; {share}"]
    if evidence.problem:
        lines.append(f"the last window was dropped: {evidence.problem}")
    return Panel(Group(table, Text("\n".join(lines))), title="evidence of this stage", title_align="left")


def _within(within: int, total: int) -> str:
    return f"{within}/{total}" if total else "-"


def _rate(tally: TallyStatus) -> str:
    return f"{tally.output_tokens / float(tally.loaded_seconds):.1f}" if tally.loaded_seconds else "-"


def _quality(status: RolloutStatus, now: datetime) -> RenderableType:
    lines = []
    for one in status.quality:
        known = one.passed + one.failed
        right = f"{one.passed} of {known} right" if known else "no answer"
        unknown = f", {one.unknown} not scored: {one.reason}" if one.unknown else ""
        lines.append(f"{one.revision}: {right}{unknown} ({ago(one.observed_time, now)} ago)")
    return _panel("answers to the prompt set", lines)


def _proof(status: RolloutStatus, now: datetime) -> RenderableType:
    proof = status.proof
    if proof is None:
        return Text()
    parts = (
        ("every gateway has let go of it", proof.acknowledged_time),
        ("no request is under way at it", proof.drained_time),
        ("serving is at full size", proof.restored_time),
        ("serving has answered a request", proof.answered_time),
    )
    lines = [f"traffic taken away {ago(proof.since_time, now)} ago"]
    lines += [f"{'✓' if time else '…'} {what}" + (f" since {ago(time, now)}" if time else "") for what, time in parts]
    lines += [f"missing: {what}" for what in proof.missing]
    return _panel("proof of the rollback", lines)


def _history(rollout: ShownRollout, now: datetime) -> RenderableType:
    lines = []
    for entry in reversed(rollout.status.history):
        why = f" ({entry.reason}: {entry.message})" if entry.reason else ""
        lines.append(f"{ago(entry.time, now)} ago  {entry.revision} → {entry.to}{why}")
    return _panel("what happened, the latest first", lines)
