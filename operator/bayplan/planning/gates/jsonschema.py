"""Whether a text is JSON of a given schema: the part of JSON Schema that answers to prompts need.

A schema that uses anything else is refused by the keyword's name when it is declared, so no keyword is silently
ignored. Numbers compare exactly: 1 and 1.0 are one number, true is none. Nothing outside the standard library, because
decisions depend on nothing else; nothing is fetched, so there is no `$ref`.
"""

import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from bayplan.planning.gates.patterns import compile_pattern
from bayplan.planning.numbers import InvalidInput

MAX_DEPTH = 32
_ANNOTATIONS = frozenset({"$schema", "$id", "$comment", "title", "description", "default", "examples"})


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return False
    return isinstance(value, int) or Decimal(value).is_finite()


def _exact(value: Any) -> Decimal:
    return Decimal(repr(value)) if isinstance(value, float) else Decimal(value)


_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "number": _is_number,
    "integer": lambda value: _is_number(value) and _exact(value) == _exact(value).to_integral_value(),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}
_Test = Callable[[Any], bool]


def compile_schema(schema: object, name: str = "schema") -> _Test:
    """Return the test for parsed values. Raises InvalidInput that names the keyword and where it stands."""
    return _compile(schema, name, 0)


def parse_answer(text: str) -> Any:
    """Parse JSON with exact numbers. Raises ValueError for anything else, NaN and repeated keys included."""
    return json.loads(text, parse_float=Decimal, parse_constant=_refuse_constant, object_pairs_hook=_distinct)


def _compile(schema: object, at: str, depth: int) -> _Test:
    if isinstance(schema, bool):
        return (lambda _: True) if schema else (lambda _: False)
    if not isinstance(schema, Mapping):
        raise InvalidInput(at, "must be a JSON schema: an object, true or false")
    if depth > MAX_DEPTH:
        raise InvalidInput(at, f"must not nest deeper than {MAX_DEPTH}")
    tests = []
    for keyword, value in schema.items():
        if keyword in _ANNOTATIONS:
            continue
        build = _KEYWORDS.get(keyword)
        if build is None:
            raise InvalidInput(f"{at}.{keyword}", f"is not supported; supported are {', '.join(sorted(_KEYWORDS))}")
        tests.append(build(value, f"{at}.{keyword}", depth + 1, schema))
    return lambda instance: all(test(instance) for test in tests)


def _type(value: Any, at: str, _depth: int, _schema: Mapping[str, Any]) -> _Test:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or any(name not in _TYPES for name in names):
        raise InvalidInput(at, f"must be one or more of {', '.join(_TYPES)}")
    wanted = [_TYPES[name] for name in names]
    return lambda instance: any(test(instance) for test in wanted)


def _enum(value: Any, at: str, _depth: int, _schema: Mapping[str, Any]) -> _Test:
    if not isinstance(value, list) or not value:
        raise InvalidInput(at, "must be a list with at least one value")
    return lambda instance: any(_same(instance, allowed) for allowed in value)


def _const(value: Any, _at: str, _depth: int, _schema: Mapping[str, Any]) -> _Test:
    return lambda instance: _same(instance, value)


def _properties(value: Any, at: str, depth: int, _schema: Mapping[str, Any]) -> _Test:
    if not isinstance(value, Mapping):
        raise InvalidInput(at, "must be an object of schemas by name")
    tests = {name: _compile(member, f"{at}.{name}", depth) for name, member in value.items()}
    return lambda instance: (
        not isinstance(instance, dict) or all(test(instance[name]) for name, test in tests.items() if name in instance)
    )


def _additional(value: Any, at: str, depth: int, schema: Mapping[str, Any]) -> _Test:
    test, known = _compile(value, at, depth), schema.get("properties", {})
    return lambda instance: (
        not isinstance(instance, dict) or all(test(member) for name, member in instance.items() if name not in known)
    )


def _required(value: Any, at: str, _depth: int, _schema: Mapping[str, Any]) -> _Test:
    if not isinstance(value, list) or any(not isinstance(name, str) for name in value):
        raise InvalidInput(at, "must be a list of names")
    return lambda instance: not isinstance(instance, dict) or all(name in instance for name in value)


def _items(value: Any, at: str, depth: int, _schema: Mapping[str, Any]) -> _Test:
    test = _compile(value, at, depth)
    return lambda instance: not isinstance(instance, list) or all(map(test, instance))


def _pattern(value: Any, at: str, _depth: int, _schema: Mapping[str, Any]) -> _Test:
    pattern = compile_pattern(value, at)
    return lambda instance: not isinstance(instance, str) or pattern.search(instance) is not None


def _size(
    kind: type[str] | type[list[Any]], compare: Callable[[int, int], bool]
) -> Callable[[Any, str, int, Mapping[str, Any]], _Test]:
    def build(value: Any, at: str, _depth: int, _schema: Mapping[str, Any]) -> _Test:
        if type(value) is not int or value < 0:
            raise InvalidInput(at, "must be a whole number of at least 0")
        return lambda instance: not isinstance(instance, kind) or compare(len(instance), value)

    return build


def _bound(compare: Callable[[Any, Any], bool]) -> Callable[[Any, str, int, Mapping[str, Any]], _Test]:
    def build(value: Any, at: str, _depth: int, _schema: Mapping[str, Any]) -> _Test:
        if not _is_number(value):
            raise InvalidInput(at, "must be a finite number")
        limit = _exact(value)
        return lambda instance: not _is_number(instance) or compare(_exact(instance), limit)

    return build


def _every(value: Any, at: str, depth: int, _schema: Mapping[str, Any]) -> _Test:
    tests = _list(value, at, depth)
    return lambda instance: all(test(instance) for test in tests)


def _some(value: Any, at: str, depth: int, _schema: Mapping[str, Any]) -> _Test:
    tests = _list(value, at, depth)
    return lambda instance: any(test(instance) for test in tests)


def _list(value: Any, at: str, depth: int) -> list[_Test]:
    if not isinstance(value, list) or not value:
        raise InvalidInput(at, "must be a list with at least one schema")
    return [_compile(member, f"{at}[{index}]", depth) for index, member in enumerate(value)]


_KEYWORDS: Mapping[str, Callable[[Any, str, int, Mapping[str, Any]], _Test]] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "properties": _properties,
    "additionalProperties": _additional,
    "required": _required,
    "items": _items,
    "pattern": _pattern,
    "minLength": _size(str, lambda size, least: size >= least),
    "maxLength": _size(str, lambda size, most: size <= most),
    "minItems": _size(list, lambda size, least: size >= least),
    "maxItems": _size(list, lambda size, most: size <= most),
    "minimum": _bound(lambda number, limit: number >= limit),
    "maximum": _bound(lambda number, limit: number <= limit),
    "exclusiveMinimum": _bound(lambda number, limit: number > limit),
    "exclusiveMaximum": _bound(lambda number, limit: number < limit),
    "allOf": _every,
    "anyOf": _some,
}


def _same(one: Any, other: Any) -> bool:
    """Equality of JSON values: true is not 1, 1 is 1.0."""
    if _is_number(one) and _is_number(other):
        return _exact(one) == _exact(other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    return type(one) is type(other) and bool(one == other)


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands there twice")
    return found
