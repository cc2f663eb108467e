"""What a gateway's Lease says beside that it lives: written by that gateway, read by the operator, here for both.

Two annotations, each compact JSON:

- `bayplan.dev/draining-pods`: a list of uids, `["UID", …]`. Nothing new goes to these pods.
- `bayplan.dev/plan-epochs`: an object by uid of the Rollout, `{"UID": EPOCH, …}`. Every request that the gateway
  sends since obeys `status.plan` of that epoch or a later one; a Rollout that is not named has no plan that the gateway
  carries out. What went out before may still be under way: `/evidence`, asked after the acknowledgement was seen,
  counts it as `running`, and nothing joins it.

Whoever may write Leases may write anything: what is not of this form acknowledges nothing.
"""

import json
from collections.abc import Iterable, Mapping

MAX_ACKNOWLEDGED = 10_000
"""Entries of either annotation that are read."""


def write_uids(uids: Iterable[str]) -> str:
    """The draining pods' annotation."""
    return json.dumps(sorted(uids), separators=(",", ":"))


def read_uids(text: object) -> frozenset[str]:
    """Read the draining pods' annotation."""
    found = _parse(text)
    return frozenset(map(str, found[:MAX_ACKNOWLEDGED])) if isinstance(found, list) else frozenset()


def write_epochs(epochs: Mapping[str, int]) -> str:
    """The plan epochs' annotation."""
    return json.dumps(dict(sorted(epochs.items())), separators=(",", ":"))


def read_epochs(text: object) -> Mapping[str, int]:
    """Read the plan epochs' annotation; an entry that is no whole number of at least 1 is left out."""
    found = _parse(text)
    if not isinstance(found, dict):
        return {}
    return {uid: epoch for uid, epoch in list(found.items())[:MAX_ACKNOWLEDGED] if type(epoch) is int and epoch >= 1}


def _parse(text: object) -> object:
    try:
        return json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
