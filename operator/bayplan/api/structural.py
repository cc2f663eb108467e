"""From a pydantic model to a structural schema, as the API server wants it.

The walk knows every keyword that it may meet and fails on any other, so nothing is dropped silently. It also fails on
whatever would be unbounded, undescribed or ambiguous for server-side apply, because the API server would accept that.
"""

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from pydantic import BaseModel

from bayplan.api.meta import json_number
from bayplan.api.rules import VALIDATIONS

Json = dict[str, Any]

LIST_TYPE = "x-kubernetes-list-type"
LIST_KEYS = "x-kubernetes-list-map-keys"
MAP_TYPE = "x-kubernetes-map-type"
INT_OR_STRING = "x-kubernetes-int-or-string"

_COMMON = {"type", "description", "default", "title", VALIDATIONS}
_KEYWORDS = {
    "string": {"enum", "const", "minLength", "maxLength", "pattern"},
    "integer": {"minimum", "maximum"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "boolean": set(),
    "array": {"items", "minItems", "maxItems", LIST_TYPE, LIST_KEYS},
    "object": {"properties", "required", "additionalProperties"},
    "map": {"additionalProperties", "patternProperties", "propertyNames", "minProperties", "maxProperties", MAP_TYPE},
    INT_OR_STRING: {INT_OR_STRING, "minLength", "maxLength", "pattern", "minimum", "maximum"},
}
_DEEPEST = 32
_EMPTY: tuple[Any, ...] = ([], {}, "")


class EmissionError(ValueError):
    """A model says something that a CRD cannot say, or should not. The text begins with the field's path."""


def structural_schema(model: type[BaseModel], *, with_defaults: bool) -> Json:
    """Return the structural schema of `model`: inlined, bounded, described, wire names.

    `with_defaults` is for what users write; a status is written whole by its operator and gets none.
    Raises EmissionError for anything that the API server would refuse or that would be unbounded.
    """
    source = model.model_json_schema(by_alias=True, mode="validation")
    definitions = source.pop("$defs", {})
    return _Walk(definitions, with_defaults=with_defaults).schema(source, model.__name__)


def defaulted(schema: Json, value: Any) -> Any:
    """Return `value` after the defaulting that the API server does with `schema`."""
    if isinstance(value, Mapping) and "properties" in schema:
        filled = dict(value)
        for name, member in schema["properties"].items():
            if name not in filled and "default" in member:
                filled[name] = member["default"]
            if name in filled:
                filled[name] = defaulted(member, filled[name])
        return filled
    if isinstance(value, list) and "items" in schema:
        return [defaulted(schema["items"], item) for item in value]
    return value


class _Walk:
    def __init__(self, definitions: Json, *, with_defaults: bool) -> None:
        self._definitions = definitions
        self._with_defaults = with_defaults
        self._emit: dict[str, Callable[[Json, str], Json]] = {
            "string": self._string,
            "integer": self._integer,
            "number": self._number,
            "boolean": lambda _node, _path: {},
            "array": self._array,
            "map": self._map,
            "object": self._object,
            INT_OR_STRING: self._int_or_string,
        }

    def schema(self, node: Json, path: str) -> Json:
        if path.count(".") > _DEEPEST:
            raise EmissionError(f"{path}: a recursive type has no structural form")
        node = self._resolve(node, path)
        kind = self._kind(node, path)
        unknown = set(node) - _COMMON - _KEYWORDS[kind]
        if unknown:
            raise EmissionError(f"{path}: no structural form for {', '.join(sorted(unknown))} on {kind}")
        emitted: Json = {} if kind == INT_OR_STRING else {"type": "object" if kind == "map" else kind}
        if "description" in node:
            emitted["description"] = " ".join(node["description"].split())
        emitted |= self._emit[kind](node, path)
        rules = emitted.pop(VALIDATIONS, []) + node.get(VALIDATIONS, [])
        return emitted | ({VALIDATIONS: rules} if rules else {})

    def _resolve(self, node: Json, path: str) -> Json:
        """Inline a reference and unwrap Optional; keywords beside them win over those inside."""
        while "$ref" in node or "anyOf" in node or "allOf" in node:
            beside = {key: value for key, value in node.items() if key not in ("$ref", "anyOf")}
            if "$ref" in node:
                inner = self._definitions[node["$ref"].removeprefix("#/$defs/")]
            else:
                branches = [branch for branch in node.get("anyOf", ()) if branch.get("type") != "null"]
                if len(branches) != 1:
                    raise EmissionError(f"{path}: a union has no structural form; use one object with optional members")
                inner = branches[0]
            node = {**inner, **beside}
        return node

    def _kind(self, node: Json, path: str) -> str:
        if INT_OR_STRING in node:
            return INT_OR_STRING
        kind = node.get("type")
        if kind == "object" and "properties" not in node:
            return "map"
        if kind not in _KEYWORDS:
            raise EmissionError(f"{path}: no structural form for type {kind!r}")
        return str(kind)

    def _need(self, node: Json, path: str, *keywords: str) -> Json:
        missing = [keyword for keyword in keywords if keyword not in node]
        if missing:
            raise EmissionError(f"{path}: unbounded, {' and '.join(missing)} missing")
        return {keyword: node[keyword] for keyword in keywords}

    def _string(self, node: Json, path: str) -> Json:
        if "const" in node or "enum" in node:
            return {"enum": [node["const"]] if "const" in node else list(node["enum"])}
        emitted = self._need(node, path, "maxLength")
        return emitted | {key: node[key] for key in ("minLength", "pattern") if key in node}

    def _int_or_string(self, node: Json, path: str) -> Json:
        bounds = self._need(node, path, "minimum", "maximum", "maxLength", "pattern")
        return {"anyOf": [{"type": "integer"}, {"type": "string"}], INT_OR_STRING: True, **bounds}

    def _integer(self, node: Json, path: str) -> Json:
        bounds = self._need(node, path, "minimum", "maximum")
        return bounds | ({"format": "int64"} if bounds["maximum"] >= 2**31 else {})

    def _number(self, node: Json, path: str) -> Json:
        emitted: Json = {}
        for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            if exclusive in node:
                emitted |= {bound: node[exclusive], exclusive: True}
            else:
                emitted |= self._need(node, path, bound)
        return emitted

    def _array(self, node: Json, path: str) -> Json:
        emitted = self._need(node, path, "maxItems")
        emitted |= {"minItems": node["minItems"]} if node.get("minItems") else {}
        emitted["items"] = items = self.schema(node["items"], f"{path}[]")
        if LIST_TYPE not in node:
            raise EmissionError(f"{path}: {LIST_TYPE} missing, server-side apply could not merge it")
        emitted[LIST_TYPE] = node[LIST_TYPE]
        if node[LIST_TYPE] == "map":
            keys = node[LIST_KEYS]
            if not set(keys) <= set(items.get("required", ())):
                raise EmissionError(f"{path}: list keys {keys} must be required members")
            emitted[LIST_KEYS] = list(keys)
        return emitted

    def _map(self, node: Json, path: str) -> Json:
        names = dict(node.get("propertyNames", {}))
        values = node.get("additionalProperties")
        if "patternProperties" in node:
            ((names["pattern"], values),) = node["patternProperties"].items()
        if not isinstance(values, dict):
            raise EmissionError(f"{path}: an object needs members or a value type")
        emitted = self._need(node, path, "maxProperties")
        emitted["additionalProperties"] = self.schema(values, f"{path}.*")
        emitted |= {MAP_TYPE: node[MAP_TYPE]} if MAP_TYPE in node else {}
        return emitted | {VALIDATIONS: [_key_rule(names, path)]}

    def _object(self, node: Json, path: str) -> Json:
        if node.get("additionalProperties", False) is not False:
            raise EmissionError(f"{path}: an object has members or a value type, not both")
        required = list(node.get("required", ()))
        properties = {
            name: self._member(member, f"{path}.{name}", name in required)
            for name, member in node["properties"].items()
        }
        return {"properties": properties} | ({"required": required} if required else {})

    def _member(self, node: Json, path: str, required: bool) -> Json:  # noqa: FBT001 - read from the schema
        emitted = self.schema(node, path)
        if "description" not in emitted:
            raise EmissionError(f"{path}: a docstring below the field is missing")
        if required or not self._with_defaults:
            return emitted
        if "default" not in node:
            raise EmissionError(f"{path}: pydantic shows no default; use a value, not a default_factory")
        return self._with_default(emitted, node["default"], path)

    def _with_default(self, emitted: Json, default: Any, path: str) -> Json:
        """Add the default, unless absence means the same: null, or an empty value."""
        if emitted.get("type") == "number" and isinstance(default, str):
            default = json_number(Decimal(default))
        if "properties" in emitted and default is not None:
            # `{}` lets the members' own defaults apply; it must come to the same as the model's default.
            filled = defaulted(emitted, {})
            if filled != _without_empty(default):
                raise EmissionError(f"{path}: default {default} differs from its members' defaults {filled}")
            default = {} if filled else None
            return emitted if default is None else {"default": default, **emitted}
        if default is None or default in _EMPTY:
            return emitted
        return {"default": default, **emitted}


def _without_empty(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    members = {name: _without_empty(member) for name, member in value.items()}
    return {name: member for name, member in members.items() if member is not None and member not in _EMPTY}


def _key_rule(names: Json, path: str) -> Json:
    """CEL for what a structural schema cannot say about the keys of a map."""
    if unknown := set(names) - {"pattern", "minLength", "maxLength", "enum", "const", "type"}:
        raise EmissionError(f"{path}: no rule for keys with {', '.join(sorted(unknown))}")
    if "const" in names or "enum" in names:
        allowed = [names["const"]] if "const" in names else names["enum"]
        terms = ["k in [" + ", ".join(f"'{key}'" for key in allowed) + "]"]
        message = f"keys must be one of {', '.join(allowed)}"
    elif "maxLength" in names and "pattern" in names:
        terms = [f"k.size() <= {names['maxLength']}", f"k.matches('{names['pattern']}')"]
        message = f"keys must have at most {names['maxLength']} characters and match {names['pattern']}"
    else:
        raise EmissionError(f"{path}: unbounded keys, pattern or maxLength missing")
    return {"rule": f"self.all(k, {' && '.join(terms)})", "message": message}
