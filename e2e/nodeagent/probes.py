"""Startup, readiness and liveness probes with the kubelet's rules, driven by a clock that is passed in."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal


class ProbeKind(StrEnum):
    """The three probes of a container."""

    STARTUP = "startup"
    READINESS = "readiness"
    LIVENESS = "liveness"


class UnsupportedProbeError(ValueError):
    """The probe uses a handler that this node does not run."""


@dataclass(frozen=True, kw_only=True)
class ProbeSpec:
    """One probe of a container spec, with the API's defaults. Times in seconds."""

    action: Literal["http", "tcp"]
    port: int | str
    path: str = "/"
    scheme: str = "http"
    host: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    initial_delay: float = 0.0
    period: float = 10.0
    timeout: float = 1.0
    success_threshold: int = 1
    failure_threshold: int = 3
    grace_seconds: int | None = None


def parse_probe(probe: Mapping[str, Any]) -> ProbeSpec:
    """Read a probe of a container spec. Raises UnsupportedProbeError for exec and gRPC."""
    if (http := probe.get("httpGet")) is not None:
        target: dict[str, Any] = {
            "action": "http",
            "port": http["port"],
            "path": "/" + (http.get("path") or "/").lstrip("/"),
            "scheme": (http.get("scheme") or "HTTP").lower(),
            "host": http.get("host") or "",
            "headers": tuple((item["name"], item["value"]) for item in http.get("httpHeaders") or ()),
        }
    elif (tcp := probe.get("tcpSocket")) is not None:
        target = {"action": "tcp", "port": tcp["port"], "host": tcp.get("host") or ""}
    else:
        kinds = ", ".join(sorted({"exec", "grpc"} & set(probe))) or "an empty handler"
        raise UnsupportedProbeError(f"this node supports httpGet and tcpSocket probes, not {kinds}")
    return ProbeSpec(
        **target,
        initial_delay=probe.get("initialDelaySeconds") or 0,
        period=probe.get("periodSeconds") or 10,
        timeout=probe.get("timeoutSeconds") or 1,
        success_threshold=probe.get("successThreshold") or 1,
        failure_threshold=probe.get("failureThreshold") or 3,
        grace_seconds=probe.get("terminationGracePeriodSeconds"),
    )


def container_probes(container: Mapping[str, Any]) -> dict[ProbeKind, ProbeSpec]:
    """Return the probes that a container spec declares."""
    return {kind: parse_probe(container[f"{kind}Probe"]) for kind in ProbeKind if container.get(f"{kind}Probe")}


@dataclass
class _Track:
    """One probe's run of equal results. `result` changes only when a run reaches its threshold."""

    spec: ProbeSpec
    next_at: float
    result: bool | None
    last: bool | None = None
    run: int = 0
    in_flight: bool = False

    def record(self, *, success: bool) -> None:
        self.run = self.run + 1 if success == self.last else 1
        self.last = success
        if self.run >= (self.spec.success_threshold if success else self.spec.failure_threshold):
            self.result = success


@dataclass
class ContainerProbes:
    """All probes of one running container instance. Times are seconds on the caller's clock."""

    specs: Mapping[ProbeKind, ProbeSpec]
    started_at: float
    unhealthy: ProbeKind | None = None
    """The probe whose failure asks for the container to be killed; nothing is due any more."""
    _tracks: dict[ProbeKind, _Track] = field(init=False)
    _leaving: bool = False

    def __post_init__(self) -> None:
        first = {ProbeKind.STARTUP: None, ProbeKind.READINESS: False, ProbeKind.LIVENESS: True}
        self._tracks = {
            kind: _Track(spec, self.started_at + spec.initial_delay, first[kind]) for kind, spec in self.specs.items()
        }

    @property
    def started(self) -> bool:
        """Whether the startup probe has succeeded once, or there is none."""
        track = self._tracks.get(ProbeKind.STARTUP)
        return track is None or track.result is True

    @property
    def ready(self) -> bool:
        """Whether the container is started and its readiness probe, if any, stands at success."""
        track = self._tracks.get(ProbeKind.READINESS)
        return self.started and (track is None or track.result is True)

    def _active(self) -> list[_Track]:
        if self.unhealthy is not None:
            return []
        if not self.started:
            kinds = [] if self._leaving else [ProbeKind.STARTUP]
        else:
            kinds = [ProbeKind.READINESS] if self._leaving else [ProbeKind.READINESS, ProbeKind.LIVENESS]
        return [self._tracks[kind] for kind in kinds if kind in self._tracks]

    def next_due(self) -> float | None:
        """Return when the next probe is to be sent, or None while there is none."""
        return min((track.next_at for track in self._active() if not track.in_flight), default=None)

    def begin(self, now: float) -> list[ProbeKind]:
        """Return the probes that are due and mark them sent; each must be answered by `record`."""
        active = self._active()
        due = [
            kind
            for kind, track in self._tracks.items()
            if any(track is other for other in active) and not track.in_flight and track.next_at <= now
        ]
        for kind in due:
            track = self._tracks[kind]
            track.in_flight = True
            track.next_at += track.spec.period
        return due

    def record(self, kind: ProbeKind, *, success: bool, now: float) -> None:
        """Take the answer of a probe. A slow answer delays the next probe, it does not pile them up."""
        track = self._tracks[kind]
        was_started = self.started
        track.in_flight = False
        track.next_at = max(track.next_at, now)
        track.record(success=success)
        if kind is ProbeKind.STARTUP and self.started and not was_started:
            for other in (ProbeKind.READINESS, ProbeKind.LIVENESS):
                if other in self._tracks:
                    held = self._tracks[other]
                    held.next_at = max(now, self.started_at + held.spec.initial_delay)
        if kind is not ProbeKind.READINESS and track.result is False and not self._leaving:
            self.unhealthy = kind

    def leave(self) -> None:
        """Stop startup and liveness probes because the pod is being deleted; readiness goes on."""
        self._leaving = True
