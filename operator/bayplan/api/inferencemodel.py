"""`InferenceModel`: one model served by a fleet of engine replicas. This module is the spec; the status has its own.

Field names follow what users know: vLLM's flag names for the engine, KServe's for parallelism, Kubernetes' for pods.
Every bound here becomes schema or CEL in the CRD, so a wrong value is refused at `kubectl apply`.
"""

from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from bayplan.api.meta import ExactNumber, LabelKey, LabelValue, Schema, WholeNumber
from bayplan.api.podtemplate import EnvName, PodTemplate, Toleration

MAX_NAME = 40
"""Longest InferenceModel name: pod names add revision, group, attempt and rank and must stay DNS labels."""

RESERVED_FLAGS = (
    "--host",
    "--port",
    "--served-model-name",
    "--model",
    "--revision",
    "--max-model-len",
    "--max-num-seqs",
    "--gpu-memory-utilization",
    "--kv-cache-dtype",
    "--tensor-parallel-size",
    "-tp",
    "--pipeline-parallel-size",
    "-pp",
    "--nnodes",
    "--node-rank",
    "--master-addr",
    "--master-port",
    "--headless",
    "--shutdown-timeout",
)
"""Engine flags that Bayplan sets from its own fields; setting them twice could contradict the memory plan."""


def rule(expression: str, message: str, **extra: str) -> dict[str, str]:
    """One CEL validation; `message` says what would be accepted."""
    return {"rule": expression, "message": message, **extra}


def rules(*validations: dict[str, str]) -> dict[str, Any]:
    """Attach CEL validations to a schema."""
    return {"x-kubernetes-validations": list(validations)}


Text = Annotated[str, StringConstraints(min_length=1, max_length=512)]


class Architecture(
    Schema,
    json_schema_extra=rules(
        rule("self.attentionHeads % self.kvHeads == 0", "attentionHeads must be a multiple of kvHeads")
    ),
):
    """The numbers that memory and layout are computed from, as the model's own config.json states them."""

    parameters: Annotated[WholeNumber, Field(ge=1, le=10**14)]
    weight_bits: Annotated[ExactNumber, Field(gt=0, le=64)] = Decimal(16)
    layers: Annotated[WholeNumber, Field(ge=1, le=4096)]
    attention_heads: Annotated[WholeNumber, Field(ge=1, le=4096)]
    kv_heads: Annotated[WholeNumber, Field(ge=1, le=4096)]
    head_dim: Annotated[WholeNumber, Field(ge=1, le=8192)]


class Model(
    Schema,
    json_schema_extra=rules(
        rule("self.name == oldSelf.name", "name is immutable: clients call the model by it; create another object")
    ),
):
    """What is served: an immutable artifact and the name that clients use for it."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][-A-Za-z0-9._/]*$", min_length=1, max_length=128)]
    uri: Annotated[
        str,
        StringConstraints(
            pattern=r"^(hf|s3|oci|pvc|file)://[A-Za-z0-9][-A-Za-z0-9._/@:]*$|^file:///[-A-Za-z0-9._/@:]+$",
            max_length=512,
        ),
    ]
    revision: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][-A-Za-z0-9._]*$", min_length=1, max_length=128)]
    architecture: Architecture


class EnvValue(Schema):
    """A literal environment variable of the engine. It can change answers, so it is part of the revision."""

    name: EnvName
    value: Annotated[str, StringConstraints(max_length=2048)] = ""


class Engine(
    Schema,
    json_schema_extra=rules(
        rule(
            "!has(self.args) || !self.args.exists(a, a.split('=')[0] in ["
            + ", ".join(f"'{flag}'" for flag in RESERVED_FLAGS)
            + "])",
            "args must not contain flags that Bayplan sets from its own fields: " + ", ".join(RESERVED_FLAGS),
        )
    ),
):
    """The inference engine and its limits, named as the engine's flags are."""

    name: Literal["vllm"] = "vllm"
    image: Annotated[
        str,
        StringConstraints(
            pattern=r"^[a-z0-9][-a-z0-9._/:]*(@sha256:[a-f0-9]{64}|:[A-Za-z0-9_][-.A-Za-z0-9_]*)?$",
            min_length=1,
            max_length=512,
        ),
    ]
    args: Annotated[tuple[Text, ...], Field(max_length=64)] = ()
    env: Annotated[tuple[EnvValue, ...], Field(max_length=64)] = ()
    max_model_len: Annotated[WholeNumber, Field(ge=1, le=100_000_000)]
    max_num_seqs: Annotated[WholeNumber, Field(ge=1, le=65536)] | None = None
    gpu_memory_utilization: Annotated[ExactNumber, Field(gt=0, le=1)] = Decimal("0.9")
    kv_cache_dtype: Literal["auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2"] = "auto"
    memory_overhead_gib: Annotated[ExactNumber, Field(ge=0, le=1024)] | None = None
    """GiB per GPU outside weights and KV cache; without it an estimate stands, and says so."""


class Parallelism(Schema):
    """Declared layout of one replica; omitted members are derived."""

    tensor: Annotated[WholeNumber, Field(ge=1, le=64)] | None = None
    pipeline: Annotated[WholeNumber, Field(ge=1, le=64)] | None = None


class TopologyRule(Schema):
    """All pods of a group inside one domain of the level: as a must, or as a wish that placement reports on."""

    level: Annotated[str, StringConstraints(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=32)]
    mode: Literal["Required", "Preferred"] = "Required"


class Spread(Schema):
    """Groups of one model are spread evenly over the failure domains of this level."""

    level: Annotated[str, StringConstraints(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=32)] = "zone"


class Placement(Schema):
    """Where replicas may run. Nothing here moves a replica that already runs."""

    gpu_products: Annotated[tuple[LabelValue, ...], Field(max_length=32)] = ()
    """Accepted `nvidia.com/gpu.product` (or AMD product-name) values, most preferred first; empty accepts any."""
    node_selector: Annotated[dict[LabelKey, LabelValue], Field(max_length=32)] = Field(default_factory=dict)
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32)] = ()
    topology: Annotated[tuple[TopologyRule, ...], Field(max_length=4)] = ()
    spread: Spread = Spread()


class Warmup(Schema):
    """How a replica proves that it can generate before it may serve."""

    prompt: Annotated[str, StringConstraints(min_length=1, max_length=4096)] = "Reply with the word ready."
    max_tokens: Annotated[WholeNumber, Field(ge=1, le=1024)] = 8
    load_deadline_seconds: Annotated[WholeNumber, Field(ge=5, le=86400)] = 1800
    """From the start of the head's container until the engine lists the model."""
    deadline_seconds: Annotated[WholeNumber, Field(ge=1, le=3600)] = 120
    """From the first generation attempt until one succeeds."""


class Drain(Schema):
    """How long running requests may take to end when a replica leaves."""

    deadline_seconds: Annotated[WholeNumber, Field(ge=0, le=86400)] = 300


class InferenceModelSpec(
    Schema,
    json_schema_extra=rules(
        rule(
            "!has(self.engine.maxNumSeqs) || !has(self.concurrency) || self.concurrency <= self.engine.maxNumSeqs",
            "concurrency must not exceed engine.maxNumSeqs",
        )
    ),
):
    """What the user wants. The operator never writes it."""

    model: Model
    engine: Engine
    concurrency: Annotated[WholeNumber, Field(ge=1, le=1_000_000)] = 1
    """Requests of full `engine.maxModelLen` that one replica must hold in KV cache at the same time."""
    parallelism: Parallelism = Parallelism()
    memory_policy: Literal["Enforce", "Warn"] = "Enforce"
    """Enforce blocks a proven no; Warn places it all the same and says so."""
    placement: Placement = Placement()
    replicas: Annotated[WholeNumber, Field(ge=0, le=10_000)] | None = None
    """Engine replicas; absent means one. Without a schema default, so that Git may leave it to `kubectl scale`."""
    warmup: Warmup = Warmup()
    drain: Drain = Drain()
    template: PodTemplate = PodTemplate()
    suspend: bool = False
    """Drain to zero replicas and keep the object and its status."""

    @property
    def wanted_replicas(self) -> int:
        """Replicas asked for, after `suspend` and the meaning of absence."""
        if self.suspend:
            return 0
        return 1 if self.replicas is None else self.replicas
