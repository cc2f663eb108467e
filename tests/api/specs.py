"""Specs and statuses for tests: the smallest valid one, and ones in which every field of the schema is set."""

from copy import deepcopy
from typing import Any

from bayplan.api import names

Json = dict[str, Any]

MINIMAL_SPEC: Json = {
    "model": {
        "name": "llama",
        "uri": "hf://org/llama-8b",
        "revision": "0123abc",
        "architecture": {
            "parameters": 8_030_261_248,
            "layers": 32,
            "attentionHeads": 32,
            "kvHeads": 8,
            "headDim": 128,
        },
    },
    "engine": {"image": "vllm/vllm-openai:v0.32.0", "maxModelLen": 8192},
}

FULL_SPEC: Json = {
    "model": {
        "name": "llama",
        "uri": "hf://org/llama-8b",
        "revision": "0123abc",
        "inspect": False,
        "architecture": {
            "parameters": 8_030_261_248,
            "weightBits": 4.5,
            "weightBytes": {
                "embedding": 1_050_673_152,
                "head": 1_050_673_152,
                "layers": [122_683_392] * 32,
                "prediction": 4096,
            },
            "layers": 32,
            "attentionHeads": 32,
            "kvHeads": 8,
            "headDim": 128,
        },
    },
    "engine": {
        "name": "vllm",
        "image": "vllm/vllm-openai:v0.32.0",
        "args": ["--enable-prefix-caching"],
        "env": [{"name": "VLLM_LOGGING_LEVEL", "value": "DEBUG"}],
        "maxModelLen": 8192,
        "maxNumSeqs": 64,
        "gpuMemoryUtilization": 0.85,
        "kvCacheDtype": "fp8",
        "memoryOverheadGib": 2.5,
    },
    "concurrency": 16,
    "parallelism": {"tensor": 2, "pipeline": 2, "data": 2, "expert": True, "decodeContext": 2},
    "memoryPolicy": "Warn",
    "placement": {
        "gpuProducts": ["NVIDIA-H100-80GB-HBM3"],
        "nodeSelector": {"example.com/pool": "inference"},
        "tolerations": [
            {
                "key": "nvidia.com/gpu",
                "operator": "Equal",
                "value": "present",
                "effect": "NoExecute",
                "tolerationSeconds": 60,
            }
        ],
        "topology": [{"level": "rack", "mode": "Preferred"}],
        "spread": {"level": "host"},
    },
    "replicas": 3,
    "warmup": {"prompt": "Say yes.", "maxTokens": 4, "loadDeadlineSeconds": 600, "deadlineSeconds": 60},
    "drain": {"deadlineSeconds": 30},
    "update": "Rollout",
    "template": {
        "resources": {
            "requests": {"cpu": 4, "memory": "16Gi"},
            "limits": {"cpu": "8", "memory": "32Gi"},
        },
        "env": [
            {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token", "optional": True}}},
            {"name": "REGION", "valueFrom": {"configMapKeyRef": {"name": "site", "key": "region", "optional": True}}},
        ],
        "imagePullSecrets": [{"name": "pull"}],
        "volumes": [
            {
                "name": "weights",
                "mountPath": "/cache",
                "readOnly": True,
                "persistentVolumeClaim": {"claimName": "weights"},
            },
            {"name": "settings", "mountPath": "/etc/engine", "configMap": {"name": "settings"}},
            {"name": "certificates", "mountPath": "/etc/certificates", "secret": {"name": "certificates"}},
            {"name": "scratch", "mountPath": "/tmp/scratch", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
        ],
        "sharedMemory": "8Gi",
        "serviceAccountName": "engine",
        "priorityClassName": "serving",
        "runtimeClassName": "nvidia",
    },
    "capacityPlanRef": {"name": "peak"},
    "suspend": True,
}

FULL_AUTOSCALING: Json = {
    "policy": "Seed",
    "minReplicas": 2,
    "maxReplicas": 8,
    "serviceTokensPerSecond": 2500.5,
    "targetUtilization": 0.75,
    "queueDrainSeconds": 30,
    "scaleUpCooldownSeconds": 20,
    "scaleDownStabilizationSeconds": 200,
    "sampleSeconds": 10,
}
"""Every field of `autoscaling`, which excludes `replicas`."""

FULL_STATUS: Json = {
    "observedGeneration": 3,
    "replicas": 2,
    "desiredReplicas": 3,
    "pendingReplicas": 1,
    "warmingReplicas": 1,
    "readyReplicas": 1,
    "drainingReplicas": 1,
    "gpus": 8,
    "selector": "bayplan.dev/model=llama,bayplan.dev/rank=0",
    "parallelism": [
        {
            "gpuProduct": "NVIDIA-L4",
            "tensor": 2,
            "pipeline": 2,
            "data": 2,
            "expert": True,
            "decodeContext": 2,
            "gpusPerReplica": 4,
            "nodesPerReplica": 2,
            "provenance": "Derived",
            "reason": "smallest that fits",
            "runnerUp": "tensor=4 pipeline=1: takes 4 GPUs instead of 2",
            "exchanges": ["tensor all-reduce of 2 over PCIe: 1.2 ms per step"],
        }
    ],
    "memory": [
        {
            "gpuProduct": "NVIDIA-L4",
            "fits": True,
            "marginal": False,
            "warnings": ["graph capture: 0.4 GiB are left outside the budget"],
            "requiredGib": 17.25,
            "usableGib": 20.5,
            "headroomGib": 3.25,
            "maxConcurrency": 21,
            "terms": [{"name": "weights", "gibPerGpu": 7.5, "provenance": "Declared", "detail": "8e9 x 16 bits / 2"}],
        }
    ],
    "placement": {
        "groups": [
            {
                "name": "llama-1a2b-0",
                "revision": "0123456789",
                "stage": "Warming",
                "since": "2026-01-02T03:04:05Z",
                "warmupStage": "Listening",
                "nodes": ["node-a", "node-b"],
                "gpuProduct": "NVIDIA-L4",
                "facts": ["tightest fit of 3 nodes"],
                "message": "loading",
            }
        ],
        "pendingReason": "1 of 3: needs 4 GPUs, node-c has 2 free",
    },
    "scaling": {
        "desiredReplicas": 3,
        "reason": "ScaleUp",
        "message": "demand 3 (rate 2 + queue 1) within 1 to 4; 2 to 3",
        "decidedTime": "2026-01-02T03:04:05Z",
        "observedTime": "2026-01-02T03:04:04Z",
        "arrivalTokensPerSecond": 160.5,
        "queuedTokens": 800,
        "coverage": 0.75,
        "rateReplicas": 2,
        "queueReplicas": 1,
        "demandReplicas": 3,
        "windowReplicas": 3,
        "readyTokensPerSecond": 160,
        "lastScaleTime": "2026-01-02T03:04:05Z",
        "lastRiseQueueReplicas": 1,
    },
    "evidence": {"revision": "0123456789", "unproven": ["canary-gate"]},
    "capacity": {"plan": "peak", "floor": 3, "serviceTokensPerSecond": 812.5, "targetUtilization": 0.75},
    "revisions": {
        "target": "0123456789",
        "serving": ["0123456789"],
        "candidate": "abcdef0123",
        "proven": ["0123456789"],
        "rejected": [{"revision": "fedcba9876", "reason": "GateFailed", "message": "ttft: 90 of 100"}],
    },
    "endpoint": "http://llama.team.svc:8000/v1",
    "conditions": [
        {
            "type": "Ready",
            "status": "False",
            "reason": "NotReady",
            "message": "1 of 3 replicas serve",
            "lastTransitionTime": "2026-01-02T03:04:05Z",
            "observedGeneration": 3,
        }
    ],
}


def model(spec: Json, name: str = "llama") -> Json:
    """Return an InferenceModel with this spec, independent of later changes to it."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.INFERENCEMODEL_KIND,
        "metadata": {"name": name},
        "spec": deepcopy(spec),
    }
