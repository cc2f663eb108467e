"""The HTTP surface: vLLM's OpenAI endpoints, health, load, metrics, and a switch for faults."""

import asyncio
import hashlib
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aiohttp import web

from bayplan.simulation.engine import Engine
from bayplan.simulation.requests import EngineConfig
from e2e.enginesim.driver import EngineDriver
from e2e.enginesim.faults import FaultInjector
from e2e.enginesim.flags import Flags
from e2e.enginesim.generation import Delta, Mailbox, Pace, SequenceStream, engine_request
from e2e.enginesim.metrics import EngineMetrics
from e2e.enginesim.protocol import (
    ChatBody,
    CompletionBody,
    TokenizeBody,
    check_sampling,
    output_limit,
    parse,
    read_body,
)
from e2e.enginesim.rendering import DONE, Renderer, Usage
from e2e.enginesim.replies import ApiError, errors_as_vllm, json_reply, redirect_slashes
from e2e.enginesim.settings import Settings
from e2e.enginesim.text import plan_output

_BODY_LIMIT_BYTES = 64 * 2**20
_VALUE = re.compile(rb"^([^#\n].*) \S+$", re.MULTILINE)
"""One sample: what it is called, and its value."""
_EVENT_STREAM = {"Content-Type": "text/event-stream; charset=utf-8"}
_PERMISSION = {
    "object": "model_permission",
    "allow_create_engine": False,
    "allow_sampling": True,
    "allow_logprobs": True,
    "allow_search_indices": False,
    "allow_view": True,
    "allow_fine_tuning": False,
    "organization": "*",
    "group": None,
    "is_blocking": False,
}


class EngineServer:
    """One engine process's state and its handlers. Raises ValueError when vLLM would refuse the flags."""

    def __init__(self, flags: Flags, settings: Settings) -> None:
        self.flags = flags
        self.settings = settings
        self.injector = FaultInjector(settings.faults(), seed=settings.seed)
        self.ready = False
        self.draining = False
        blocks = settings.kv_tokens // flags.block_size
        if blocks * flags.block_size < flags.max_model_len:
            raise ValueError(
                f"the model's maximum length of {flags.max_model_len} tokens needs more KV cache than there is "
                f"({blocks * flags.block_size} tokens); raise gpu_memory_utilization or lower max_model_len"
            )
        config = EngineConfig(
            num_blocks=blocks,
            block_size=flags.block_size,
            max_model_len=flags.max_model_len,
            max_num_seqs=flags.max_num_seqs,
            max_num_batched_tokens=flags.max_num_batched_tokens,
        )
        self.metrics = EngineMetrics(flags, kv_blocks=blocks, kv_bytes_per_token=settings.kv_bytes_per_token)
        self.drivers = [
            EngineDriver(Engine(config, settings.speed(self.injector.faults)), self.metrics, rank=rank)
            for rank in range(flags.data_parallel_size)
        ]
        identity = f"{flags.model}/{settings.seed}/{flags.max_model_len}".encode()
        digest = hashlib.sha256(identity).hexdigest()[:8]
        self._fingerprint = f"vllm-{settings.version}-tp{flags.tensor_parallel_size}-{digest}"
        self._created = int(time.time())
        self._live: set[SequenceStream] = set()
        self._open_requests = 0
        self._quiet = asyncio.Event()
        self._quiet.set()

    # -- life

    def application(self) -> web.Application:
        """The routes."""
        app = web.Application(client_max_size=_BODY_LIMIT_BYTES, middlewares=[redirect_slashes, errors_as_vllm])
        app.add_routes(
            [
                *(web.get(path, handler, allow_head=False) for path, handler in self._small_endpoints().items()),
                web.post("/ping", self._health),
                web.post("/v1/completions", self._completions),
                web.post("/v1/chat/completions", self._chat_completions),
                web.post("/tokenize", self._tokenize),
                web.get("/_enginesim/faults", self._show_faults, allow_head=False),
                web.post("/_enginesim/faults", self._set_faults),
            ]
        )
        return app

    def _small_endpoints(self) -> dict[str, Callable[[web.Request], Awaitable[web.Response]]]:
        return {
            "/health": self._health,
            "/ping": self._health,
            "/version": self._version,
            "/load": self._load,
            "/metrics": self._metrics,
            "/v1/models": self._models,
        }

    def start(self) -> None:
        """Serve generations from now on; a crash set by time counts from here."""
        self.ready = True
        self.injector.start()

    def abort_all(self) -> None:
        """End every sequence with finish reason `abort`; its handler still sends what is due."""
        self.injector.close()
        for stream in list(self._live):
            stream.abort()

    async def wait_quiet(self, timeout_seconds: float) -> bool:
        """Wait until no generation is open; False when that took too long."""
        try:
            await asyncio.wait_for(self._quiet.wait(), timeout_seconds)
        except TimeoutError:
            return False
        return True

    # -- small endpoints

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, _request: web.Request) -> web.Response:
        return json_reply({"version": self.settings.version})

    async def _load(self, _request: web.Request) -> web.Response:
        tracked = self._open_requests if self.flags.enable_server_load_tracking else 0
        return json_reply({"server_load": tracked})

    async def _metrics(self, request: web.Request) -> web.Response:
        fault = self.injector.faults.metrics
        if fault == "cut" and request.transport is not None:
            request.transport.abort()
        body = self.metrics.render()
        if fault == "nan":
            body = _VALUE.sub(rb"\1 NaN", body)
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _models(self, _request: web.Request) -> web.Response:
        names = self.flags.served_model_name if self.ready else ()
        cards: list[dict[str, Any]] = [
            {
                "id": name,
                "object": "model",
                "created": self._created,
                "owned_by": "vllm",
                "root": self.flags.model,
                "parent": None,
                "max_model_len": self.flags.max_model_len,
                "permission": [{**_PERMISSION, "id": f"modelperm-{uuid.uuid4().hex}", "created": self._created}],
            }
            for name in names
        ]
        return json_reply({"object": "list", "data": cards})

    async def _tokenize(self, request: web.Request) -> web.Response:
        tokens = parse(TokenizeBody, await read_body(request)).tokens()
        return json_reply(
            {
                "count": len(tokens),
                "max_model_len": self.flags.max_model_len,
                "tokens": tokens,
                "token_strs": None,
            }
        )

    # -- faults

    async def _show_faults(self, _request: web.Request) -> web.Response:
        return json_reply(self.injector.remaining())

    async def _set_faults(self, request: web.Request) -> web.Response:
        self.injector.update(await read_body(request))
        for driver in self.drivers:
            driver.engine.speed = self.settings.speed(self.injector.faults)
        return json_reply(self.injector.remaining())

    # -- generation

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, CompletionBody)

    async def _chat_completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, ChatBody)

    async def _generate(self, request: web.Request, kind: type[CompletionBody] | type[ChatBody]) -> web.StreamResponse:
        if not self.ready:
            raise ApiError("the model is still loading", status=503, error_type="ServiceUnavailableError")
        self._open_requests += 1
        self._quiet.clear()
        streams: list[SequenceStream] = []
        try:
            pace = await self.injector.meet()
            body = parse(kind, await read_body(request))
            self._check_model(body.model)
            check_sampling(body)
            renderer = self._renderer(request, kind)
            if self.draining:
                return await self._turn_away(request, body, renderer)
            mailbox = Mailbox(only_ends=not body.stream)
            prompt_tokens = self._submit(body, pace, mailbox, streams)
            if body.stream:
                response: web.StreamResponse = await self._stream(
                    request,
                    body=body,
                    mailbox=mailbox,
                    streams=streams,
                    renderer=renderer,
                    prompt_tokens=prompt_tokens,
                )
            else:
                response = await self._collect(mailbox, streams, renderer, prompt_tokens)
            self._count_requests(streams, choices=body.n or 1)
            return response
        finally:
            for stream in streams:
                stream.abandon()
                self._live.discard(stream)
            self._open_requests -= 1
            if not self._open_requests:
                self._quiet.set()

    def _renderer(self, request: web.Request, kind: type[CompletionBody] | type[ChatBody]) -> Renderer:
        given = request.headers.get("X-Request-Id") or uuid.uuid4().hex
        return Renderer(
            chat=kind is ChatBody,
            request_id=f"{'chatcmpl' if kind is ChatBody else 'cmpl'}-{given}",
            model=self.flags.served_model_name[0],
            fingerprint=self._fingerprint,
        )

    async def _turn_away(
        self, request: web.Request, body: CompletionBody | ChatBody, renderer: Renderer
    ) -> web.StreamResponse:
        """What a draining engine answers to a new request: an error in a chat, an empty success in a completion."""
        if isinstance(body, ChatBody):
            raise ApiError("the engine is shutting down", status=500, error_type="InternalServerError")
        prompts = body.prompts()
        usage = Usage(sum(map(len, prompts)), 0)
        if not body.stream:
            choices = range(len(prompts) * (body.n or 1))
            return json_reply(renderer.body([Delta(index, "", 0, "abort", None) for index in choices], usage))
        with_usage = body.stream_options is not None and body.stream_options.include_usage
        response = web.StreamResponse(headers=_EVENT_STREAM)
        await response.prepare(request)
        await response.write((renderer.usage_chunk(usage) if with_usage else b"") + DONE)
        await response.write_eof()
        return response

    def _check_model(self, name: str | None) -> None:
        if name and name not in self.flags.served_model_name:
            raise ApiError(f"the model `{name}` does not exist", status=404, error_type="NotFoundError", param="model")

    def _submit(
        self, body: CompletionBody | ChatBody, pace: Pace, mailbox: Mailbox, streams: list[SequenceStream]
    ) -> int:
        """Queue every choice of every prompt; the number of prompt tokens."""
        prompts = body.prompts()
        limits = [output_limit(body, prompt, max_model_len=self.flags.max_model_len) for prompt in prompts]
        driver = min(self.drivers, key=lambda candidate: candidate.load)
        greedy = body.temperature == 0
        cut_stop = not body.include_stop_str_in_output
        holdback = max((len(stop) - 1 for stop in body.stops), default=0) if cut_stop else 0
        for prompt, limit in zip(prompts, limits, strict=True):
            for choice in range(body.n or 1):
                output = plan_output(
                    prompt,
                    seed=self.settings.seed,
                    variant="greedy" if greedy else f"{body.seed}/{choice}",
                    limit=limit,
                    median_tokens=self.settings.output_tokens_median,
                    ignore_eos=body.ignore_eos,
                    min_tokens=body.min_tokens,
                    stops=body.stops,
                )
                stream = SequenceStream(
                    index=len(streams),
                    output=output,
                    holdback=holdback,
                    cut_stop=cut_stop,
                    pace=pace,
                    mailbox=mailbox,
                    driver=driver,
                    metrics=self.metrics,
                    request_id=uuid.uuid4().hex,
                    limit=limit,
                )
                work = engine_request(
                    stream.request_id,
                    prompt,
                    output,
                    limit=limit,
                    block_size=self.flags.block_size,
                    cache_salt=body.cache_salt,
                    with_hashes=self.flags.enable_prefix_caching,
                )
                driver.submit(work, stream)
                streams.append(stream)
                self._live.add(stream)
        return sum(map(len, prompts))

    def _count_requests(self, streams: Sequence[SequenceStream], *, choices: int) -> None:
        """A prompt is a request of its own, whatever call it came with; its choices are its sequences."""
        for start in range(0, len(streams), choices):
            own = streams[start : start + choices]
            self.metrics.observe_request(
                own[0].driver.rank,
                max_tokens=[stream.limit for stream in own],
                longest_output=max(stream.tokens for stream in own),
            )

    async def _collect(
        self, mailbox: Mailbox, streams: list[SequenceStream], renderer: Renderer, prompt_tokens: int
    ) -> web.Response:
        results: dict[int, Delta] = {}
        while len(results) < len(streams):
            results |= {delta.index: delta for delta in await mailbox.next()}
        usage = Usage(prompt_tokens, sum(stream.tokens for stream in streams))
        body = renderer.body([results[stream.index] for stream in streams], usage)
        return json_reply(body)

    async def _stream(
        self,
        request: web.Request,
        *,
        body: CompletionBody | ChatBody,
        mailbox: Mailbox,
        streams: list[SequenceStream],
        renderer: Renderer,
        prompt_tokens: int,
    ) -> web.StreamResponse:
        options = body.stream_options
        with_usage = bool(options and options.include_usage)
        continuous = with_usage and bool(options and options.continuous_usage_stats)
        response = web.StreamResponse(headers=_EVENT_STREAM)
        writer = await response.prepare(request)
        if writer is not None:
            writer.send_headers()  # aiohttp would keep them back until the first token
        left = len(streams)
        events = [renderer.first_chunks(len(streams))]
        while left:
            for delta in await mailbox.next():
                left -= delta.finish_reason is not None
                usage = Usage(prompt_tokens, streams[delta.index].tokens) if continuous else None
                events.append(
                    renderer.chunk(delta, usage=usage, last=delta.finish_reason is not None and not with_usage)
                )
            if not left:
                if with_usage:
                    total = Usage(prompt_tokens, sum(stream.tokens for stream in streams))
                    events.append(renderer.usage_chunk(total))
                events.append(DONE)
            await response.write(b"".join(events))
            events.clear()
        await response.write_eof()
        return response
