"""The metric families of vLLM 0.32.0 with their types, labels and buckets, filled by the simulator.

Names, types, labels and bucket edges are facts read from a running vLLM 0.32.0 (https://github.com/vllm-project/vllm);
the help texts are ours. Families of features that are not simulated (external KV stores, multi-modal inputs, model
FLOPs) exist at zero, as they do in a fresh engine.
"""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

from bayplan.simulation.requests import FinishedRequest
from e2e.enginesim.flags import Flags

_LATENCY_EDGES = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
_FIRST_TOKEN_EDGES = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
_TOKEN_GAP_EDGES = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_STEP_TOKEN_EDGES = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_CHOICE_EDGES = (1, 2, 5, 10, 20)
_PREEMPTION_EDGES = (1, 2, 3, 4, 5, 10, 20)

_FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")


def one_two_five(limit: int) -> list[int]:
    """Bucket edges 1, 2, 5, 10, 20, 50, … up to `limit`."""
    edges: list[int] = []
    magnitude = 1
    while True:
        for factor in (1, 2, 5):
            if factor * magnitude > limit:
                return edges
            edges.append(factor * magnitude)
        magnitude *= 10


class EngineMetrics:
    """One registry for a server; `rank` arguments are data-parallel ranks, the label `engine`."""

    def __init__(self, flags: Flags, *, kv_blocks: int, kv_bytes_per_token: int) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._model = flags.served_model_name[0]
        self._ranks = range(flags.data_parallel_size)
        tokens = one_two_five(flags.max_model_len)
        for name, text in (
            ("estimated_flops_per_gpu", "Floating point operations, estimated per GPU."),
            ("estimated_read_bytes_per_gpu", "Bytes read from memory, estimated per GPU."),
            ("estimated_write_bytes_per_gpu", "Bytes written to memory, estimated per GPU."),
            ("external_prefix_cache_queries", "Tokens looked up in an external KV store."),
            ("external_prefix_cache_hits", "Tokens found in an external KV store."),
            ("mm_cache_queries", "Items looked up in the multi-modal cache."),
            ("mm_cache_hits", "Items found in the multi-modal cache."),
        ):
            self._counters(name, text)
        self._running = self._gauges("num_requests_running", "Requests in the running batch.")
        self._waiting = self._gauges("num_requests_waiting", "Requests in the queue.")
        waiting = self._gauge("num_requests_waiting_by_reason", "Requests in the queue, by reason.", "reason")
        self._waiting_capacity = [waiting.labels(str(rank), self._model, "capacity") for rank in self._ranks]
        sleep = self._gauge("engine_sleep_state", "Which sleep state the engine is in.", "sleep_state")
        for rank in self._ranks:
            waiting.labels(str(rank), self._model, "deferred")
            for state, value in (("awake", 1), ("weights_offloaded", 0), ("discard_all", 0)):
                sleep.labels(str(rank), self._model, state).set(value)
        self._kv_usage = self._gauges("kv_cache_usage_perc", "Share of KV blocks in use, 1 for all.")
        self._cache_queries = self._counters("prefix_cache_queries", "Tokens looked up in the prefix cache.")
        self._cache_hits = self._counters("prefix_cache_hits", "Tokens found in the prefix cache.")
        self._preemptions = self._counters("num_preemptions", "Preemptions.")
        self._prompt = self._counters("prompt_tokens", "Prompt tokens of requests that reached their first token.")
        by_source = self._counter("prompt_tokens_by_source", "Prompt tokens, by where their KV came from.", "source")
        self._prompt_computed = [by_source.labels(str(rank), self._model, "local_compute") for rank in self._ranks]
        self._prompt_hit = [by_source.labels(str(rank), self._model, "local_cache_hit") for rank in self._ranks]
        self._prompt_cached = self._counters("prompt_tokens_cached", "Prompt tokens whose KV came from a cache.")
        tiers = self._counter("prompt_tokens_cached_by_source", "Cached prompt tokens, by tier.", "source")
        self._cached_device = [tiers.labels(str(rank), self._model, "device") for rank in self._ranks]
        success = self._counter("request_success", "Requests that ended, by finish reason.", "finished_reason")
        self._success = [
            {reason: success.labels(str(rank), reason, self._model) for reason in _FINISH_REASONS}
            for rank in self._ranks
        ]
        for rank in self._ranks:
            by_source.labels(str(rank), self._model, "external_kv_transfer")
            for tier in ("host", "p2p", "disk", "external_unspecified"):
                tiers.labels(str(rank), self._model, tier)
        self._generated = self._counters("generation_tokens", "Tokens generated.")
        rejections = Counter(
            "vllm:admission_rejections",
            "Requests refused at a queue limit, by limit.",
            ("model_name", "reason"),
            registry=self.registry,
        )
        for reason in ("max_num_queued_reqs", "max_num_queued_tokens"):
            rejections.labels(self._model, reason)
        self._prompt_length = self._histograms("request_prompt_tokens", "Prompt tokens of a request.", tokens)
        self._output_length = self._histograms("request_generation_tokens", "Tokens that a request got.", tokens)
        self._step_tokens = self._histograms("iteration_tokens_total", "Tokens of an engine step.", _STEP_TOKEN_EDGES)
        self._output_bound = self._histograms(
            "request_max_num_generation_tokens", "Most tokens that any choice of a request could get.", tokens
        )
        self._choices = self._histograms("request_params_n", "Choices asked for.", _CHOICE_EDGES)
        self._max_tokens = self._histograms("request_params_max_tokens", "Tokens asked for.", tokens)
        self._first_token = self._histograms(
            "time_to_first_token_seconds", "From arrival to the first token.", _FIRST_TOKEN_EDGES
        )
        self._token_gap = self._histograms("inter_token_latency_seconds", "Between two tokens.", _TOKEN_GAP_EDGES)
        self._mean_gap = self._histograms(
            "request_time_per_output_token_seconds", "Mean time between a request's tokens.", _TOKEN_GAP_EDGES
        )
        self._latency = self._histograms("e2e_request_latency_seconds", "From arrival to the end.", _LATENCY_EDGES)
        self._queued = self._histograms("request_queue_time_seconds", "Time in the queue.", _LATENCY_EDGES)
        self._inference = self._histograms("request_inference_time_seconds", "Time in the batch.", _LATENCY_EDGES)
        self._prefill = self._histograms("request_prefill_time_seconds", "Time for the prompt.", _LATENCY_EDGES)
        self._decode = self._histograms("request_decode_time_seconds", "Time after the prompt.", _LATENCY_EDGES)
        self._request_preemptions = self._histograms(
            "request_num_preemptions", "How often a request was preempted.", _PREEMPTION_EDGES
        )
        self._prompt_work = self._histograms(
            "request_prefill_kv_computed_tokens", "Prompt tokens computed, cached ones left out.", tokens
        )
        self._describe_cache(flags, kv_blocks, kv_bytes_per_token)

    def render(self) -> bytes:
        """The exposition in Prometheus' text format."""
        return generate_latest(self.registry)

    def set_load(self, rank: int, *, running: int, waiting: int, kv_usage: float) -> None:
        """Gauges as of the last step."""
        self._running[rank].set(running)
        self._waiting[rank].set(waiting)
        self._waiting_capacity[rank].set(waiting)
        self._kv_usage[rank].set(kv_usage)

    def count_step(self, rank: int, *, prompt_tokens: int, generated: int, preemptions: int) -> None:
        """One step: prompt tokens that it computed, tokens that it generated, sequences that it preempted."""
        self._step_tokens[rank].observe(prompt_tokens + generated)
        self._generated[rank].inc(generated)
        if preemptions:
            self._preemptions[rank].inc(preemptions)

    def count_prefix_lookup(self, rank: int, *, queried_tokens: int, hit_tokens: int) -> None:
        """Tokens of admitted prompts, and those of them found in the prefix cache."""
        self._cache_queries[rank].inc(queried_tokens)
        self._cache_hits[rank].inc(hit_tokens)

    def count_prompt(self, rank: int, *, prompt_tokens: int, cached_tokens: int) -> None:
        """One prompt whose first token came out."""
        self._prompt[rank].inc(prompt_tokens)
        self._prompt_computed[rank].inc(prompt_tokens - cached_tokens)
        self._prompt_hit[rank].inc(cached_tokens)
        self._prompt_cached[rank].inc(cached_tokens)
        self._cached_device[rank].inc(cached_tokens)

    def observe_first_token(self, rank: int, seconds: float) -> None:
        """Time from arrival to the first token."""
        self._first_token[rank].observe(seconds)

    def observe_token_gap(self, rank: int, seconds: float) -> None:
        """Time between two tokens of one sequence."""
        self._token_gap[rank].observe(seconds)

    def observe_request(self, rank: int, *, max_tokens: Sequence[int], longest_output: int) -> None:
        """One ended request; `max_tokens` has the output limit of each of its sequences."""
        self._choices[rank].observe(len(max_tokens))
        for limit in max_tokens:
            self._max_tokens[rank].observe(limit)
        self._output_bound[rank].observe(longest_output)

    def observe_sequence(self, rank: int, finished: FinishedRequest, *, last_token_seconds: float | None) -> None:
        """One ended sequence; `last_token_seconds` is when its client got the last token, on the engine's clock."""
        self._success[rank][finished.reason].inc()
        self._prompt_length[rank].observe(finished.prompt_tokens)
        self._output_length[rank].observe(finished.output_tokens)
        self._request_preemptions[rank].observe(finished.preemptions)
        end = finished.finished_seconds if last_token_seconds is None else last_token_seconds
        self._latency[rank].observe(max(0.0, end - finished.arrival_seconds))
        scheduled = finished.scheduled_seconds
        if scheduled is None:
            return
        self._queued[rank].observe(scheduled - finished.arrival_seconds)
        first = finished.first_token_seconds
        if first is None or last_token_seconds is None:
            return
        self._prompt_work[rank].observe(finished.prompt_tokens - finished.cached_tokens)
        self._prefill[rank].observe(first - scheduled)
        self._inference[rank].observe(max(0.0, last_token_seconds - scheduled))
        decode = max(0.0, last_token_seconds - first)
        self._decode[rank].observe(decode)
        self._mean_gap[rank].observe(decode / max(1, finished.output_tokens - 1))

    # -- construction

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"vllm:{name}", text, sorted(("engine", "model_name", *labels)), registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"vllm:{name}", text, sorted(("engine", "model_name", *labels)), registry=self.registry)

    def _counters(self, name: str, text: str) -> list[Counter]:
        family = self._counter(name, text)
        return [family.labels(str(rank), self._model) for rank in self._ranks]

    def _gauges(self, name: str, text: str) -> list[Gauge]:
        family = self._gauge(name, text)
        return [family.labels(str(rank), self._model) for rank in self._ranks]

    def _histograms(self, name: str, text: str, edges: Sequence[float]) -> list[Histogram]:
        family = Histogram(f"vllm:{name}", text, ("engine", "model_name"), buckets=edges, registry=self.registry)
        return [family.labels(str(rank), self._model) for rank in self._ranks]

    def _describe_cache(self, flags: Flags, kv_blocks: int, kv_bytes_per_token: int) -> None:
        tokens = kv_blocks * flags.block_size
        facts = {
            "_block_size_resolved": True,
            "block_size": flags.block_size,
            "cache_dtype": flags.kv_cache_dtype,
            "cache_hit_alignment_tokens": None,
            "effective_attention_block_size": flags.block_size,
            "enable_mamba_shared_prefix_checkpoint": False,
            "enable_prefix_caching": flags.enable_prefix_caching,
            "gpu_memory_utilization": flags.gpu_memory_utilization,
            "hash_block_size": None,
            "is_attention_free": False,
            "kv_cache_dtype_skip_layers": [],
            "kv_cache_layout": None,
            "kv_cache_max_concurrency": tokens / flags.max_model_len,
            "kv_cache_memory_bytes": tokens * kv_bytes_per_token,
            "kv_cache_size_tokens": tokens,
            "kv_offloading_backend": "native",
            "kv_offloading_size": None,
            "kv_sharing_fast_prefill": False,
            "mamba_block_size": None,
            "mamba_cache_dtype": "auto",
            "mamba_cache_mode": "none",
            "mamba_page_size_padded": None,
            "mamba_ssm_cache_dtype": "float32",
            "num_cpu_blocks": None,
            "num_gpu_blocks": kv_blocks,
            "num_gpu_blocks_override": None,
            "prefix_cache_retention_interval": 0,
            "prefix_caching_hash_algo": "sha256",
            "prefix_match_unit": None,
            "replayssm_buffer_len": 16,
            "skip_page_size_padded": None,
            "sliding_window": None,
            "swa_bounded_replay": True,
            "use_kda_recoverssm": False,
            "use_replayssm": False,
            "user_specified_block_size": True,
        }
        family = Gauge(
            "vllm:cache_config_info", "What the engine's KV cache is.", ("engine", *facts), registry=self.registry
        )
        for rank in self._ranks:
            family.labels(str(rank), *map(str, facts.values())).set(1)
