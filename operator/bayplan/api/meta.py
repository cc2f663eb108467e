"""What every Bayplan schema model shares: strictness, camelCase on the wire, exact numbers, bounded text."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Strict,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from bayplan.api.rules import VALIDATIONS, Rule

MAX_SAFE_INTEGER = 2**53 - 1
"""Largest whole number that every JSON reader keeps exactly."""


def _add_rules(schema: dict[str, Any], model: type[Any]) -> None:
    if model.rules:
        schema[VALIDATIONS] = [rule.as_validation() for rule in model.rules]


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
        use_attribute_docstrings=True,
        json_schema_extra=_add_rules,
    )

    rules: ClassVar[tuple[Rule, ...]] = ()
    """Rules over several members; they reach the CRD as CEL."""

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        for rule in self.rules:
            rule.check(self)
        return self

    def to_wire(self) -> dict[str, Any]:
        """Return the JSON-ready camelCase form without unset optional fields."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class StatusSchema(Schema):
    """Part of a status: read leniently, because an older or newer operator may have written it."""

    model_config = ConfigDict(extra="ignore")

    @classmethod
    def read(cls, raw: object) -> Self:
        """Return what can be read of what is stored; never raises for a status without required members.

        A member that this version cannot read counts as absent.
        """
        members = dict(raw) if isinstance(raw, Mapping) else {}
        try:
            return cls.model_validate(members, by_alias=True, by_name=False)
        except ValidationError as error:
            unreadable = {fault["loc"][0] for fault in error.errors(include_url=False, include_input=False)}
        return cls.model_validate(
            {name: value for name, value in members.items() if name not in unreadable}, by_alias=True, by_name=False
        )


def json_number(value: Decimal) -> int | float:
    """Return the JSON number for an exact one: 16 for 16.0, else the float whose text is that of `value`."""
    return int(value) if value == value.to_integral_value() else float(value)


@dataclass(frozen=True, kw_only=True)
class Exact:
    """Bounds of a finite JSON number that is read as the Decimal of its text: 0.1 stays 0.1.

    Use as `Annotated[Decimal, Exact(gt=0, le=1)]`. Booleans, strings, NaN and Infinity are not numbers. On the wire
    it is a JSON number, which carries about 15 significant digits.
    """

    ge: int | None = None
    gt: int | None = None
    le: int

    def __post_init__(self) -> None:
        if (self.ge is None) == (self.gt is None):
            raise ValueError("an exact number has one lower bound: ge or gt")

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        ge, gt = (None if bound is None else Decimal(bound) for bound in (self.ge, self.gt))
        return core_schema.no_info_before_validator_function(
            _decimal_of_text,
            core_schema.decimal_schema(ge=ge, gt=gt, le=Decimal(self.le), allow_inf_nan=False),
            serialization=core_schema.plain_serializer_function_ser_schema(json_number, when_used="json"),
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        lower = {"exclusiveMinimum": self.gt} if self.ge is None else {"minimum": self.ge}
        return {"type": "number", **lower, "maximum": self.le}


def _decimal_of_text(value: object) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise ValueError("must be a number")  # noqa: TRY004 - pydantic turns ValueError into a located error
    return Decimal(str(value))


WholeNumber = Annotated[int, Strict()]
"""A JSON integer: neither a boolean nor a fraction. Combine with Field(ge=..., le=...)."""

Flag = Annotated[bool, Strict()]
"""JSON true or false, and nothing that only resembles them."""

ATOMIC: dict[str, Any] = {"x-kubernetes-list-type": "atomic"}
"""`json_schema_extra` of a list that has one owner and is replaced as a whole."""
ATOMIC_MAP: dict[str, Any] = {"x-kubernetes-map-type": "atomic"}
"""`json_schema_extra` of a map that has one owner and is replaced as a whole."""


@dataclass(frozen=True)
class Keyed:
    """A list whose entries are told apart by one member: no two have the same, and appliers merge entry by entry."""

    member: str

    def check(self, entries: tuple[BaseModel, ...]) -> tuple[BaseModel, ...]:
        """Return the entries, or raise when two have the same key."""
        keys = [getattr(entry, self.member) for entry in entries]
        if len(set(keys)) < len(keys):
            double = next(key for key in keys if keys.count(key) > 1)
            message = f"{self.member} must be different in each entry, {double!r} is there twice"
            raise PydanticCustomError("rule", "{message}", {"message": message, "field": ""})
        return entries

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        keys = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [self.member]}
        return {**handler(schema), **keys}


MAX_TEXT = 1024
"""Longest text in a status; longer ones are cut."""


def _cut_text(value: object) -> object:
    return f"{value[: MAX_TEXT - 1]}…" if isinstance(value, str) and len(value) > MAX_TEXT else value


Count = Annotated[WholeNumber, Field(ge=0, le=2**31 - 1)]
"""A number of things in a status; the scale subresource takes no more."""
Generation = Annotated[WholeNumber, Field(ge=0, le=MAX_SAFE_INTEGER)]
"""A `metadata.generation` that was looked at."""
ShortText = Annotated[str, StringConstraints(max_length=253)]
"""A name in a status."""
LongText = Annotated[str, StringConstraints(max_length=MAX_TEXT), BeforeValidator(_cut_text)]
"""A sentence in a status: cut with a mark at 1024 characters, never refused."""
TimeText = Annotated[
    str,
    StringConstraints(
        pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})$",
        max_length=35,
    ),
]
"""An RFC 3339 time in a status."""

ObjectName = Annotated[
    str,
    StringConstraints(
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", min_length=1, max_length=253
    ),
]
"""Name of a Kubernetes object: DNS labels joined by dots."""
LabelKey = Annotated[
    str,
    StringConstraints(
        pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$",
        min_length=1,
        max_length=253,
    ),
]
"""Label or taint key, with or without a prefix. Kubernetes allows 317 characters and nobody needs them."""
LabelValue = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$", max_length=63)]
"""Label value; empty is one."""


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
