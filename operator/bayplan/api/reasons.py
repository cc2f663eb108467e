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
            _T.INPUTS_COMPLETE,
            _T.STALLED,
            means="The spec holds a value that the API server could not refuse, or that an older version accepted.",
            do="Correct the field that the message names; it says what is accepted. Running replicas stay as they are; "
            "of an InferenceModel none is started, warmed, replaced or removed until then.",
        ),
        Reason.FITS: _help(
            _T.MEMORY_FIT,
            _T.SURGE_FITS,
            means="Weights, KV cache for `concurrency` requests of `maxModelLen`, and overhead fit on every GPU of a "
            "replica; `status.memory` lists the terms. Of a Rollout: the candidate's replicas of all stages have room.",
        ),
        Reason.INSUFFICIENT_MEMORY: _help(
            _T.MEMORY_FIT,
            _T.PLACED,
            _T.PLACEABLE,
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
            _T.PLACEABLE,
            _T.STALLED,
            means="No tensor and pipeline sizes satisfy the engine's rules and the node shapes.",
            do="Change `parallelism` as the message says, or leave it out.",
        ),
        Reason.NO_MATCHING_GPU: _help(
            _T.MEMORY_FIT,
            _T.PLACED,
            _T.PLACEABLE,
            _T.STALLED,
            means="No node of the cluster has a GPU product that `placement.gpuProducts` accepts.",
            do="Add nodes, or accept one of the products that the message lists.",
        ),
        Reason.UNKNOWN_GPU_MEMORY: _help(
            _T.MEMORY_FIT,
            means="Nodes do not say how much memory their GPUs have, so the fit is unknown. Replicas are placed.",
            do="Run GPU Feature Discovery, so that nodes carry `nvidia.com/gpu.memory`.",
        ),
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
        Reason.INSPECTING: _help(
            _T.MEMORY_FIT,
            _T.PLACED,
            means="`model.inspect` is set, and the pod that reads the model's config.json and tensor headers has not "
            "ended. Nothing is placed before.",
            do="If it lasts, look at the pod that the message names: image, secrets, network.",
        ),
        Reason.LAYOUT_KEPT: _help(
            _T.MEMORY_FIT,
            means="The revision's recorded layout was decided for this very load, and by a newer estimate it would not "
            "fit. Nothing that runs is moved because of an estimate.",
            do="Compare the engine's log with `status.memory`; change the spec if the engine does not start.",
        ),
        Reason.PLACED: _help(_T.PLACED, means="Every wanted replica has its whole GPU group."),
        Reason.NOTHING_TO_PLACE: _help(_T.PLACED, means="No replica is wanted, or none may be placed yet."),
        Reason.INSUFFICIENT_GPU: _help(
            _T.PLACED,
            _T.PLACEABLE,
            means="The nodes that match have too few free GPUs in sum.",
            do="Free or add GPUs, or lower `replicas`. Placement goes on by itself when room appears.",
        ),
        Reason.FRAGMENTED_CAPACITY: _help(
            _T.PLACED,
            _T.PLACEABLE,
            means="Enough GPUs are free in sum, but no node or domain has a whole group free.",
            do="Empty a node that the message names, or allow a layout over more nodes.",
        ),
        Reason.NO_NODE_MATCHES: _help(
            _T.PLACED,
            _T.PLACEABLE,
            means="Too few nodes satisfy selector, tolerations, product and the size of a pod together.",
            do="Compare `placement` and `template.resources` with the count of nodes that each constraint removed, and "
            "with the amounts, in the message.",
        ),
        Reason.NO_NODE_MATCHES_TOPOLOGY: _help(
            _T.PLACED,
            _T.PLACEABLE,
            means="No domain of a Required topology level can hold a whole group.",
            do="Make the level Preferred, or add nodes to one domain.",
        ),
        Reason.QUOTA_EXCEEDED: _help(
            _T.PLACED,
            _T.WITHIN_QUOTA,
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
            *(_T.SIZED, _T.PLACEABLE, _T.WITHIN_QUOTA, _T.WITHIN_BUDGET),
            means="Replicas wait for what another condition says, such as Accepted or MemoryFit.",
            do="Solve that condition first.",
        ),
        Reason.WARM: _help(_T.WARM, _T.CANDIDATE_WARM, means="Every placed replica has generated."),
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
        Reason.CURRENT: _help(_T.CURRENT, _T.PROGRESSING, means="What serves is what the spec asks for."),
        Reason.REPLACING: _help(
            _T.CURRENT,
            _T.PROGRESSING,
            _T.RECONCILING,
            means="Groups of an older revision are replaced one at a time.",
        ),
        Reason.WAITING_FOR_ROLLOUT: _help(
            _T.CURRENT,
            _T.RECONCILING,
            means="`update: Rollout` is set and no Rollout has a say over the model; what serves goes on serving.",
            do="Create a Rollout whose `modelRef` names the model, or set `update: Replace`.",
        ),
        Reason.ROLLOUT_IN_PROGRESS: _help(
            _T.CURRENT,
            _T.RECONCILING,
            means="A Rollout tries the revision that the spec asks for; another one serves.",
            do="Look at the Rollout that the message names: `kubectl describe rollouts.bayplan.dev NAME`.",
        ),
        Reason.REVISION_REJECTED: _help(
            _T.CURRENT,
            _T.STALLED,
            means="The revision that the spec asks for was rejected; the message says by which gate. What served "
            "before goes on serving, and nothing fights the spec.",
            do="Change the spec to a fixed revision or back to the one that serves; or give the Rollout a new `retry`.",
        ),
        Reason.ANOTHER_ROLLOUT: _help(
            _T.ACCEPTED,
            _T.STALLED,
            means="An older Rollout names the same model; it alone decides.",
            do="Delete one of the two.",
        ),
        Reason.DRAINS_FIRST: _help(
            _T.SURGE_FITS,
            means="The candidate takes the place of serving replicas, down to the floor.",
        ),
        Reason.SURGE_DOES_NOT_FIT: _help(
            _T.SURGE_FITS,
            _T.PROGRESSING,
            means="The candidate's replicas of all stages have no room, or none on two nodes; nothing of it was "
            "started.",
            do="Choose one of what the message lists. It goes on by itself when room appears.",
        ),
        Reason.SURGE_UNKNOWN: _help(_T.SURGE_FITS, _T.PROGRESSING, means="Placement has not answered yet."),
        Reason.CANDIDATE_NOT_WARM: _help(
            _T.CANDIDATE_WARM, _T.PROGRESSING, means="Candidate replicas load or warm up; they get no request."
        ),
        Reason.CANDIDATE_TROUBLE: _help(
            _T.CANDIDATE_WARM,
            _T.PROGRESSING,
            means="Candidate replicas do not start: a crash, a warm-up that was given up. Serving is not touched.",
            do="Read the engine's log; the stage's deadline ends it.",
        ),
        Reason.COMPARABLE: _help(
            _T.EVIDENCE_COMPARABLE, means="The last window was counted: both arms under like load, nothing in doubt."
        ),
        Reason.EVIDENCE_IN_DOUBT: _help(
            _T.EVIDENCE_COMPARABLE,
            _T.PROGRESSING,
            means="The last window counts nothing: a gateway restarted or did not answer, or the load was unlike.",
            do="Nothing if it passes; else look at the gateway or pod that the message names.",
        ),
        Reason.NOTHING_COUNTED: _help(_T.EVIDENCE_COMPARABLE, means="No window of the stage was counted yet."),
        Reason.ALL_PASSED: _help(_T.GATES_PASSED, means="Every enforced gate passes on what the stage has counted."),
        Reason.INSUFFICIENT_EVIDENCE: _help(
            _T.GATES_PASSED,
            _T.PROGRESSING,
            means="Too few requests or prompts, or none of a kind that a gate needs. A thin candidate holds.",
            do="Wait for traffic, raise the weight, or lower `samples`.",
        ),
        Reason.GATE_FAILED: _help(
            _T.GATES_PASSED,
            _T.PROGRESSING,
            means="A gate failed; the candidate has lost its traffic with that very decision.",
            do="Fix the revision; `status.gates` has the numbers.",
        ),
        Reason.GATE_INVALID: _help(
            _T.GATES_PASSED,
            _T.PROGRESSING,
            means="Nothing can judge a gate: its limit is no edge of the gateways' histograms, or nobody measures it.",
            do="Use one of the edges that the message names, or add the source.",
        ),
        Reason.GATE_SHARED: _help(
            _T.GATES_PASSED,
            _T.PROGRESSING,
            means="The baseline misses the limit under the same load, and the candidate is no worse.",
            do="Tune serving (more replicas, a lower concurrency), or the limit.",
        ),
        Reason.ADVANCED: _help(_T.PROGRESSING, means="The candidate has entered the next stage."),
        Reason.PAPER_MISSING: _help(
            _T.PROGRESSING,
            means="The candidate changes quantization or speculation, and its measurements are missing or expired; or "
            "`requireEvidence` is set, and the model's CapacityPlan has not proven the revision.",
            do="Bring what the message names: in the ConfigMap of `measurements`, or to the CapacityPlan.",
        ),
        Reason.PAUSED: _help(_T.PROGRESSING, means="`paused` is set.", do="Set `paused: false` to go on."),
        Reason.FROZEN: _help(
            _T.PROGRESSING,
            _T.STALLED,
            means="A gate with `onRegression: Freeze` failed; the stage stays as it is.",
            do="Give a new `retry`, name the revision in `abort`, or change the spec.",
        ),
        Reason.DEADLINE_EXCEEDED: _help(
            _T.PROGRESSING,
            _T.STALLED,
            means="The stage has outlasted `deadlineSeconds`.",
            do="See what else holds it; a new `retry` starts the stage again, `abort` ends the trial.",
        ),
        Reason.CAPACITY_NOT_READY: _help(
            _T.PROGRESSING, means="The weight is below the stage's: ready replicas do not carry more yet."
        ),
        Reason.SINGLE_REPLICA: _help(
            _T.PROGRESSING,
            means="All candidate pods are on one node: a slow node would look like a slow revision.",
            do="Free a second node, or waive it with `waivers: [SingleReplica]`.",
        ),
        Reason.NO_BASELINE: _help(
            _T.PROGRESSING,
            means="No serving replica is ready to compare with.",
            do="Look at the InferenceModel; with `waivers: [NoBaseline]` the candidate is judged alone.",
        ),
        Reason.PLAN_NOT_ACKNOWLEDGED: _help(
            _T.PROGRESSING,
            means="A live gateway does not route by the latest plan yet.",
            do="Nothing if it passes; else look at the gateway that the message names.",
        ),
        Reason.SHARE_EXCEEDED: _help(
            _T.PROGRESSING,
            means="More requests went to the candidate than the plan gives it: something else routes to its pods.",
            do="Look for clients that bypass the gateways.",
        ),
        Reason.EVIDENCE_STALE: _help(
            _T.PROGRESSING,
            _T.EVIDENCE_CURRENT,
            means="What was measured is older than it may be: the last window of a trial, or an input of a "
            "CapacityPlan. The last floor stands meanwhile.",
            do="See EvidenceComparable; or measure again what the message names.",
        ),
        Reason.BAKING: _help(_T.PROGRESSING, means="The stage lasts at least `bakeSeconds`."),
        Reason.AWAITING_APPROVAL: _help(
            _T.PROGRESSING,
            means="Everything holds but somebody's word.",
            do="Add the revision and stage that the message names to `approvals`.",
        ),
        Reason.RETAINING: _help(_T.PROGRESSING, means="The replaced revision is kept for `retainSeconds`."),
        Reason.PROVEN: _help(
            _T.ROLLBACK_PROVEN,
            means="Every gateway has acknowledged, nothing is under way at the candidate, serving is ready at full "
            "size and has answered a request; `status.proof` has the times.",
        ),
        Reason.PROVING: _help(
            _T.ROLLBACK_PROVEN,
            _T.PROGRESSING,
            means="The traffic is taken away; a part of the proof is missing, and the message says which.",
        ),
        Reason.STAGING_REJECTED: _help(
            _T.PROGRESSING,
            means="Measurements of the candidate fail a gate; no GPU was touched.",
            do="Bring another candidate, or change what `measurements` requires.",
        ),
        Reason.ABORTED: _help(_T.PROGRESSING, means="`abort` names the revision.", do="A new `retry` tries it again."),
        Reason.ROLLOUT_DELETED: _help(_T.PROGRESSING, means="The Rollout was deleted while the revision was on trial."),
        Reason.REVERTED: _help(_T.PROGRESSING, means="The spec went back to the revision that served."),
        Reason.SUPERSEDED: _help(
            _T.PROGRESSING, means="The spec went on to a third revision; the candidate was dropped."
        ),
        Reason.MODEL_NOT_FOUND: _help(
            _T.READY, means="No InferenceModel of the name in `modelRef` exists; the Rollout waits for it."
        ),
        Reason.MODEL_REPLACES_PLAINLY: _help(
            _T.READY,
            _T.STALLED,
            means="The InferenceModel has `update: Replace`, so the Rollout has no say.",
            do="Set `update: Rollout` on the model.",
        ),
        Reason.COMPLETE: _help(_T.INPUTS_COMPLETE, means="Model, benchmark and classes are there and agree."),
        Reason.MODEL_MISSING: _help(
            _T.INPUTS_COMPLETE,
            means="The CapacityPlan has no model of its own and no InferenceModel names it.",
            do="Name the plan in `capacityPlanRef` of one InferenceModel, or give `model` and `engine`.",
        ),
        Reason.MODEL_CONFLICT: _help(
            _T.INPUTS_COMPLETE,
            means="The plan's own model and the InferenceModel that names it differ, or several models name it.",
            do="Remove the model from the plan, or make the fields that the message names equal.",
        ),
        Reason.CONTRADICTION: _help(
            _T.INPUTS_COMPLETE,
            means="The benchmark was measured on another revision, engine, GPU or layout than replicas get, or a class "
            "does not fit the model. The numbers are shown; nothing measured counts as proof.",
            do="Measure what is planned, or plan what was measured; the message has both sides.",
        ),
        Reason.SIZED: _help(
            _T.SIZED, means="Replicas by dimension and in all; `status.dimensions` and `status.needs` have the numbers."
        ),
        Reason.ABOVE_MAX_REPLICAS: _help(
            _T.SIZED,
            means="More replicas are needed than `limits.maxReplicas`. The number stays as it is.",
            do="Raise the limit, or lower what is asked for.",
        ),
        Reason.PLAN_EXCEEDS_MODEL: _help(
            _T.SIZED,
            _T.SCALING_ACTIVE,
            means="The CapacityPlan needs more replicas than the InferenceModel may have; it stops at its own bound.",
            do="Raise `autoscaling.maxReplicas` (or `replicas`) of the model, or lower what the plan asks for.",
        ),
        Reason.PLACEABLE: _help(
            _T.PLACEABLE, means="Every replica has a place on the nodes as they are, beside everybody else's pods."
        ),
        Reason.DOMAIN_LOSS_NOT_COVERED: _help(
            _T.PLACEABLE,
            means="Where the replicas would be, the loss of the largest domain leaves too few.",
            do="Add nodes in other domains, or change `resilience.surviveLossOf`.",
        ),
        Reason.TOO_MANY_TO_PLACE: _help(
            _T.PLACEABLE,
            means="More replicas than are placed one by one (1,024); `status.placeableReplicas` found a place.",
            do="Divide the plan by workload class or region.",
        ),
        Reason.WITHIN_QUOTA: _help(_T.WITHIN_QUOTA, means="`limits.maxGpus` and the ResourceQuotas have room."),
        Reason.WITHIN_BUDGET: _help(_T.WITHIN_BUDGET, means="All replicas cost at most `limits.maxHourlyCost`."),
        Reason.NO_BUDGET: _help(_T.WITHIN_BUDGET, means="`limits.maxHourlyCost` is not set."),
        Reason.BUDGET_EXCEEDED: _help(
            _T.WITHIN_BUDGET,
            means="All replicas cost more than `limits.maxHourlyCost`. The number of replicas stays as it is.",
            do="Raise the budget, or lower what is asked for.",
        ),
        Reason.EVIDENCE_CURRENT: _help(_T.EVIDENCE_CURRENT, means="Every required claim is earned by a decision now."),
        Reason.EVALUATOR_FAILED: _help(
            _T.EVIDENCE_CURRENT,
            means="What should decide a claim raised an error; that proves nothing.",
            do="Report it, with the message: it is a fault of Bayplan.",
        ),
        Reason.EVIDENCE_CONTRADICTED: _help(
            _T.EVIDENCE_CURRENT,
            means="Something that a claim rests on is about another revision, GPU or layout, or dated in the future.",
            do="Bring evidence about what is planned.",
        ),
        Reason.EVIDENCE_FAILED: _help(
            _T.EVIDENCE_CURRENT,
            means="A decision behind a required claim says no; the message names the claim and the numbers.",
            do="Solve what the claim is about: see the other conditions.",
        ),
        Reason.EVIDENCE_MISSING: _help(
            _T.EVIDENCE_CURRENT,
            means="Nothing was brought for a required claim: a class that is not planned, no rollout, no price.",
            do="Bring what the message names; removing a class does not remove its requirement.",
        ),
        Reason.PLAN_MISSING: _help(
            _T.EVIDENCE_CURRENT,
            means="The CapacityPlan in `capacityPlanRef` does not exist, or is not decided yet. The last floor stands.",
            do="Create it, or remove the reference.",
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
