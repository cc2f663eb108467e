"""What `bayplan status` shows, as renderables: a table of models, or one screen for one model. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from bayplan.api.conditions import Condition, ConditionType
from bayplan.api.inferencemodel_status import (
    GroupStatus,
    InferenceModelStatus,
    MemoryStatus,
    ParallelismStatus,
    Stage,
)
from bayplan.cli.bars import TERM_COLOURS, memory_bar
from bayplan.cli.wording import ago, conditions_panel, verdict

STAGE_COLOURS = {
    Stage.READY: "green",
    Stage.WARMING: "yellow",
    Stage.RESERVED: "yellow",
    Stage.BINDING: "yellow",
    Stage.DRAINING: "cyan",
    Stage.FAILED: "red",
    Stage.LOST: "red",
}


@dataclass(frozen=True, slots=True)
class ShownModel:
    """One InferenceModel as read from the API server."""

    namespace: str
    name: str
    served_name: str
    generation: int
    status: InferenceModelStatus

    def condition(self, kind: ConditionType) -> Condition | None:
        """Return a condition, or None when nobody has written it."""
        return next((c for c in self.status.conditions if c.type == kind.value), None)

    @property
    def outdated(self) -> bool:
        """Whether the status is about an older spec."""
        return self.status.observed_generation != self.generation


def models_table(models: Sequence[ShownModel], *, now: datetime) -> RenderableType:
    """Return one line per model, with as many columns as the terminal has room for."""
    if not models:
        return Text("No InferenceModels found. Create one: kubectl apply -f FILE")
    return _ModelsTable(models, now)


_DROPPED_FIRST = ("SINCE", "DRAINING", "GPUS", "PENDING", "WARMING", "NAMESPACE", "DESIRED", "SERVING")
"""Columns in the order in which a narrow terminal loses them; NAME, READY and REASON stay, folded if they must."""
_KEPT = ("NAMESPACE", "NAME", "READY", "REASON")
_GAP = 1


class _ModelsTable:
    def __init__(self, models: Sequence[ShownModel], now: datetime) -> None:
        rows = [_cells(model, now) for model in models]
        self._columns = {title: [row[title] for row in rows] for title in rows[0]}
        self._one_namespace = len({model.namespace for model in models}) == 1

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = dict(self._columns)
        for title in _DROPPED_FIRST:
            if sum(_width(*column) + _GAP for column in shown.items()) - _GAP <= options.max_width:
                break
            if title != "NAMESPACE" or self._one_namespace:
                del shown[title]
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
        for title in shown:
            table.add_column(title, justify="left" if title in (*_KEPT, "SINCE") else "right", overflow="fold")
        for row in zip(*shown.values(), strict=True):
            table.add_row(*row)
        yield table


def _cells(model: ShownModel, now: datetime) -> dict[str, Text]:
    status, ready = model.status, model.condition(ConditionType.READY)
    cells = {
        "NAMESPACE": model.namespace,
        "NAME": model.name,
        "READY": verdict(ready),
        "REASON": escape(ready.reason) if ready else "-",
        "DESIRED": str(status.desired_replicas),
        "PENDING": str(status.pending_replicas),
        "WARMING": str(status.warming_replicas),
        "SERVING": str(status.ready_replicas),
        "DRAINING": str(status.draining_replicas),
        "GPUS": str(status.gpus),
        "SINCE": ago(ready.last_transition_time, now) if ready else "-",
    }
    return {title: Text.from_markup(text) for title, text in cells.items()}


def _width(title: str, column: Sequence[Text]) -> int:
    return max(len(title), *(text.cell_len for text in column))


def model_screen(model: ShownModel, *, now: datetime) -> RenderableType:
    """Return everything about one model on one screen."""
    status, ready = model.status, model.condition(ConditionType.READY)
    parts: list[RenderableType] = [_head(model, ready, now)]
    if not status.conditions:
        parts.append(Text("The operator has not looked at it yet: is it running? (kubectl get lease -A)", "yellow"))
    if status.memory:
        parts.append(_memory(_shown_memory(status)))
    if status.parallelism:
        parts.append(_layouts(status))
    parts.append(_groups(status, now))
    if status.conditions:
        parts.append(conditions_panel(status.conditions, now))
    return Group(*parts)


def _head(model: ShownModel, ready: Condition | None, now: datetime) -> RenderableType:
    status = model.status
    counts = "   ".join(
        f"{word} [bold]{count}[/bold]"
        for word, count in (
            ("desired", status.desired_replicas),
            ("pending", status.pending_replicas),
            ("warming", status.warming_replicas),
            ("ready", status.ready_replicas),
            ("draining", status.draining_replicas),
            ("GPUs", status.gpus),
        )
    )
    lines = [counts]
    if ready is not None:
        lines.append(
            f"Ready={verdict(ready)} [bold]{escape(ready.reason)}[/bold] for {ago(ready.last_transition_time, now)}"
        )
        lines.append(escape(ready.message))
    if status.placement.pending_reason and (ready is None or status.placement.pending_reason not in ready.message):
        lines.append(f"[yellow]pending:[/yellow] {escape(status.placement.pending_reason)}")
    if status.scaling is not None:
        since = ago(status.scaling.decided_time, now)
        lines.append(f"scaling: {status.scaling.reason.value} for {since}: {escape(status.scaling.message)}")
    if status.conditions and model.outdated:
        lines.append(
            f"[yellow]this is about generation {status.observed_generation}; the spec is at {model.generation}[/yellow]"
        )
    serving = ", ".join(status.revisions.serving) or "none"
    lines.append(f"revision {status.revisions.target or '-'}, serving {serving}")
    if status.endpoint:
        lines.append(f"endpoint {escape(status.endpoint)}")
    title = f"{model.namespace}/{model.name} serves {model.served_name}"
    return Panel("\n".join(lines), title=escape(title), title_align="left")


def _used_products(status: InferenceModelStatus) -> set[str]:
    """The products that groups run on; empty while nothing runs."""
    return {group.gpu_product for group in status.placement.groups}


def _shown_memory(status: InferenceModelStatus) -> Sequence[MemoryStatus]:
    """The products that groups run on; all of them while nothing runs."""
    used = _used_products(status)
    return tuple(entry for entry in status.memory if entry.gpu_product in used) or status.memory


def _memory(entries: Sequence[MemoryStatus]) -> RenderableType:
    """The terms of the first product, which the condition speaks of too, and a line for each further one."""
    entry = entries[0]
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 1))
    table.add_column(justify="left", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(style="dim")
    for colour, term in zip(TERM_COLOURS * 3, entry.terms, strict=False):
        table.add_row(
            f"[{colour}]■[/{colour}] {escape(term.name)}",
            f"{term.gib_per_gpu:.1f} GiB",
            term.provenance.value,
            escape(term.detail),
        )
    body: list[RenderableType] = [_bar(entry)] if entry.usable_gib is not None else []
    warnings = [Text(f"warning: {warning}", "yellow") for warning in entry.warnings]
    others = [Text.from_markup(f"on {_memory_words(other)}{_sum(other)}") for other in entries[1:]]
    title = f"memory per GPU on {_memory_words(entry)}"
    return Panel(Group(*body, table, *warnings, *others), title=title, title_align="left")


def _memory_words(entry: MemoryStatus) -> str:
    fits = {True: "[green]fits[/green]", False: "[red]does not fit[/red]", None: "[yellow]unknown[/yellow]"}[entry.fits]
    room = "" if entry.max_concurrency is None else f", room for {entry.max_concurrency} requests of full length"
    return f"{escape(entry.gpu_product or 'unlabelled GPUs')}: {fits}{room}"


def _sum(entry: MemoryStatus) -> str:
    if entry.required_gib is None or entry.usable_gib is None:
        return ""
    return f", {entry.required_gib:.1f} of {entry.usable_gib:.1f} GiB usable"


def _bar(entry: MemoryStatus) -> Text:
    sizes = [Fraction(term.gib_per_gpu) for term in entry.terms]
    usable = Fraction(entry.usable_gib or 1)
    return memory_bar(sizes, required_gib=Fraction(entry.required_gib or 0), usable_gib=usable)


def _layouts(status: InferenceModelStatus) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("GPU PRODUCT", "TENSOR", "PIPELINE", "GPUS/REPLICA", "NODES/REPLICA", "WHY"):
        table.add_column(column, justify="left" if column in ("GPU PRODUCT", "WHY") else "right")
    used = _used_products(status)
    for layout in [one for one in status.parallelism if one.gpu_product in used] or status.parallelism:
        table.add_row(
            escape(layout.gpu_product or "-"),
            str(layout.tensor),
            str(layout.pipeline),
            str(layout.gpus_per_replica),
            str(layout.nodes_per_replica),
            escape(_layout_text(layout)),
        )
    return Panel(table, title="layout", title_align="left")


def _layout_text(layout: ParallelismStatus) -> str:
    more = [
        f"data={layout.data}" if layout.data is not None else "",
        "expert=true" if layout.expert else "",
        f"decodeContext={layout.decode_context}" if layout.decode_context is not None else "",
    ]
    sizes = " ".join(text for text in more if text)
    return f"{layout.provenance.value}: {layout.reason}" + (f" ({sizes})" if sizes else "")


NARROW = 110
"""Columns below which what decided about a group gets lines of its own."""


def _groups(status: InferenceModelStatus, now: datetime) -> RenderableType:
    if not status.placement.groups:
        return Panel("no group is placed", title="groups", title_align="left")
    return Panel(_GroupsTable(status.placement.groups, now), title="groups", title_align="left")


class _GroupsTable:
    def __init__(self, groups: Sequence[GroupStatus], now: datetime) -> None:
        self._groups = groups
        self._now = now

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.max_width >= NARROW
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("GROUP", "STAGE", "SINCE", *(("NODES", "GPU PRODUCT", "WHAT DECIDED") if wide else ())):
            table.add_column(column, no_wrap=wide and column in ("GROUP", "STAGE", "SINCE"), overflow="fold")
        details = Text()
        for group in self._groups:
            nodes, what = ", ".join(group.nodes), group.message or "; ".join(group.facts)
            more = (nodes, escape(group.gpu_product), escape(what)) if wide else ()
            table.add_row(group.name, _stage(group), ago(group.since, self._now), *more)
            details.append(f"\n{group.name}", style="bold")
            details.append(f" on {nodes} ({group.gpu_product or 'unlabelled GPUs'}): {what}")
        yield table
        if not wide:
            yield details


def _stage(group: GroupStatus) -> str:
    colour = STAGE_COLOURS[group.stage]
    detail = f" ({group.warmup_stage.value})" if group.warmup_stage is not None else ""
    return f"[{colour}]{group.stage.value}[/{colour}]{detail}"
