"""The operator's configuration: one YAML file, every value of which an environment variable may override.

`BAYPLAN_LIMITS__CONFIRM_SECONDS=90` overrides `limits.confirmSeconds`. Unknown keys are errors: a misspelt limit that
silently keeps its default would be found in an outage.
"""

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator
from pydantic.alias_generators import to_camel
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from bayplan.api.meta import LabelKey
from bayplan.cli.gatewayconfiguration import GatewaySection
from bayplan.cli.gpufigures import GpuFigures, stated_gpu
from bayplan.cli.sections import Seconds, Section
from bayplan.cluster.apitimes import ApiTimes
from bayplan.cluster.lease import LeaseTimes
from bayplan.planning.groups.members import GroupLimits
from bayplan.planning.groups.replicas import Backoff
from bayplan.planning.memory.gpucatalogue import Gpu
from bayplan.planning.placement.topology import DEFAULT_TOPOLOGY
from bayplan.reconcile.fleet import FleetLimits
from bayplan.reconcile.inferencemodel.reconciler import ReconcileSettings
from bayplan.reconcile.rollout.stored import seconds_of
from bayplan.telemetry.aliases import VLLM, Aliases, Signal
from bayplan.telemetry.prometheus import PrometheusSource
from bayplan.telemetry.rolloutcounts import CountsPort, ScrapedCounts
from bayplan.telemetry.scrape import ScrapeSource
from bayplan.telemetry.sources import MetricsPort

SIGNALS = {to_camel(signal.name.lower()): signal for signal in Signal}
"""Keys of `telemetry.metricAliases`."""
MetricName = Annotated[str, Field(pattern=r"^[a-zA-Z_:][a-zA-Z0-9_:]*$", max_length=200)]
LevelName = Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=32)]


class Limits(Section):
    """How long things may take, in seconds."""

    incomplete_group_seconds: Seconds = 30.0
    confirm_seconds: Seconds = 60.0
    lost_node_seconds: Seconds = 30.0
    old_cordon_seconds: Seconds = 600.0
    first_backoff_seconds: Seconds = 10.0
    longest_backoff_seconds: Seconds = 300.0
    forgiven_after_seconds: Seconds = 600.0


class Listen(Section):
    """Where `/healthz`, `/readyz` and `/metrics` answer; port 0 takes a free one."""

    address: str = "0.0.0.0"
    port: Annotated[int, Field(ge=0, le=65535)] = 8080


class LeaderElection(Section):
    """Times of the Lease, in seconds; they must stand in this order: duration > renew deadline > retry."""

    duration_seconds: Seconds = 15.0
    renew_deadline_seconds: Seconds = 10.0
    retry_seconds: Seconds = 2.0

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.duration_seconds > self.renew_deadline_seconds > self.retry_seconds:
            raise ValueError("must satisfy durationSeconds > renewDeadlineSeconds > retrySeconds")
        return self

    def times(self) -> LeaseTimes:
        """Return what the elector takes; a standby looks at least as often as the leader renews."""
        return LeaseTimes(
            duration=self.duration_seconds,
            renew_deadline=self.renew_deadline_seconds,
            retry=self.retry_seconds,
            observe=min(1.0, self.retry_seconds),
        )


class ApiServer(Section):
    """How patient the operator is with the API server, in seconds. Below 65 s, watches of quiet kinds begin anew."""

    request_seconds: Seconds = 30.0
    watch_seconds: Seconds = 300.0
    idle_seconds: Seconds = 70.0
    resync_seconds: Seconds = 300.0

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.idle_seconds > self.watch_seconds:
            raise ValueError("must satisfy idleSeconds <= watchSeconds")
        return self

    def times(self) -> ApiTimes:
        """Return what client, reflectors and Kopf take."""
        return ApiTimes(
            request=self.request_seconds,
            watch=self.watch_seconds,
            idle=self.idle_seconds,
            resync=self.resync_seconds,
        )


class Telemetry(Section):
    """Where demand is measured: at pods and gateways themselves, or in a Prometheus that scrapes them."""

    prometheus_url: Annotated[str, Field(pattern=r"^https?://[^\s@?#]+$", max_length=512)] | None = None
    scrape_seconds: Annotated[float, Field(gt=0, le=60, allow_inf_nan=False)] = 5.0
    """An answer that takes longer counts as none."""
    rollout_seconds: Annotated[float, Field(ge=0.2, le=300, allow_inf_nan=False)] = 5.0
    """Time between two looks at the gateways' counts while a revision is on trial."""
    scrapes_at_once: Annotated[int, Field(ge=1, le=1000)] = 32
    metric_aliases: dict[str, Annotated[tuple[MetricName, ...], Field(min_length=1, max_length=8)]] = Field(
        default_factory=dict
    )
    """Signal → names under which engines report it, looked for before the known ones."""

    @field_validator("metric_aliases", mode="after")
    @classmethod
    def _meant(cls, given: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        unknown = sorted(given.keys() - SIGNALS.keys())
        if unknown:
            raise ValueError(f"{', '.join(unknown)}: no such signal; there are {', '.join(SIGNALS)}")
        _aliases(given)
        return given

    def counts(self, *, now: Callable[[], datetime]) -> CountsPort:
        """Return where a rollout's gates get their counts: always the gateways themselves."""
        return ScrapedCounts(now_seconds=lambda: seconds_of(now()), timeout_seconds=self.scrape_seconds)

    def aliases(self) -> Aliases:
        """Return the names under which engines' numbers are looked for."""
        return _aliases(self.metric_aliases)

    def source(self, *, clock: Callable[[], float], now: Callable[[], datetime]) -> MetricsPort:
        """Return the source that is asked; `clock` is monotonic, `now` the date."""
        if self.prometheus_url is not None:
            return PrometheusSource(
                self.prometheus_url,
                aliases=self.aliases(),
                clock=clock,
                now=now,
                timeout_seconds=self.scrape_seconds,
            )
        return ScrapeSource(
            aliases=self.aliases(),
            clock=clock,
            most_at_once=self.scrapes_at_once,
            timeout_seconds=self.scrape_seconds,
        )


def _aliases(given: Mapping[str, tuple[str, ...]]) -> Aliases:
    return VLLM.preferring({SIGNALS[key]: names for key, names in given.items()})


class Logging(Section):
    """How the operator logs."""

    format: Literal["console", "json"] = "json"
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"


class OperatorConfiguration(BaseSettings):
    """Everything that may be configured; the defaults are complete."""

    model_config = SettingsConfigDict(
        extra="forbid",
        env_prefix="BAYPLAN_",
        env_nested_delimiter="__",
        alias_generator=to_camel,
        populate_by_name=True,
    )

    topology: Annotated[
        dict[LevelName, Annotated[tuple[LabelKey, ...], Field(min_length=1, max_length=16)]], Field(max_length=16)
    ] = Field(default_factory=lambda: dict(DEFAULT_TOPOLOGY))
    """Topology level → node label keys, the first that a node carries counts. Replaces the default of that level."""
    limits: Limits = Limits()
    listen: Listen = Listen()
    leader_election: LeaderElection = LeaderElection()
    api_server: ApiServer = ApiServer()
    telemetry: Telemetry = Telemetry()
    logging: Logging = Logging()
    workers: Annotated[int, Field(ge=1, le=256)] = 16
    """Models reconciled at the same time."""
    gpus: Annotated[dict[str, GpuFigures], Field(max_length=64)] = Field(default={})
    """GPU product (the value of its label) → figures that the catalogue lacks or has otherwise."""
    gateway: GatewaySection = GatewaySection()

    @field_validator("gpus", mode="after")
    @classmethod
    def _whole(cls, given: dict[str, GpuFigures]) -> dict[str, GpuFigures]:
        for product, figures in given.items():
            stated_gpu(product, figures)
        return given

    @field_validator("topology", mode="after")
    @classmethod
    def _with_defaults(cls, given: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        return {**DEFAULT_TOPOLOGY, **given}

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the signature is the library's
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Let the environment win over the file."""
        return env_settings, init_settings

    def reconcile_settings(self) -> ReconcileSettings:
        """Return what the reconcilers take."""
        limits = self.limits
        return ReconcileSettings(
            topology=self.topology,
            rollout_seconds=self.telemetry.rollout_seconds,
            group_limits=GroupLimits(
                incomplete_seconds=limits.incomplete_group_seconds, confirm_seconds=limits.confirm_seconds
            ),
            backoff=Backoff(
                first_seconds=limits.first_backoff_seconds,
                longest_seconds=limits.longest_backoff_seconds,
                forgiven_after_seconds=limits.forgiven_after_seconds,
            ),
        )

    def stated_gpus(self) -> tuple[Gpu, ...]:
        """Return the GPUs whose figures are stated."""
        return tuple(stated_gpu(product, figures) for product, figures in self.gpus.items())

    def fleet_limits(self) -> FleetLimits:
        """Return when nodes count as lost or leaving."""
        return FleetLimits(
            lost_node_seconds=self.limits.lost_node_seconds, old_cordon_seconds=self.limits.old_cordon_seconds
        )


class ConfigurationError(Exception):
    """The configuration cannot be used; the message names the field and what would be accepted."""


def load_configuration(path: Path | None) -> OperatorConfiguration:
    """Read the file (none: defaults) and the environment; raises ConfigurationError."""
    try:
        raw = _read(path) if path is not None else {}
        return OperatorConfiguration(**_by_name(OperatorConfiguration, raw))
    except ValidationError as error:
        faults = "; ".join(
            f"{_where(fault['loc'])}: {'unknown key' if fault['type'] == 'extra_forbidden' else fault['msg']}"
            for fault in error.errors()
        )
        raise ConfigurationError(f"{path or 'environment'}: {faults}") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{path}: {error}") from None
    if not isinstance(raw, dict):
        raise ConfigurationError(f"{path}: must hold a mapping of keys such as limits and topology")
    return raw


def _by_name(model: type[BaseModel], raw: dict[str, Any]) -> dict[str, Any]:
    """Rename the file's camelCase keys to field names, so that file and environment meet under one name."""
    fields = {field.alias or name: (name, field.annotation) for name, field in model.model_fields.items()}
    named: dict[str, Any] = {}
    for key, value in raw.items():
        name, annotation = fields.get(key, (str(key), None))
        section = isinstance(annotation, type) and issubclass(annotation, BaseModel) and isinstance(value, dict)
        named[name] = _by_name(annotation, value) if section else value  # type: ignore[arg-type]
    return named


def _where(location: tuple[int | str, ...]) -> str:
    """Path of a fault in the file's spelling."""
    path = ".".join(to_camel(part) if isinstance(part, str) and "_" in part else str(part) for part in location)
    return re.sub(r"\.(\d+)", r"[\1]", path)
