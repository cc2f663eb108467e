"""Validation rules that are stated twice on purpose: as CEL for the API server and as a predicate for our own parser.

The API server refuses what it can see at apply; the parser refuses the same for objects stored under an older CRD and
for files that never pass a server. A test feeds every example to both and compares.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

VALIDATIONS = "x-kubernetes-validations"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule: `expression` is CEL, `message` says what would be accepted, `holds` is the same test in Python.

    A rule about a change (it names `oldSelf`) has no `holds`: the parser sees one object and no history. `field` is the
    wire name of the member that the error is about, when it is not the whole value. `explain` turns a refused value
    into a sharper message than CEL can give. Put a rule into a model's `rules`, or last into the `Annotated` of a
    string, list or map.
    """

    expression: str
    message: str
    holds: Callable[[Any], bool] | None = None
    field: str = ""
    explain: Callable[[Any], str] | None = None

    def __post_init__(self) -> None:
        if (self.holds is None) != ("oldSelf" in self.expression):
            raise ValueError(f"a rule needs a predicate exactly when it is not about a change: {self.expression}")

    def as_validation(self) -> dict[str, str]:
        """Return the entry of `x-kubernetes-validations`."""
        entry = {"rule": self.expression, "message": self.message}
        return entry | {"fieldPath": f".{self.field}"} if self.field else entry

    def check(self, value: Any) -> Any:
        """Return `value`, or raise an error that carries the message and the field it is about."""
        if self.holds is not None and not self.holds(value):
            message = self.explain(value) if self.explain else self.message
            raise PydanticCustomError("rule", "{message}", {"message": message, "field": self.field})
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        json_schema = handler(schema)
        json_schema.setdefault(VALIDATIONS, []).append(self.as_validation())
        return json_schema
