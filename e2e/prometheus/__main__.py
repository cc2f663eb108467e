"""`python -m e2e.prometheus`: fetch the program into the cache, unless it is there, and print where it is."""

import asyncio
import sys

from e2e.prometheus.program import MissingPrometheusError, ensure_prometheus


def main() -> int:
    """Return the exit status."""
    try:
        print(asyncio.run(ensure_prometheus()))
    except MissingPrometheusError as error:
        print(f"prometheus: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
