"""Accept and reject cases for every constraint of a structural schema, computed from the schema itself.

A new field, bound or pattern is covered as soon as it is in the schema. Rules in CEL are the exception: what they mean
cannot be computed, so `tests/api/rulecases.py` states their cases and a test compares the two sets.
"""

import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from bayplan.api.rules import VALIDATIONS
from bayplan.api.structural import INT_OR_STRING, LIST_KEYS, LIST_TYPE, MAP_TYPE

Json = dict[str, Any]
Location = tuple[Any, ...]
"""Keys and indices from the root of an object."""

NO_CONSTRAINT = {"description", "default", "properties", "items", "additionalProperties", "anyOf", LIST_TYPE, MAP_TYPE}
"""Keywords that refuse nothing by themselves. `int64` is no format that refuses what minimum and maximum allow."""

WRONG_TYPES: dict[str, tuple[Any, ...]] = {
    "string": (7, True, ["a"]),
    "integer": ("1", True, 1.5),
    "number": ("0.5", True),
    "boolean": ("yes", 1),
    "array": ({}, "a"),
    "object": ([], "a"),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One body for the API server. `refusal` is part of the expected message; None: accepted."""

    path: str
    keyword: str
    body: Json
    refusal: str | None

    @property
    def constraint(self) -> tuple[str, str]:
        return self.path, self.keyword


def constraints(schema: Json, path: str) -> Iterator[tuple[str, str]]:
    """Yield path and keyword of everything in the schema that can refuse a value, rules excepted."""
    for keyword, value in schema.items():
        if keyword not in NO_CONSTRAINT | {VALIDATIONS} and (keyword, value) != ("format", "int64"):
            yield path, keyword
    if "properties" in schema:
        yield path, "unknown"
    for child, node in _children(schema, path):
        yield from constraints(node, child)


def rules(schema: Json, path: str) -> Iterator[tuple[str, str]]:
    """Yield path and message of every CEL rule in the schema."""
    for validation in schema.get(VALIDATIONS, ()):
        yield path, validation["message"]
    for child, node in _children(schema, path):
        yield from rules(node, child)


def paths(schema: Json, path: str) -> Iterator[str]:
    """Yield the path of every node."""
    yield path
    for child, node in _children(schema, path):
        yield from paths(node, child)


def _children(schema: Json, path: str) -> Iterator[tuple[str, Json]]:
    for name, node in schema.get("properties", {}).items():
        yield f"{path}.{name}", node
    if "items" in schema:
        yield f"{path}[]", schema["items"]
    if "additionalProperties" in schema:
        yield f"{path}.*", schema["additionalProperties"]


def cases_of(path: str, *, schema: Json, full: Json, root: str) -> list[Case]:
    """Return the cases of the node at `path`. `full` is a valid object in which every member is set."""
    steps = _parts(path, root)
    location = locate(full, steps)
    if location is None:
        raise ValueError(f"{path}: the full example does not set it")
    return list(_Node(_node_at(schema, steps), full, location, path).cases())


def _parts(path: str, root: str) -> tuple[str, ...]:
    return tuple(part for part in path.removeprefix(root).replace("[]", ".[]").split(".") if part)


def _node_at(schema: Json, steps: tuple[str, ...]) -> Json:
    for step in steps:
        schema = {"[]": schema.get("items"), "*": schema.get("additionalProperties")}.get(step) or schema["properties"][
            step
        ]
    return schema


def locate(value: Any, steps: tuple[str, ...]) -> Location | None:
    """Return where in `value` the first member at these steps is, or None."""
    if not steps:
        return ()
    step, *rest = steps
    if step == "[]":
        candidates: list[str | int] = list(range(len(value))) if isinstance(value, list) else []
    elif step == "*":
        candidates = list(value)
    else:
        candidates = [step] if step in value else []
    for candidate in candidates:
        below = locate(value[candidate], tuple(rest))
        if below is not None:
            return (candidate, *below)
    return None


def change(full: Json, location: Location, edit: Callable[[Any, Any], None]) -> Json:
    """Return a copy of `full` after `edit(parent, key)` at the location."""
    copy = deepcopy(full)
    parent: Any = copy
    for step in location[:-1]:
        parent = parent[step]
    edit(parent, location[-1])
    return copy


def put(full: Json, location: Location, value: Any) -> Json:
    """Return a copy of `full` with another value at the location."""
    return change(full, location, lambda parent, key: parent.__setitem__(key, value)) if location else deepcopy(value)


def locations(value: Any, prefix: Location = ()) -> list[Location]:
    """Return the locations of all values inside a value."""
    found = [prefix] if prefix else []
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in entries:
        found += locations(member, (*prefix, key))
    return found


def text(pattern: str | None, length: int) -> str | None:
    """Return a string of this length that matches the pattern, or None when none of our shapes does."""
    shapes = [
        "a" * length,
        "A" * length,
        "/" + "a" * (length - 1),
        "hf://" + "a" * (length - 5),
        "a" * (length - 2) + "/a",
        "9" * length,
        "9" * (length - 12) + "." + "9" * 9 + "Gi",
        "2026-01-02T03:04:05." + "0" * (length - 26) + "+01:00",
    ]
    fitting = (shape for shape in shapes if len(shape) == length and matches(pattern, shape))
    return next(fitting, None)


def matches(pattern: str | None, value: str) -> bool:
    """Match as the API server does: the patterns are anchored, and `$` is the very end."""
    return pattern is None or re.fullmatch(pattern.removeprefix("^").removesuffix("$"), value) is not None


class _Node:
    def __init__(self, schema: Json, full: Json, location: Location, path: str) -> None:
        self.schema, self.full, self.location, self.path = schema, full, location, path
        self.value: Any = full
        for step in location:
            self.value = self.value[step]

    def _put(self, keyword: str, value: Any, refusal: str | None = None) -> Case:
        return Case(path=self.path, keyword=keyword, body=put(self.full, self.location, value), refusal=refusal)

    def cases(self) -> Iterator[Case]:
        schema = self.schema
        yield from self._types()
        for keyword, below, above, word in (
            ("minimum", -1, 1, "greater than"),
            ("maximum", 1, -1, "less than"),
        ):
            if keyword in schema:
                yield from self._bound(keyword, outside=below, inside=above, word=word)
        for member in schema.get("enum", ()):
            yield self._put("enum", member)
        if "enum" in schema:
            yield self._put("enum", "Nothing", "Unsupported value")
        yield from self._strings()
        if "minItems" in schema:
            yield self._put("minItems", self._items(schema["minItems"]))
            yield self._put("minItems", self._items(schema["minItems"] - 1), "should have at least")
        if "maxItems" in schema:
            yield self._put("maxItems", self._items(schema["maxItems"]))
            yield self._put("maxItems", self._items(schema["maxItems"] + 1), "Too many")
        if LIST_KEYS in schema:
            yield self._put(LIST_KEYS, self._items(2))
            yield self._put(LIST_KEYS, [self.value[0], self.value[0]], "Duplicate value")
        if "maxProperties" in schema:
            yield from self._properties(schema["maxProperties"])
        if "properties" in schema:
            yield from self._members()

    def _types(self) -> Iterator[Case]:
        keyword = INT_OR_STRING if INT_OR_STRING in self.schema else "type"
        yield self._put(keyword, self.value)
        if keyword == INT_OR_STRING:
            yield self._put(keyword, 1)
            yield self._put(keyword, value=True, refusal="must be of type")
            yield self._put(keyword, 1.5, "must be of type")
            return
        if self.schema["type"] == "boolean":
            yield self._put("type", not self.value)
        for wrong in WRONG_TYPES[self.schema["type"]] if self.location else ():
            yield self._put("type", wrong, "must be of type")
        if not self.location:
            yield Case(path=self.path, keyword="type", body=[], refusal="must be of type")  # type: ignore[arg-type]

    def _bound(self, keyword: str, *, outside: int, inside: int, word: str) -> Iterator[Case]:
        bound = self.schema[keyword]
        exclusive = f"exclusive{keyword.capitalize()}"
        fraction = 0.25 if self.schema.get("type") == "number" else 1
        refusal = f"should be {word}"
        if self.schema.get(exclusive):
            for name in (keyword, exclusive):
                yield self._put(name, bound + inside * fraction)
                yield self._put(name, bound, refusal)
        else:
            yield self._put(keyword, bound)
            yield self._put(keyword, bound + outside * fraction, refusal)

    def _strings(self) -> Iterator[Case]:
        schema, pattern = self.schema, self.schema.get("pattern")
        if "minLength" in schema:
            yield self._put("minLength", text(pattern, schema["minLength"]))
            yield self._put("minLength", "a" * (schema["minLength"] - 1), "should be at least")
        if "maxLength" in schema:
            longest = text(pattern, schema["maxLength"])
            if longest is None:
                raise ValueError(f"{self.path}: no shape of {schema['maxLength']} characters matches {pattern}")
            yield self._put("maxLength", longest)
            yield self._put("maxLength", longest + longest[-1], "Too long")
        if pattern is not None:
            yield self._put("pattern", self.value)
            good = str(self.value)
            for bad in (f"-{good}", f"{good} ", f"{good}\n", f"{good}é"):
                if not matches(pattern, bad):
                    yield self._put("pattern", bad, "should match")

    def _items(self, count: int) -> list[Any]:
        first, words = self.value[0], self.schema["items"].get("enum")
        if words:
            return [words[index % len(words)] for index in range(count)]
        if isinstance(first, int):
            return [first] * count
        if not isinstance(first, dict):
            return [f"item-{index}" for index in range(count)]
        numbered = {
            name
            for name, node in self.schema["items"]["properties"].items()
            if name in (*self.schema.get(LIST_KEYS, ()), "mountPath") and node["type"] == "string"
        }
        prefix = {
            name: "/v" if name == "mountPath" else ("N" if str(first[name])[0].isupper() else "n") for name in numbered
        }
        return [{**deepcopy(first), **{name: f"{prefix[name]}{index}" for name in numbered}} for index in range(count)]

    def _properties(self, most: int) -> Iterator[Case]:
        keys = [
            key for key in ("cpu", "memory", "ephemeral-storage") if "requests" in self.path or "limits" in self.path
        ]
        keys += [f"key-{index}" for index in range(most + 1)]
        sample = next(iter(self.value.values()))
        yield self._put("maxProperties", dict.fromkeys(keys[:most], sample))
        yield self._put("maxProperties", dict.fromkeys(keys[: most + 1], sample), "Too many")

    def _members(self) -> Iterator[Case]:
        yield self._put("unknown", self.value)
        yield self._put("unknown", {**self.value, "surprise": 1}, "unknown field")
        if "required" in self.schema:
            yield self._put("required", {name: self.value[name] for name in self.value})
        for name in self.schema.get("required", ()):
            rest = {key: value for key, value in self.value.items() if key != name}
            yield self._put("required", rest, "Required value")
