"""Accept and reject examples for each rule in CEL, as changes to the full spec; and what else a bound needs changed."""

from dataclasses import dataclass, field
from typing import Any

from bayplan.api.engineargs import RESERVED_ENV, RESERVED_FLAGS
from e2e.specwalk.boundaries import Json, Location, change, put
from tests.api.specs import FULL_AUTOSCALING, FULL_SPEC

ABSENT = object()
Edits = dict[Location, Any]


@dataclass(frozen=True, kw_only=True)
class RuleCase:
    """Examples for the rule at `path` whose message contains `says`; each example is a set of edits."""

    path: str
    says: str
    accept: list[Edits] = field(default_factory=list)
    reject: list[Edits] = field(default_factory=list)


def edited(edits: Edits, full: Json = FULL_SPEC) -> Json:
    """Return a copy of the full spec with the edits; ABSENT removes."""
    for location, value in edits.items():
        full = (
            change(full, location, lambda parent, key: parent.pop(key))
            if value is ABSENT
            else put(full, location, value)
        )
    return full


def _values(location: Location, *values: Any) -> list[Edits]:
    return [{location: value} for value in values]


def _spellings(flag: str) -> list[str]:
    forms = [flag, f"{flag}=1", f"{flag} 1"]
    if flag.startswith("--"):
        forms += [flag.replace("-", "_").replace("__", "--", 1), flag[:3], flag[:-1], f"{flag[:-1]}=1"]
    return forms


_HEADS: Location = ("model", "architecture", "attentionHeads")
_KV_HEADS: Location = ("model", "architecture", "kvHeads")
_ARCHITECTURE: Location = ("model", "architecture")
_NUMBERS = ("parameters", "layers", "attentionHeads", "kvHeads", "headDim")
_WITHOUT_NUMBERS: Edits = {(*_ARCHITECTURE, name): ABSENT for name in _NUMBERS}
_NAMED: Edits = {**_WITHOUT_NUMBERS, (*_ARCHITECTURE, "name"): "Llama-3.1-8B"}
_IMAGE: Location = ("engine", "image")
_ARGS: Location = ("engine", "args", 0)
_TOLERATION: Location = ("placement", "tolerations", 0)
_REQUESTS: Location = ("template", "resources", "requests")
_LIMITS: Location = ("template", "resources", "limits")
_SOURCE: Location = ("template", "env", 0, "valueFrom")
_VOLUME: Location = ("template", "volumes", 0)
_AUTOSCALED: Edits = {("replicas",): ABSENT, ("autoscaling",): FULL_AUTOSCALING}
_CONFIG_VOLUME: Location = ("template", "volumes", 1)


def _autoscaled(**changes: Any) -> Edits:
    return _AUTOSCALED | {("autoscaling", name): value for name, value in changes.items()}


SECOND_NAMES = (
    "--device-memory-utilization",
    "--device_memory_utilization",
    "--data-parallel-size-local",
    "--data_parallel_size_local",
    "--data-parallel-rank",
    "--data-parallel-start-rank",
    "--data-parallel-address",
    "--data-parallel-rpc-port",
    "--data-parallel-backend",
    "--data-parallel-hybrid-lb",
    "--data-parallel-external-lb",
    *("-dpl", "-dpn", "-dpr", "-dpa", "-dpp", "-dpb", "-dph", "-dpe", "-dpm"),
    *("-pcp", "-dcp", "-ep"),
)
"""What vLLM takes for, or instead of, a flag that Bayplan sets."""

RULE_CASES = [
    RuleCase(
        path="spec.model.uri",
        says="'..'",
        accept=_values(
            ("model", "uri"), "hf://org/a.b", "pvc://claim/a/b", "file:///models/a", "s3://bucket/a", "oci://r/a:1"
        ),
        reject=_values(("model", "uri"), "pvc://claim/a/../b", "file:///a/..", "s3://bucket/.."),
    ),
    RuleCase(
        path="spec.model",
        says="inspect reads what architecture would state",
        accept=[
            {("model", "inspect"): True, _ARCHITECTURE: ABSENT},
            {("model", "inspect"): False},
            {_ARCHITECTURE: ABSENT, ("model", "inspect"): False},
        ],
        reject=[{("model", "inspect"): True}],
    ),
    RuleCase(
        path="spec.model.architecture",
        says="multiple of kvHeads",
        accept=[{_HEADS: 32, _KV_HEADS: 32}, {_HEADS: 32, _KV_HEADS: 1}],
        reject=[{_HEADS: 32, _KV_HEADS: 5}, {_HEADS: 8, _KV_HEADS: 16}],
    ),
    RuleCase(
        path="spec.model.architecture",
        says="exactly one of name, config, or parameters",
        accept=[{}, _NAMED, {**_WITHOUT_NUMBERS, (*_ARCHITECTURE, "config"): "{}"}],
        reject=[
            _WITHOUT_NUMBERS,
            {(*_ARCHITECTURE, "name"): "Llama-3.1-8B"},
            {**_NAMED, (*_ARCHITECTURE, "config"): "{}"},
        ],
    ),
    RuleCase(
        path="spec.model.architecture",
        says="must be stated together",
        accept=[_NAMED],
        reject=[{(*_ARCHITECTURE, name): ABSENT} for name in ("layers", "kvHeads", "headDim")],
    ),
    RuleCase(
        path="spec.model.architecture",
        says="weightFormat belongs to name or config",
        accept=[{**_NAMED, (*_ARCHITECTURE, "weightFormat"): "fp8"}],
        reject=[{(*_ARCHITECTURE, "weightFormat"): "fp8"}],
    ),
    RuleCase(
        path="spec.engine.image",
        says="v0.18.0 or newer",
        accept=_values(
            _IMAGE,
            *(f"vllm/vllm-openai:{tag}" for tag in ("v0.18.0", "0.18.0", "v0.18", "v0.18.0rc1", "v0.32.0", "v0.100.0")),
            *(f"vllm/vllm-openai:{tag}" for tag in ("latest", "nightly", "v1.0.0", "v1.17.0", "17", "v0", "v0.170.0")),
            "vllm/vllm-openai",
            f"vllm/vllm-openai@sha256:{'a' * 64}",
            "registry.example:5000/engine:v0.11.0",
            "my-vllm-openai:v0.11.0",
            "vllm-openai/engine:v0.11.0",
        ),
        reject=_values(
            _IMAGE,
            *(
                f"vllm/vllm-openai:{tag}"
                for tag in ("v0.17.9", "0.17.9", "v0.17", "v0.1.0", "v0.11.0-cu128", "v0.9.2rc1")
            ),
            "vllm-openai:v0.11.0",
            "registry.example:5000/mirror/vllm-openai-rocm:v0.11.0",
            "vllm-cpu:v0.17.1",
            f"vllm/vllm-openai:v0.11.0@sha256:{'a' * 64}",
        ),
    ),
    RuleCase(
        path="spec.engine.args[]",
        says="must not be a flag",
        accept=_values(
            _ARGS,
            "--seed",
            "--seed=1",
            "-",
            "--",
            "-1",
            "-O3",
            "value",
            "--max-num-batched-tokens=8192",
            "--enable_prefix_caching",
            "--config-format",
            "--grpc-port=1",
            "-dc={}",
            "-asc=2",
            "--model-impl=auto",
            "a=--model",
            "--",
            "_",
        ),
        reject=_values(
            _ARGS,
            *(form for flag in RESERVED_FLAGS for form in _spellings(flag)),
            *(form for flag in SECOND_NAMES for form in (flag, f"{flag}=1", f"{flag} 1")),
            "-n2",
            "-r0",
            "-t",
        ),
    ),
    *(
        RuleCase(
            path=path,
            says="which GPUs, address, ranks or key",
            accept=_values(location, "CUDA_VISIBLE_DEVICES_OF_MINE", "cuda_visible_devices"),
            reject=_values(location, *RESERVED_ENV),
        )
        for path, location in (
            ("spec.engine.env[].name", ("engine", "env", 0, "name")),
            ("spec.template.env[].name", ("template", "env", 0, "name")),
        )
    ),
    RuleCase(
        path="spec.placement.nodeSelector",
        says="keys must have at most 253",
        accept=_values(
            ("placement", "nodeSelector"), {"a": "b"}, {"example.com/A_b.c": ""}, {"a" * 189 + "/" + "b" * 63: ""}
        ),
        reject=_values(
            ("placement", "nodeSelector"),
            {"-a": "b"},
            {"": "b"},
            {"a/": "b"},
            {"A.com/b": "c"},
            {"a" * 64: "b"},
            {"a" * 190 + "/" + "b" * 63: ""},
            {"a b": "c"},
            {"a\n": "c"},
        ),
    ),
    RuleCase(
        path="spec.placement.tolerations[]",
        says="operator must be Exists",
        accept=[{_TOLERATION: {"operator": "Exists"}}, {_TOLERATION: {"key": "a"}}],
        reject=[{_TOLERATION: {}}, {_TOLERATION: {"operator": "Equal", "value": "a"}}],
    ),
    RuleCase(
        path="spec.placement.tolerations[]",
        says="value must be empty",
        accept=[
            {_TOLERATION: {"key": "a", "operator": "Exists", "value": ""}},
            {_TOLERATION: {"key": "a", "value": "b"}},
        ],
        reject=[{_TOLERATION: {"key": "a", "operator": "Exists", "value": "b"}}],
    ),
    RuleCase(
        path="spec.placement.tolerations[]",
        says="effect must be NoExecute",
        accept=[{_TOLERATION: {"key": "a", "effect": "NoExecute", "tolerationSeconds": 0}}],
        reject=[
            {_TOLERATION: {"key": "a", "tolerationSeconds": 0}},
            {_TOLERATION: {"key": "a", "effect": "NoSchedule", "tolerationSeconds": 1}},
        ],
    ),
    RuleCase(
        path="spec.template.resources",
        says="requests must not exceed limits",
        accept=[
            {_REQUESTS: {"cpu": "8000m"}, _LIMITS: {"cpu": 8}},
            {_REQUESTS: {"memory": "1Gi"}, _LIMITS: {"cpu": 1}},
            {_REQUESTS: {"memory": "1024Mi"}, _LIMITS: {"memory": "1Gi"}},
            {_REQUESTS: ABSENT},
            {_LIMITS: ABSENT},
        ],
        reject=[
            {_REQUESTS: {"cpu": "8001m"}, _LIMITS: {"cpu": 8}},
            {_REQUESTS: {"memory": "1Gi"}, _LIMITS: {"memory": "1G"}},
            {_REQUESTS: {"memory": "1Ti"}, _LIMITS: {"memory": "1023Gi"}},
            {_REQUESTS: {"memory": "1k"}, _LIMITS: {"memory": "0.9Ki"}},
            {_REQUESTS: {"memory": "1P"}, _LIMITS: {"memory": "999T"}},
        ],
    ),
    *(
        RuleCase(
            path=f"spec.template.resources.{member}",
            says="keys must be one of",
            accept=[{("template", "resources", member): {"ephemeral-storage": "10Gi"}}],
            reject=[{("template", "resources", member): {"nvidia.com/gpu": 1}}],
        )
        for member in ("requests", "limits")
    ),
    RuleCase(
        path="spec.template.env[].valueFrom",
        says="exactly one of secretKeyRef, configMapKeyRef",
        accept=[
            {_SOURCE: {"secretKeyRef": {"name": "a", "key": "b"}}},
            {_SOURCE: {"configMapKeyRef": {"name": "a", "key": "b"}}},
        ],
        reject=[
            {_SOURCE: {}},
            {_SOURCE: {"secretKeyRef": {"name": "a", "key": "b"}, "configMapKeyRef": {"name": "a", "key": "b"}}},
        ],
    ),
    RuleCase(
        path="spec.template.volumes[]",
        says="exactly one of persistentVolumeClaim, configMap, secret, emptyDir",
        accept=[
            {(*_CONFIG_VOLUME, "configMap"): ABSENT, (*_CONFIG_VOLUME, source): body}
            for source, body in (
                ("persistentVolumeClaim", {"claimName": "a"}),
                ("configMap", {"name": "a"}),
                ("secret", {"name": "a"}),
                ("emptyDir", {}),
            )
        ],
        reject=[{(*_CONFIG_VOLUME, "configMap"): ABSENT}, {(*_CONFIG_VOLUME, "emptyDir"): {}}],
    ),
    RuleCase(
        path="spec.template.volumes[].name",
        says="must not start with bayplan-",
        accept=_values((*_VOLUME, "name"), "bayplan", "my-bayplan-a"),
        reject=_values((*_VOLUME, "name"), "bayplan-shm", "bayplan-a"),
    ),
    RuleCase(
        path="spec.template.volumes[].mountPath",
        says="own mounts",
        accept=_values((*_VOLUME, "mountPath"), "/dev/shmem", "/mnt/models", "/mnt", "/root/.cache"),
        reject=_values((*_VOLUME, "mountPath"), "/dev/shm", "/dev/shm/a", "/mnt/model", "/mnt/model/a/b"),
    ),
    RuleCase(
        path="spec.template.volumes",
        says="mountPath must be different",
        accept=_values((*_VOLUME, "mountPath"), "/etc/engine2"),
        reject=_values((*_VOLUME, "mountPath"), "/etc/engine"),
    ),
    RuleCase(
        path="spec",
        says="concurrency must not exceed",
        accept=[{("concurrency",): 64}, {("concurrency",): ABSENT}, {("engine", "maxNumSeqs"): ABSENT}],
        reject=[{("concurrency",): 65}],
    ),
    RuleCase(
        path="spec",
        says="either in engine.env or in template.env",
        accept=[{("engine", "env"): ABSENT}, {("template", "env"): ABSENT}, {("template",): ABSENT}],
        reject=_values(("engine", "env", 0, "name"), "HF_TOKEN", "REGION"),
    ),
    RuleCase(
        path="spec",
        says="replicas must be absent where autoscaling decides",
        accept=[_AUTOSCALED, {("replicas",): ABSENT}, {("replicas",): 0}],
        reject=[{("autoscaling",): FULL_AUTOSCALING}, _AUTOSCALED | {("replicas",): 0}],
    ),
    RuleCase(
        path="spec.autoscaling",
        says="minReplicas must not exceed maxReplicas",
        accept=[_autoscaled(minReplicas=8), _autoscaled(minReplicas=ABSENT, maxReplicas=1)],
        reject=[_autoscaled(minReplicas=9), _autoscaled(maxReplicas=1)],
    ),
    RuleCase(
        path="spec.autoscaling",
        says="at least 2 times sampleSeconds",
        accept=[
            _autoscaled(scaleDownStabilizationSeconds=20),
            _autoscaled(sampleSeconds=100),
            _autoscaled(sampleSeconds=ABSENT, scaleDownStabilizationSeconds=ABSENT),
        ],
        reject=[
            _autoscaled(scaleDownStabilizationSeconds=19),
            _autoscaled(sampleSeconds=101),
        ],
    ),
]
"""Examples for every rule that looks at one spec. Rules about a change have tests of their own."""

IMAGES_ACCEPTED = (
    "engine",
    "engine:v1",
    "engine:5000",
    "a/b",
    "org/a.b_c__d--e:1.0_Beta-2",
    "registry.example/org/engine",
    "registry.example:5000/engine",
    "registry.example:5000/org/engine:v1",
    "localhost:5000/engine",
    "engine:" + "t" * 128,
    f"engine@sha256:{'0' * 64}",
    f"registry.example:5000/engine:v1@sha256:{'f' * 64}",
)
IMAGES_REFUSED = (
    ":",
    "x:",
    ":v1",
    "x: ",
    "a//b",
    "/a",
    "a/",
    "a/:v1",
    "a:b:c",
    "a:b/c:d/e:f",
    "host:port/engine",
    "host:123456/engine",
    "host:/engine",
    "Engine",
    "a..b",
    "a/.b",
    "a/b-",
    "a___b",
    "-a",
    "engine:-v1",
    "engine:.v1",
    "engine:" + "t" * 129,
    "engine@",
    "engine@sha256:",
    f"engine@sha256:{'0' * 63}",
    f"engine@sha256:{'0' * 65}",
    f"engine@sha256:{'F' * 64}",
    f"@sha256:{'0' * 64}",
    "engine v1",
    "https://registry.example/engine",
)
"""Image references that the schema's pattern lets through, and ones that no registry could serve."""

COMPANIONS: dict[str, Edits] = {
    "spec.model.architecture.attentionHeads": {_KV_HEADS: 1},
    "spec.model.architecture.kvHeads": {_HEADS: 4096},
    "spec.model.inspect": {_ARCHITECTURE: ABSENT},
    "spec.model.architecture.name": _NAMED,
    "spec.model.architecture.config": {**_WITHOUT_NUMBERS, (*_ARCHITECTURE, "config"): "{}"},
    "spec.model.architecture.weightFormat": {**_NAMED, (*_ARCHITECTURE, "weightFormat"): "fp8"},
    "spec.engine.maxNumSeqs": {("concurrency",): 1},
    "spec.concurrency": {("engine", "maxNumSeqs"): ABSENT},
    "spec.placement.tolerations[].operator": {(*_TOLERATION, "value"): ""},
    "spec.placement.tolerations[].effect": {(*_TOLERATION, "tolerationSeconds"): ABSENT},
    "spec.autoscaling.minReplicas": {("autoscaling", "maxReplicas"): 10_000},
    "spec.autoscaling.maxReplicas": {("autoscaling", "minReplicas"): ABSENT},
    "spec.autoscaling.scaleDownStabilizationSeconds": {("autoscaling", "sampleSeconds"): 1},
    "spec.autoscaling.sampleSeconds": {("autoscaling", "scaleDownStabilizationSeconds"): 600},
    "spec.template.resources.requests": {_LIMITS: ABSENT},
    "spec.template.resources.requests.*": {_LIMITS: ABSENT},
    "spec.template.resources.limits": {_REQUESTS: ABSENT},
    "spec.template.resources.limits.*": {_REQUESTS: ABSENT},
}
"""Edits that keep the rules over several fields satisfied while one field goes to its bound."""


def companions(path: str) -> Edits:
    """Return the edits of the full spec that the cases of a field need."""
    if path == "spec.autoscaling" or path.startswith("spec.autoscaling."):
        return _AUTOSCALED | COMPANIONS.get(path, {})
    return COMPANIONS.get(path, {})
