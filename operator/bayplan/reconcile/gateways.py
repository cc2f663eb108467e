"""The gateways that are live, and what each has acknowledged.

Times of other machines are never compared: a gateway is live for its Lease's duration after this process last saw the
Lease change. The Lease names the Pod, and the Pod's status gives the address; nothing is asked at any other.

Whoever may write Leases and Pods in a namespace can play a gateway there. So a gateway speaks for the models of its own
namespace alone, unless it lies in the operator's, where only administrators write.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bayplan.api import names
from bayplan.api.acknowledgements import read_epochs, read_uids
from bayplan.cluster.cache import Store, version_number
from bayplan.cluster.resources import LEASES, Key
from bayplan.planning.rollout.proof import GatewayAck
from bayplan.reconcile.pods import PodView
from bayplan.telemetry.sources import GatewaySource

LONGEST_LEASE_SECONDS = 60
"""A gateway that claims to live longer without a sign of it is believed for so long only."""


@dataclass(frozen=True, slots=True)
class GatewayView:
    """What the cache keeps of a gateway's Lease."""

    key: Key
    uid: str
    resource_version: int
    pod: str
    """Name of the Pod, in the Lease's namespace; empty once the gateway has given the Lease up."""
    pod_uid: str
    """uid of that Pod, as the label says."""
    duration_seconds: int
    draining: frozenset[str]
    """Uids of draining pods to which it sends nothing new."""
    epochs: Mapping[str, int]
    """Epochs of the plans that it routes by, by Rollout uid."""


def view_gateway(raw: Mapping[str, Any]) -> GatewayView:
    """Project one Lease with the gateways' label."""
    meta, spec = raw["metadata"], raw.get("spec") or {}
    duration, annotations = spec.get("leaseDurationSeconds"), meta.get("annotations") or {}
    return GatewayView(
        key=Key(meta["namespace"], meta["name"]),
        uid=meta["uid"],
        resource_version=version_number(meta["resourceVersion"]),
        pod=str(spec.get("holderIdentity") or ""),
        pod_uid=str((meta.get("labels") or {}).get(names.LABEL_GATEWAY) or ""),
        duration_seconds=min(duration, LONGEST_LEASE_SECONDS) if isinstance(duration, int) and duration > 0 else 1,
        draining=read_uids(annotations.get(names.ANNOTATION_DRAINING_PODS)),
        epochs=read_epochs(annotations.get(names.ANNOTATION_PLAN_EPOCHS)),
    )


def gateway_store() -> Store[GatewayView]:
    """Return an empty cache of gateways' Leases."""
    return Store(LEASES)


class Gateways:
    """Which gateways are live now. `clock` is monotonic; gateways in the namespace `home` speak for every model."""

    def __init__(
        self, leases: Store[GatewayView], pods: Store[PodView], *, home: str, clock: Callable[[], float]
    ) -> None:
        self._home = home
        self._leases = leases
        self._pods = pods
        self._clock = clock
        self._heard: dict[str, float] = {}
        leases.subscribe(self._changed)

    def live(self, namespace: str) -> list[GatewaySource]:
        """Return the live gateways of models in a namespace; one whose Pod is not known yet has no address."""
        return [
            GatewaySource(
                uid=lease.pod_uid,
                namespace=lease.key.namespace,
                pod=lease.pod,
                address=pod.address if pod is not None else "",
            )
            for lease, pod in self._live(namespace)
        ]

    def acknowledged(self, namespace: str, uid: str) -> bool:
        """Whether every live gateway sends nothing new to the draining pod of that uid; true where there is none."""
        return all(uid in lease.draining for lease, _ in self._live(namespace))

    def plan_epochs(self, namespace: str, rollout_uid: str) -> tuple[GatewayAck, ...]:
        """Return which epoch of that Rollout's plan each live gateway routes by; 0 for none.

        Whoever is not among them sends candidates nothing: a gateway stops before its Lease runs out.
        """
        return tuple(
            GatewayAck(lease.pod_uid or lease.uid, lease.epochs.get(rollout_uid, 0))
            for lease, _ in self._live(namespace)
        )

    def _live(self, namespace: str) -> list[tuple[GatewayView, PodView | None]]:
        now, found = self._clock(), []
        for lease in self._leases.values():
            pod = self._pods.get(Key(lease.key.namespace, lease.pod))
            lasted = now - self._heard.get(lease.uid, now)
            gone = pod is not None and (pod.terminal or pod.uid != lease.pod_uid)
            speaks = lease.key.namespace in (namespace, self._home)
            if speaks and lease.pod and lasted <= lease.duration_seconds and not gone:
                found.append((lease, pod))
        return found

    def _changed(self, old: GatewayView | None, new: GatewayView | None) -> None:
        if new is not None:
            self._heard[new.uid] = self._clock()
        elif old is not None:
            self._heard.pop(old.uid, None)
