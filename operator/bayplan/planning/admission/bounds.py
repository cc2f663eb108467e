"""What one replica can hold at the same time, as far as the memory plan goes: the account that requests draw on.

KV blocks = floor(memory that weights and overhead leave / KV bytes of a token / tokens of a block), over all GPUs of
the replica. Where the plan proves nothing, or the user overrode it, the promise of the spec stands in: `concurrency`
requests of `maxModelLen`.
"""

import json
from dataclasses import dataclass
from fractions import Fraction

from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.planning.layout.engineflags import read_arguments
from bayplan.planning.memory.enginerules import batch_defaults, vllm_rules
from bayplan.planning.memory.plan import DEFAULT_BLOCK_TOKENS
from bayplan.planning.memory.replica import SplitMemory
from bayplan.planning.numbers import count


@dataclass(frozen=True, slots=True)
class AdmissionBounds:
    """Capacity of one replica. Raises InvalidInput for numbers below 1."""

    kv_blocks: int
    block_size: int
    max_num_seqs: int
    max_model_len: int

    def __post_init__(self) -> None:
        for name in ("kv_blocks", "block_size", "max_num_seqs", "max_model_len"):
            count(getattr(self, name), name)

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV cache holds."""
        return self.kv_blocks * self.block_size

    def to_json(self) -> str:
        """Return the text of the annotation."""
        return json.dumps(
            {
                "blockSize": self.block_size,
                "kvBlocks": self.kv_blocks,
                "maxModelLen": self.max_model_len,
                "maxNumSeqs": self.max_num_seqs,
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> "AdmissionBounds":
        """Read the annotation back; raises ValueError for anything else."""
        raw = json.loads(text)
        if not isinstance(raw, dict):
            raise ValueError("must be a JSON object")  # noqa: TRY004 - one error for whatever is written there
        try:
            return cls(
                kv_blocks=raw["kvBlocks"],
                block_size=raw["blockSize"],
                max_num_seqs=raw["maxNumSeqs"],
                max_model_len=raw["maxModelLen"],
            )
        except KeyError as error:
            raise ValueError(f"{error.args[0]} is missing") from None


def admission_bounds(
    spec: InferenceModelSpec, memory: SplitMemory | None, *, gpu_product: str, gpu_memory_gib: Fraction | None
) -> AdmissionBounds:
    """Return what one replica of `spec` holds on GPUs of that product; `memory` is the fit of its layout."""
    size, length = _block_size(spec), spec.engine.max_model_len
    promised = spec.concurrency * -(-length // size)
    derived = 0
    if memory is not None and memory.fits and memory.kv_tokens is not None:
        derived = memory.kv_tokens // size
    defaults = batch_defaults(
        vllm_rules(None), gpu_name=gpu_product, gpu_gib=gpu_memory_gib or Fraction(0), max_model_len=length
    )
    return AdmissionBounds(
        kv_blocks=derived or promised,
        block_size=size,
        max_num_seqs=spec.engine.max_num_seqs or defaults.sequences,
        max_model_len=length,
    )


def _block_size(spec: InferenceModelSpec) -> int:
    """What `--block-size` says; vLLM's default otherwise."""
    given = read_arguments(spec.engine.args).get("--block-size", "")
    return int(given) if given.isdecimal() and len(given) < 7 and int(given) > 0 else DEFAULT_BLOCK_TOKENS
