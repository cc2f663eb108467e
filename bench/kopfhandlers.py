"""The baseline: the same first status, written the way Kopf's documentation teaches, with create and update handlers.

Kopf keeps track of handled objects by an annotation on each of them, so the handlers cost writes beside the status.
Posting of Events is off, and settings are Kopf's defaults otherwise.
"""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import kopf
import uvloop

from bayplan.api import names
from bench import KOPF_SERVES
from e2e.localcluster.kubeconfig import read_kubeconfig


def registry(kubeconfig: Path) -> kopf.OperatorRegistry:
    """Return the handlers."""
    handlers = kopf.OperatorRegistry()
    kind = (names.GROUP, names.VERSION, names.INFERENCEMODEL_PLURAL)

    @kopf.on.login(registry=handlers)
    async def login(**_: Any) -> kopf.AiohttpSession:
        access = read_kubeconfig(kubeconfig)
        connector = aiohttp.TCPConnector(limit=0, ssl=access.tls or True)
        return kopf.AiohttpSession(server=access.server, aiohttp_session=aiohttp.ClientSession(connector=connector))

    @kopf.on.startup(registry=handlers)
    def start(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.enabled = False
        settings.scanning.disabled = True
        print(KOPF_SERVES, flush=True)

    @kopf.on.create(*kind, registry=handlers)
    @kopf.on.update(*kind, registry=handlers)
    async def handle(meta: kopf.Meta, spec: kopf.Spec, patch: kopf.Patch, **_: Any) -> None:
        patch.status["observedGeneration"] = meta["generation"]
        patch.status["desiredReplicas"] = spec.get("replicas", 1)
        patch.status["conditions"] = [
            {
                "type": "Ready",
                "status": "True",
                "reason": "ScaledToZero",
                "message": "no replicas run, as asked",
                "lastTransitionTime": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
                "observedGeneration": meta["generation"],
            }
        ]

    return handlers


def main() -> None:
    """Run as the user of the kubeconfig given as the only argument."""
    uvloop.run(kopf.operator(registry=registry(Path(sys.argv[1])), clusterwide=True, standalone=True))


if __name__ == "__main__":
    main()
