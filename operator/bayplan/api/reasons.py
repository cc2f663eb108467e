"""What each reason means and what to do about it. `docs/reasons.md` is generated from here."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from bayplan.api.conditions import ConditionType, Reason


@dataclass(frozen=True, kw_only=True)
class ReasonHelp:
    """`conditions` that the reason appears on (`Ready` repeats the reason that blocks), its meaning, the next step."""

    conditions: tuple[ConditionType, ...]
    meaning: str
    action: str


_NOTHING = "Nothing."


def _help(*conditions: ConditionType, means: str, do: str = _NOTHING) -> ReasonHelp:
    return ReasonHelp(conditions=conditions, meaning=means, action=do)


_T = ConditionType

REASON_HELP: Final = MappingProxyType(
    {
        Reason.VALID: _help(_T.ACCEPTED, means="The spec is valid."),
        Reason.INVALID_SPEC: _help(
            _T.ACCEPTED,
            _T.STALLED,
            means="The spec holds a value that the API server could not refuse, or that an older version accepted.",
            do="Correct the field that the message names; it says what is accepted. Running replicas stay as they are.",
        ),
        Reason.FITS: _help(
            _T.MEMORY_FIT,
            means="Weights, KV cache for `concurrency` requests of `maxModelLen`, and overhead fit on every GPU of a "
            "replica. `status.memory` lists the terms.",
        ),
        Reason.INSUFFICIENT_MEMORY: _help(
            _T.MEMORY_FIT,
            _T.PLACED,
            _T.STALLED,
            means="No layout fits on any GPU product that the model may use. The message says how much is missing.",
            do="Lower `concurrency` or `engine.maxModelLen` to what the message says would fit, allow a larger product "
            "or a higher parallelism, or set `memoryPolicy: Warn` if the estimate is wrong.",
        ),
        Reason.OVERRIDDEN: _help(
            _T.MEMORY_FIT,
            means="It does not fit by computation, and `memoryPolicy: Warn` places it all the same.",
            do="Expect the engine to fail at start; compare its log with `status.memory`.",
        ),
        Reason.NO_LAYOUT: _help(
            _T.MEMORY_FIT,
            _T.PLACED,
            _T.STALLED,
            means="No tensor and pipeline sizes satisfy the engine's rules and the node shapes.",
            do="Change `parallelism` as the message says, or leave it out.",
        ),
        Reason.NO_MATCHING_GPU: _help(
            _T.MEMORY_FIT,
            _T.PLACED,
            _T.STALLED,
            means="No node of the cluster has a GPU product that `placement.gpuProducts` accepts.",
            do="Add nodes, or accept one of the products that the message lists.",
        ),
        Reason.UNKNOWN_GPU_MEMORY: _help(
            _T.MEMORY_FIT,
            means="Nodes do not say how much memory their GPUs have, so the fit is unknown. Replicas are placed.",
            do="Run GPU Feature Discovery, so that nodes carry `nvidia.com/gpu.memory`.",
        ),
        Reason.PLACED: _help(_T.PLACED, means="Every wanted replica has its whole GPU group."),
        Reason.NOTHING_TO_PLACE: _help(_T.PLACED, means="No replica is wanted, or none may be placed yet."),
        Reason.INSUFFICIENT_GPU: _help(
            _T.PLACED,
            means="The nodes that match have too few free GPUs in sum.",
        Reason.UNKNOWN_ARCHITECTURE: _help(
            _T.MEMORY_FIT,
            means="Nothing is known of the model's layers, so neither fit nor layout can be computed. Replicas are "
            "placed as `parallelism` declares, on one GPU without it.",
            do="State `model.architecture`: a catalogue name, or what `bayplan fit --config FILE --write` prints.",
        ),
        Reason.UNSUPPORTED_ON_HARDWARE: _help(
            _T.MEMORY_FIT,
            _T.PLACED,
            _T.STALLED,
            means="The GPU, or the engine's release, cannot run the format of weights or cache, whatever the memory.",
            do="Allow one of the products that the message names, another checkpoint, or a newer engine.",
        ),
        Reason.LAYOUT_KEPT: _help(
            _T.MEMORY_FIT,
            means="The revision's recorded layout was decided for this very load, and by a newer estimate it would not "
            "fit. Nothing that runs is moved because of an estimate.",
            do="Compare the engine's log with `status.memory`; change the spec if the engine does not start.",
        ),
            do="Free or add GPUs, or lower `replicas`. Placement goes on by itself when room appears.",
        ),
        Reason.FRAGMENTED_CAPACITY: _help(
            _T.PLACED,
            means="Enough GPUs are free in sum, but no node or domain has a whole group free.",
            do="Empty a node that the message names, or allow a layout over more nodes.",
        ),
        Reason.NO_NODE_MATCHES: _help(
            _T.PLACED,
            means="Too few nodes satisfy selector, tolerations, product and the size of a pod together.",
            do="Compare `placement` and `template.resources` with the count of nodes that each constraint removed, and "
            "with the amounts, in the message.",
        ),
        Reason.NO_NODE_MATCHES_TOPOLOGY: _help(
            _T.PLACED,
            means="No domain of a Required topology level can hold a whole group.",
            do="Make the level Preferred, or add nodes to one domain.",
        ),
        Reason.QUOTA_EXCEEDED: _help(
            _T.PLACED,
            means="A ResourceQuota of the namespace leaves too little for a whole group.",
            do="Raise the quota that the message names, or lower `replicas`.",
        ),
        Reason.ADMISSION_DENIED: _help(
            _T.PLACED,
            means="The API server refused a pod: a policy, pod security or another admission check.",
            do="Read the refusal in the message and change `template`, or the policy.",
        ),
        Reason.RESERVING: _help(_T.PLACED, means="Pods of a group are being created, or bound to their nodes."),
        Reason.UNSCHEDULABLE: _help(
            _T.PLACED,
            means="The scheduler did not bind a released group within the limit; the group is planned again.",
            do="Read the scheduler's reason in the message; something changed on the node after the decision.",
        ),
        Reason.GROUP_BROKEN: _help(
            _T.PLACED,
            means="A group's pods contradict its reservation (an event only); the group is deleted and planned again.",
            do="Find out who edited or deleted the pod that the message names: annotations and labels of "
            "`bayplan.dev` are the operator's.",
        ),
        Reason.BLOCKED: _help(
            _T.PLACED,
            means="Replicas wait for what another condition says, such as Accepted or MemoryFit.",
            do="Solve that condition first.",
        ),
        Reason.WARM: _help(_T.WARM, means="Every placed replica has generated."),
        Reason.WARMUP_RUNNING: _help(
            _T.WARM, means="Replicas load the model or run their first generation; `status.placement` shows the stage."
        ),
        Reason.WARMUP_FAILED: _help(
            _T.WARM,
            means="A replica did not generate within `warmup` deadlines; its group is replaced, with growing pauses.",
            do="Read the engine's log; raise `warmup.loadDeadlineSeconds` if loading simply takes longer.",
        ),
        Reason.ENGINE_FAILED: _help(
            _T.WARM,
            means="An engine container ended; its group is replaced, with growing pauses.",
            do="Read the exit code in the message and the log of that container.",
        ),
        Reason.IMAGE_PULL_ERROR: _help(
            _T.WARM,
            means="A node cannot pull the engine image.",
            do="Check `engine.image` and `template.imagePullSecrets`.",
        ),
        Reason.CONTAINER_NOT_STARTED: _help(
            _T.WARM,
            means="A node cannot start the engine's container; the GPUs stay reserved until the load deadline.",
            do="Read the node's message: mostly a Secret or ConfigMap that `template` names does not exist.",
        ),
        Reason.NOTHING_TO_WARM: _help(_T.WARM, means="No replica has a place yet."),
        Reason.DEMAND_KNOWN: _help(
            _T.SCALING_ACTIVE, means="Demand is measured, and replicas follow it; `status.scaling` has the numbers."
        ),
        Reason.COLLECTING_METRICS: _help(
            _T.SCALING_ACTIVE, means="A rate needs two samples, and there are fewer yet. Nothing falls meanwhile."
        ),
        Reason.METRICS_MISSING: _help(
            _T.SCALING_ACTIVE,
            means="A source answers without a metric that demand is computed from. Nothing falls meanwhile.",
            do="Compare the name in the message with the nearest one that the source has; an engine of another "
            "version may have renamed it.",
        ),
        Reason.METRICS_INVALID: _help(
            _T.SCALING_ACTIVE,
            means="A source answers with NaN, infinity, a negative number, a time in the future, or no metrics at "
            "all. Nothing falls meanwhile.",
            do="Look at what the source in the message answers under `/metrics`.",
        ),
        Reason.METRICS_UNREACHABLE: _help(
            _T.SCALING_ACTIVE,
            means="No answer came from where demand is measured. Nothing falls meanwhile.",
            do="Check the network between operator and the source in the message, and NetworkPolicies.",
        ),
        Reason.METRICS_STALE: _help(
            _T.SCALING_ACTIVE,
            means="The newest measurement is too old to decide by. Nothing falls meanwhile.",
            do="Check that Prometheus still scrapes the pods, and not less often than `autoscaling.sampleSeconds`.",
        ),
        Reason.METRICS_INCOMPLETE: _help(
            _T.SCALING_ACTIVE,
            means="Too few of the sources answered, or some counted anew after a restart. Nothing falls meanwhile.",
            do="Nothing if replicas have just started; else look at those that the message names.",
        ),
        Reason.NO_READY_REPLICA: _help(
            _T.SCALING_ACTIVE,
            means="No replica is ready and no gateway is live, so nobody can say what is asked for.",
            do="Look at Placed and Warm.",
        ),
        Reason.CURRENT: _help(_T.CURRENT, means="What serves is what the spec asks for."),
        Reason.REPLACING: _help(
            _T.CURRENT,
            _T.RECONCILING,
            means="Groups of an older revision are replaced one at a time.",
        ),
        Reason.READY: _help(_T.READY, means="All wanted replicas serve."),
        Reason.NOT_READY: _help(
            _T.READY,
            _T.RECONCILING,
            means="Fewer replicas serve than are wanted.",
            do="Look at Placed and Warm.",
        ),
        Reason.SUSPENDED: _help(
            _T.READY,
            _T.SCALING_ACTIVE,
            means="`suspend` is set.",
            do="Set `suspend: false` to serve again.",
        ),
        Reason.DRAINING: _help(
            _T.READY, _T.RECONCILING, means="Replicas finish running requests before they are deleted."
        ),
        Reason.SCALED_TO_ZERO: _help(
            _T.READY, means="`replicas` is 0.", do="Scale up: `kubectl scale imodel NAME --replicas=1`."
        ),
    }
)
"""Help for every reason; a reason without an entry fails a test."""
