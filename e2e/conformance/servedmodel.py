"""One InferenceModel from `apply` to a streamed answer, and to a second replica, with a real vLLM behind it."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from bayplan.api import names
from e2e import realengine
from e2e.conformance.records import EventStream, parse_events
from e2e.conformance.scalingcheck import ScalingReading, scaling_reads_metrics
from e2e.localcluster import ApiError, KubeApi
from e2e.scenarios.stack import INVENTORIES, stack

MANIFEST = Path(__file__).with_name("tiny-model.yaml")
READY_SECONDS = 900.0
GONE_SECONDS = 120.0
TOKENS = 40
ONLY_SIMULATED = "/_enginesim/faults"
NAMESPACE = "default"


class ServedModelError(RuntimeError):
    """The model did not become ready, or its answer is not what a real engine's must be."""


@dataclass(frozen=True)
class ServedModel:
    """What came back."""

    engine_version: str
    ready_seconds: float
    """From `apply` to Ready."""
    address: str
    tokens: int
    text: str
    scaling: ScalingReading
    gone_seconds: float
    """From `delete` to the last pod's end."""


async def model_on_real_engine(
    kubeconfig: Path, *, say: Callable[[str], None], ready_seconds: float = READY_SECONDS
) -> ServedModel:
    """Apply the tiny model on a cluster that runs Bayplan's operator and the node agent, stream from it, delete it.

    Before the end a load makes it rise, so that the operator is seen to read this engine's own metrics.

    Raises:
        ServedModelError: not Ready in time, with its conditions; or another engine than the real one answered.
        ScalingCheckError: replicas did not follow what the engine reports.
    """
    async with KubeApi.open(kubeconfig) as api:
        started = time.monotonic()
        (model,) = await api.apply(MANIFEST, namespace=NAMESPACE)
        name = model["metadata"]["name"]
        path = await api.path_of(model, namespace=NAMESPACE)
        await _wait_ready(api, path, say=say, timeout_seconds=ready_seconds)
        ready = time.monotonic() - started
        say(f"{name} is Ready after {ready:.0f} s")
        address = await _head_address(api, name)
        version = await _real_version(address)
        served_name = model["spec"]["model"]["name"]
        text, tokens = _checked(await _stream(address, served_name=served_name))
        say(f"{tokens} tokens streamed from {address} by vLLM {version}")
        scaling = await scaling_reads_metrics(api, path, address, served_name=served_name, say=say)
        deleted = time.monotonic()
        await api.delete(path)
        await _wait_gone(api, name)
        return ServedModel(
            engine_version=version,
            ready_seconds=ready,
            address=address,
            tokens=tokens,
            text=text,
            scaling=scaling,
            gone_seconds=time.monotonic() - deleted,
        )


async def _wait_ready(api: KubeApi, path: str, *, say: Callable[[str], None], timeout_seconds: float) -> None:
    deadline = time.monotonic() + timeout_seconds
    said = ""
    while True:
        conditions = ((await api.get(path)).get("status") or {}).get("conditions") or []
        ready: dict[str, Any] = next((entry for entry in conditions if entry["type"] == "Ready"), {})
        line = f"Ready={ready.get('status', '?')} {ready.get('reason', '')}: {ready.get('message', '')}"
        if line != said:
            say(line)
            said = line
        if ready.get("status") == "True":
            return
        if time.monotonic() > deadline:
            shown = "\n".join(f"{c['type']}={c['status']} {c['reason']}: {c['message']}" for c in conditions)
            raise ServedModelError(f"not Ready after {timeout_seconds:g} s:\n{shown}")
        await asyncio.sleep(0.5)


async def _pods(api: KubeApi, name: str) -> list[dict[str, Any]]:
    selector = f"{names.LABEL_MODEL}={name}"
    found = await api.get(f"/api/v1/namespaces/{NAMESPACE}/pods", labelSelector=selector)
    return list(found["items"])


async def _head_address(api: KubeApi, name: str) -> str:
    heads = [pod for pod in await _pods(api, name) if pod["metadata"]["labels"][names.LABEL_RANK] == "0"]
    if len(heads) != 1:
        raise ServedModelError(f"expected one head pod of {name}, found {len(heads)}")
    return f"{heads[0]['status']['podIP']}:{names.ENGINE_PORT}"


async def _real_version(address: str) -> str:
    """The engine's version. Raises ServedModelError when the simulator answers, which has the same version."""
    async with aiohttp.ClientSession() as session:
        async with session.get(f"http://{address}{ONLY_SIMULATED}") as response:
            if response.status != 404:
                raise ServedModelError(f"the simulator answers at {address}, not a real engine")
        async with session.get(f"http://{address}/version") as response:
            version = str((await response.json())["version"])
    if version != realengine.ENGINE_VERSION:
        raise ServedModelError(f"the engine says version {version}, not {realengine.ENGINE_VERSION}")
    return version


async def _stream(address: str, *, served_name: str) -> EventStream:
    body = {
        "model": served_name,
        "messages": [{"role": "user", "content": "Which berth is free?"}],
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    async with (
        aiohttp.ClientSession(raise_for_status=True) as session,
        session.post(f"http://{address}/v1/chat/completions", json=body) as response,
    ):
        return parse_events(await response.read())


def _checked(stream: EventStream) -> tuple[str, int]:
    """Text and tokens of a stream that is whole. Raises ServedModelError otherwise."""
    chunks = stream.chunks()
    if not stream.done or len(chunks) < 3:
        raise ServedModelError(f"the stream is not whole: {len(chunks)} chunks, ended with [DONE]: {stream.done}")
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    tokens = int(chunks[-1]["usage"]["completion_tokens"])
    if choices[-1]["finish_reason"] != "length" or tokens != TOKENS:
        raise ServedModelError(f"the stream ended with {choices[-1]['finish_reason']} after {tokens} tokens")
    return "".join(choice["delta"].get("content") or "" for choice in choices), tokens


async def _wait_gone(api: KubeApi, name: str) -> None:
    async def gone() -> bool:
        try:
            return not await _pods(api, name)
        except ApiError as error:
            return error.status == 404

    await api.wait_until(gone, what=f"the pods of {name} to go", timeout_seconds=GONE_SECONDS)


async def apply_to_answer(*, say: Callable[[str], None]) -> ServedModel:
    """`model_on_real_engine` on a local cluster of its own with operator and nodes."""
    realengine.installed()
    say("starting a control plane, nodes and the operator")
    async with stack(name="conformance", inventory=INVENTORIES / "demo.yaml") as system:
        return await model_on_real_engine(system.cluster.kubeconfig_path, say=say)
