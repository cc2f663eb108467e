"""What other planners would say of the same rows: their published overhead rules, and the founding text's KV formula.

Each rule is stated by its tool's source or documentation as of 2026; they are applied to the same budget and the same
known weights, so that only the rule differs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from bayplan.planning.memory.architecture import ModelArchitecture


@dataclass(frozen=True, slots=True)
class PeerRule:
    """A tool and what it sets aside beside the weights."""

    name: str
    overhead_gib: Callable[[Fraction], Fraction]
    """From the weights in GiB per GPU to the overhead in GiB."""
    source: str


PEERS: tuple[PeerRule, ...] = (
    PeerRule(
        "KAITO", lambda weights: Fraction(23, 10) + weights / 20, "2.3 GiB + 5 % of the weights (estimator source)"
    ),
    PeerRule("llm-d-benchmark", lambda _: Fraction(11, 2), "5.5 GiB per GPU (constant before #732)"),
    PeerRule("aiconfigurator", lambda _: Fraction(7, 2), "3.5 GiB reserve (0.12)"),
    PeerRule("GPUStack", lambda weights: weights / 5 + 2, "weights × 1.2 + 2 GiB (policies/utils.py)"),
    PeerRule("no overhead", lambda _: Fraction(0), "budget − weights"),
)


def founding_token_bytes(model: ModelArchitecture, *, tensor: int, element_bytes: int) -> Fraction:
    """Bytes per token by the founding text: 2 × layers × KV heads × head size × element bytes over the tensor width.

    It knows no latent vectors, windows or states. 0 for a model without attention heads.
    """
    shape = model.attention
    if shape is None:
        return Fraction(0)
    return Fraction(2 * len(model.layers) * shape.kv_heads * shape.head_dim * element_bytes, tensor)
