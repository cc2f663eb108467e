"""What is wrong with declared sizes on a site, in words that end with the next valid one."""

from dataclasses import replace

from bayplan.planning.layout.rules import RuleFacts, broken_rule, keeps_rules, valid_widths
from bayplan.planning.layout.search import Site, Wanted
from bayplan.planning.layout.split import Split, arranged
from bayplan.planning.words import plural


def declared_problem(facts: RuleFacts, site: Site, wanted: Wanted) -> str:
    """The rule that a declared size breaks, with the next valid size; empty when a layout may exist."""
    split = Split(
        wanted.tensor or 1, wanted.pipeline or 1, wanted.data or 1, wanted.expert or False, wanted.decode_context or 1
    )
    if site.single and split.gpus > 1:
        return f"{site.gpu} are {site.single}, which hold one replica each: use 1"
    broken = broken_rule(facts, split, widest=site.gpus_of_node)
    if broken is not None and not _lifted(facts, site, wanted, split):
        return str(broken)
    if split.tensor > site.gpus_of_node:
        widths = valid_widths(facts, up_to=site.gpus_of_node)
        return (
            f"tensor={split.tensor} is wider than the {site.gpus_of_node} GPUs of a node with {site.gpu}; "
            f"the next valid size is tensor={widths[-1]}"
        )
    return ""


def _lifted(facts: RuleFacts, site: Site, wanted: Wanted, split: Split) -> bool:
    """Whether a size that is left open makes the declared ones valid: whole experts, or a wider tensor group."""
    experts = (True, False) if wanted.expert is None else (wanted.expert,)
    widths = range(1, site.gpus_of_node + 1) if wanted.tensor is None else (wanted.tensor,)
    return any(
        keeps_rules(facts, Split(tensor, split.pipeline, split.data, expert, split.decode_context))
        for tensor in widths
        for expert in experts
    )


def no_layout_text(site: Site, wanted: Wanted) -> str:
    """What is declared asks for more nodes than there are, even with the narrowest sizes that are left open."""
    split = Split(wanted.tensor or 1, wanted.pipeline or 1, wanted.data or 1)
    layout = arranged(split, gpus_of_node=site.gpus_of_node)
    if layout is None:
        return (
            f"{split} takes {split.tensor * split.pipeline} GPUs of one node for each data rank; a node with "
            f"{site.gpu} has {site.gpus_of_node}"
        )
    there = site.nodes_of(layout.gpus_per_node)
    text = (
        f"{split} needs {plural(layout.nodes, 'node')} with {plural(layout.gpus_per_node, site.gpu_noun)} each, "
        f"{there} {'exists' if there == 1 else 'exist'}"
    )
    if there >= layout.nodes:
        return f"{text}; no size that is left open keeps the engine's rules"
    shorter = (
        stages
        for stages in range(split.pipeline - 1, 0, -1)
        if (other := arranged(replace(split, pipeline=stages), gpus_of_node=site.gpus_of_node)) is not None
        and site.holds(other)
    )
    found = next(shorter, None)
    return f"{text}; add {layout.nodes - there}" + ("" if found is None else f", or use at most pipeline={found}")
