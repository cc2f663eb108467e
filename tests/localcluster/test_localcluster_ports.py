"""Free ports."""

import socket
from pathlib import Path

import pytest

from e2e.localcluster.ports import ADDRESS, FIRST_PORT, free_ports


def test_ports_differ_can_be_bound_and_lie_below_the_ephemeral_range() -> None:
    found = free_ports(5)
    assert len(set(found)) == 5
    first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in found:
        assert FIRST_PORT <= port < first_ephemeral
        with socket.socket() as listener:
            listener.bind((ADDRESS, port))


def test_a_port_in_use_is_not_offered() -> None:
    (taken,) = free_ports(1)
    with socket.socket() as listener:
        listener.bind((ADDRESS, taken))
        listener.listen()
        with pytest.raises(OSError, match=f"fewer than 1 free ports from {taken} to {taken}"):
            free_ports(1, first=taken, last=taken)
    assert free_ports(1, first=taken, last=taken) == (taken,)
