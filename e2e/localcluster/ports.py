"""Free loopback ports. Nothing can hold a port for another process, so users of these retry when one was taken."""

import random
import socket
from pathlib import Path

FIRST_PORT = 20_000
ADDRESS = "127.0.0.1"
BIND_FAILURE = "address already in use"
"""What etcd and the Kubernetes servers log when a port was taken meanwhile."""


def free_ports(count: int, *, first: int = FIRST_PORT, last: int | None = None) -> tuple[int, ...]:
    """Return `count` different ports from `first` to `last` (both included) that were free a moment ago.

    By default they lie below the kernel's ephemeral range, so that no outgoing connection takes one by chance, and they
    are drawn at random, so that clusters that start together seldom meet. Raises OSError when there are too few.
    """
    last = _first_ephemeral_port() - 1 if last is None else last
    candidates = list(range(first, last + 1))
    random.SystemRandom().shuffle(candidates)
    found: list[int] = []
    for port in candidates:
        if len(found) == count:
            break
        if _is_free(port):
            found.append(port)
    if len(found) < count:
        raise OSError(f"fewer than {count} free ports from {first} to {last} on {ADDRESS}")
    return tuple(found)


def _first_ephemeral_port() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        return 32_768


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ADDRESS, port))
        except OSError:
            return False
    return True
