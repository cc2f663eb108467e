"""What a node hands out, counted here and not by the scheduler: extended resources (GPUs) and pod addresses."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
from typing import Any


class AdmissionError(Exception):
    """The node cannot take the pod; the message is what the pod's status will say."""


def requested_devices(spec: Mapping[str, Any]) -> dict[str, int]:
    """Return the extended resources of a pod spec: the sum over containers, or the largest init container if above."""

    def of(container: Mapping[str, Any]) -> dict[str, int]:
        resources = container.get("resources") or {}
        wanted = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
        return {key: int(value) for key, value in wanted.items() if "/" in key and str(value).isdigit()}

    total: dict[str, int] = {}
    for container in spec.get("containers") or ():
        for key, count in of(container).items():
            total[key] = total.get(key, 0) + count
    for container in spec.get("initContainers") or ():
        for key, count in of(container).items():
            total[key] = max(total.get(key, 0), count)
    return total


@dataclass
class DeviceLedger:
    """The devices of one resource on one node, by index: which are lost, and which pod (uid) holds which."""

    resource: str
    total: int
    lost: set[int] = field(default_factory=set)
    held: dict[str, frozenset[int]] = field(default_factory=dict)

    @property
    def allocatable(self) -> int:
        """Healthy devices, held or not: what the node reports."""
        return self.total - len(self.lost)

    def free(self) -> list[int]:
        """Return the healthy devices that no pod holds."""
        taken = self.lost.union(*self.held.values())
        return [index for index in range(self.total) if index not in taken]

    def take(self, uid: str, count: int) -> None:
        """Give `count` devices to a pod, or raise AdmissionError and give none. Taking again changes nothing."""
        if uid in self.held:
            return
        free = self.free()
        if count > len(free):
            raise AdmissionError(
                f"Allocate failed due to requested number of devices unavailable for {self.resource}. "
                f"Requested: {count}, Available: {len(free)}, which is unexpected"
            )
        self.held[uid] = frozenset(free[:count])

    def release(self, uid: str) -> None:
        """Take a pod's devices back; a pod that holds none is fine."""
        self.held.pop(uid, None)

    def lose(self, count: int, *, held_first: bool) -> list[str]:
        """Mark `count` more devices lost, free ones first unless `held_first`; return the pods that held any of them.

        Raises ValueError when fewer than `count` are healthy.
        """
        if not 1 <= count <= self.allocatable:
            raise ValueError(f"{count} of {self.resource}: between 1 and {self.allocatable} can be lost now")
        free = self.free()
        held = sorted(index for indexes in self.held.values() for index in indexes if index not in self.lost)
        chosen = set((held + free if held_first else free + held)[:count])
        self.lost |= chosen
        return [uid for uid, indexes in self.held.items() if indexes & chosen]

    def restore(self, count: int | None = None) -> None:
        """Bring back `count` lost devices, or all. Raises ValueError when fewer are lost."""
        if count is None:
            self.lost.clear()
            return
        if not 1 <= count <= len(self.lost):
            raise ValueError(f"{count} of {self.resource}: {len(self.lost)} are lost now")
        self.lost -= set(sorted(self.lost)[:count])


class AddressPool:
    """Hands out addresses of a network, to nodes from its end, to pods in order so that none is reused soon."""

    _FIRST = 256
    """Pods' first offset; below it is the agent's claim on the network."""

    def __init__(self, network: IPv4Network, *, nodes: int, in_use: Callable[[], Iterable[str]] = tuple) -> None:
        """`in_use` names further addresses that pods must not get, such as those of pods from an earlier run.

        Raises ValueError when the network is too small for the number of nodes.
        """
        self._network = network
        self._pods = network.num_addresses - self._FIRST - nodes - 1
        if self._pods < 1:
            raise ValueError(f"address base {network}: too small for {nodes} nodes and their pods")
        self._in_use = in_use
        self._held: set[int] = set()
        self._next = 0

    def node_address(self, position: int) -> str:
        """Return the address of the node at `position` (from 0)."""
        return str(IPv4Address(int(self._network.broadcast_address) - 1 - position))

    def take(self) -> str:
        """Return an address that nobody holds. Raises AdmissionError when there is none."""
        foreign = set(self._in_use())
        for _ in range(self._pods):
            offset = self._FIRST + self._next % self._pods
            self._next += 1
            address = str(IPv4Address(int(self._network.network_address) + offset))
            if offset not in self._held and address not in foreign:
                self._held.add(offset)
                return address
        raise AdmissionError(f"no free pod address in {self._network}")

    def release(self, address: str) -> None:
        """Take a pod's address back."""
        self._held.discard(int(IPv4Address(address)) - int(self._network.network_address))
