"""The `gpus` section of the configuration: figures of GPU products that the catalogue lacks or has otherwise."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from bayplan.cli.sections import Section
from bayplan.planning.memory.gpucatalogue import Gpu, Link, find_gpu
from bayplan.planning.memory.terms import Source
from bayplan.planning.numbers import exact

Figure = Annotated[float, Field(gt=0, le=10**6, allow_inf_nan=False)]


class GpuFigures(Section):
    """What is stated of one product; the rest is the catalogue's."""

    visible_gib: Figure | None = None
    """Memory that the driver shows; it wins over the node's label."""
    bandwidth_tb_s: Figure | None = None
    link: Link | None = None
    """The fastest connection inside a node."""
    link_gb_s: Annotated[int, Field(ge=1, le=10**6)] | None = None
    fast_domain_gpus: Annotated[int, Field(ge=1, le=1024)] | None = None
    """GPUs that the fast link connects."""
    compute_capability: Annotated[str, Field(pattern=r"^[0-9]{1,2}\.[0-9]$")] | None = None

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("states no figure")
        return self


def stated_gpu(product: str, figures: GpuFigures) -> Gpu:
    """The GPU with these figures. Raises ValueError for an unknown product without memory."""
    known = find_gpu(product)
    if known is None and figures.visible_gib is None:
        raise ValueError(f"{product} is not in the catalogue: state visibleGib")
    changes: dict[str, object] = {"name": product}
    if figures.visible_gib is not None:
        changes |= {"visible_gib": exact(figures.visible_gib, "visibleGib"), "visible_source": Source.DECLARED}
    if figures.bandwidth_tb_s is not None:
        changes["bandwidth_tb_s"] = exact(figures.bandwidth_tb_s, "bandwidthTbS")
    for name in ("link", "link_gb_s", "fast_domain_gpus"):
        if getattr(figures, name) is not None:
            changes[name] = getattr(figures, name)
    if figures.compute_capability is not None:
        major, _, minor = figures.compute_capability.partition(".")
        changes["compute_capability"] = (int(major), int(minor))
    base = known or Gpu(product, "amd" if product.startswith("AMD") else "nvidia", exact(figures.visible_gib, product))
    return base.overridden(**changes)
