"""What `bayplan fit` shows, as renderables: the terms, a bar of the GPU's memory, and what would fit. Pure."""

from collections.abc import Iterable, Sequence
from fractions import Fraction

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from bayplan.cli.bars import TERM_COLOURS, memory_bar
from bayplan.cli.fitanswer import FitAnswer, Verdict
from bayplan.planning.layout.alternatives import Alternatives, Boundary
from bayplan.planning.memory.gpucatalogue import Gpu
from bayplan.planning.memory.otherengines import CacheBand
from bayplan.planning.memory.replica import ReplicaMemory, SplitMemory
from bayplan.planning.memory.terms import PlanTerm, Term
from bayplan.planning.words import plural, size_text


def answer_screen(answer: FitAnswer) -> RenderableType:
    """Everything about one answer."""
    question, best = answer.question, answer.best
    head = Text.assemble((f"{question.gpu.name}", "bold"), f": {question.source}")
    if best is None or best.memory is None:
        return Group(head, Text(f"does not start: {answer.problem}", "red"))
    memory = best.memory
    parts: list[RenderableType] = [head, _verdict(answer, memory), _bar(memory)]
    parts.append(Panel(_terms(answer, memory), title=_title(answer), title_align="left"))
    if answer.exact is not None:
        parts.append(_pages(answer.exact))
    parts += [Text(f"warning: {warning}", "yellow") for warning in _warnings(answer)]
    if answer.ranking is not None and answer.ranking.runner_up is not None:
        other = answer.ranking.runner_up.layout
        parts.append(Text(f"runner-up: {other}, which {answer.ranking.lost}", "dim"))
    parts += [Text(str(exchange), "dim" if exchange.fast else "yellow") for exchange in best.exchanges]
    if not answer.fits and answer.band is None:
        parts.append(_instead(answer.instead))
    parts += [Text(remark, "dim") for remark in _remarks(answer)]
    return Group(*parts)


def _bar(memory: SplitMemory) -> Text:
    sizes, required = [term.gib_per_gpu for term in memory.terms], memory.required_gib
    return memory_bar(sizes, required_gib=required, usable_gib=memory.usable_gib or required)


def _title(answer: FitAnswer) -> str:
    layout = answer.best.layout if answer.best is not None else None
    if layout is None:
        return ""
    nodes = f" on {plural(layout.nodes, 'node')}" if layout.nodes > 1 else ""
    stage = ""
    if answer.exact is not None and layout.pipeline > 1:
        stage = f", stage {answer.exact.verdict.stage.index}, the tightest"
    return escape(f"per GPU with {layout} ({plural(layout.gpus, 'GPU')}{nodes}{stage})")


def _verdict(answer: FitAnswer, memory: SplitMemory) -> Text:
    load = f"{plural(memory.concurrency, 'request')} of {memory.length} tokens"
    if answer.band is not None:
        return _band(answer, answer.band, load)
    headroom = memory.headroom_gib or Fraction(0)
    if answer.fits:
        text = Text.assemble(("fits", "green"), f": {load}, {size_text(headroom)} to spare")
        text.append(f", room for {plural(memory.max_concurrency or 0, 'request')} of full length")
    else:
        text = Text.assemble(("does not fit", "red"), f": {load}, short by {size_text(-headroom)} per GPU")
    if answer.marginal and answer.exact is not None:
        text.append(f" (marginal: {answer.exact.verdict.deciding_flag} decides)", "yellow")
    return text


def _band(answer: FitAnswer, band: CacheBand, load: str) -> Text:
    """The verdict of an engine that divides the GPU in another way: its cache, between two bounds where it chooses."""
    colours = {Verdict.FITS: "green", Verdict.DOES_NOT_FIT: "red", Verdict.UNKNOWN: "yellow"}
    room = size_text(band.least_gib)
    if band.most_gib != band.least_gib:
        room += f" to {size_text(band.most_gib)}"
    return Text.assemble(
        (answer.verdict.value, colours[answer.verdict]),
        f": {load} need {size_text(answer.needed_cache_gib)} of cache; {answer.question.budget.engine} leaves {room} "
        f"({band.rule}, {band.source.value}). The terms below are vLLM's.",
    )


def _terms(answer: FitAnswer, memory: SplitMemory) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(style="dim", overflow="fold")
    for colour, (term, source, formula) in zip(TERM_COLOURS * 4, _sourced(answer, memory), strict=False):
        table.add_row(
            f"[{colour}]■[/{colour}] {escape(term.name)}", f"{float(term.gib_per_gpu):.2f} GiB", source, escape(formula)
        )
    usable = memory.usable_gib
    if usable is not None:
        table.add_row("usable", f"{float(usable):.2f} GiB", "", escape(_budget(answer)))
    return table


def _sourced(answer: FitAnswer, memory: SplitMemory) -> Iterable[tuple[Term, str, str]]:
    """Each term with its source and its formula; with the numbers in it where the plan is exact."""
    if answer.exact is None:
        return [(term, term.provenance.value.lower(), term.detail) for term in memory.terms]
    return [(term.as_term(), term.source.value, _formula(term)) for term in plan_terms(answer.exact)]


def plan_terms(memory: ReplicaMemory) -> list[PlanTerm]:
    """The terms of the tightest GPU as the plan has them."""
    verdict = memory.verdict
    terms = [*verdict.stage.terms, verdict.plan.cache_term(verdict.stage)]
    return [term for term in terms if term.bytes_per_gpu]


def _formula(term: PlanTerm) -> str:
    inputs = ", ".join(f"{name} {value}" for name, value in term.inputs)
    band = f"; ±{size_text(term.band_bytes / 2**30)}" if term.band_bytes else ""
    return f"{term.formula}{f' ({inputs})' if inputs else ''}{band}"


def _budget(answer: FitAnswer) -> str:
    gpu, exact = answer.question.gpu, answer.exact
    if exact is None or exact.request.flags.kv_cache_memory_bytes is not None:
        return f"of {float(gpu.visible_gib):.2f} GiB that the driver shows ({gpu.visible_source.value})"
    share = float(exact.verdict.plan.utilization)
    return f"{float(gpu.visible_gib):.2f} GiB that the driver shows ({gpu.visible_source.value}) × {share:g}"


def _pages(memory: ReplicaMemory) -> Text:
    plan = memory.verdict.plan
    pages = plan.pages
    return Text(
        f"KV cache: {plan.blocks} blocks of {pages.block_bytes[memory.verdict.stage.index]} bytes in "
        f"{plural(len(pages.groups), 'group')}, {pages.smallest_block_tokens} tokens a block; the engine will print "
        f"{plan.cache_tokens} tokens, {float(plan.concurrency):.2f} times {plan.length}"
    )


def _warnings(answer: FitAnswer) -> list[str]:
    if answer.exact is None:
        return []
    return [f"{warning.risk.value}: {warning.message}" for warning in answer.exact.verdict.warnings]


def _remarks(answer: FitAnswer) -> tuple[str, ...]:
    own = () if answer.exact is None else answer.exact.verdict.plan.remarks
    return (*answer.question.remarks, *own)


def _instead(found: Alternatives | None) -> Text:
    if found is None:
        return Text("")
    ways = []
    if found.tensor is not None:
        ways.append(f"--tensor-parallel-size {found.tensor}")
    if found.max_concurrency:
        ways.append(f"--concurrency {found.max_concurrency}")
    if found.max_model_len:
        ways.append(f"--max-model-len {found.max_model_len}")
    ways += [str(change) for change in found.changes]
    return Text(
        "fits with " + ", or ".join(ways) if ways else "no flag makes it fit: take larger GPUs, or more of them"
    )


def _limit(one: Boundary) -> str:
    if one.limit in {"", "any"}:
        return "any value" if one.limit else "no value"
    return f"{one.side} {one.limit}"


def boundary_table(found: Sequence[Boundary]) -> Table:
    """`--what-if`: how far each setting can go with all others as they are."""
    table = Table("setting", "asked", "fits with", box=None, pad_edge=False, title="how far each setting can go alone")
    for one in found:
        table.add_row(one.setting, one.asked, _limit(one))
    return table


def comparison_table(rows: Iterable[tuple[Gpu, FitAnswer]]) -> Table:
    """`--compare-gpus`: verdict, GPUs and concurrency on every known GPU."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("GPU", "GIB", "VERDICT", "GPUS", "LAYOUT", "KV TOKENS", "CONCURRENCY", "WHY"):
        table.add_column(name, justify="right" if name in {"GIB", "GPUS", "KV TOKENS", "CONCURRENCY"} else "left")
    for gpu, answer in rows:
        best, gib = answer.best, f"{float(gpu.visible_gib):.1f}"
        if best is None or best.memory is None:
            table.add_row(gpu.name, gib, "[red]no[/red]", "", "", "", "", escape(answer.problem.partition(";")[0]))
            continue
        memory, verdict = best.memory, "[green]fits[/green]" if answer.fits else "[red]no[/red]"
        if answer.marginal:
            verdict += " (marginal)"
        why = "" if answer.fits else f"short by {size_text(-(memory.headroom_gib or Fraction(0)))} per GPU"
        numbers = [str(memory.kv_tokens or 0), str(memory.max_concurrency or 0)]
        table.add_row(gpu.name, gib, verdict, str(best.layout.gpus), str(best.layout), *numbers, why)
    return table
