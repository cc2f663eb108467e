"""Models and heads of replicas as operator and kubelet leave them when they serve, without either of the two.

For what is about the gateway alone: it reads nothing but these objects.
"""

import json
from typing import Any

from bayplan.api import names
from e2e.localcluster import KubeApi

Json = dict[str, Any]
MODELS = f"/apis/{names.API_VERSION}/namespaces/{{}}/{names.INFERENCEMODEL_PLURAL}"
PODS = "/api/v1/namespaces/{}/pods"
REVISION = "r1"
LONG_AGO = "2026-11-30T00:00:00Z"


async def create_serving_model(
    api: KubeApi, namespace: str, name: str, *, max_model_len: int = 8192, max_num_seqs: int = 64
) -> Json:
    """Create an InferenceModel of which revision `REVISION` serves."""
    architecture = {"parameters": 8_030_261_248, "layers": 32, "attentionHeads": 32, "kvHeads": 8, "headDim": 128}
    model: Json = await api.create(
        MODELS.format(namespace),
        {
            "apiVersion": names.API_VERSION,
            "kind": names.INFERENCEMODEL_KIND,
            "metadata": {"name": name},
            "spec": {
                "model": {"name": name, "uri": "hf://org/tiny", "revision": "0123abc", "architecture": architecture},
                "engine": {
                    "image": "vllm/vllm-openai:v0.32.0",
                    "maxModelLen": max_model_len,
                    "maxNumSeqs": max_num_seqs,
                },
            },
        },
    )
    status = {"status": {"observedGeneration": 1, "revisions": {"target": REVISION, "serving": [REVISION]}}}
    await api.patch(f"{MODELS.format(namespace)}/{name}/status", status)
    return model


async def create_ready_head(
    api: KubeApi,
    namespace: str,
    model: Json,
    address: str,
    *,
    name: str,
    kv_blocks: int = 1000,
    block_size: int = 16,
    max_num_seqs: int = 64,
    max_model_len: int = 4096,
) -> Json:
    """Create a head pod that is warm and Ready at `address`; nothing schedules it."""
    facts = {
        "kvBlocks": kv_blocks,
        "blockSize": block_size,
        "maxNumSeqs": max_num_seqs,
        "maxModelLen": max_model_len,
    }
    owner = {
        "apiVersion": names.API_VERSION,
        "kind": names.INFERENCEMODEL_KIND,
        "name": model["metadata"]["name"],
        "uid": model["metadata"]["uid"],
        "controller": True,
    }
    labels = {names.LABEL_MODEL: model["metadata"]["name"], names.LABEL_RANK: "0", names.LABEL_REVISION: REVISION}
    pod: Json = await api.create(
        PODS.format(namespace),
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "labels": labels,
                "annotations": {names.ANNOTATION_ADMISSION: json.dumps(facts)},
                "ownerReferences": [owner],
            },
            "spec": {
                "containers": [{"name": names.ENGINE_CONTAINER, "image": "engine"}],
                "schedulingGates": [{"name": "bayplan-test/never"}],
            },
        },
    )
    await api.patch(f"{PODS.format(namespace)}/{name}/status", {"status": _ready_status(address)})
    return pod


def _ready_status(address: str) -> Json:
    true = {"status": "True", "lastTransitionTime": LONG_AGO}
    container = "containerd://1"
    return {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [{"type": names.CONDITION_WARM, "message": container, **true}, {"type": "Ready", **true}],
        "containerStatuses": [
            {
                "name": names.ENGINE_CONTAINER,
                "image": "engine",
                "imageID": "",
                "ready": True,
                "restartCount": 0,
                "containerID": container,
                "state": {"running": {"startedAt": LONG_AGO}},
            }
        ],
    }
