"""One inference engine, step by step: continuous batching over a KV block pool by vLLM's scheduling rules.

A step first gives every decoding sequence its token, then goes on with the prompt that was cut by the step's token
budget, then admits from the head of the waiting queue. Output growth is never reserved: when a sequence needs a block
and none is free, the youngest running one is preempted, loses all its blocks and goes back to the head of the queue to
be computed again.

Cost: a step costs the sequences that finish, start or cross a block boundary in it, not those that merely decode. Every
decoding sequence gains one token per step, so its count follows from the step number; ends and block boundaries are
known ahead and wait in buckets by step number.
"""

from collections import OrderedDict
from enum import Enum

from bayplan.simulation.kv_blocks import KVBlockPool
from bayplan.simulation.requests import (
    EngineConfig,
    EngineRequest,
    FinishedRequest,
    FinishReason,
    FirstToken,
    StepResult,
)
from bayplan.simulation.speed import SpeedModel


class _Stage(Enum):
    WAITING = 1
    PREFILLING = 2
    DECODING = 3
    ENDED = 4


class _Sequence:
    """Mutable state of one request inside the engine."""

    __slots__ = (
        "arrival_seconds",
        "blocks",
        "boundary_step",
        "cached_tokens",
        "computed_tokens",
        "end_step",
        "first_token_seconds",
        "joined_step",
        "ordinal",
        "output_base",
        "output_limit",
        "preemptions",
        "registered_blocks",
        "request",
        "scheduled_seconds",
        "stage",
    )

    def __init__(self, request: EngineRequest, *, output_limit: int, arrival_seconds: float) -> None:
        self.request = request
        self.output_limit = output_limit
        self.arrival_seconds = arrival_seconds
        self.scheduled_seconds: float | None = None
        self.first_token_seconds: float | None = None
        self.stage = _Stage.WAITING
        self.blocks: list[int] = []
        self.registered_blocks = 0
        self.computed_tokens = 0  # of the prompt (and of outputs to recompute) while prefilling
        self.output_base = 0  # outputs when it last joined the decoding ones
        self.joined_step = 0
        self.boundary_step = 0
        self.end_step = 0
        self.ordinal = 0
        self.cached_tokens = -1
        self.preemptions = 0


class Engine:
    """A simulated engine. The caller owns the clock: `add`, `step` and `abort` are told the time and never go back.

    `speed` may be replaced between steps. Public counters are totals since the start.
    """

    def __init__(self, config: EngineConfig, speed: SpeedModel | None = None) -> None:
        self.config = config
        self.speed = speed or SpeedModel()
        self.pool = KVBlockPool(config.num_blocks)
        self.preemptions_total = 0
        self.prefix_cache_queried_tokens_total = 0
        self.prefix_cache_hit_tokens_total = 0
        self._sequences: dict[str, _Sequence] = {}
        self._waiting: OrderedDict[str, _Sequence] = OrderedDict()
        self._running: dict[str, _Sequence] = {}
        self._prefilling: _Sequence | None = None  # the one whose prompt was cut; always the youngest running one
        self._decoding = 0
        self._context_tokens = 0
        self._step = 0
        self._next_ordinal = 0
        self._ends: dict[int, list[_Sequence]] = {}
        self._boundaries: dict[int, list[_Sequence]] = {}

    # -- what it holds

    @property
    def num_running(self) -> int:
        """Sequences that hold blocks."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Sequences queued, preempted ones included."""
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._sequences)

    @property
    def kv_usage(self) -> float:
        """Share of the blocks in use, 0 to 1."""
        return self.pool.num_used / self.pool.num_blocks

    @property
    def running_ids(self) -> tuple[str, ...]:
        """Running requests, oldest admission first."""
        return tuple(self._running)

    @property
    def waiting_ids(self) -> tuple[str, ...]:
        """Queued requests in the order in which they will be admitted."""
        return tuple(self._waiting)

    def blocks_of(self, request_id: str) -> tuple[int, ...]:
        """Blocks that this request holds, in its own order. Raises KeyError for an unknown request."""
        return tuple(self._sequences[request_id].blocks)

    def output_tokens_of(self, request_id: str) -> int:
        """Tokens generated so far. Raises KeyError for an unknown request."""
        return self._outputs(self._sequences[request_id])

    # -- what it is asked

    def add(self, request: EngineRequest, *, now: float) -> None:
        """Queue a request. Raises ValueError for a known id or a prompt that leaves no room for one token."""
        if request.request_id in self._sequences:
            raise ValueError(f"request_id: {request.request_id!r} is already in the engine")
        room = self.config.max_model_len - request.prompt_tokens
        if room < 1:
            raise ValueError(
                f"prompt_tokens: {request.prompt_tokens} leave no room for output in a model length of "
                f"{self.config.max_model_len}"
            )
        limit = min(room, request.max_tokens, request.output_tokens or room)
        sequence = _Sequence(request, output_limit=limit, arrival_seconds=now)
        self._sequences[request.request_id] = sequence
        self._waiting[request.request_id] = sequence

    def abort(self, request_id: str, *, now: float) -> FinishedRequest | None:
        """End a request and free its blocks at once; None if it is not here (any more)."""
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return None
        outputs = self._outputs(sequence)
        if sequence.stage is _Stage.WAITING:
            del self._waiting[request_id]
        else:
            self._leave_running(sequence, outputs)
        return self._end(sequence, FinishReason.ABORT, outputs, now)

    def step(self, now: float, *, with_emitted: bool = True) -> StepResult:
        """Run one step that starts at `now`; call again at `now + duration_seconds` or later.

        `with_emitted=False` leaves `emitted` empty and saves a pass over the running sequences. Raises RuntimeError
        when there is no work.
        """
        if not self._sequences:
            raise RuntimeError("the engine has no request to run")
        self._step += 1
        preempted = self._grow_decoding()
        decoded = self._decoding
        budget = self.config.max_num_batched_tokens - decoded
        admitted: list[str] = []
        prefilled: list[_Sequence] = []
        prefill_tokens = 0
        if self._prefilling is not None:
            chunk = self._continue_prefill(self._prefilling, budget, preempted)
            if chunk:
                prefilled.append(self._prefilling)
                prefill_tokens += chunk
        if not preempted:
            while self._waiting and prefill_tokens < budget and len(self._running) < self.config.max_num_seqs:
                sequence = next(iter(self._waiting.values()))
                chunk = self._admit(sequence, budget - prefill_tokens, now)
                if not chunk:
                    break
                admitted.append(sequence.request.request_id)
                prefilled.append(sequence)
                prefill_tokens += chunk
        duration = self.speed.step_seconds(
            sequences=decoded + len(prefilled), prefill_tokens=prefill_tokens, kv_tokens=self._context_tokens
        )
        self._context_tokens += decoded
        end = now + duration
        first_tokens, ended = self._complete_prefills(prefilled, end)
        emitted = (
            [key for key, sequence in self._running.items() if sequence.stage is _Stage.DECODING]
            if with_emitted
            else ()
        )
        generated = self._decoding
        ended.extend(
            sequence
            for sequence in self._ends.pop(self._step, ())
            if sequence.stage is _Stage.DECODING and sequence.end_step == self._step
        )
        finished = [self._finish(sequence, end) for sequence in ended] if ended else ()
        return StepResult(
            now, duration, prefill_tokens, generated, emitted, admitted, first_tokens, preempted, finished
        )

    # -- the parts of a step

    def _grow_decoding(self) -> list[str]:
        """Give a block, oldest first, to each decoding sequence whose last one is full; the preempted ones."""
        preempted: list[str] = []
        due = self._boundaries.pop(self._step, None)
        if not due:
            return preempted
        pool = self.pool
        if len(due) > pool.num_free:
            due.sort(key=_ordinal)
        size = self.config.block_size
        next_due = self._boundaries.setdefault(self._step + size, [])
        for sequence in due:
            if sequence.boundary_step != self._step or sequence.stage is not _Stage.DECODING:
                continue
            while not pool.num_free:
                victim = next(reversed(self._running.values()))
                self._preempt(victim, preempted)
                if victim is sequence:
                    return preempted
            if sequence.request.block_hashes:
                self._register_full(sequence, len(sequence.blocks) * size)
            sequence.blocks.append(pool.allocate_one())
            sequence.boundary_step = self._step + size
            if sequence.boundary_step <= sequence.end_step:
                next_due.append(sequence)
        return preempted

    def _continue_prefill(self, sequence: _Sequence, budget: int, preempted: list[str]) -> int:
        target = sequence.request.prompt_tokens + sequence.output_base
        chunk = min(target - sequence.computed_tokens, budget)
        if chunk <= 0:
            return 0
        needed = self._blocks_for(sequence.computed_tokens + chunk) - len(sequence.blocks)
        if needed > self.pool.num_free:  # it is itself the youngest
            self._preempt(sequence, preempted)
            return 0
        self._extend(sequence, chunk, needed)
        return chunk

    def _admit(self, sequence: _Sequence, budget: int, now: float) -> int:
        """Start the head of the queue if its whole prompt fits; the tokens it gets in this step, 0 if it must wait."""
        size = self.config.block_size
        target = sequence.request.prompt_tokens + sequence.output_base
        # The last token is always computed: a hit on every block would leave nothing that yields the next token.
        hits = self.pool.find(sequence.request.block_hashes[: (target - 1) // size])
        if self._blocks_for(target) - len(hits) + self.pool.count_unused(hits) > self.pool.num_free:
            return 0
        request_id = sequence.request.request_id
        del self._waiting[request_id]
        self.pool.share(hits)
        cached = len(hits) * size
        sequence.blocks = hits
        sequence.registered_blocks = len(hits)
        sequence.computed_tokens = cached
        self._context_tokens += cached
        if sequence.cached_tokens < 0:
            sequence.cached_tokens = cached
            sequence.scheduled_seconds = now
            self.prefix_cache_queried_tokens_total += target
            self.prefix_cache_hit_tokens_total += cached
        sequence.stage = _Stage.PREFILLING
        sequence.ordinal = self._next_ordinal
        self._next_ordinal += 1
        self._running[request_id] = sequence
        chunk = min(target - cached, budget)
        self._extend(sequence, chunk, self._blocks_for(cached + chunk) - len(hits))
        self._prefilling = sequence
        return chunk

    def _extend(self, sequence: _Sequence, chunk: int, blocks: int) -> None:
        sequence.blocks += self.pool.allocate(blocks)
        sequence.computed_tokens += chunk
        self._context_tokens += chunk
        self._register_full(sequence, sequence.computed_tokens)

    def _complete_prefills(self, prefilled: list[_Sequence], end: float) -> tuple[list[FirstToken], list[_Sequence]]:
        """Move whoever has its whole prompt computed to the decoding ones; (first tokens, those that end at once)."""
        first_tokens: list[FirstToken] = []
        ended: list[_Sequence] = []
        for sequence in prefilled:
            total = sequence.request.prompt_tokens + sequence.output_base
            if sequence.computed_tokens < total:
                continue
            if self._prefilling is sequence:
                self._prefilling = None
            if sequence.first_token_seconds is None:
                sequence.first_token_seconds = end
                request = sequence.request
                first_tokens.append(FirstToken(request.request_id, request.prompt_tokens, sequence.cached_tokens))
            sequence.output_base += 1
            sequence.stage = _Stage.DECODING
            sequence.joined_step = self._step
            self._decoding += 1
            left = sequence.output_limit - sequence.output_base
            sequence.end_step = self._step + left
            if not left:
                ended.append(sequence)
                continue
            self._ends.setdefault(sequence.end_step, []).append(sequence)
            # The next step writes the token just sampled, so `total + 1` slots are needed in it.
            room = len(sequence.blocks) * self.config.block_size - total
            sequence.boundary_step = self._step + room + 1
            if sequence.boundary_step <= sequence.end_step:
                self._boundaries.setdefault(sequence.boundary_step, []).append(sequence)
        return first_tokens, ended

    # -- leaving

    def _preempt(self, sequence: _Sequence, preempted: list[str]) -> None:
        request_id = sequence.request.request_id
        # It gets no token in the step under way.
        outputs = self._outputs(sequence) - (sequence.stage is _Stage.DECODING)
        self._leave_running(sequence, outputs)
        sequence.output_base = outputs
        sequence.stage = _Stage.WAITING
        sequence.preemptions += 1
        self.preemptions_total += 1
        self._waiting[request_id] = sequence
        self._waiting.move_to_end(request_id, last=False)
        preempted.append(request_id)

    def _finish(self, sequence: _Sequence, end: float) -> FinishedRequest:
        outputs = sequence.output_limit
        self._leave_running(sequence, outputs)
        natural = sequence.request.output_tokens == outputs
        return self._end(sequence, FinishReason.STOP if natural else FinishReason.LENGTH, outputs, end)

    def _leave_running(self, sequence: _Sequence, outputs: int) -> None:
        computed = sequence.computed_tokens
        if sequence.stage is _Stage.DECODING:
            self._decoding -= 1
            computed = sequence.request.prompt_tokens + outputs - 1  # the newest token was never fed back
        self._context_tokens -= computed
        self._register_full(sequence, computed)
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.registered_blocks = 0
        sequence.computed_tokens = 0
        if sequence is self._prefilling:
            self._prefilling = None
        del self._running[sequence.request.request_id]

    def _end(self, sequence: _Sequence, reason: FinishReason, outputs: int, end: float) -> FinishedRequest:
        sequence.stage = _Stage.ENDED
        request = sequence.request
        del self._sequences[request.request_id]
        return FinishedRequest(
            request.request_id,
            reason,
            request.prompt_tokens,
            outputs,
            max(0, sequence.cached_tokens),
            sequence.preemptions,
            sequence.arrival_seconds,
            sequence.scheduled_seconds,
            sequence.first_token_seconds,
            end,
        )

    # -- arithmetic

    def _outputs(self, sequence: _Sequence) -> int:
        if sequence.stage is _Stage.DECODING:
            return sequence.output_base + self._step - sequence.joined_step
        return sequence.output_base

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.config.block_size)

    def _register_full(self, sequence: _Sequence, computed_tokens: int) -> None:
        hashes = sequence.request.block_hashes
        full = min(computed_tokens // self.config.block_size, len(hashes))
        for index in range(sequence.registered_blocks, full):
            self.pool.register(sequence.blocks[index], hashes[index])
        sequence.registered_blocks = max(full, sequence.registered_blocks)


def _ordinal(sequence: _Sequence) -> int:
    return sequence.ordinal
