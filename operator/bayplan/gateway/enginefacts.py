"""What an engine says about its own KV cache: less than was planned counts, and without a plan it is all there is.

vLLM puts what it really got into the labels of `vllm:cache_config_info`. It does not publish its sequence slots: they
are those of the admission annotation, else the model's `maxNumSeqs`, else the engine's own default.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from bayplan.api.names import ENGINE_PORT
from bayplan.gateway.endpoints import EngineFacts, HeadView, ModelView

logger = logging.getLogger(__name__)

METRIC = "vllm:cache_config_info"
DEFAULT_MAX_NUM_SEQS = 128
"""vLLM's own default; larger on large GPUs, so that this errs on the safe side."""
LONGEST_BYTES = 4 * 2**20
TIMEOUT = aiohttp.ClientTimeout(total=5.0, connect=2.0)
RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 60.0


class FactsError(Exception):
    """The engine did not say what is needed."""


class FactFinder:
    """Asks engines in the background, each again until it answers or is no longer of interest."""

    def __init__(
        self,
        *,
        current: Callable[[str], HeadView | None],
        learn: Callable[[HeadView, EngineFacts], None],
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._current = current
        self._learn = learn
        self._retry_seconds = retry_seconds
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def ask(self, head: HeadView, model: ModelView) -> None:
        """Begin to ask, unless that is under way."""
        if head.uid not in self._tasks:
            task = asyncio.get_running_loop().create_task(self._ask(head.uid, model), name=f"facts {head.key}")
            self._tasks[head.uid] = task
            task.add_done_callback(lambda _: self._tasks.pop(head.uid, None))

    async def close(self) -> None:
        """Stop asking."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _ask(self, uid: str, model: ModelView) -> None:
        problem, pause = "", self._retry_seconds
        while (head := self._current(uid)) is not None and head.routable:
            try:
                facts = await self._read(head, model)
            except (FactsError, aiohttp.ClientError, TimeoutError, OSError) as error:
                said = f"{type(error).__name__}: {error}"
                if said != problem:
                    then = "it gets no requests" if head.facts is None else "the planned one counts"
                    logger.warning("%s: the engine's own capacity is unknown, %s: %s", head.key, then, said)
                problem = said
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_RETRY_SECONDS)
            else:
                self._learn(head, facts)
                return

    async def _read(self, head: HeadView, model: ModelView) -> EngineFacts:
        url = f"http://{head.address}:{ENGINE_PORT}/metrics"
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(force_close=True), cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
            )
        async with self._session.get(url, timeout=TIMEOUT, allow_redirects=False) as response:
            if response.status != 200:
                raise FactsError(f"/metrics answered {response.status}")
            text = bytearray()
            async for chunk in response.content.iter_any():
                text += chunk
                if len(text) > LONGEST_BYTES:
                    raise FactsError(f"/metrics has more than {LONGEST_BYTES} bytes")
        return parse_facts(text.decode(errors="replace"), model)


def smaller(planned: EngineFacts | None, reported: EngineFacts | None) -> EngineFacts | None:
    """Return what may be reserved: of the KV cache the fewer tokens, in the engine's own blocks; the rest as planned.

    A plan is an estimate, and an engine may have got less. It may also have got more: then the plan is what the model's
    owner was told, and stands.
    """
    if planned is None or reported is None:
        return planned or reported
    tokens = min(planned.kv_blocks * planned.block_size, reported.kv_blocks * reported.block_size)
    return replace(planned, kv_blocks=max(1, tokens // reported.block_size), block_size=reported.block_size)


def parse_facts(text: str, model: ModelView) -> EngineFacts:
    """Read an engine's metrics. Raises FactsError.

    One block is vLLM's own (its null block) and holds no tokens. Of several internal ranks the smallest counts, once:
    a request runs on one of them, and which one is not the gateway's choice.
    """
    lines = [line for line in text.split("\n") if line.startswith(METRIC)]
    found: list[tuple[int, int]] = []
    try:
        for family in text_string_to_metric_families("\n".join([*lines, ""])):
            found += [(int(s.labels["num_gpu_blocks"]), int(s.labels["block_size"])) for s in family.samples]
    except (ValueError, KeyError) as error:
        raise FactsError(f"{METRIC} is not readable: {error!s:.100}") from None
    if not found:
        raise FactsError(f"/metrics has no {METRIC}")
    blocks, block_size = min(found, key=lambda pair: pair[0] * pair[1])
    if blocks < 2 or block_size < 1:
        raise FactsError(f"{METRIC} tells of {blocks} blocks of {block_size} tokens")
    return EngineFacts(
        kv_blocks=blocks - 1,
        block_size=block_size,
        max_num_seqs=model.max_num_seqs or DEFAULT_MAX_NUM_SEQS,
        max_model_len=model.max_model_len,
    )
