"""Ends container process groups when the agent is gone, also after SIGKILL. Runs alone, imports nothing of ours.

The agent writes `+PGID` and `-PGID` lines to its standard input. End of input means the agent has ended: whatever is
still on the list is killed. The parent-death signal of each container covers its main process at once; this covers
what that process started.
"""

import contextlib
import os
import signal
import sys


def main() -> None:
    """Read lines until the agent closes the pipe, then kill what is left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups = set()
    for line in sys.stdin:
        group = int(line[1:])
        if line[0] == "+":
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
