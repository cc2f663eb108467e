"""Reading specs that did not pass our own CRD: every fault is located in wire names and says what would be accepted."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.api.engineargs import RESERVED_FLAGS, reserved_flag
from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.api.structural import defaulted, structural_schema
from bayplan.api.validation import FieldError, check_name, parse_spec, summarize
from e2e.specwalk.boundaries import locations, put
from tests.api.specs import FULL_SPEC, MINIMAL_SPEC

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def errors(spec: object) -> list[FieldError]:
    found = parse_spec(spec)
    assert isinstance(found, list)
    return found


def one_error(*location: Any, value: Any) -> FieldError:
    (error,) = errors(put(FULL_SPEC, location, value))
    return error


@pytest.mark.property
@settings(deadline=None)
@given(raw=JSON)
def test_no_json_value_raises(raw: object) -> None:
    found = parse_spec(raw)
    assert isinstance(found, InferenceModelSpec) or all(str(error) for error in found)


@pytest.mark.property
@settings(deadline=None)
@given(location=st.sampled_from(locations(FULL_SPEC)), value=JSON)
def test_no_json_value_inside_a_spec_raises_and_each_fault_is_near_it(location: tuple[Any, ...], value: object) -> None:
    found = parse_spec(put(FULL_SPEC, location, value))
    if isinstance(found, list):
        assert found
        assert all(error.path.startswith("spec") and error.message for error in found)


def test_full_and_minimal_spec_parse() -> None:
    for spec in (FULL_SPEC, MINIMAL_SPEC):
        assert isinstance(parse_spec(spec), InferenceModelSpec)


def test_wire_form_of_a_parsed_spec_parses_to_the_same() -> None:
    for raw in (FULL_SPEC, MINIMAL_SPEC):
        spec = parse_spec(raw)
        assert isinstance(spec, InferenceModelSpec)
        assert parse_spec(spec.to_wire()) == spec


def test_wire_form_of_a_full_spec_is_what_was_read() -> None:
    spec = parse_spec(FULL_SPEC)
    assert isinstance(spec, InferenceModelSpec)
    expected = put(FULL_SPEC, ("template", "resources", "requests", "cpu"), "4")
    assert spec.to_wire() == defaulted(structural_schema(InferenceModelSpec, with_defaults=True), expected)


def test_exact_number_is_a_json_number_on_the_wire() -> None:
    spec = parse_spec(FULL_SPEC)
    assert isinstance(spec, InferenceModelSpec)
    assert str(spec.engine.gpu_memory_utilization) == "0.85"
    assert spec.to_wire()["engine"]["gpuMemoryUtilization"] == 0.85
    minimal = parse_spec(MINIMAL_SPEC)
    assert isinstance(minimal, InferenceModelSpec)
    assert repr(minimal.to_wire()["model"]["architecture"]["weightBits"]) == "16"


@pytest.mark.parametrize(
    ("location", "value", "path", "message"),
    [
        (("engine", "maxNumSeqs"), 0, "spec.engine.maxNumSeqs", "must be a whole number from 1 to 65536, got 0"),
        (("engine", "maxNumSeqs"), True, "spec.engine.maxNumSeqs", "must be a whole number from 1 to 65536, got true"),
        (("engine", "maxNumSeqs"), 1.5, "spec.engine.maxNumSeqs", "must be a whole number from 1 to 65536, got 1.5"),
        (
            ("engine", "maxNumSeqs"),
            10**400,
            "spec.engine.maxNumSeqs",
            "must be a whole number from 1 to 65536, got a far larger number",
        ),
        (
            ("engine", "gpuMemoryUtilization"),
            float("nan"),
            "spec.engine.gpuMemoryUtilization",
            "must be a number above 0 to 1, got NaN",
        ),
        (
            ("engine", "gpuMemoryUtilization"),
            float("inf"),
            "spec.engine.gpuMemoryUtilization",
            "must be a number above 0 to 1, got Infinity",
        ),
        (
            ("engine", "gpuMemoryUtilization"),
            True,
            "spec.engine.gpuMemoryUtilization",
            "must be a number above 0 to 1, got true",
        ),
        (
            ("engine", "gpuMemoryUtilization"),
            "0.9",
            "spec.engine.gpuMemoryUtilization",
            "must be a number above 0 to 1, got '0.9'",
        ),
        (("memoryPolicy",), "warn", "spec.memoryPolicy", "must be one of 'Enforce', 'Warn', got 'warn'"),
        (("suspend",), "yes", "spec.suspend", "must be true or false, got 'yes'"),
        (("engine", "args"), {}, "spec.engine.args", "must be a list of at most 64 entries, got an object"),
        (("engine", "args"), ["a"] * 65, "spec.engine.args", "must be a list of at most 64 entries, got a list of 65"),
        (("drain",), [], "spec.drain", "must be an object, got a list of 0"),
        (("drain",), None, "spec.drain", "must be an object, got null"),
        (
            ("warmup", "prompt"),
            "a" * 4097,
            "spec.warmup.prompt",
            "must be text of 1 to 4096 characters, got 4097 characters",
        ),
        (
            ("parallelism", "tensors"),
            2,
            "spec.parallelism.tensors",
            "unknown field; accepted are tensor, pipeline, data, expert, decodeContext",
        ),
        (
            ("template", "sharedMemory"),
            "-1Gi",
            "spec.template.sharedMemory",
            "must be a quantity such as 500m, 4 or 16Gi, not negative, got '-1Gi'",
        ),
        (
            ("placement", "nodeSelector"),
            {"example.com/pool": "-"},
            "spec.placement.nodeSelector[example.com/pool]",
            "must be text of 0 to 63 characters that match ^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$, got '-'",
        ),
        (
            ("template", "resources", "requests"),
            {"gpu": 1},
            "spec.template.resources.requests",
            "keys must be one of cpu, memory, ephemeral-storage, got 'gpu'",
        ),
        (
            ("engine", "env"),
            [{"name": "A"}, {"name": "A"}],
            "spec.engine.env",
            "name must be different in each entry, 'A' is there twice",
        ),
    ],
)
def test_fault_is_located_and_says_what_is_accepted(
    location: tuple[Any, ...], value: Any, path: str, message: str
) -> None:
    assert one_error(*location, value=value) == FieldError(path=path, message=message)


def test_missing_field_says_what_is_required() -> None:
    spec = deepcopy(FULL_SPEC)
    del spec["engine"]["maxModelLen"]
    assert errors(spec) == [
        FieldError(path="spec.engine.maxModelLen", message="required: a whole number from 1 to 100000000")
    ]


def test_python_names_are_unknown_on_the_wire() -> None:
    spec = deepcopy(MINIMAL_SPEC)
    spec["memory_policy"] = "Warn"
    (error,) = errors(spec)
    assert error.path == "spec[memory_policy]"


def test_rule_over_several_fields_points_at_the_field() -> None:
    assert one_error("concurrency", value=65) == FieldError(
        path="spec.concurrency", message="concurrency must not exceed engine.maxNumSeqs"
    )


def test_every_fault_is_found_at_once() -> None:
    spec = put(put(FULL_SPEC, ("concurrency",), 0), ("engine", "args"), ["--seed", "--port=1"])
    assert [error.path for error in errors(spec)] == ["spec.engine.args[1]", "spec.concurrency"]


@pytest.mark.parametrize("raw", [None, True, 3, "spec", [], [FULL_SPEC]])
def test_spec_that_is_no_object_is_a_fault_of_the_spec(raw: object) -> None:
    (error,) = errors(raw)
    assert error.path == "spec"
    assert error.message.startswith("must be an object, got ")


def test_summary_has_the_first_fault_in_full_and_the_others_by_path() -> None:
    one = FieldError(path="spec.a", message="must be b")
    assert summarize([one]) == "spec.a: must be b"
    assert summarize([one, FieldError(path="spec.c", message="d")]) == "spec.a: must be b; also wrong: spec.c"


@pytest.mark.parametrize("name", ["", "A", "a.b", "-a", "a-", "8b", "a" * 41, "a\n"])
def test_name_that_leaves_no_room_for_pod_names_is_a_fault(name: str) -> None:
    error = check_name(name)
    assert error is not None
    assert error.path == "metadata.name"


@pytest.mark.parametrize("name", ["a", "llama-8b", "a" * 40])
def test_good_name_has_no_fault(name: str) -> None:
    assert check_name(name) is None


@pytest.mark.parametrize("flag", RESERVED_FLAGS)
def test_every_spelling_of_a_reserved_flag_is_recognised(flag: str) -> None:
    spellings = {flag, f"{flag}=1", f"{flag} 1"}
    if flag.startswith("--"):
        # argparse takes every unique beginning of a long flag, and vLLM takes underscores for dashes.
        spellings |= {flag[:length] for length in range(3, len(flag))}
        spellings |= {"--" + spelling[2:].replace("-", "_") for spelling in spellings}
    for spelling in spellings:
        assert reserved_flag(spelling) is not None, spelling


def test_message_names_the_flag_and_the_field_to_use() -> None:
    assert one_error("engine", "args", value=["--max_model=9"]) == FieldError(
        path="spec.engine.args[0]", message="--max-model-len is set by Bayplan: use spec.engine.maxModelLen instead"
    )
    assert one_error("engine", "args", value=["--port"]).message == "--port is set by Bayplan: remove it"


@pytest.mark.parametrize(
    "argument",
    [
        "",
        "-",
        "--",
        "value",
        "a=--port",
        "--ported",
        "--portx=1",
        "--enable-prefix-caching",
        "-O3",
        "-1",
        "--dtype",
        "-a",
    ],
)
def test_other_arguments_are_left_to_the_engine(argument: str) -> None:
    assert reserved_flag(argument) is None
