"""Measurements that are brought to a decision: the numbers, and what, on what, by whom and when they were measured.

A number without its identity proves nothing: the same weights on another GPU or runtime are another measurement. A
record that has expired, or claims to come from the future, is Unknown; a part that is missing is refused by its name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from fractions import Fraction
from types import MappingProxyType

from bayplan.planning.measurements import Unknown
from bayplan.planning.numbers import InvalidInput, exact, named


@dataclass(frozen=True, slots=True)
class Identity:
    """What was measured, on what. Raises InvalidInput for a blank part."""

    model: str
    """Immutable: a name with a commit or digest."""
    runtime: str
    """Engine and version."""
    hardware: str
    """Product of the GPU."""

    def __post_init__(self) -> None:
        for field in fields(self):
            named(getattr(self, field.name), field.name)


@dataclass(frozen=True, slots=True)
class MeasurementRecord:
    """Numbers of one measurement. Times are Unix seconds. Raises InvalidInput that names the field."""

    identity: Identity
    source: str
    """Who measured, and where it can be read again."""
    observed_at_seconds: Fraction
    expires_at_seconds: Fraction
    values: Mapping[str, object]

    def __post_init__(self) -> None:
        named(self.source, "source")
        for name in ("observed_at_seconds", "expires_at_seconds"):
            object.__setattr__(self, name, exact(getattr(self, name), name))
        if self.expires_at_seconds <= self.observed_at_seconds:
            raise InvalidInput("expires_at_seconds", "must be after observed_at_seconds")
        object.__setattr__(self, "values", MappingProxyType(dict(self.values)))

    def value(self, name: str) -> object:
        """The value of that name; raises InvalidInput that names it when there is none."""
        if self.values.get(name) is None:
            raise InvalidInput(name, f"is missing from the measurement of {self.identity.model}")
        return self.values[name]

    def doubt(self, now_seconds: Fraction) -> Unknown | None:
        """Why the record proves nothing now; None while it is current. The moment of expiry itself is too late."""
        if self.observed_at_seconds > now_seconds:
            return Unknown(
                f"the measurement of {self.identity.model} is dated {_text(self.observed_at_seconds)}, later"
            )
        if self.expires_at_seconds <= now_seconds:
            return Unknown(f"the measurement of {self.identity.model} expired {_text(self.expires_at_seconds)}")
        return None


def read_record(raw: object, name: str) -> MeasurementRecord:
    """Read a record as files and objects write it: identity, source, times in RFC 3339, values.

    Raises InvalidInput that names what is missing, unknown or of another form, below `name`.
    """
    if not isinstance(raw, Mapping):
        raise InvalidInput(name, "must be an object with model, runtime, hardware, source, times and values")
    known = {"model", "runtime", "hardware", "source", "observedTime", "expiryTime", "values"}
    for field in sorted(known - raw.keys()):
        raise InvalidInput(f"{name}.{field}", "is missing")
    for field in sorted(map(str, raw.keys() - known)):
        raise InvalidInput(f"{name}.{field}", f"is not known; a record has {', '.join(sorted(known))}")
    values = raw["values"]
    if not isinstance(values, Mapping):
        raise InvalidInput(f"{name}.values", "must be an object of numbers by name")
    try:
        return MeasurementRecord(
            identity=Identity(raw["model"], raw["runtime"], raw["hardware"]),
            source=raw["source"],
            observed_at_seconds=_seconds(raw["observedTime"], "observedTime"),
            expires_at_seconds=_seconds(raw["expiryTime"], "expiryTime"),
            values=values,
        )
    except InvalidInput as error:
        field = {"expires_at_seconds": "expiryTime"}.get(error.field, error.field)
        raise InvalidInput(f"{name}.{field}", error.message) from error


def require_comparable(baseline: MeasurementRecord, candidate: MeasurementRecord) -> None:
    """Raise InvalidInput that names the part in which the two were not measured alike: hardware or runtime."""
    for name in ("hardware", "runtime"):
        ours, theirs = getattr(candidate.identity, name), getattr(baseline.identity, name)
        if ours != theirs:
            raise InvalidInput(name, f"must be the same on both sides: candidate {ours}, baseline {theirs}")


def _seconds(text: object, name: str) -> Fraction:
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidInput(name, f"must be an RFC 3339 time such as 2026-01-31T12:00:00Z, not {text!r}")
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return Fraction(since.days * 86400 + since.seconds) + Fraction(since.microseconds, 10**6)


def _text(seconds: Fraction) -> str:
    return datetime.fromtimestamp(int(seconds), tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
