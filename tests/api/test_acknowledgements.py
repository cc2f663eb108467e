"""The two annotations of a gateway's Lease: read back as written, and nothing is made of anything else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.api.acknowledgements import MAX_ACKNOWLEDGED, read_epochs, read_uids, write_epochs, write_uids

UIDS = st.text(min_size=1, max_size=40)


@given(st.frozensets(UIDS, max_size=20))
def test_uids_are_read_back(uids: frozenset[str]) -> None:
    assert read_uids(write_uids(uids)) == uids


@given(st.dictionaries(UIDS, st.integers(min_value=1, max_value=10**12), max_size=20))
def test_epochs_are_read_back(epochs: dict[str, int]) -> None:
    assert read_epochs(write_epochs(epochs)) == epochs


def test_the_same_is_always_written_alike() -> None:
    assert write_epochs({"b": 2, "a": 1}) == write_epochs({"a": 1, "b": 2}) == '{"a":1,"b":2}'
    assert write_uids(["b", "a"]) == '["a","b"]'


@pytest.mark.parametrize("text", [None, 7, "", "{", "null", "1", '"a"', "[" * 100_000])
def test_other_forms_acknowledge_nothing(text: object) -> None:
    assert read_uids(text) == frozenset()
    assert read_epochs(text) == {}


@pytest.mark.parametrize("epoch", ["0", "-1", "1.0", "true", '"1"', "null", "[1]"])
def test_epoch_that_is_no_whole_number_from_1_is_left_out(epoch: str) -> None:
    assert read_epochs(f'{{"a": {epoch}, "b": 2}}') == {"b": 2}


def test_more_entries_than_are_sensible_are_not_read() -> None:
    assert len(read_epochs(write_epochs({f"{n:05}": 1 for n in range(MAX_ACKNOWLEDGED + 1)}))) == MAX_ACKNOWLEDGED
    assert len(read_uids(write_uids(f"{n:05}" for n in range(MAX_ACKNOWLEDGED + 1)))) == MAX_ACKNOWLEDGED
