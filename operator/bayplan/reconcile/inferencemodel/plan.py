"""A model's plan on the fleet as the reconciler uses it: planning's verdicts beside the shapes that groups may take."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from bayplan.api.conditions import Reason, Status
from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.api.inferencemodel_status import MemoryStatus, ParallelismStatus
from bayplan.planning.admission.bounds import AdmissionBounds, admission_bounds
from bayplan.planning.groups.assignment import Assignment
from bayplan.planning.layout.decision import evidence_of, parallelism_status, records_of
from bayplan.planning.layout.inspected import Inspected, with_architecture, without_architecture
from bayplan.planning.layout.memorytext import memory_status
from bayplan.planning.layout.modelnumbers import model_faults
from bayplan.planning.layout.records import Recorded, RecordedLayout
from bayplan.planning.layout.split import Layout, Split
from bayplan.planning.modelplan import ModelFit, fit_model, group_shapes
from bayplan.planning.placement.gpus import bare_product
from bayplan.planning.placement.group import GroupShape
from bayplan.planning.placement.inventory import Inventory

MAX_PRODUCTS = 16
"""Products that status lists; more are planned but not shown."""


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """Verdict, layouts and shapes for one generation of a spec on one state of the nodes."""

    fit: ModelFit
    shapes: tuple[GroupShape, ...]
    cpu_millis: int = 0
    memory_bytes: int = 0
    records: Mapping[str, RecordedLayout] = field(default_factory=dict)
    """What the revision is to remember, by GPU product."""

    @property
    def placeable(self) -> bool:
        """Whether at least one product can be tried."""
        return bool(self.shapes)

    @property
    def multi_node(self) -> bool:
        """Whether a replica may span nodes on some product."""
        return any(shape.layout.nodes > 1 for shape in self.shapes)

    @property
    def layouts(self) -> tuple[tuple[str, Split], ...]:
        """The split on every product that can be tried."""
        return tuple(
            (decision.pool.gpu_product, decision.layout)
            for decision in self.fit.placeable
            if decision.layout is not None
        )

    def verdict(self) -> tuple[Status, Reason, str]:
        """`MemoryFit`: status, reason and the message with the deciding numbers."""
        return self.fit.status, self.fit.reason, self.fit.message

    def shape_for(self, assignment: Assignment) -> GroupShape:
        """The shape that a reservation was made with, whatever the plan says by now.

        Raises InvalidInput when the reservation's ranks do not make up its layout.
        """
        gpus = assignment.ranks[0].gpus
        return GroupShape(
            layout=Layout(*assignment.split.sizes, gpus_per_node=gpus, nodes=len(assignment.ranks)),
            gpu_product=assignment.gpu_product,
            cpu_millis=self.cpu_millis,
            memory_bytes=self.memory_bytes,
        )

    def admission_bounds(self, spec: InferenceModelSpec, assignment: Assignment) -> AdmissionBounds:
        """What a replica with that reservation holds, by the memory of its product and layout."""
        product, sizes = bare_product(assignment.gpu_product), assignment.split.sizes
        pool = next((d.pool for d in self.fit.layouts if bare_product(d.pool.gpu_product) == product), None)
        memory = next(
            (
                d.memory
                for d in self.fit.placeable
                if d.layout is not None and d.pool is pool and d.layout.sizes == sizes
            ),
            None,
        )
        return admission_bounds(
            spec,
            memory,
            gpu_product=assignment.gpu_product,
            gpu_memory_gib=pool.gpu_memory_gib if pool is not None else None,
        )

    def evidence(self, assignment: Assignment, blocks: int) -> tuple[str, RecordedLayout] | None:
        """The product and what its record becomes when an engine with that reservation reports its cache blocks."""
        product, sizes = bare_product(assignment.gpu_product), assignment.split.sizes
        for decision in self.fit.placeable:
            name = decision.pool.gpu_product
            record = self.records.get(name)
            if bare_product(name) == product and record is not None and record.split.sizes == sizes:
                found = evidence_of(decision, record, blocks)
                return None if found is None else (name, found)
        return None

    def parallelism_status(self) -> tuple[ParallelismStatus, ...]:
        """Layouts as status shows them."""
        shown = (parallelism_status(decision) for decision in self.fit.layouts)
        return tuple(entry for entry in shown if entry is not None)[:MAX_PRODUCTS]

    def memory_status(self) -> tuple[MemoryStatus, ...]:
        """Memory terms as status shows them."""
        return tuple(
            memory_status(decision.pool.gpu_product, decision.memory)
            for decision in self.fit.layouts[:MAX_PRODUCTS]
            if decision.memory is not None
        )


def waiting_plan(message: str) -> ModelPlan:
    """The plan of a model of which nothing is known yet: nothing is placed, and nothing that runs is outdated."""
    fit = ModelFit(status="Unknown", reason=Reason.INSPECTING, message=message, layouts=())
    return ModelPlan(fit=fit, shapes=())


def plan_model(
    spec: InferenceModelSpec, inventory: Inventory, *, recorded: Recorded, inspected: Inspected | None = None
) -> ModelPlan:
    """Plan `spec` on every GPU product that it accepts and the nodes have; `recorded` layouts are kept if possible.

    `inspected` is what was read of the model's own files: it stands for the architecture that the spec leaves out.
    """
    if inspected is not None:
        spec = with_architecture(spec, inspected)
        if model_faults(spec):
            fault = model_faults(spec)[0]
            spec, inspected = without_architecture(spec), Inspected(None, f"config.json: {fault.message}")
    fit = fit_model(spec, inventory, recorded=recorded)
    if inspected is not None and inspected.error:
        fit = replace(fit, message=f"{fit.message}; model.inspect: {inspected.error}")
    shapes = group_shapes(spec, fit)
    return ModelPlan(
        fit=fit,
        shapes=shapes,
        cpu_millis=shapes[0].cpu_millis if shapes else 0,
        memory_bytes=shapes[0].memory_bytes if shapes else 0,
        records=records_of(spec, fit.placeable, recorded),
    )
