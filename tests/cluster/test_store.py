import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.cluster.cache import REMEMBERED_DELETIONS, Store, version_number
from bayplan.cluster.resources import PODS, Key


@dataclass(frozen=True, slots=True)
class Item:
    key: Key
    uid: str
    resource_version: int
    node: str = ""
    owner: str = ""


def item(name: str, version: int, *, uid: str | None = None, node: str = "", owner: str = "") -> Item:
    return Item(Key("ns", name), uid or f"uid-{name}", version, node, owner)


@pytest.fixture
def store() -> Store[Item]:
    return Store(PODS, indexes={"node": lambda pod: (pod.node,), "owner": lambda pod: (pod.owner,)})


@pytest.fixture
def seen(store: Store[Item]) -> list[tuple[str | None, str | None]]:
    calls: list[tuple[str | None, str | None]] = []

    def mark(obj: Item | None) -> str | None:
        return None if obj is None else f"{obj.key.name}@{obj.resource_version}"

    store.subscribe(lambda old, new: calls.append((mark(old), mark(new))))
    return calls


def test_objects_are_found_by_key_uid_and_index(store: Store[Item]) -> None:
    a, b = item("a", 1, node="n1", owner="o"), item("b", 2, node="n1")
    store.put(a)
    store.put(b)
    assert store.get(a.key) is a
    assert store.by_uid("uid-b") is b
    assert store.by_index("node", "n1") == [a, b]
    assert store.by_index("owner", "o") == [a]
    assert store.has_index_value("owner", "o")
    assert store.by_index("node", "elsewhere") == []
    assert (len(store), a.key in store, Key("ns", "x") in store) == (2, True, False)
    with pytest.raises(KeyError):
        store.by_index("colour", "red")


def test_an_index_follows_a_change(store: Store[Item]) -> None:
    store.put(item("a", 1, node="n1"))
    store.put(item("a", 2, node="n2"))
    assert store.by_index("node", "n1") == []
    assert [pod.key.name for pod in store.by_index("node", "n2")] == ["a"]
    store.discard(Key("ns", "a"), "uid-a", 3)
    assert not store.has_index_value("node", "n2")


@pytest.mark.parametrize(("version", "taken"), [(4, False), (5, False), (6, True)])
def test_only_a_newer_version_replaces_what_is_known(store: Store[Item], seen, version: int, taken: bool) -> None:
    store.put(item("a", 5))
    assert store.put(item("a", version)) is taken
    assert seen[1:] == ([("a@5", "a@6")] if taken else [])


def test_a_deletion_is_told_once_and_an_older_version_does_not_come_back(store: Store[Item], seen) -> None:
    store.put(item("a", 5))
    assert store.discard(Key("ns", "a"), "uid-a", 8)
    assert not store.discard(Key("ns", "a"), "uid-a", 8)
    assert not store.put(item("a", 7))
    assert seen == [(None, "a@5"), ("a@5", None)]


def test_an_object_that_left_the_selection_can_come_back_newer(store: Store[Item]) -> None:
    store.put(item("a", 5))
    store.discard(Key("ns", "a"), "uid-a", 8)
    assert store.put(item("a", 9))


def test_a_deletion_heard_before_the_object_keeps_it_out(store: Store[Item]) -> None:
    assert not store.discard(Key("ns", "a"), "uid-a", 8)
    assert not store.put(item("a", 5))
    assert len(store) == 0


def test_a_name_given_to_a_new_object_first_ends_the_old_one(store: Store[Item], seen) -> None:
    store.put(item("a", 5, uid="first", node="n1"))
    store.put(item("a", 9, uid="second", node="n2"))
    assert seen == [(None, "a@5"), ("a@5", None), (None, "a@9")]
    assert store.by_uid("first") is None
    assert store.by_index("node", "n1") == []


def test_a_late_deletion_of_the_old_bearer_spares_the_new_one(store: Store[Item]) -> None:
    store.put(item("a", 9, uid="second"))
    assert not store.discard(Key("ns", "a"), "first", 7)
    assert store.by_uid("second") is not None


def test_a_complete_list_removes_what_it_lacks_but_not_what_is_newer(store: Store[Item], seen) -> None:
    for obj in (item("gone", 5), item("kept", 6), item("at-limit", 10), item("newer", 11)):
        store.put(obj)
    vanished = store.prune(["uid-kept"], 10)
    assert {obj.key.name for obj in vanished} == {"gone", "at-limit"}
    assert {obj.key.name for obj in store.values()} == {"kept", "newer"}
    assert seen[4:] == [("gone@5", None), ("at-limit@10", None)]


def test_after_the_history_restarted_the_next_list_wins(store: Store[Item], seen) -> None:
    store.put(item("kept", 500))
    store.put(item("lost", 501))
    store.advance(600)
    store.restart_history()
    assert store.put(item("kept", 50))
    store.prune(["uid-kept"], 60)
    assert [(obj.key.name, obj.resource_version) for obj in store.values()] == [("kept", 50)]
    assert seen[2:] == [("kept@500", "kept@50"), ("lost@501", None)]
    assert not store.put(item("kept", 49))


def test_a_failing_handler_does_not_keep_others_from_hearing(store: Store[Item], seen) -> None:
    def broken(old: Item | None, new: Item | None) -> None:
        raise RuntimeError("defect")

    other = Store[Item](PODS)
    other.subscribe(broken)
    heard: list[Item | None] = []
    other.subscribe(lambda old, new: heard.append(new))
    assert other.put(item("a", 1))
    assert len(heard) == 1


def test_the_memory_of_deletions_is_bounded() -> None:
    store = Store[Item](PODS)
    for number in range(REMEMBERED_DELETIONS + 1):
        store.discard(Key("ns", f"p{number}"), f"uid-{number}", 10)
    assert store.put(item("p0", 5, uid="uid-0"))
    assert not store.put(item("p1", 5, uid="uid-1"))


# --- our own writes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "behind"), [(9, True), (10, False), (11, False)])
def test_the_cache_is_behind_until_it_shows_our_write(store: Store[Item], version: int, behind: bool) -> None:
    store.put(item("a", 5))
    store.expect(Key("ns", "a"), "10")
    assert store.is_behind(Key("ns", "a"))
    store.put(item("a", version))
    assert store.is_behind(Key("ns", "a")) is behind


@pytest.mark.parametrize(("version", "behind"), [(9, True), (10, False)])
def test_a_stream_that_passed_our_write_settles_it(store: Store[Item], version: int, behind: bool) -> None:
    store.expect(Key("ns", "created-and-deleted-unseen"), "10")
    store.advance(version)
    assert store.is_behind(Key("ns", "created-and-deleted-unseen")) is behind


def test_versions_are_compared_as_numbers(store: Store[Item]) -> None:
    store.put(item("a", 9))
    store.expect(Key("ns", "a"), "10")
    assert store.is_behind(Key("ns", "a"))
    assert (version_number("10"), version_number(""), version_number("x"), version_number(None)) == (10, 0, 0, 0)


def test_the_later_of_two_writes_counts(store: Store[Item]) -> None:
    store.expect(Key("ns", "a"), "12")
    store.expect(Key("ns", "a"), "10")
    store.put(item("a", 11))
    assert store.is_behind(Key("ns", "a"))


def test_a_deletion_settles_what_was_expected_of_that_object_only(store: Store[Item]) -> None:
    store.put(item("a", 5, uid="first"))
    store.expect(Key("ns", "a"), "10")
    store.discard(Key("ns", "a"), "first", 12)
    assert not store.is_behind(Key("ns", "a"))
    store.put(item("b", 5, uid="first-b"))
    store.expect(Key("ns", "b"), "20")  # its successor, which we created
    store.discard(Key("ns", "b"), "first-b", 15)
    assert store.is_behind(Key("ns", "b"))
    store.put(item("b", 20, uid="second-b"))
    assert not store.is_behind(Key("ns", "b"))


def test_an_expected_deletion_is_behind_while_that_uid_is_shown(store: Store[Item]) -> None:
    store.put(item("a", 5, uid="first"))
    store.expect_gone("first", owner="model")
    assert store.is_behind(Key("ns", "a"))
    assert store.is_behind_for("model")
    store.put(item("a", 9, uid="second"))
    assert not store.is_behind(Key("ns", "a"))
    assert not store.is_behind_for("model")


def test_expecting_a_deletion_already_seen_waits_for_nothing(store: Store[Item]) -> None:
    store.expect_gone("never-known", owner="model")
    assert not store.is_behind_for("model")


def test_one_question_covers_all_children_of_an_owner(store: Store[Item]) -> None:
    store.expect(Key("ns", "a"), "10", owner="model")
    store.expect(Key("ns", "b"), "11", owner="model")
    assert store.is_behind_for("model")
    assert not store.is_behind_for("other")
    store.put(item("a", 10))
    assert store.is_behind_for("model")
    store.put(item("b", 11))
    assert not store.is_behind_for("model")


def test_settled_expectations_leave_nothing_behind(store: Store[Item]) -> None:
    """Thousands of writes must not pile up in memory, asked about or not."""
    for number in range(50):
        store.put(item(f"p{number}", 1))
        store.expect(Key("ns", f"p{number}"), "100", owner=f"model-{number}")
        store.expect(Key("ns", f"q{number}"), "100", owner=f"model-{number}")
        store.expect_gone(f"uid-p{number}", owner=f"model-{number}")
        store.put(item(f"p{number}", 100))
        store.discard(Key("ns", f"p{number}"), f"uid-p{number}", 101)
    store.prune([], 200)
    assert (store._expected, store._expected_gone, store._expected_by_owner) == ({}, {}, {})


# --- the guard as a property -----------------------------------------------------------------------------------------

HISTORY = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["put", "delete"])), min_size=1, max_size=25)


@pytest.mark.property
@settings(max_examples=300, deadline=None)
@given(HISTORY, st.randoms(use_true_random=False), st.integers(1_000, 1_000_000))
def test_overlapping_sources_in_any_order_end_in_the_true_state(
    history: list[tuple[str, str]], shuffle: random.Random, origin: int
) -> None:
    """A stream in order, a second one lagging behind, and lists taken at any time: the end state is the server's."""
    events: list[tuple[str, Item]] = []
    alive: dict[str, Item] = {}
    snapshots: list[tuple[int, list[Item]]] = []
    for number, (name, action) in enumerate(history):
        version = origin + number * 3
        if action == "delete":
            if name in alive:
                old = alive.pop(name)
                events.append(("delete", Item(old.key, old.uid, version)))
        else:
            uid = alive[name].uid if name in alive else f"{name}-{number}"
            alive[name] = Item(Key("ns", name), uid, version)
            events.append(("put", alive[name]))
        snapshots.append((version, list(alive.values())))
    store = Store[Item](PODS)

    def feed(event: tuple[str, Item]) -> None:
        if event[0] == "put":
            store.put(event[1])
        else:
            store.discard(event[1].key, event[1].uid, event[1].resource_version)

    lagging = list(events)
    for event in events:
        feed(event)
        while lagging and shuffle.random() < 0.4:
            feed(lagging.pop(0))
        if shuffle.random() < 0.2:
            version, items = shuffle.choice(snapshots)
            if version <= event[1].resource_version:
                for obj in items:
                    store.put(obj)
                store.prune([obj.uid for obj in items], version)
    for event in lagging:
        feed(event)
    assert {obj.key.name: obj for obj in store.values()} == alive
