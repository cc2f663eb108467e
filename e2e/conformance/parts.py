"""What a real engine alone can show, beside the comparison of requests: one part each, with its result or its error."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from types import MappingProxyType
from typing import Any

import aiohttp
from rich.console import RenderableType
from rich.table import Table

from e2e.conformance.cachepages import CachePages, CachePagesError, cache_pages
from e2e.conformance.engines import EngineError
from e2e.conformance.gatewaycheck import GatewayCheck, GatewayCheckError, gateway_on_real_engines
from e2e.conformance.inspectcheck import InspectCheck, InspectCheckError, inspect_on_a_hub
from e2e.conformance.records import Json
from e2e.conformance.scalingcheck import ScalingCheckError
from e2e.conformance.servedmodel import ServedModel, ServedModelError, apply_to_answer
from e2e.localcluster import ClusterError
from e2e.scenarios.stack import StackError

Say = Callable[[str], None]
FAILURES = (
    CachePagesError,
    ClusterError,
    EngineError,
    GatewayCheckError,
    InspectCheckError,
    ScalingCheckError,
    ServedModelError,
    StackError,
    TimeoutError,
    aiohttp.ClientError,
)


@dataclass(frozen=True)
class Finding:
    """Outcome of a part: a result, or why there is none."""

    result: Any = None
    error: str | None = None

    @property
    def passed(self) -> bool:
        """Whether there is a result, and nothing in it differs."""
        found = self.result if isinstance(self.result, list) else [self.result]
        return self.error is None and all(getattr(one, "equal", True) for one in found)

    def as_json(self) -> Json:
        """`result` and `error`."""
        found = self.result
        if isinstance(found, list):
            return {"result": [asdict(one) for one in found], "error": self.error, "passed": self.passed}
        return {"result": asdict(found) if is_dataclass(found) else None, "error": self.error, "passed": self.passed}  # type: ignore[arg-type]


@dataclass(frozen=True)
class Part:
    """How a part is run, and how its result is shown."""

    run: Callable[..., Awaitable[Any]]
    show: Callable[[Any], RenderableType]


async def find(name: str, *, say: Say) -> Finding:
    """Run a part to its result, or to the failure that it may have."""
    try:
        return Finding(result=await PARTS[name].run(say=say))
    except FAILURES as error:
        return Finding(error=str(error) or type(error).__name__)


def _show_caches(found: list[CachePages]) -> RenderableType:
    pages = Table("family", "blocks", "planned", "tokens", "planned", "", title="KV cache of 1 GiB, real and planned")
    for one in found:
        row = (one.engine.blocks, one.planned.blocks, one.engine.tokens, one.planned.tokens)
        pages.add_row(one.family, *map(str, row), "" if one.equal else "[red]differs[/]")
    return pages


def _show_inspected(seen: InspectCheck) -> RenderableType:
    return (
        f"inspection read config and tensor sizes of one file and of shards; {seen.loaded_bytes} bytes of a checkpoint "
        f"of {seen.checkpoint_bytes} were loaded; a wrong token: {seen.refused.splitlines()[0]}"
    )


def _show_served(served: ServedModel) -> RenderableType:
    return (
        f"apply to answer on vLLM {served.engine_version}: Ready after {served.ready_seconds:.0f} s, "
        f"{served.tokens} tokens streamed from {served.address}, gone {served.gone_seconds:.0f} s after delete\n"
        f"scaling read {served.scaling.read_by_operator:.0f} tokens/s from it, clients got "
        f"{served.scaling.seen_by_clients:.0f}: {served.scaling.desired_replicas} replicas desired"
    )


def _show_gateway(found: GatewayCheck) -> RenderableType:
    return f"gateway on real engines: {found.summary()}"


PARTS: Mapping[str, Part] = MappingProxyType(
    {
        "cache-pages": Part(cache_pages, _show_caches),
        "inspect": Part(inspect_on_a_hub, _show_inspected),
        "apply-to-answer": Part(apply_to_answer, _show_served),
        "gateway": Part(gateway_on_real_engines, _show_gateway),
    }
)
"""One start per family of models, whose cache pages are held against `bayplan fit`; what an inspection pod reads from a
hub; an InferenceModel from apply to a streamed answer and a rise in replicas; the gateway before two engines."""
