"""The children of one object, brought into a form in which two objects with the same spec have equal ones."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bayplan.api import names
from e2e.localcluster import KubeApi
from e2e.specwalk.kinds import Json, Kind

SHOWN = 240
"""Characters of a difference in a message."""
PLACE_LABELS = "topology.kubernetes.io/"
"""The API server copies these from the node to a bound pod."""
RANDOM = re.compile(r"kube-api-access-[a-z0-9]{5}")
VOLATILE_METADATA = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation", "ownerReferences")
VOLATILE_ANNOTATIONS = (names.ANNOTATION_ASSIGNMENT, names.ANNOTATION_PLAN_ID, names.ANNOTATION_UNGATED)


@dataclass(frozen=True)
class Family:
    """Children by collection, normalised and in a fixed order; `raw` counts what is there."""

    members: Mapping[str, tuple[str, ...]]
    raw: Mapping[str, int]

    def difference(self, other: "Family", *, without: Iterable[str] = ()) -> str:
        """Say in what two families differ, empty when they do not."""
        for collection, mine in self.members.items():
            theirs = other.members[collection]
            if collection in without or mine == theirs:
                continue
            only_mine, only_theirs = sorted(set(mine) - set(theirs)), sorted(set(theirs) - set(mine))
            counts = f"{len(mine)} against {len(theirs)}"
            return f"{collection} differ ({counts}): {_contrast(only_mine, only_theirs)}"
        return ""


async def family_of(api: KubeApi, kind: Kind, namespace: str, *, target: str = "") -> Family:
    """Read what objects of the kind own in a namespace; of `kept` collections only what carries revision `target`."""
    members: dict[str, tuple[str, ...]] = {}
    raw: dict[str, int] = {}
    found: dict[str, list[Json]] = {}
    for collection, path in kind.children.items():
        items = (await api.get(path.format(namespace=namespace)))["items"]
        found[collection] = [item for item in items if _owned(item, kind)]
        raw[collection] = len(found[collection])
    aliases = _aliases(found, namespace)
    for collection, items in found.items():
        if collection in kind.kept:
            items = [i for i in items if _label(i, names.LABEL_REVISION) in ("", target)]  # noqa: PLW2901
        members[collection] = tuple(sorted(normalised(item, aliases) for item in items))
    return Family(members, raw)


def normalised(item: Json, aliases: Mapping[str, str]) -> str:
    """Return what a spec decides of a child: no identities, no times, no place, no status."""
    meta = {key: value for key, value in item["metadata"].items() if key not in VOLATILE_METADATA}
    meta["labels"] = {k: v for k, v in (meta.get("labels") or {}).items() if not k.startswith(PLACE_LABELS)}
    annotations = {k: v for k, v in (meta.get("annotations") or {}).items() if k not in VOLATILE_ANNOTATIONS}
    body = {key: value for key, value in item.items() if key not in ("status", "metadata", "revision")}
    spec: dict[str, Any] = {
        key: value
        for key, value in (item.get("spec") or {}).items()
        if key not in ("nodeName", "affinity", "clusterIP", "clusterIPs")
    }
    text = json.dumps({**body, "spec": spec, "metadata": {**meta, "annotations": annotations}}, sort_keys=True)
    # Labels and selectors name the owner by its uid as well.
    for owner in item["metadata"].get("ownerReferences") or ():
        text = text.replace(owner["uid"], "OWNER")
    for name, alias in sorted(aliases.items(), key=lambda entry: -len(entry[0])):
        text = re.sub(rf"(?<![a-z0-9-]){re.escape(name)}(?![a-z0-9])", alias, text)
    return RANDOM.sub("kube-api-access", text)


def _aliases(found: Mapping[str, list[Json]], namespace: str) -> dict[str, str]:
    """Names that differ between objects with equal specs: the namespace, and groups, whose ordinals tell a history."""
    groups = {_label(pod, names.LABEL_GROUP) for pod in found.get("pods", ())} - {""}
    return {namespace: "NAMESPACE"} | dict.fromkeys(groups, "GROUP")


def _owned(item: Json, kind: Kind) -> bool:
    return any(owner["kind"] == kind.name for owner in item["metadata"].get("ownerReferences") or ())


def _label(item: Json, name: str) -> str:
    return str((item["metadata"].get("labels") or {}).get(name, ""))


def _contrast(mine: Sequence[str], theirs: Sequence[str]) -> str:
    """Show the first texts from a little before the place where they part."""
    if not mine or not theirs:
        return f"{(mine or theirs or ['nothing'])[0][:SHOWN]} is there once only"
    same = next((at for at, (a, b) in enumerate(zip(mine[0], theirs[0], strict=False)) if a != b), 0)
    start = max(0, same - SHOWN // 4)
    return f"…{mine[0][start : start + SHOWN]}… against …{theirs[0][start : start + SHOWN]}…"
