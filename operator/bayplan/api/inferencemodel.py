"""`InferenceModel`: one model served by a fleet of engine replicas. This module is the spec; the status has its own.

Field names follow what users know: vLLM's flag names for the engine, KServe's for parallelism, Kubernetes' for pods.
Every bound here becomes schema or CEL in the CRD, so a wrong value is refused at `kubectl apply`.
"""

import re
from decimal import Decimal
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from bayplan.api.autoscaling import Autoscaling
from bayplan.api.engineargs import EngineArgument, EnvName
from bayplan.api.engineimage import EngineImage
from bayplan.api.meta import (
    ATOMIC,
    ATOMIC_MAP,
    Exact,
    Flag,
    Keyed,
    LabelKey,
    LabelValue,
    ObjectName,
    Schema,
    WholeNumber,
)
from bayplan.api.podtemplate import PodTemplate, TolerationList
from bayplan.api.rules import Rule

MAX_NAME = 40
"""Longest InferenceModel name: pod names add revision, group, attempt and rank and must stay DNS labels."""

NAME_PATTERN = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
NAME_RULE = Rule(
    expression=f"self.metadata.name.size() <= {MAX_NAME} && self.metadata.name.matches('{NAME_PATTERN}')",
    message=f"metadata.name must be a DNS label of at most {MAX_NAME} characters that starts with a letter",
    holds=lambda name: len(name) <= MAX_NAME and re.fullmatch(NAME_PATTERN, name) is not None,
)
"""Rule on `metadata.name`, stated at the root of the CRD; the predicate takes the name itself."""


WeightFormatName = Literal[
    "bf16",
    "fp16",
    "fp32",
    "fp8",
    "fp8-block",
    "int8",
    "gptq-4bit",
    "awq-4bit",
    "int4",
    "autoround-int4",
    "int4-experts",
    "mxfp4",
    "nvfp4",
]
"""Weight formats whose bits are known."""

TensorBytes = Annotated[WholeNumber, Field(ge=0, le=2**50)]
"""Bytes of tensors in a checkpoint."""


class WeightBytes(Schema):
    """Bytes of the checkpoint's tensors, added up from its safetensors headers."""

    embedding: TensorBytes
    """Embedding, vision tower, and whatever belongs to no layer."""
    head: TensorBytes = 0
    """Output head; 0 where it is the embedding."""
    layers: Annotated[tuple[TensorBytes, ...], Field(min_length=1, max_length=512, json_schema_extra=ATOMIC)]
    """Each decoder layer."""
    prediction: TensorBytes = 0
    """Multi-token-prediction layers; loaded only when the engine speculates with them."""


def _sources(architecture: "Architecture") -> int:
    return sum(item is not None for item in (architecture.name, architecture.config, architecture.parameters))


class Architecture(Schema):
    """What memory and layout are computed from: a name of the catalogue, a config.json, or five numbers."""

    rules: ClassVar = (
        Rule(
            # A value out of its bounds has an error of its own; dividing by it would add an unreadable one.
            expression="!has(self.kvHeads) || !has(self.attentionHeads) || self.kvHeads < 1 || "
            "self.attentionHeads % self.kvHeads == 0",
            message="attentionHeads must be a multiple of kvHeads",
            holds=lambda self: (
                self.kv_heads is None or self.attention_heads is None or self.attention_heads % self.kv_heads == 0
            ),
            field="attentionHeads",
        ),
        Rule(
            expression="[has(self.name), has(self.config), has(self.parameters)].filter(x, x).size() == 1",
            message="needs exactly one of name, config, or parameters with its four companions",
            holds=lambda self: _sources(self) == 1,
        ),
        Rule(
            expression="[has(self.layers), has(self.attentionHeads), has(self.kvHeads), has(self.headDim)]"
            ".all(x, x == has(self.parameters))",
            message="parameters, layers, attentionHeads, kvHeads and headDim must be stated together",
            holds=lambda self: all(
                (item is None) == (self.parameters is None)
                for item in (self.layers, self.attention_heads, self.kv_heads, self.head_dim)
            ),
            field="parameters",
        ),
        Rule(
            expression="!has(self.weightFormat) || !has(self.parameters)",
            message="weightFormat belongs to name or config: beside parameters, weightBits says it",
            holds=lambda self: self.weight_format is None or self.parameters is None,
            field="weightFormat",
        ),
    )

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][-A-Za-z0-9._/]*$", max_length=128)] | None = None
    """Name in Bayplan's model catalogue; tuning, format and date in it do not matter."""
    config: Annotated[str, StringConstraints(min_length=2, max_length=32768)] | None = None
    """The model's config.json as JSON text; `bayplan fit --write` keeps the fields that count."""
    weight_format: WeightFormatName | None = None
    """Format of the weights, where name or config do not tell it."""
    weight_bytes: WeightBytes | None = None
    """Bytes of the checkpoint by layer: better than any format."""
    parameters: Annotated[WholeNumber, Field(ge=1, le=10**14)] | None = None
    """Number of weights of the whole model."""
    weight_bits: Annotated[Decimal, Exact(gt=0, le=64)] = Decimal(16)
    """Bits per weight beside `parameters`: 16 for bfloat16; fractions are allowed for mixed quantization."""
    layers: Annotated[WholeNumber, Field(ge=1, le=4096)] | None = None
    """Number of decoder layers."""
    attention_heads: Annotated[WholeNumber, Field(ge=1, le=4096)] | None = None
    """Number of query heads."""
    kv_heads: Annotated[WholeNumber, Field(ge=1, le=4096)] | None = None
    """Number of key-value heads."""
    head_dim: Annotated[WholeNumber, Field(ge=1, le=8192)] | None = None
    """Elements of one head."""


class Model(Schema):
    """What is served: an immutable artifact and the name that clients use for it."""

    rules: ClassVar = (
        Rule(
            expression="self.name == oldSelf.name",
            message="name is immutable: clients call the model by it; create another object",
            field="name",
        ),
        Rule(
            expression="!has(self.inspect) || !self.inspect || !has(self.architecture)",
            message="inspect reads what architecture would state: leave one of them out",
            holds=lambda self: not self.inspect or self.architecture is None,
            field="inspect",
        ),
    )

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][-A-Za-z0-9._/]*$", min_length=1, max_length=128)]
    """Name that clients put into the `model` member of a request."""
    uri: Annotated[
        str,
        StringConstraints(
            pattern=r"^(hf://[A-Za-z0-9][-A-Za-z0-9._]*(/[A-Za-z0-9][-A-Za-z0-9._]*)?"
            r"|pvc://[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*(/[-A-Za-z0-9._/]+)?"
            r"|(s3|oci)://[A-Za-z0-9][-A-Za-z0-9._/@:]*"
            r"|file:///[A-Za-z0-9.][-A-Za-z0-9._/]*)$",
            max_length=512,
        ),
        Rule(
            expression="!self.contains('..')",
            message="must not contain '..'",
            holds=lambda uri: ".." not in uri,
        ),
    ]
    """Where the weights are: hf://ORG/NAME, pvc://CLAIM/FOLDER, s3://, oci:// or file:///PATH in the image."""
    revision: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][-A-Za-z0-9._]*$", min_length=1, max_length=128)]
    """Immutable revision of the artifact, such as a commit."""
    architecture: Architecture | None = None
    """What memory is computed from; absent, an hf:// name is looked up in the catalogue."""
    inspect: Flag = False
    """Without `architecture`: a pod without a GPU reads config.json and tensor headers, once."""


class EnvValue(Schema):
    """A literal environment variable of the engine. It can change answers, so it is part of the revision."""

    name: EnvName
    """Name of the variable."""
    value: Annotated[str, StringConstraints(max_length=2048)] = ""
    """Its value. Secrets belong to `template.env`."""


class Engine(Schema):
    """The inference engine and its limits, named as the engine's flags are."""

    name: Literal["vllm"] = "vllm"
    """The engine."""
    image: EngineImage
    """Container image of the engine: vLLM 0.18 or newer."""
    args: Annotated[tuple[EngineArgument, ...], Field(max_length=64, json_schema_extra=ATOMIC)] = ()
    """Further engine arguments; flags that Bayplan sets from its own fields are refused in every spelling."""
    env: Annotated[tuple[EnvValue, ...], Field(max_length=64), Keyed("name")] = ()
    """Literal environment variables."""
    max_model_len: Annotated[WholeNumber, Field(ge=1, le=100_000_000)]
    """Longest sequence in tokens, prompt and output together."""
    max_num_seqs: Annotated[WholeNumber, Field(ge=1, le=65536)] | None = None
    """Most sequences in one engine step; absent leaves it to the engine."""
    gpu_memory_utilization: Annotated[Decimal, Exact(gt=0, le=1)] = Decimal("0.9")
    """Share of a GPU's memory that the engine may take."""
    kv_cache_dtype: Literal["auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2"] = "auto"
    """Element type of the KV cache; auto is the model's own."""
    memory_overhead_gib: Annotated[Decimal, Exact(ge=0, le=1024)] | None = None
    """GiB per GPU outside weights and KV cache; without it an estimate stands, and says so."""


class Parallelism(Schema):
    """Declared layout of one replica; omitted members are derived."""

    tensor: Annotated[WholeNumber, Field(ge=1, le=64)] | None = None
    """Tensor-parallel size."""
    pipeline: Annotated[WholeNumber, Field(ge=1, le=64)] | None = None
    """Pipeline-parallel size."""
    data: Annotated[WholeNumber, Field(ge=1, le=64)] | None = None
    """Engine-internal data-parallel ranks: own attention and cache each, shared experts."""
    expert: Flag | None = None
    """Whole experts per rank instead of a slice of each."""
    decode_context: Annotated[WholeNumber, Field(ge=1, le=64)] | None = None
    """Ways in which a tensor group divides the tokens of a request."""


TopologyLevel = Annotated[str, StringConstraints(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=32)]
"""Name of a topology level, such as zone or rack; the operator's configuration maps it to a node label."""


class TopologyRule(Schema):
    """All pods of a group inside one domain of the level: as a must, or as a wish that placement reports on."""

    level: TopologyLevel
    """Topology level, such as rack."""
    mode: Literal["Required", "Preferred"] = "Required"
    """Required never leaves the domain, Preferred does when nothing else fits."""


class Spread(Schema):
    """Groups of one model are spread evenly over the failure domains of this level."""

    level: TopologyLevel = "zone"
    """Topology level of the failure domains."""


GpuProduct = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$", min_length=1, max_length=63)
]
"""Value of a node's GPU product label."""


class Placement(Schema):
    """Where replicas may run. Nothing here moves a replica that already runs."""

    gpu_products: Annotated[tuple[GpuProduct, ...], Field(max_length=32, json_schema_extra=ATOMIC)] = ()
    """Accepted `nvidia.com/gpu.product` (or AMD product-name) values, most preferred first; empty accepts any."""
    node_selector: Annotated[dict[LabelKey, LabelValue], Field(max_length=32, json_schema_extra=ATOMIC_MAP)] = Field(
        default={}
    )
    """Labels that a node must have."""
    tolerations: TolerationList = ()
    """Node taints that the pods tolerate."""
    topology: Annotated[tuple[TopologyRule, ...], Field(max_length=4), Keyed("level")] = ()
    """Domains that a group must or should stay inside."""
    spread: Spread = Spread()
    """How groups are spread over failure domains."""


class Warmup(Schema):
    """How a replica proves that it can generate before it may serve."""

    prompt: Annotated[str, StringConstraints(min_length=1, max_length=4096)] = "Reply with the word ready."
    """Prompt of the warm-up generation."""
    max_tokens: Annotated[WholeNumber, Field(ge=1, le=1024)] = 8
    """Most tokens of the warm-up generation."""
    load_deadline_seconds: Annotated[WholeNumber, Field(ge=5, le=86400)] = 1800
    """From the start of the head's container until the engine lists the model."""
    deadline_seconds: Annotated[WholeNumber, Field(ge=1, le=3600)] = 120
    """From the first generation attempt until one succeeds."""


class Drain(Schema):
    """How long running requests may take to end when a replica leaves."""

    deadline_seconds: Annotated[WholeNumber, Field(ge=0, le=86400)] = 300
    """From the start of the drain until the replica is deleted whatever still runs."""


class CapacityPlanRef(Schema):
    """The CapacityPlan, in the same namespace."""

    name: ObjectName
    """Name of the CapacityPlan; it may be created later."""


def _env_names_differ(spec: "InferenceModelSpec") -> bool:
    return not {item.name for item in spec.engine.env} & {item.name for item in spec.template.env}


class InferenceModelSpec(Schema):
    """What the user wants. The operator never writes it."""

    rules: ClassVar = (
        Rule(
            expression="!has(self.engine.maxNumSeqs) || self.concurrency <= self.engine.maxNumSeqs",
            message="concurrency must not exceed engine.maxNumSeqs",
            holds=lambda self: self.engine.max_num_seqs is None or self.concurrency <= self.engine.max_num_seqs,
            field="concurrency",
        ),
        Rule(
            expression="!has(self.engine.env) || !has(self.template) || !has(self.template.env) || "
            "self.engine.env.all(e, !self.template.env.exists(t, t.name == e.name))",
            message="a variable must be either in engine.env or in template.env",
            holds=_env_names_differ,
            field="template.env",
        ),
        Rule(
            expression="!has(self.replicas) || !has(self.autoscaling)",
            message="replicas must be absent where autoscaling decides",
            holds=lambda self: self.replicas is None or self.autoscaling is None,
            field="replicas",
        ),
    )

    model: Model
    """What is served."""
    engine: Engine
    """What serves it."""
    concurrency: Annotated[WholeNumber, Field(ge=1, le=1_000_000)] = 1
    """Requests of full `engine.maxModelLen` that one replica must hold in KV cache at the same time."""
    parallelism: Parallelism = Parallelism()
    """Declared layout of one replica; omitted is derived."""
    memory_policy: Literal["Enforce", "Warn"] = "Enforce"
    """Enforce blocks a proven no; Warn places it all the same and says so."""
    placement: Placement = Placement()
    """Where replicas may run."""
    replicas: Annotated[WholeNumber, Field(ge=0, le=10_000)] | None = None
    """Engine replicas; absent means one. Without a schema default, so that Git may leave it to `kubectl scale`."""
    autoscaling: Autoscaling | None = None
    """Let the operator follow demand; excludes `replicas`."""
    warmup: Warmup = Warmup()
    """How a replica proves that it can generate."""
    drain: Drain = Drain()
    """How a replica leaves."""
    update: Literal["Replace", "Rollout"] = "Replace"
    """How a new revision comes to serve: plainly, one replica after the other, or as a Rollout lets it."""
    capacity_plan_ref: CapacityPlanRef | None = None
    """Plan that gives `autoscaling` its floor and rates; its last floor stands until this reference is edited."""
    template: PodTemplate = PodTemplate()
    """Pod details."""
    suspend: Flag = False
    """Drain to zero replicas and keep the object and its status."""

    @property
    def wanted_replicas(self) -> int:
        """Replicas that the spec alone asks for; with autoscaling, the fewest."""
        if self.suspend:
            return 0
        if self.autoscaling is not None:
            return self.autoscaling.min_replicas
        return 1 if self.replicas is None else self.replicas
