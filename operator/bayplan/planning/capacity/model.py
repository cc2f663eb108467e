"""Which model a plan is about, and what of the plan contradicts it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bayplan.api.capacityplan import CapacityPlanSpec
from bayplan.api.conditions import Reason
from bayplan.api.inferencemodel import InferenceModelSpec, Parallelism, Placement
from bayplan.api.meta import Schema
from bayplan.api.revision import revision_hash
from bayplan.planning.capacity.inputs import NamedModel
from bayplan.planning.placement.gpus import bare_product
from bayplan.planning.sizing.records import WorkloadClass

MOST_NAMED = 8
"""Differing fields that one message names."""
MOST_SHOWN = 80
"""Longest pair of values that is shown beside a field's name."""
_COMPARED = ("model", "engine", "concurrency", "parallelism", "placement")


@dataclass(frozen=True, slots=True)
class Conflict:
    """One thing that cannot be, or is exceeded."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """The model that is planned for, or why there is none."""

    model: NamedModel | None
    conflict: Conflict | None = None


def choose_model(
    spec: CapacityPlanSpec, named: tuple[NamedModel, ...], *, refused: tuple[str, ...] = ()
) -> ModelChoice:
    """Take the model inside the plan, or the one InferenceModel that names it; both must say the same.

    `refused` are models that name the plan and cannot be planned for.
    """
    if len(named) > 1:
        names = ", ".join(model.name for model in named[:8])
        text = f"one InferenceModel may name this plan, {len(named)} do: {names}"
        return ModelChoice(None, Conflict(Reason.MODEL_CONFLICT, text))
    inline = inline_model(spec)
    if inline is None:
        if not named:
            text = "no InferenceModel names this plan in capacityPlanRef, and it has no model of its own"
            if refused:
                text = f"the spec of InferenceModel {', '.join(refused[:8])}, which names this plan, is not accepted"
            return ModelChoice(None, Conflict(Reason.MODEL_MISSING, text))
        return ModelChoice(named[0])
    if not named:
        return ModelChoice(NamedModel("", inline, revision_hash(inline)))
    theirs = named[0]
    differing = [
        entry
        for name in _COMPARED
        for entry in _differences(f"spec.{name}", getattr(theirs.spec, name), getattr(inline, name))
    ]
    if differing:
        text = f"InferenceModel {theirs.name} differs from the plan in {'; '.join(differing[:MOST_NAMED])}"
        if len(differing) > MOST_NAMED:
            text += f"; and {len(differing) - MOST_NAMED} more"
        return ModelChoice(theirs, Conflict(Reason.MODEL_CONFLICT, text))
    return ModelChoice(theirs)


def inline_model(spec: CapacityPlanSpec) -> InferenceModelSpec | None:
    """The model inside the plan, as an InferenceModel has it."""
    if spec.model is None or spec.engine is None:
        return None
    return InferenceModelSpec(
        model=spec.model,
        engine=spec.engine,
        concurrency=spec.concurrency or 1,
        parallelism=spec.parallelism or Parallelism(),
        placement=spec.placement or Placement(),
    )


def contradictions(
    spec: CapacityPlanSpec, model: InferenceModelSpec, classes: tuple[WorkloadClass, ...]
) -> Iterator[Conflict]:
    """Yield what benchmark and classes say that the model does not: nothing measured then speaks of it."""
    measured = spec.benchmark
    pairs = (
        ("benchmark.modelRevision", measured.model_revision, "model.revision", model.model.revision),
        ("benchmark.engineImage", measured.engine_image, "engine.image", model.engine.image),
    )
    for theirs, was, ours, now in pairs:
        if was != now:
            yield _contradiction(f"{theirs} is {was}, {ours} is {now}")
    accepted = [bare_product(product) for product in model.placement.gpu_products]
    if accepted and bare_product(measured.gpu_product) not in accepted:
        names = ", ".join(model.placement.gpu_products)
        yield _contradiction(f"benchmark.gpuProduct is {measured.gpu_product}, placement.gpuProducts has {names}")
    most = model.engine.max_num_seqs
    if most is not None and measured.max_concurrent_requests > most:
        yield _contradiction(
            f"benchmark.maxConcurrentRequests is {measured.max_concurrent_requests}, engine.maxNumSeqs is {most}"
        )
    for one in classes:
        if one.tokens > model.engine.max_model_len:
            yield _contradiction(
                f"a mean request of class {one.name} has {one.tokens} tokens, engine.maxModelLen is "
                f"{model.engine.max_model_len}"
            )


def _contradiction(text: str) -> Conflict:
    return Conflict(Reason.CONTRADICTION, text)


def _differences(path: str, theirs: object, ours: object) -> Iterator[str]:
    """Yield the fields that differ, each by its whole path, with both values where they are short."""
    if theirs == ours:
        return
    if isinstance(theirs, Schema) and isinstance(ours, Schema) and type(theirs) is type(ours):
        for name, field in type(theirs).model_fields.items():
            yield from _differences(f"{path}.{field.alias or name}", getattr(theirs, name), getattr(ours, name))
        return
    values = f"{_shown(theirs)} there, {_shown(ours)} here"
    yield f"{path} ({values})" if len(values) <= MOST_SHOWN else path


def _shown(value: object) -> str:
    """A value as a user would write it."""
    if isinstance(value, Schema):
        return _shown(value.to_wire())
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_shown(one)}" for key, one in value.items() if one != "") or "nothing"
    if isinstance(value, tuple):
        return ", ".join(f"{{{_shown(one)}}}" if isinstance(one, Schema) else _shown(one) for one in value) or "nothing"
    return "nothing" if value is None else str(value)
