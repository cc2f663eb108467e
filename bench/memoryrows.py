"""Published start logs as questions to the planner: one row of a CSV of observations becomes one plan request.

A row holds what a log or an issue states; blank means that it does not say. Blanks are filled as the engine would fill
them (defaults of its version and GPU class), and the version itself, where a row has none, by evidence in this order:
the row's own numbers, the other rows of its source, the date of its source, the time when its model and its GPU came
out. Nothing
is filled by what would make a prediction better. A blank utilization is that of the same machine in another row.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from bayplan.planning.layout.knownmodel import named_format
from bayplan.planning.memory.catalogue import CatalogueModel, find_model
from bayplan.planning.memory.formats import WeightFormat, weight_format
from bayplan.planning.memory.gpucatalogue import Gpu, gpus_spelt, unlisted_gpu
from bayplan.planning.memory.parallel import ParallelLayout
from bayplan.planning.memory.request import EngineFlags, PlanRequest
from bayplan.planning.memory.terms import Source
from bayplan.planning.memory.versions import EngineVersion
from bayplan.planning.memory.weights import MeasuredWeights, WeightNumbers
from bayplan.planning.numbers import InvalidInput

Row = Mapping[str, str]

UNKNOWN_DRAFT = "a draft model of unknown shape shares the cache"

SOURCE_VERSIONS: Mapping[str, str] = {
    "llm-d-incubation/llm-d-planner:docs/empirical-vllm-memory-results.md": "0.11.0",
}
"""Documents that state one engine version for all their runs."""

GPU_ERAS: tuple[tuple[str, str], ...] = (
    (r"rtx ?5\d{3}|b200", "0.8.5"),
    (r"rtx ?pro|gb200", "0.9.0"),
    (r"gb10|spark|b300|thor", "0.11.0"),
)
"""The engine release of the time when a GPU came out: none before could have run on it."""

VLLM_ISSUES: tuple[tuple[int, str], ...] = (
    (0, "0.2.0"), (3750, "0.4.0"), (4300, "0.4.1"), (5450, "0.5.0"), (7120, "0.5.4"), (8150, "0.6.0"),
    (10350, "0.6.4"), (12450, "0.7.0"), (15050, "0.8.0"), (17350, "0.8.5"), (18800, "0.9.0"), (20600, "0.9.2"),
    (21500, "0.10.0"), (23100, "0.10.1"), (24800, "0.10.2"), (26100, "0.11.0"), (29900, "0.12.0"),
    (31000, "0.13.0"), (32650, "0.14.0"), (33300, "0.15.0"), (34800, "0.16.0"), (36200, "0.17.0"),
    (37700, "0.18.0"), (38900, "0.19.0"), (40800, "0.20.0"), (44000, "0.22.0"), (49000, "0.26.0"),
    (51000, "0.28.0"), (54000, "0.29.0"), (58000, "0.33.0"),
)  # fmt: skip
"""The release that was current from this issue or pull request of vllm-project/vllm on."""

RELEASE_MONTHS: tuple[tuple[str, str], ...] = (
    ("2024-03", "0.4.0"), ("2024-06", "0.5.0"), ("2024-09", "0.6.0"), ("2025-01", "0.7.0"), ("2025-03", "0.8.0"),
    ("2025-05", "0.9.0"), ("2025-07", "0.10.0"), ("2025-10", "0.11.0"), ("2025-12", "0.12.0"), ("2026-01", "0.14.0"),
    ("2026-02", "0.16.0"), ("2026-03", "0.18.0"), ("2026-04", "0.19.0"), ("2026-05", "0.20.1"), ("2026-06", "0.22.0"),
    ("2026-08", "0.26.0"), ("2026-09", "0.28.0"), ("2026-10", "0.30.0"), ("2026-11", "0.33.0"),
)  # fmt: skip

MODEL_ERAS: tuple[tuple[str, str], ...] = (
    (r"llama-?2-|mistral-7b-v0\.1|mixtral|falcon-|phi-2|opt-|qwen1\.5|deepseek-coder-6|gemma-7b", "0.4.0"),
    (r"llama-3-|deepseek-v2|phi-3", "0.4.1"),
    (r"llama-3\.[12]|gemma-2|mistral-7b-instruct", "0.5.4"),
    (r"qwen2\.5|llama-3\.3|phi-4|falcon3", "0.6.4"),
    (r"deepseek-(v3$|r1)", "0.7.0"),
    (r"gemma-3|llama-4|qwen3-(\d|235)", "0.8.5"),
    (r"mistral-small-3\.2|kimi-k2-instruct|qwen3-coder", "0.10.0"),
    (r"gpt-oss|glm-4\.5|qwen3-next|nemotron-h", "0.10.1"),
    (r"kimi-linear|olmo-?3|granite-4", "0.11.0"),
    (r"deepseek-v3\.2|kimi-k2-thinking|nemotron", "0.12.0"),
    (r"minimax-m2\.5|qwen3\.5", "0.16.0"),
    (r"glm-5|gemma-4|minimax-m2\.7", "0.19.0"),
    (r"kimi-k2\.6|qwen3\.6|deepseek-v4", "0.20.1"),
    (r"qwen3\.8", "0.26.0"),
)
"""The engine release of the time when a model came out."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A row with what the planner needs; `reasons` says what is not known about it."""

    row: Row
    model: CatalogueModel | None
    gpu: Gpu | None
    version: EngineVersion | None
    ranks: ParallelLayout | None
    flags: EngineFlags | None
    format: WeightFormat | None
    reasons: tuple[str, ...]

    @property
    def identifier(self) -> str:
        """Name of the row."""
        return self.row["id"]

    @property
    def hybrid(self) -> bool:
        """Whether layers keep states."""
        return self.model is not None and self.model.architecture.has_states

    @property
    def cache_type_known(self) -> bool:
        """Whether the type of the cache follows from the row: stated, or left to the engine by a row with its version.

        The type sets the page of a hybrid; a row with neither quotes a result without its launch arguments.
        """
        return bool(self.row["kv_dtype"] or self.row.get("vllm_version"))

    @property
    def unknown_draft(self) -> bool:
        """Whether a draft model shares the cache and the row does not say which."""
        return UNKNOWN_DRAFT in self.reasons

    @property
    def stage(self) -> int:
        """The pipeline stage that the row's figures are of: the first unless it says otherwise."""
        rank = re.search(r"\(rank (\d+)\)", self.row.get("note", ""))
        ranks = self.ranks.pipeline if self.ranks is not None else 1
        return min(int(rank[1]), ranks - 1) if rank else 0

    def number(self, column: str) -> float | None:
        """A reported figure, or None."""
        return float(self.row[column]) if self.row.get(column) else None

    def request(self, weights: WeightNumbers) -> PlanRequest:
        """The question; raises InvalidInput when something is missing."""
        if self.model is None or self.gpu is None or self.ranks is None or self.flags is None:
            raise InvalidInput("row", "; ".join(self.reasons))
        return PlanRequest(self.model.architecture, weights, self.gpu, self.ranks, self.flags)

    def loaded(self) -> MeasuredWeights | None:
        """The load size in the log."""
        load = self.row.get("reported_model_load_gib_per_gpu")
        return MeasuredWeights(Fraction(load)) if load else None


def observations(rows: Iterable[Row]) -> list[Observation]:
    """All rows as questions."""
    rows = list(rows)
    stated = {row["source"]: row["vllm_version"] for row in rows if row.get("vllm_version")}
    return [_observation(row, {**SOURCE_VERSIONS, **stated}) for row in _same_machine(rows)]


def _same_machine(rows: list[Row]) -> list[Row]:
    """Fill a blank utilization from the rows of the same repository, model, GPU and width, where they agree."""
    known: dict[tuple[str, ...], set[str]] = {}
    for row in rows:
        if row.get("gpu_memory_utilization"):
            known.setdefault(_machine(row), set()).add(row["gpu_memory_utilization"])
    filled = []
    for row in rows:
        found = known.get(_machine(row), set())
        blank = not row.get("gpu_memory_utilization") and row["gpu"]
        filled.append({**row, "gpu_memory_utilization": next(iter(found))} if blank and len(found) == 1 else row)
    return filled


def _machine(row: Row) -> tuple[str, ...]:
    return (re.split(r"[:#@]", row["source"])[0], row["model"], row["gpu"], row["tp"])


def _observation(row: Row, stated: Mapping[str, str]) -> Observation:
    reasons = []
    model = find_model(row["model"]) if row["model"] else None
    if model is None:
        reasons.append("model not known" if row["model"] else "model not stated")
    gpu = _gpu(row)
    if gpu is None:
        reasons.append("GPU not known" if row["gpu"] else "GPU not stated")
    ranks, note = _ranks(row), row.get("note", "")
    if ranks is None:
        reasons.append("tensor width not stated")
    version = assumed_version(row, stated, hybrid=model is not None and model.architecture.has_states)
    if version is not None and version < EngineVersion(0, 4, 0):
        reasons.append("engine older than the first known rules")
    if re.search(r"raised max concurrent", note):
        reasons.append("max_num_seqs changed to a value that is not stated")
    if re.search(r"\b[Dd]rafter", note):
        reasons.append(UNKNOWN_DRAFT)
    return Observation(
        row=row,
        model=model,
        gpu=gpu,
        version=version,
        ranks=ranks,
        flags=_flags(row, version),
        format=_format(row, model),
        reasons=tuple(reasons),
    )


def _gpu(row: Row) -> Gpu | None:
    """The GPU of a name; where several go by it, the smallest that can hold what the row reports.

    A GPU that is not known counts with the memory that the row states.
    """
    found = gpus_spelt(row["gpu"])
    stated = row.get("gpu_mem_gib")
    if not found:
        return unlisted_gpu(row["gpu"], Fraction(stated)) if row["gpu"] and stated else None
    if stated:
        return found[0].overridden(visible_gib=Fraction(stated), visible_source=Source.MEASURED)
    held = sum(Fraction(row[name] or 0) for name in ("reported_model_load_gib_per_gpu", "reported_kv_gib_per_gpu"))
    share = Fraction(row.get("gpu_memory_utilization") or 1)
    return next((gpu for gpu in found if gpu.visible_gib * share >= held), found[-1])


def _ranks(row: Row) -> ParallelLayout | None:
    if not row["tp"]:
        return None
    note = row.get("note", "")
    context = re.search(r"(?:decode_context_parallel=|DCP[ =])(\d+)", note)
    data = re.search(r"\bDP(\d+)", note)
    partition = re.search(r"layer partition ([\d,]+)", note)
    return ParallelLayout(
        tensor=int(row["tp"]),
        pipeline=int(row.get("pp") or 1),
        data=int(data[1]) if data else 1,
        expert_parallel=bool(re.search(r"\bEP\b|\bEP\d", note)),
        decode_context=int(context[1]) if context else 1,
        stage_layers=tuple(int(part) for part in partition[1].split(",")) if partition else (),
    )


def _flags(row: Row, version: EngineVersion | None) -> EngineFlags | None:
    note = row.get("note", "")
    block = re.search(r"\bblock(?:_size)? (\d+)\b", note)
    draft = re.search(r"\bMTP (\d+)|mtp([1-9])\b", f"{note} {row['source']}")
    backend = re.search(r"\b(ROCM_ATTN)\b", note)
    try:
        return EngineFlags(
            version=version,
            max_model_len=_whole(row, "max_model_len"),
            max_num_seqs=_whole(row, "max_num_seqs"),
            max_num_batched_tokens=_whole(row, "max_num_batched_tokens"),
            gpu_memory_utilization=Fraction(row["gpu_memory_utilization"]) if row["gpu_memory_utilization"] else None,
            kv_cache_dtype=row["kv_dtype"] or "auto",
            dtype="float32" if row["quant"] == "fp32" else "auto",
            block_size=int(block[1]) if block else None,
            enforce_eager=row.get("enforce_eager", "") == "true",
            speculative_tokens=int(next(group for group in draft.groups() if group)) if draft else 0,
            attention_backend=backend[1] if backend else "",
        )
    except InvalidInput:
        return None


def _whole(row: Row, column: str) -> int | None:
    return int(row[column]) if row.get(column) else None


def _format(row: Row, model: CatalogueModel | None) -> WeightFormat | None:
    """The format in the row, else in the model's name, else that of the catalogue's checkpoint.

    The column is read from checkpoint names, so it does not tell experts in 4 bits from all layers in 4 bits: of the
    catalogue's own checkpoint the catalogue's format is taken.
    """
    name = row["model"].lower()
    named = named_format(name) or ""
    # A later edition of the same checkpoint carries its month and day, and is packed like the first.
    edition = re.sub(r"-\d{4}$", "", name.rsplit("/", 1)[-1])
    own = model is not None and re.sub(r"-\d{4}$", "", model.name.lower().rsplit("/", 1)[-1]) == edition
    native = model.native_format if model is not None and own else ""
    stated = native if native.startswith(row["quant"] or "-") else row["quant"]
    # A name without its organisation names no checkpoint, so it says nothing about the format.
    kind = stated or named or (native or "bf16" if "/" in name and model is not None else "")
    try:
        return weight_format(kind) if kind else None
    except InvalidInput:
        return None


def assumed_version(row: Row, stated: Mapping[str, str], *, hybrid: bool) -> EngineVersion | None:
    """The engine version of a row, or the best evidence for one; None for the newest rules."""
    for text in (row.get("vllm_version", ""), stated.get(row["source"], "")):
        try:
            return EngineVersion.parse(text)
        except InvalidInput:
            continue
    version = _by_source(row) or _youngest(_by_era(row["model"], MODEL_ERAS), _by_era(row["gpu"], GPU_ERAS))
    since = EngineVersion(0, 20, 1)
    if hybrid and _multiplies_out(row) and (version is None or version < since):
        return since
    return version


def _by_source(row: Row) -> EngineVersion | None:
    issue = re.match(r"vllm-project/vllm#(\d+)", row["source"])
    if issue:
        current = [version for number, version in VLLM_ISSUES if number <= int(issue[1])]
        return EngineVersion.parse(current[-1])
    dated = re.search(r"(20\d\d-\d\d)-\d\d", row["source"] + row.get("note", ""))
    if dated:
        current = [version for month, version in RELEASE_MONTHS if month <= dated[1]]
        return EngineVersion.parse(current[-1]) if current else None
    return EngineVersion(0, 6, 0) if re.match(r"V0\b", row.get("note", "")) else None


def _by_era(name: str, eras: tuple[tuple[str, str], ...]) -> EngineVersion | None:
    found = [version for pattern, version in eras if re.search(pattern, name.lower())]
    return EngineVersion.parse(found[-1]) if found else None


def _youngest(*versions: EngineVersion | None) -> EngineVersion | None:
    """A model cannot have run before it was there, nor on a GPU that was not."""
    return max((version for version in versions if version is not None), default=None)


def _multiplies_out(row: Row) -> bool:
    """Whether tokens = concurrency × length, as the engine prints it for hybrids since 0.20.1."""
    tokens, concurrency, length = (row.get(name) for name in _TOKEN_COLUMNS)
    if not (tokens and concurrency and length):
        return False
    return abs(float(tokens) / (float(concurrency) * int(length)) - 1) < 0.006


_TOKEN_COLUMNS = ("reported_kv_tokens", "reported_max_concurrency", "max_model_len")
