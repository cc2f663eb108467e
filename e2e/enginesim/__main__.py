"""`python -m e2e.enginesim [serve] MODEL [vLLM flags]`."""

import os
import sys

from e2e.enginesim.process import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
