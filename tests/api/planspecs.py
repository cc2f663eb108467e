"""CapacityPlans for tests: the smallest valid one, one in which every field is set, and a status of every field."""

from typing import Any

from bayplan.api import names
from tests.api.specs import FULL_SPEC

Json = dict[str, Any]

H100 = "NVIDIA-H100-80GB-HBM3"

MINIMAL_PLAN: Json = {
    "workloadClasses": [
        {
            "name": "interactive",
            "requestsPerSecond": 1.5,
            "burstMultiplier": 1.5,
            "promptTokens": 400,
            "outputTokens": 100,
            "meanServiceSeconds": 2,
        },
        {
            "name": "generation",
            "requestsPerSecond": 0.5,
            "burstMultiplier": 2,
            "promptTokens": 200,
            "outputTokens": 600,
            "meanServiceSeconds": 5,
        },
    ],
    "benchmark": {
        "source": "bench run 17",
        "observedTime": "2026-03-01T00:00:00Z",
        "modelRevision": "0123abc",
        "engineImage": "vllm/vllm-openai:v0.32.0",
        "gpuProduct": H100,
        "prefillTokensPerSecond": 1000,
        "outputTokensPerSecond": 350,
        "maxConcurrentRequests": 8,
    },
    "evidence": {"requiredClasses": ["interactive", "generation"]},
}
"""The chapter's workload: 1100 prompt and 825 output tokens per second at the peak, four replicas by decode."""

FULL_PLAN: Json = {
    "model": FULL_SPEC["model"],
    "engine": FULL_SPEC["engine"],
    "concurrency": 16,
    "parallelism": FULL_SPEC["parallelism"],
    "placement": FULL_SPEC["placement"],
    "workloadClasses": [
        MINIMAL_PLAN["workloadClasses"][0] | {"objectives": {"maxP95TtftSeconds": 1.5, "maxP95TpotSeconds": 0.15}},
        MINIMAL_PLAN["workloadClasses"][1],
    ],
    "benchmark": MINIMAL_PLAN["benchmark"]
    | {"tensor": 2, "pipeline": 2, "data": 1, "p95TtftSeconds": 0.8, "p95TpotSeconds": 0.1},
    "resilience": {"minReplicas": 2, "reservedFraction": 0.25, "surviveLossOf": "zone", "maintenanceReplicas": 1},
    "limits": {"maxReplicas": 20, "maxGpus": 80, "maxHourlyCost": 400},
    "price": {
        "hourlyCost": 4.25,
        "unit": "GPU",
        "currency": "EUR",
        "source": "price list",
        "date": "2026-03-01T00:00:00Z",
    },
    "evidence": {
        "requiredClasses": ["interactive", "generation"],
        "controls": ["memory-fit", "capacity-plan", "gpu-placement"],
        "greatestAges": {"benchmark": 86400, "inventory": 600, "price": 86400, "canary": 86400},
    },
}

FULL_PLAN_STATUS: Json = {
    "observedGeneration": 3,
    "model": "llama",
    "revision": "abc",
    "demand": {
        "promptTokensPerSecond": 1100,
        "outputTokensPerSecond": 825,
        "concurrentRequests": 9.5,
        "kvTokens": 6250,
    },
    "dimensions": [{"name": "decode", "unrounded": 3.142857, "replicas": 4, "binding": True, "bottleneck": True}],
    "needs": [{"name": "load", "replicas": 4}],
    "replicas": 4,
    "atLeast": False,
    "gpus": 4,
    "placeableReplicas": 4,
    "layout": {"gpuProduct": H100, "tensor": 1, "pipeline": 1, "gpusPerReplica": 1},
    "cost": {
        "perHour": 17,
        "perMillionOutputTokens": 5.723906,
        "perMillionTokens": 2.453102,
        "currency": "EUR",
        "source": "price list",
        "date": "2026-03-01T00:00:00Z",
    },
    "floor": 4,
    "serviceTokensPerSecond": 816.666667,
    "targetUtilization": 0.75,
    "conflicts": [{"reason": "BudgetExceeded", "message": "17.00 per hour needed, budget 10.00: 7.00 over"}],
    "evidence": [{"name": "memory-fit", "required": True, "state": "Earned", "message": "fits"}],
    "inputs": [{"name": "inventory", "digest": "sha256:0"}],
    "reportDigest": "sha256:1",
    "conditions": [
        {
            "type": "Ready",
            "status": "True",
            "reason": "Ready",
            "message": "4 replicas",
            "lastTransitionTime": "2026-03-01T00:00:00Z",
            "observedGeneration": 3,
        }
    ],
}


def plan(spec: Json, name: str = "peak", namespace: str = "default") -> Json:
    """A CapacityPlan object."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.CAPACITYPLAN_KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }
