"""Whether a spec may be acted on: what the schema says, and what only the operator's configuration knows."""

from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.api.validation import FieldError, check_name, parse_spec
from bayplan.planning.layout.modelnumbers import model_faults
from bayplan.planning.placement.topology import HOST, Topology


def accept_model(raw: object, *, name: str, topology: Topology) -> InferenceModelSpec | list[FieldError]:
    """Return an InferenceModel's spec, or every fault found in it and in its name."""
    parsed = parse_spec(raw)
    if not isinstance(parsed, InferenceModelSpec):
        return parsed
    faults = [*_level_faults(parsed, topology), *model_faults(parsed)]
    named = check_name(name)
    if named is not None:
        faults.append(named)
    return faults or parsed


def _level_faults(spec: InferenceModelSpec, topology: Topology) -> list[FieldError]:
    """Topology levels are the operator's configuration, which no schema knows."""
    levels = sorted({*topology, HOST})
    wanted = [(f"spec.placement.topology[{i}].level", r.level) for i, r in enumerate(spec.placement.topology)]
    wanted.append(("spec.placement.spread.level", spec.placement.spread.level))
    return [
        FieldError(path=path, message=f"unknown level {level!r}; configured are {', '.join(levels)}")
        for path, level in wanted
        if level not in levels
    ]
