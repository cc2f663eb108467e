"""Every name that Bayplan shares with the cluster: group, labels, annotations, the gate and the warm condition.

They are protocol: other writers (kubelet, gateways, a second operator, users' selectors) read them, so a change here
is a change of the API.
"""

from typing import Final

GROUP: Final = "bayplan.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
CATEGORY: Final = "bayplan"

INFERENCEMODEL_KIND: Final = "InferenceModel"
INFERENCEMODEL_PLURAL: Final = "inferencemodels"
ROLLOUT_KIND: Final = "Rollout"
ROLLOUT_PLURAL: Final = "rollouts"
CAPACITYPLAN_KIND: Final = "CapacityPlan"
CAPACITYPLAN_PLURAL: Final = "capacityplans"

# --- labels on the children of an InferenceModel -------------------------------------------------------------------
LABEL_MODEL: Final = f"{GROUP}/model"
"""Name of the InferenceModel. A hint for selectors only: ownership is the controller ownerReference's uid."""
LABEL_MODEL_UID: Final = f"{GROUP}/model-uid"
"""Uid of the model: what tells its pods from others that bear the same labels, or bore them before."""
LABEL_REVISION: Final = f"{GROUP}/revision"
"""Revision hash of the spec fields that can change an answer or its cost. Never changes on a living pod."""
LABEL_TEMPLATE: Final = f"{GROUP}/template"
"""Hash of the other pod inputs: a difference replaces groups one by one, without gates."""
LABEL_GROUP: Final = f"{GROUP}/group"
"""Name of the replica group that the pod is a rank of."""
LABEL_RANK: Final = f"{GROUP}/rank"
"""Rank inside the group; 0 is the head, which alone is probed and routed."""

APP_NAME: Final = "app.kubernetes.io/name"
APP_INSTANCE: Final = "app.kubernetes.io/instance"
APP_COMPONENT: Final = "app.kubernetes.io/component"
APP_PART_OF: Final = "app.kubernetes.io/part-of"
APP_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "bayplan"

# --- annotations -----------------------------------------------------------------------------------------------------
ANNOTATION_ASSIGNMENT: Final = f"{GROUP}/assignment"
"""On rank 0 only: the whole group's assignment as JSON. Creating that pod is the reservation and the ledger entry."""
ANNOTATION_PLAN_ID: Final = f"{GROUP}/plan-id"
"""On every rank: the plan that the pod belongs to; members with another plan id than rank 0 are deleted."""
ANNOTATION_UNGATED: Final = f"{GROUP}/ungated-at"
"""RFC 3339 time at which the pod was released to the scheduler; the confirm limit counts from it."""
ANNOTATION_DRAINING: Final = f"{GROUP}/draining"
"""RFC 3339 time since which the pod is leaving; readers route nothing new to it."""
ANNOTATION_ADMISSION: Final = f"{GROUP}/admission"
"""On rank 0 only, from its creation on: what one replica holds, as JSON {kvBlocks, blockSize, maxNumSeqs,
maxModelLen} of whole numbers. Without it a gateway asks the engine."""
ANNOTATION_NODE_DRAIN: Final = f"{GROUP}/drain"
"""On a Node, written by people: empty it by moving groups first."""

ANNOTATION_LAYOUTS: Final = f"{GROUP}/layouts"
"""On a ControllerRevision: the derived layout per GPU product as JSON, kept while it stays feasible."""

ANNOTATION_INSPECTED: Final = f"{GROUP}/inspected"
"""On a ControllerRevision: what a pod read of the model's own files, as JSON {config, weightBytes} or {error}."""

# --- gateways --------------------------------------------------------------------------------------------------------
LABEL_GATEWAY: Final = f"{GROUP}/gateway"
"""On the Lease that each gateway renews; the value is the uid of its Pod. `spec.holderIdentity` is the Pod's name, in
the Lease's own namespace, and readers take the address from that Pod alone."""
ANNOTATION_DRAINING_PODS: Final = f"{GROUP}/draining-pods"
"""On a gateway's Lease: uids of draining head pods to which it sends nothing new, as a JSON list."""
ANNOTATION_PLAN_EPOCHS: Final = f"{GROUP}/plan-epochs"
"""On a gateway's Lease: epochs of the plans that it routes by, as a JSON object by uid of the Rollout."""
GATEWAY_PORT: Final = 8080
"""Where a gateway's Pod answers `/healthz`, `/readyz`, `/metrics` and `/evidence`: for the cluster, not for clients."""
GATEWAY_CLIENT_PORT: Final = 8000
"""Where a gateway's Pod answers clients."""

# --- pods ------------------------------------------------------------------------------------------------------------
SCHEDULING_GATE: Final = f"{GROUP}/placement"
CONDITION_WARM: Final = f"{GROUP}/warm"
"""readinessGate and pod condition: a real generation succeeded on exactly the containers named in its message."""
WARMUP_FAILED: Final = "WarmupFailed"
"""Reason of a warm condition that is False because the warm-up was given up; the group is then replaced."""
ENGINE_CONTAINER: Final = "engine"
INSPECTION_COMPONENT: Final = "inspection"
"""Component label of the pod without a GPU that reads a model's files."""
INSPECTION_CONTAINER: Final = "inspect"
ENGINE_PORT: Final = 8000

# --- field managers and identities -----------------------------------------------------------------------------------
MANAGER_STATUS: Final = "bayplan-status"
MANAGER_MODEL: Final = "bayplan-model"
MANAGER_GATEWAY: Final = "bayplan-gateway"
OPERATOR_LEASE: Final = "bayplan-operator"
EVENT_COMPONENT: Final = "bayplan-operator"
