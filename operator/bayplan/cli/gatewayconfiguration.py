"""The `gateway` section of the configuration file."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from bayplan.api.names import GATEWAY_CLIENT_PORT, GATEWAY_PORT
from bayplan.cli.sections import Seconds, Section
from bayplan.gateway.runtime import Sockets
from bayplan.gateway.settings import DEFAULT_CLASS, MEBIBYTE, Edges, GatewaySettings, WorkloadClass

Port = Annotated[int, Field(ge=0, le=65535)]
ClassName = Annotated[str, StringConstraints(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=32)]
ModelKey = Annotated[str, StringConstraints(pattern=r"^[-a-z0-9]+/[-a-z0-9.]+$", max_length=128)]
EdgeList = Annotated[tuple[Seconds, ...], Field(min_length=1, max_length=40)]
_DEFAULTS = GatewaySettings()


class GatewayListen(Section):
    """Where the gateway answers clients (`port`) and the cluster (`adminPort`); port 0 takes a free one."""

    address: str = "0.0.0.0"
    port: Port = GATEWAY_CLIENT_PORT
    admin_port: Port = GATEWAY_PORT


class GatewayLimits(Section):
    """Sizes and counts."""

    connections: Annotated[int, Field(ge=1, le=1_000_000)] = _DEFAULTS.max_connections
    body_mebibytes: Annotated[int, Field(ge=1, le=1024)] = _DEFAULTS.max_body_bytes // MEBIBYTE
    buffered_mebibytes: Annotated[int, Field(ge=1, le=1_048_576)] = _DEFAULTS.max_buffered_bytes // MEBIBYTE
    replay_mebibytes: Annotated[int, Field(ge=0, le=1_048_576)] = _DEFAULTS.max_replay_bytes // MEBIBYTE
    queued_requests: Annotated[int, Field(ge=0, le=100_000)] = _DEFAULTS.max_queued_requests
    default_max_tokens: Annotated[int, Field(ge=1, le=100_000_000)] = _DEFAULTS.default_max_tokens

    @model_validator(mode="after")
    def _one_body_fits(self) -> Self:
        if self.body_mebibytes > self.buffered_mebibytes:
            raise ValueError("must satisfy bodyMebibytes <= bufferedMebibytes")
        return self


class GatewayTimes(Section):
    """Times in seconds."""

    body_seconds: Seconds = _DEFAULTS.body_seconds
    idle_connection_seconds: Seconds = _DEFAULTS.idle_connection_seconds
    connect_seconds: Seconds = _DEFAULTS.connect_seconds
    silence_seconds: Seconds = _DEFAULTS.silence_seconds
    whole_answer_seconds: Seconds = _DEFAULTS.whole_answer_seconds
    wait_seconds: Annotated[int, Field(ge=0, le=3600)] = _DEFAULTS.max_wait_seconds
    remember_seconds: Annotated[int, Field(ge=0, le=86400)] = _DEFAULTS.remember_seconds
    drain_seconds: Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False)] = _DEFAULTS.drain_seconds
    lease_seconds: Annotated[float, Field(ge=1, le=60, allow_inf_nan=False)] = _DEFAULTS.lease_seconds


class ClassSection(Section):
    """Deadlines of one workload class, in seconds from a request's arrival; absent is none."""

    first_token_seconds: Seconds | None = None
    complete_seconds: Seconds | None = None


class HistogramEdges(Section):
    """Edges in seconds, ascending."""

    ttft_seconds: EdgeList = _DEFAULTS.edges.ttft
    tpot_seconds: EdgeList = _DEFAULTS.edges.tpot
    end_to_end_seconds: EdgeList = _DEFAULTS.edges.e2e

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        self.edges()
        return self

    def edges(self) -> Edges:
        """Return what the gateway takes. Raises ValueError that names the histogram."""
        return Edges(ttft=self.ttft_seconds, tpot=self.tpot_seconds, e2e=self.end_to_end_seconds)


class GatewaySection(Section):
    """The gateway: sockets, limits, times, classes, and the files that it reads."""

    listen: GatewayListen = GatewayListen()
    limits: GatewayLimits = GatewayLimits()
    times: GatewayTimes = GatewayTimes()
    classes: Annotated[dict[ClassName, ClassSection], Field(max_length=32)] = Field(default_factory=dict)
    """Workload classes by name; `default` always exists."""
    histogram_edges: HistogramEdges = HistogramEdges()
    tenants_file: Path | None = None
    """Tenants and digests of their API keys; without it everybody is one anonymous tenant."""
    secret_file: Path | None = None
    """Secret from which cache salts are derived; without it a random one per process."""
    tokenizers: Annotated[dict[ModelKey, Path], Field(max_length=1000)] = Field(default_factory=dict)
    """`namespace/name` of a model → its tokenizer.json; without it prompts count by their bytes."""

    def settings(self) -> GatewaySettings:
        """Return what the request path takes."""
        classes = {name: WorkloadClass(c.first_token_seconds, c.complete_seconds) for name, c in self.classes.items()}
        return GatewaySettings(
            max_connections=self.limits.connections,
            max_body_bytes=self.limits.body_mebibytes * MEBIBYTE,
            max_buffered_bytes=self.limits.buffered_mebibytes * MEBIBYTE,
            max_replay_bytes=self.limits.replay_mebibytes * MEBIBYTE,
            max_queued_requests=self.limits.queued_requests,
            default_max_tokens=self.limits.default_max_tokens,
            body_seconds=self.times.body_seconds,
            idle_connection_seconds=self.times.idle_connection_seconds,
            connect_seconds=self.times.connect_seconds,
            silence_seconds=self.times.silence_seconds,
            whole_answer_seconds=self.times.whole_answer_seconds,
            max_wait_seconds=self.times.wait_seconds,
            remember_seconds=self.times.remember_seconds,
            drain_seconds=self.times.drain_seconds,
            lease_seconds=self.times.lease_seconds,
            classes={DEFAULT_CLASS: WorkloadClass(), **classes},
            tokenizers=self.tokenizers,
            edges=self.histogram_edges.edges(),
        )

    def sockets(self) -> Sockets:
        """Return where it listens."""
        return Sockets(self.listen.address, self.listen.port, self.listen.admin_port)
