"""What two runs of one story must have in common: objects without what legitimately differs.

Dropped or blanked, and why:
- uids, resourceVersions, managedFields, times: new in every run; a uid of a known object becomes its kind and name,
  also inside a text such as a label selector.
- addresses and container ids: the cluster hands them out.
- which node a replica is on, with its zone, and the facts that placement states about it: several nodes are equally
  good, and the order in which GPUs become free decides.
- the ordinal in names of groups: of replicas that are equally old any may be the one that leaves.
- what a scaling decision saw at its moment beside what it decided: how much was served and covered just then.
- how many looks a stage of a Rollout took: at another pace it takes more.
- digests of what evidence rests on: each world has nodes of its own. The salt of cohorts: each Rollout has its own.
- attempt numbers, only where `attempts` says so: under faults a reservation may be given back and made anew.
Everything else, such as counts, conditions with their reasons and messages, labels and specs, is compared.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_ADDRESS = re.compile(r"\b\d{1,3}(\.\d{1,3}){3}\b")
_GROUP = re.compile(r"\b(?P<base>[a-z][-a-z0-9]*-[0-9a-f]{5})-\d+-(?P<attempt>\d+)(?P<rank>-\d+)?\b")
_DIGEST = re.compile(r"\b[0-9a-f]{12}\b")
_UID = re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_CONTAINER = re.compile(r"\b[a-z]+://[-0-9a-f]+\b")
_ZONES = "topology.kubernetes.io/"
_MOMENTARY = frozenset(
    {"arrivalTokensPerSecond", "readyTokensPerSecond", "coverage", "windowReplicas", "windows", "dropped"}
)
_DROPPED = _MOMENTARY | frozenset(
    {"uid", "resourceVersion", "managedFields", "selfLink", "facts", "clusterIP", "clusterIPs", "hostIPs"}
    | {"inputs", "reportDigest", "cohortSalt"}
)
_PLAN_ANNOTATIONS = frozenset({"bayplan.dev/assignment", "bayplan.dev/plan-id"})


@dataclass(frozen=True, slots=True)
class Normaliser:
    """Blanks objects of one world. `attempts` says whether attempt numbers are blanked too."""

    namespace: str
    nodes: frozenset[str]
    attempts: bool = False

    def name(self, text: str) -> str:
        """Blank a name, or any text with names in it."""
        text = _TIME.sub("TIME", text)
        text = _ADDRESS.sub("ADDRESS", text)
        text = _CONTAINER.sub("CONTAINER", text)
        text = text.replace(self.namespace, "NAMESPACE")
        for node in self.nodes:
            text = text.replace(node, "NODE")
        return _GROUP.sub(self._group, text)

    def _group(self, match: re.Match[str]) -> str:
        attempt = "A" if self.attempts else match["attempt"]
        return f"{match['base']}-N-{attempt}{match['rank'] or ''}"

    def state(self, objects: Iterable[Json]) -> list[str]:
        """Return the objects as sorted text, one line each; equal lists mean equal worlds."""
        objects = list(objects)
        uids = {o["metadata"]["uid"]: f"uid of {o['kind']} {self.name(o['metadata']['name'])}" for o in objects}
        return sorted(json.dumps(self._blank(obj, uids), sort_keys=True) for obj in objects)

    def _blank(self, value: Any, uids: Mapping[str, str]) -> Any:
        if isinstance(value, dict):
            return {
                self.name(key): "PLAN" if key in _PLAN_ANNOTATIONS else self._blank(found, uids)
                for key, found in value.items()
                if not key.startswith(_ZONES) and (key not in _DROPPED or (key == "uid" and "controller" in value))
            }
        if isinstance(value, list):
            found = [self._blank(item, uids) for item in value]
            return sorted(found, key=lambda item: json.dumps(item, sort_keys=True))
        if isinstance(value, str):
            return uids.get(value) or _UID.sub(lambda match: uids.get(match[0], match[0]), self.name(value))
        return value


def difference(expected: Iterable[str], found: Iterable[str], *, limit: int = 12) -> str:
    """Say which lines are missing and which are too many, with the first paths in which near pairs differ."""
    missing, extra = list(expected), []
    for line in found:
        if line in missing:
            missing.remove(line)
        else:
            extra.append(line)
    lines: list[str] = []
    for text in missing:
        near = next((other for other in extra if _head(other) == _head(text)), None)
        if near is None:
            lines.append(f"missing {_head(text)}")
            continue
        extra.remove(near)
        lines += [f"{_head(text)}{path}" for path in _paths(json.loads(text), json.loads(near))]
    lines += [f"unexpected {_head(text)}" for text in extra]
    shown = lines[:limit]
    return "; ".join([*shown, *([f"and {len(lines) - limit} more"] if len(lines) > limit else [])])


def _head(text: str) -> str:
    found = json.loads(text)
    return f"{found['kind']} {found['metadata']['name']}"


def _paths(expected: Any, found: Any, at: str = "") -> list[str]:
    if isinstance(expected, dict) and isinstance(found, dict):
        return [
            line
            for key in sorted({*expected, *found})
            for line in _paths(expected.get(key), found.get(key), f"{at}.{key}")
        ]
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = enumerate(zip(expected, found, strict=True))
        return [line for i, (a, b) in pairs for line in _paths(a, b, f"{at}[{i}]")]
    return [] if expected == found else [f"{at}: {_short(found)} instead of {_short(expected)}"]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else text[:199] + "…"
