"""`python -m e2e.enginesim [serve] MODEL [vLLM flags]`."""

import os
import sys

# aiohttp reads the machine's certificates when it is imported; this server opens no TLS connection, and a local cluster
# starts many of them.
os.environ.setdefault("SSL_CERT_FILE", os.devnull)
os.environ.setdefault("SSL_CERT_DIR", os.devnull)

from e2e.enginesim.process import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
