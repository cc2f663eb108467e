"""Weight formats: how many bits a tensor class takes, scales and padding included.

A class estimate is the second choice. The sum of the checkpoint's headers is exact before the engine repacks anything;
mixed 4-bit builds differ by a third between makers and are known only from their headers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

from bayplan.planning.memory.parameters import Content, TensorClass
from bayplan.planning.numbers import InvalidInput

INT4_GROUP = Fraction(4) + Fraction(16 + 4, 128)
"""4 bits, and per 128 weights a 16-bit scale and a 4-bit zero point (GPTQ, AWQ, AutoRound)."""


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """Bits per weight of linear layers and of experts; everything else stays in the model's dtype.

    `None` means the model's dtype.
    """

    name: str
    linear_bits: Fraction | None = None
    expert_bits: Fraction | None = None
    row_scale_bytes: int = 0
    """Bytes of scales per output channel."""
    attention_stays_with_experts: bool = False
    """In a mixture of experts only the experts are packed; the linear layers stay in the model's dtype."""
    everything_bits: Fraction | None = None
    """Every tensor in this many bits, such as float32."""
    block: int = 0
    """Inner columns that share a scale, where a slice must hold whole ones; 0 where it need not."""
    band: Fraction = Fraction(1, 50)
    """Likely relative error of the estimate."""
    source: str = ""

    def bits(self, item: TensorClass, *, element_bytes: int, has_experts: bool = False) -> Fraction:
        """Bits of one weight of this class."""
        own = Fraction(8 * element_bytes)
        if self.everything_bits is not None:
            return self.everything_bits
        if item.content is Content.EXPERT:
            return own if self.expert_bits is None else self.expert_bits
        if item.content is Content.LINEAR:
            stays = self.attention_stays_with_experts and has_experts
            return own if stays or self.linear_bits is None else self.linear_bits
        return own

    def scale_bytes(self, item: TensorClass) -> int:
        """Bytes of per-channel scales of the class."""
        return self.row_scale_bytes * item.rows if item.content in {Content.LINEAR, Content.EXPERT} else 0


_LOGS = "load sizes in published start logs agree within 1 % (bf16 0.2 %, fp8 0.9 %, GPTQ 0.2 %)"
_GROUPS_OF_128 = "groups of 128 with 16-bit scales and 4-bit zero points; " + _LOGS
_FP8_BLOCK = 8 + Fraction(32, 128 * 128)
_NVFP4 = Fraction(9, 2)
_MXFP4 = Fraction(17, 4)

_FORMATS: Mapping[str, WeightFormat] = MappingProxyType(
    {
        "bf16": WeightFormat("bf16", everything_bits=Fraction(16), source=_LOGS),
        "fp16": WeightFormat("fp16", everything_bits=Fraction(16), source=_LOGS),
        "fp32": WeightFormat("fp32", everything_bits=Fraction(32), source="--dtype float32 doubles weights and KV"),
        "fp8": WeightFormat("fp8", Fraction(8), Fraction(8), row_scale_bytes=4, source=_LOGS),
        "fp8-block": WeightFormat(
            "fp8-block", _FP8_BLOCK, _FP8_BLOCK, block=128, source="a 4-byte scale per 128 × 128"
        ),
        "int8": WeightFormat("int8", Fraction(8), Fraction(8), row_scale_bytes=4, source="as fp8"),
        "gptq-4bit": WeightFormat("gptq-4bit", INT4_GROUP, INT4_GROUP, block=128, source=_GROUPS_OF_128),
        "awq-4bit": WeightFormat(
            "awq-4bit", INT4_GROUP, INT4_GROUP, band=Fraction(1, 20), block=128, source=_GROUPS_OF_128
        ),
        "int4": WeightFormat("int4", INT4_GROUP, INT4_GROUP, band=Fraction(1, 10), block=128, source=_GROUPS_OF_128),
        "autoround-int4": WeightFormat(
            "autoround-int4", INT4_GROUP, INT4_GROUP, band=Fraction(1, 5), source="groups of 128; makers skip layers"
        ),
        "int4-experts": WeightFormat(
            "int4-experts",
            None,
            Fraction(9, 2),
            band=Fraction(1, 20),
            block=32,
            source="compressed-tensors, groups of 32",
        ),
        "mxfp4": WeightFormat(
            "mxfp4", None, _MXFP4, band=Fraction(1, 20), source="OCP MX: 4 bits and an 8-bit scale per 32; experts only"
        ),
        "mxfp4-fp8": WeightFormat(
            "mxfp4-fp8",
            _FP8_BLOCK,
            _MXFP4,
            band=Fraction(1, 20),
            block=128,
            source="experts in MXFP4, linear layers in fp8 with scales per 128 × 128 (DeepSeek-V4)",
        ),
        "nvfp4": WeightFormat(
            "nvfp4",
            _NVFP4,
            _NVFP4,
            attention_stays_with_experts=True,
            band=Fraction(1, 6),
            block=16,
            source="4 bits and an fp8 scale per 16; checkpoints of DeepSeek's kind pack experts only, others differ",
        ),
    }
)
MXFP4_EXPERTS = frozenset({"mxfp4", "mxfp4-fp8"})
"""Formats whose experts are repacked at load (`mxfp4_padding`)."""
_SPELLINGS: Mapping[str, str] = MappingProxyType(
    {
        "bfloat16": "bf16",
        "float16": "fp16",
        "half": "fp16",
        "auto": "bf16",
        "none": "bf16",
        "float32": "fp32",
        "fp8-dynamic": "fp8",
        "w8a8": "int8",
        "gptq": "gptq-4bit",
        "gptq_marlin": "gptq-4bit",
        "awq": "awq-4bit",
        "awq_marlin": "awq-4bit",
        "w4a16": "int4",
        "autoround": "autoround-int4",
        "auto-round": "autoround-int4",
        "nvfp4-mixed": "nvfp4",
        "modelopt_fp4": "nvfp4",
        "modelopt": "fp8",
    }
)


def weight_format(name: str) -> WeightFormat:
    """The format of this name, in the spellings of vLLM's `--quantization` and of checkpoint names.

    Raises InvalidInput for one that is not known.
    """
    plain = name.strip().lower()
    found = _FORMATS.get(_SPELLINGS.get(plain, plain))
    if found is None:
        raise InvalidInput("quantization", f"{name[:40]!r} is not known; use one of {', '.join(_FORMATS)}")
    return found


@dataclass(frozen=True, slots=True)
class ExpertPadding:
    """What a kernel rounds an expert's widths up to: (inner width per rank, hidden size)."""

    intermediate_multiple: int = 1
    hidden_multiple: int = 1

    def factor(self, *, intermediate: Fraction, hidden: int) -> Fraction:
        """Padded over real size of an expert's matrices."""
        inner = -(-intermediate // self.intermediate_multiple) * self.intermediate_multiple
        outer = -(-hidden // self.hidden_multiple) * self.hidden_multiple
        return Fraction(inner) / intermediate * Fraction(outer, hidden)


def mxfp4_padding(*, vendor: str, compute_capability: tuple[int, int] | None) -> ExpertPadding:
    """The padding of MXFP4 experts, which are repacked at load.

    vLLM 0.10 to 0.33, `mxfp4.py`: Marlin 128 and 256 (NVIDIA before 9.0 and from 12.0), Triton on 9.0 with a swizzle
    that pads the hidden size, TensorRT-LLM kernels on 10.x 256 and 256, ROCm 256 and 256. The published loads of
    gpt-oss-20b (12.8 GiB in the file; 13.5, 13.7 and 14.3 GiB loaded) follow from these.
    """
    if vendor == "amd":
        return ExpertPadding(256, 256)
    major = compute_capability[0] if compute_capability else 8
    if major == 9:
        return ExpertPadding(64, 256)
    if major in {10, 11}:
        return ExpertPadding(256, 256)
    return ExpertPadding(128, 256)
