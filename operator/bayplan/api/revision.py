"""The two hashes that say whether running pods are what the spec asks for.

Rendered pods are never compared: the API server and admission add to them. What counts is what the user declared.

Both hashes are taken over canonical JSON of the declared fields. Fields that equal their default are left out, so
writing a default down changes nothing, and a field that a later version adds with a default restarts no fleet. Hence a
default may never change within one API version. Keys are sorted; numbers are compared by value (16 and 16.0 are one);
the order of lists counts, because it does for arguments and variables; quantities count as written (`1` is not
`1000m`).
"""

import hashlib
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.api.meta import Schema

HASH_LENGTH = 10
"""Hexadecimal digits of both hashes: short enough for a pod name, long enough for one object's history."""


def revision_hash(spec: InferenceModelSpec) -> str:
    """Return the revision: a hash of every field of `model`, `engine` and `parallelism`.

    These can change an answer or its cost. A difference asks for a replacement or a rollout.
    """
    return _digest({"model": spec.model, "engine": spec.engine, "parallelism": spec.parallelism})


def template_hash(spec: InferenceModelSpec) -> str:
    """Return a hash of the other inputs of a pod: `template`, `placement.tolerations` and `drain`.

    A difference replaces groups one by one, without gates.
    """
    tolerations = {str(index): toleration for index, toleration in enumerate(spec.placement.tolerations)}
    return _digest({"template": spec.template, "drain": spec.drain, "tolerations": tolerations})


def _digest(parts: Mapping[str, Schema | Mapping[str, Schema]]) -> str:
    text = json.dumps(_canonical(parts), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]


def _canonical(value: Any) -> Any:
    if isinstance(value, Schema):
        return _canonical(value.model_dump(by_alias=True, exclude_defaults=True))
    if isinstance(value, Mapping):
        return {key: _canonical(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(member) for member in value]
    if isinstance(value, Decimal):
        return format(value.normalize(), "f")
    return value
