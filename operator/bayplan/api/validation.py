"""Read a spec that somebody else wrote, and say in the field's own words what is wrong with it.

The API server has refused most of this at apply. What comes here all the same was stored under an older or looser
definition, or comes from a file that never passed a server. Nothing in here raises for any JSON value.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from bayplan.api.capacityplan import CapacityPlanSpec
from bayplan.api.inferencemodel import NAME_RULE, InferenceModelSpec
from bayplan.api.meta import Schema
from bayplan.api.rollout import RolloutSpec
from bayplan.api.structural import Json, structural_schema
from bayplan.api.wording import accepted

S = TypeVar("S", bound=Schema)
LONGEST_SHOWN_VALUE = 64


@dataclass(frozen=True, kw_only=True)
class FieldError:
    """One fault: `path` in wire names (`spec.engine.args[2]`), `message` says what would be accepted."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


def parse_spec(raw: object) -> InferenceModelSpec | list[FieldError]:
    """Return the spec of an InferenceModel, or every fault found in it. `raw` is any JSON value.

    Only wire names are read. Rules over several fields are looked at once each field is right by itself.
    """
    return _parse(InferenceModelSpec, raw)


def parse_rollout_spec(raw: object) -> RolloutSpec | list[FieldError]:
    """Return the spec of a Rollout, or every fault found in it, as `parse_spec` does for an InferenceModel."""
    return _parse(RolloutSpec, raw)


def parse_plan_spec(raw: object) -> CapacityPlanSpec | list[FieldError]:
    """Return the spec of a CapacityPlan, or every fault found in it, as `parse_spec` does for an InferenceModel."""
    return _parse(CapacityPlanSpec, raw)


def _parse(kind: type[S], raw: object) -> S | list[FieldError]:
    if not isinstance(raw, Mapping):
        return [FieldError(path="spec", message=f"must be an object{_got(raw)}")]
    try:
        return kind.model_validate(dict(raw), by_alias=True, by_name=False)
    except ValidationError as error:
        return [_field_error(kind, fault) for fault in error.errors(include_url=False)]


def check_name(name: str) -> FieldError | None:
    """Return what is wrong with an InferenceModel's `metadata.name`, or None."""
    holds = NAME_RULE.holds
    return None if holds is None or holds(name) else FieldError(path="metadata.name", message=NAME_RULE.message)


def summarize(errors: Sequence[FieldError]) -> str:
    """Return one line for a condition: the first fault in full, then the paths of the others."""
    first, *others = errors
    return f"{first}; also wrong: {', '.join(error.path for error in others)}" if others else str(first)


def _field_error(kind: type[Schema], fault: ErrorDetails) -> FieldError:
    location = [part for part in fault["loc"] if part != "[key]"]
    if fault["type"] == "rule":
        member = fault["ctx"]["field"]
        return FieldError(path=_path([*location, *member.split(".")] if member else location), message=fault["msg"])
    if fault["type"] == "extra_forbidden":
        known = ", ".join(_node(kind, location[:-1]).get("properties", ()))
        return FieldError(path=_path(location), message=f"unknown field; accepted are {known}")
    node = _node(kind, location)
    if fault["loc"][-1:] == ("[key]",):
        # The structural schema holds what it can say about keys on the map, as a rule.
        message = _node(kind, location[:-1])["x-kubernetes-validations"][0]["message"]
        return FieldError(path=_path(location[:-1]), message=f"{message}{_got(fault['input'])}")
    if fault["type"] == "missing":
        return FieldError(path=_path(location), message=f"required: {accepted(node)}")
    return FieldError(path=_path(location), message=f"must be {accepted(node)}{_got(fault['input'])}")


def _path(location: Iterable[int | str]) -> str:
    path = "spec"
    for part in location:
        plain = isinstance(part, str) and re.fullmatch(r"[A-Za-z][A-Za-z0-9]*", part)
        path += f".{part}" if plain else f"[{part}]"
    return path


@cache
def _spec_schema(kind: type[Schema]) -> Json:
    return structural_schema(kind, with_defaults=True)


def _node(kind: type[Schema], location: Iterable[int | str]) -> Json:
    """Return the schema at a location of the spec; an empty one below a member that the schema does not know."""
    node = _spec_schema(kind)
    for part in location:
        if "items" in node:
            node = node["items"]
        elif "additionalProperties" in node:
            node = node["additionalProperties"]
        else:
            node = node.get("properties", {}).get(part, {})
    return node


def _got(value: object) -> str:
    """Show what was there when it is short; long text may hold what nobody should read in a status."""
    if isinstance(value, Mapping):
        return ", got an object"
    if isinstance(value, list):
        return f", got a list of {len(value)}"
    if isinstance(value, str):
        return f", got {value!r}" if len(value) <= LONGEST_SHOWN_VALUE else f", got {len(value)} characters"
    if value is None or isinstance(value, bool):
        return f", got {json.dumps(value)}"
    return ", got a far larger number" if isinstance(value, int) and abs(value) > 10**18 else f", got {value}"
