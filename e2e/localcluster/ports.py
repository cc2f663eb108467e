"""Free loopback ports. Nothing can hold a port for another process, so users of these retry when one was taken."""

import random
import socket
from pathlib import Path

FIRST_PORT = 20_000
ADDRESS = "127.0.0.1"
BIND_FAILURE = "address already in use"
"""What etcd and the Kubernetes servers log when a port was taken meanwhile."""


def free_ports(count: int) -> tuple[int, ...]:
    """Return `count` different ports that were free a moment ago.

    They lie below the kernel's ephemeral range, so that no outgoing connection takes one by chance, and are drawn at
    random, so that clusters that start together seldom meet. Raises OSError when the range is exhausted.
    """
    last = _first_ephemeral_port() - 1
    candidates = list(range(FIRST_PORT, max(last, FIRST_PORT + 1000)))
    random.SystemRandom().shuffle(candidates)
    found: list[int] = []
    for port in candidates:
        if len(found) == count:
            return tuple(found)
        if _is_free(port):
            found.append(port)
    raise OSError(f"fewer than {count} free ports from {FIRST_PORT} to {last} on {ADDRESS}")


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
