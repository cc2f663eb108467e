"""Other people's pods as claims, kept up to date pod by pod: a cluster has thousands, and few of them hold GPUs."""

from bayplan.cluster.resources import Key
from bayplan.planning.placement.inventory import Claim, ClaimState
from bayplan.reconcile.pods import PodView


class ForeignClaims:
    """Claims of bound pods without our labels. Those without GPUs are one claim per node, the others one each: who
    holds a GPU is worth telling.
    """

    def __init__(self) -> None:
        self.version = 0
        """Counts changes of the claims."""
        self._with_gpus: dict[Key, Claim] = {}
        self._without: dict[str, Claim] = {}

    def claims(self) -> tuple[Claim, ...]:
        """Return all of them."""
        return (*self._without.values(), *self._with_gpus.values())

    def change(self, old: PodView | None, new: PodView | None) -> None:
        """Take in what became of one pod."""
        before, after = _claim(old), _claim(new)
        if before == after:
            return
        self.version += 1
        if before is not None:
            self._take(old, before)
        if after is not None:
            self._give(new, after)

    def _take(self, pod: PodView | None, claim: Claim) -> None:
        if claim.gpus and pod is not None:
            del self._with_gpus[pod.key]
            return
        rest = self._without[claim.node]
        if rest.pods == 1:
            del self._without[claim.node]
        else:
            self._without[claim.node] = _together(rest, claim, sign=-1)

    def _give(self, pod: PodView | None, claim: Claim) -> None:
        if claim.gpus and pod is not None:
            self._with_gpus[pod.key] = claim
            return
        known = self._without.get(claim.node)
        anonymous = Claim(node=claim.node, cpu_millis=claim.cpu_millis, memory_bytes=claim.memory_bytes)
        self._without[claim.node] = anonymous if known is None else _together(known, claim, sign=1)


def claim_of(pod: PodView, node: str, owner: str, state: ClaimState) -> Claim:
    """Return what a pod takes from a node."""
    return Claim(
        node=node,
        gpus=pod.gpus,
        cpu_millis=pod.cpu_millis,
        memory_bytes=pod.memory_bytes,
        owner=owner,
        state=state,
    )


def _claim(pod: PodView | None) -> Claim | None:
    if pod is None or pod.member is not None or pod.terminal or pod.node is None:
        return None
    return claim_of(pod, pod.node, str(pod.key), ClaimState.BOUND)


def _together(all_pods: Claim, one: Claim, *, sign: int) -> Claim:
    return Claim(
        node=all_pods.node,
        cpu_millis=all_pods.cpu_millis + sign * one.cpu_millis,
        memory_bytes=all_pods.memory_bytes + sign * one.memory_bytes,
        pods=all_pods.pods + sign,
    )
