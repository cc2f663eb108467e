"""What every Bayplan schema model shares: strictness, camelCase on the wire, exact numbers, bounded text."""

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, StringConstraints
from pydantic.alias_generators import to_camel


class Schema(BaseModel):
    """A frozen object of our API. Unknown keys are errors, names are camelCase on the wire, numbers must be finite."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        allow_inf_nan=False,
        str_strip_whitespace=False,
        protected_namespaces=(),
    )

    def to_wire(self) -> dict[str, Any]:
        """Return the JSON-ready camelCase form without unset optional fields."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class StatusSchema(Schema):
    """Part of a status: read leniently, because an older or newer operator may have written it."""

    model_config = ConfigDict(extra="ignore")


def _exact_decimal(value: object) -> Decimal:
    """Turn a JSON number into the Decimal of its text: 0.1 stays 0.1. Booleans and strings are not numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise ValueError("must be a number")  # noqa: TRY004 - pydantic turns ValueError into a located error
    return Decimal(str(value))


def _strict_int(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("must be a whole number")  # noqa: TRY004
    return value


def _finite(value: Decimal) -> Decimal:
    if not value.is_finite():
        raise ValueError("must be a finite number")
    return value


ExactNumber = Annotated[Decimal, BeforeValidator(_exact_decimal), AfterValidator(_finite)]
"""A finite JSON number read exactly; combine with Field(gt=..., le=...)."""
WholeNumber = Annotated[int, BeforeValidator(_strict_int)]
"""A JSON integer: neither a boolean nor a fraction."""

DnsLabel = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=63)]
ObjectName = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", min_length=1, max_length=253)
]
LabelKey = Annotated[
    str,
    StringConstraints(
        pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
        min_length=1,
        max_length=317,
    ),
]
LabelValue = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$", max_length=63)]


def rfc3339(moment: datetime) -> str:
    """Format an aware time as Kubernetes does: UTC, whole seconds, trailing Z."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_rfc3339(text: str) -> datetime:
    """Read a Kubernetes time; raises ValueError on anything else, also on a time without a zone."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"time without a zone: {text!r}")
    return moment


def owner_uid(metadata: Mapping[str, Any]) -> str | None:
    """Return the uid of the controlling owner, or None. Labels never decide ownership."""
    for reference in metadata.get("ownerReferences") or ():
        if reference.get("controller"):
            uid = reference.get("uid")
            return uid if isinstance(uid, str) else None
    return None
