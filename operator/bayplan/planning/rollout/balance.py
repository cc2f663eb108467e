"""Scale first, then shift: never more traffic than ready capacity carries, and a baseline of the candidate's size."""

from bayplan.api.rolloutwords import StageKind
from bayplan.planning.rollout.plan import Plan
from bayplan.planning.rollout.policy import Stage
from bayplan.planning.rollout.world import Head, World


def carried_percent(world: World) -> int:
    """Percent of all requests that the candidate's ready replicas carry: their part of all ready replicas, floored.

    Replicas of both arms count as equal.
    """
    ours, theirs = len(world.candidate.serving), len(world.serving.serving)
    return 100 * ours // (ours + theirs) if ours else 0


def balanced(plan: Plan, stage: Stage, world: World, *, may_grow: bool) -> Plan:
    """The plan with the stage's share, as far as it is carried; without `may_grow` the share can only fall."""
    if stage.kind is StageKind.WARM:
        return plan
    ready = len(world.candidate.serving)
    if stage.kind is StageKind.SHADOW:
        share = stage.weight if ready else 0
        share = share if may_grow else min(share, plan.shadow_share)
        weight = 0
    else:
        carried = carried_percent(world)
        # Where serving made room down to nothing, nobody answers what the candidate does not get.
        alone = plan.stable_min == 0 and not world.serving.serving
        weight = carried if alone else min(stage.weight, carried)
        weight = weight if may_grow else min(weight, plan.weight)
        share = 0
    baseline = _baseline(plan.baseline, world.serving.serving, size=ready) if weight or share else ()
    return plan.change(weight=weight, shadow_share=share, baseline=baseline)


def _baseline(current: tuple[str, ...], heads: tuple[Head, ...], *, size: int) -> tuple[str, ...]:
    """As many serving heads as the candidate has: those that are it already, then others on nodes of their own."""
    by_uid = {head.uid: head for head in heads}
    chosen = [uid for uid in current if uid in by_uid][:size]
    while len(chosen) < min(size, len(heads)):
        nodes = {by_uid[uid].node for uid in chosen}
        others = [head for head in heads if head.uid not in chosen]
        chosen.append(min(others, key=lambda head: (head.node in nodes, head.uid)).uid)
    return tuple(chosen)
