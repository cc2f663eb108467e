"""What an answer looks like without what may differ between two engines: values become types, streams become phases."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
Record: TypeAlias = "Mapping[str, Json]"
"""One check's observations of one engine; nested, JSON only, comparable value by value."""

DONE = "[DONE]"
_TYPE_NAMES = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string"}


def shape(value: object) -> Json:
    """Replace every scalar by its JSON type's name; a list becomes the list of its distinct element shapes."""
    if isinstance(value, Mapping):
        return {str(key): shape(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        distinct: list[Json] = []
        for item in value:
            seen = shape(item)
            if seen not in distinct:
                distinct.append(seen)
        return distinct
    if type(value) not in _TYPE_NAMES:
        raise TypeError(f"not JSON: {type(value).__name__}")
    return _TYPE_NAMES[type(value)]


@dataclass(frozen=True)
class EventStream:
    """A server-sent event stream: the data of each event, and whether the bytes were framed as events should be."""

    data: tuple[str, ...]
    framed: bool

    @property
    def done(self) -> bool:
        """Whether the last event is the end mark."""
        return bool(self.data) and self.data[-1] == DONE

    def chunks(self) -> list[dict[str, Any]]:
        """The JSON objects of all events but the end mark."""
        return [json.loads(item) for item in self.data if item != DONE]


def parse_events(body: bytes) -> EventStream:
    r"""Split a body into events. Framed means: each is exactly `data: ` + one line + `\n\n`, with nothing besides."""
    text = body.decode("utf-8")
    data = tuple(line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: "))
    return EventStream(data=data, framed=text == "".join(f"data: {item}\n\n" for item in data))


def collapse(items: Iterable[Json]) -> list[Json]:
    """Drop every item that equals the one before it: how many chunks carried the text is a matter of timing."""
    kept: list[Json] = []
    for item in items:
        if not kept or kept[-1] != item:
            kept.append(item)
    return kept


def stream_phases(stream: EventStream) -> list[Json]:
    """The distinct consecutive shapes of a stream's chunks, with the values that mark a phase kept as values.

    Kept: `object`, `finish_reason` and the role.
    """
    return collapse(_phase(chunk) for chunk in stream.chunks())


def _phase(chunk: Mapping[str, Any]) -> Json:
    seen = {key: shape(chunk[key]) for key in sorted(chunk)}
    if "object" in chunk:
        seen["object"] = chunk["object"]
    choices = chunk.get("choices")
    if isinstance(choices, list):
        seen["choices"] = [_choice(choice) for choice in choices]
    return seen


def _choice(choice: Mapping[str, Any]) -> Json:
    seen = {key: shape(choice[key]) for key in sorted(choice)}
    seen["finish_reason"] = choice.get("finish_reason")
    delta = choice.get("delta")
    if isinstance(delta, Mapping) and "role" in delta:
        seen["delta"] = {**{key: shape(delta[key]) for key in delta}, "role": delta["role"]}
    return seen


def flatten(value: Json, path: str = "") -> dict[str, Json]:
    """Every leaf by its dotted path. Lists are leaves unless they hold objects; an empty object is a leaf."""
    if isinstance(value, Mapping) and value:
        items: Iterable[tuple[str, Json]] = value.items()
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        items = ((str(index), item) for index, item in enumerate(value))
    else:
        return {path: value}
    leaves: dict[str, Json] = {}
    for key, item in items:
        leaves |= flatten(item, f"{path}.{key}" if path else key)
    return leaves
