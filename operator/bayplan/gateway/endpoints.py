"""What a gateway watches, reduced to what routing needs: models and the heads of their replicas.

It trusts nothing: labels and annotations are whatever somebody wrote there. A head takes requests only while it is
owned by a model that is watched too, runs warm on exactly the container named by its warm condition, is Ready, and is
neither draining nor deleted. Pods on the host's network are never routed: their address is the node's.
"""

import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bayplan.api import names
from bayplan.api.meta import owner_uid, parse_rfc3339
from bayplan.cluster.cache import version_number
from bayplan.cluster.resources import Key

HEADS_SELECTOR = f"{names.LABEL_MODEL},{names.LABEL_RANK}=0"
"""Label selector of the pods that are watched."""
MOST_COUNT = 10**9


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What one engine has: KV blocks of `block_size` tokens, sequence slots, longest sequence in tokens."""

    kv_blocks: int
    block_size: int
    max_num_seqs: int
    max_model_len: int


@dataclass(frozen=True, slots=True)
class ModelView:
    """What is kept of an InferenceModel."""

    key: Key
    uid: str
    resource_version: int
    served_name: str
    max_model_len: int
    max_num_seqs: int | None
    serving: tuple[str, ...]
    """Revisions whose ready pods are routed."""
    created_unix: int


@dataclass(frozen=True, slots=True)
class HeadView:
    """What is kept of a head pod."""

    key: Key
    uid: str
    resource_version: int
    owner: str
    """uid of the controlling owner; empty without one."""
    revision: str
    address: str | None
    """IP address, in the form in which it stands in a URL."""
    warm: bool
    ready: bool
    draining: bool
    """Leaving: annotated, or deleted and not yet gone."""
    facts: EngineFacts | None
    container: str

    @property
    def routable(self) -> bool:
        """Whether it takes new requests, provided that its model serves its revision."""
        return self.address is not None and self.warm and self.ready and not self.draining


def view_model(raw: Mapping[str, Any]) -> ModelView:
    """Project an InferenceModel. Raises KeyError, TypeError or ValueError for what the schema would not have let in."""
    meta, spec = raw["metadata"], raw["spec"]
    model, engine = spec["model"], spec["engine"]
    serving = ((raw.get("status") or {}).get("revisions") or {}).get("serving") or ()
    slots = engine.get("maxNumSeqs")
    return ModelView(
        key=Key(meta["namespace"], meta["name"]),
        uid=meta["uid"],
        resource_version=version_number(meta["resourceVersion"]),
        served_name=str(model["name"]),
        max_model_len=int(engine["maxModelLen"]),
        max_num_seqs=None if slots is None else int(slots),
        serving=tuple(str(revision) for revision in serving),
        created_unix=int(parse_rfc3339(meta["creationTimestamp"]).timestamp()),
    )


def view_head(raw: Mapping[str, Any]) -> HeadView:
    """Project a head pod."""
    meta, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    annotations = meta.get("annotations") or {}
    conditions = {condition.get("type"): condition for condition in status.get("conditions") or ()}
    container = _container_id(status)
    warm = conditions.get(names.CONDITION_WARM) or {}
    running = status.get("phase") == "Running" and not spec.get("hostNetwork")
    return HeadView(
        key=Key(meta["namespace"], meta["name"]),
        uid=meta["uid"],
        resource_version=version_number(meta["resourceVersion"]),
        owner=_model_owner(meta),
        revision=str((meta.get("labels") or {}).get(names.LABEL_REVISION, "")),
        address=_url_host(status.get("podIP")) if running else None,
        warm=bool(container) and warm.get("status") == "True" and warm.get("message") == container,
        ready=(conditions.get("Ready") or {}).get("status") == "True",
        draining=names.ANNOTATION_DRAINING in annotations or meta.get("deletionTimestamp") is not None,
        facts=read_facts(annotations.get(names.ANNOTATION_ADMISSION)),
        container=container,
    )


def read_facts(text: object) -> EngineFacts | None:
    """Read the admission annotation; anything unreadable counts as absent."""
    try:
        raw = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        return None
    if not isinstance(raw, dict):
        return None
    values = [raw.get(name) for name in ("kvBlocks", "blockSize", "maxNumSeqs", "maxModelLen")]
    if not all(type(value) is int and 1 <= value <= MOST_COUNT for value in values):
        return None
    return EngineFacts(*values)  # type: ignore[arg-type]


def _model_owner(meta: Mapping[str, Any]) -> str:
    for reference in meta.get("ownerReferences") or ():
        if reference.get("controller") and reference.get("kind") == names.INFERENCEMODEL_KIND:
            return owner_uid(meta) or ""
    return ""


def _container_id(status: Mapping[str, Any]) -> str:
    for entry in status.get("containerStatuses") or ():
        if entry.get("name") == names.ENGINE_CONTAINER:
            return str(entry.get("containerID") or "")
    return ""


def _url_host(address: object) -> str | None:
    """The address as a URL's host; None for what is no plain IP address."""
    try:
        host = ipaddress.ip_address(address) if isinstance(address, str) else None
    except ValueError:
        return None
    if isinstance(host, ipaddress.IPv6Address):
        return None if host.scope_id is not None else f"[{host}]"
    return None if host is None else str(host)
