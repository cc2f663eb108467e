"""No GPU is given away twice, however two operators, strangers, failures and restarts interleave."""

import asyncio
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bayplan.cluster.resources import PODS
from bayplan.planning.groups.members import Group
from bayplan.planning.groups.reservation import LiveReads, Recheck, RecheckVerdict
from bayplan.reconcile.inferencemodel import release
from tests.reconcile.arena import Arena
from tests.reconcile.gpuledger import held_by
from tests.reconcile.world import foreign_pod

Script = list[tuple[str, int]]
OFTEN = ["call"] * 10 + ["burst"] * 10 + ["work"] * 6 + ["deliver"] * 4 + ["bind"] * 3 + ["kubelet"] * 3 + ["tick"] * 5
SELDOM = ["foreign", "foreign", "foreign_leaves", "scale", "scale", "scale", "revise", "cordon", "silence"]
RARE = ["kill", "cut", "lose", "exit"]
COMMANDS = st.tuples(st.sampled_from(OFTEN + SELDOM + RARE), st.integers(0, 59))


async def play(script: Script) -> Arena:
    """Play the script, then let one operator come to rest and check that it writes nothing more."""
    arena = Arena()
    try:
        for command, number in script:
            await arena.play(command, number)
        await arena.come_to_rest()
        settled = arena.api.write_count()
        await arena.pass_time(31)
        assert arena.api.write_count() == settled, "writes at rest"
    finally:
        await arena.stop(0)
    return arena


@pytest.mark.property
@pytest.mark.timeout(600)  # 20 s of work; on a shared machine it may have to wait for its turn
@settings(max_examples=45, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(script=st.lists(COMMANDS, min_size=60, max_size=160))
def test_no_interleaving_over_allocates_a_node_or_leaves_part_of_a_group(script: Script) -> None:
    arena = asyncio.run(play(script))
    assert arena.problems() == []


def seeded(seed: int) -> Script:
    chooser = random.Random(seed)
    return [(chooser.choice(OFTEN + SELDOM + RARE), chooser.randrange(60)) for _ in range(150)]


def release_at_once(group: Group, reads: LiveReads, **_: object) -> Recheck:
    return Recheck(RecheckVerdict.RELEASE, ranks=tuple(m.rank for m in group.members if m.rank is not None))


@pytest.mark.property
def test_without_the_recheck_the_account_finds_gpus_given_away_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proof that the test above can fail."""
    scripts = [seeded(seed) for seed in range(6)]
    assert [arena.problems() for arena in map(asyncio.run, map(play, scripts))] == [[]] * len(scripts)
    monkeypatch.setattr(release, "recheck_group", release_at_once)
    found = [arena.ledger.over_allocations for arena in map(asyncio.run, map(play, scripts))]
    assert any(found)


async def test_a_foreign_bind_that_no_recheck_could_see_is_told_apart_and_cured() -> None:
    """It comes after the release; the group that cannot be bound any more goes when its limit has passed."""
    arena = Arena()
    arena.do_work(0)
    for _ in range(60):
        await arena.play("call", 0)
    released = [held for pod in arena.objects(PODS) if (held := held_by(pod)) is not None]
    place = max(released, key=lambda held: held.gpus).node
    arena.api.seed(PODS, foreign_pod("late", place, gpus=2))
    await arena.moved()
    assert arena.ledger.excess
    assert arena.ledger.over_allocations == []
    assert arena.ledger.foreign_excesses == 1
    await arena.come_to_rest()
    await arena.stop(0)
    assert arena.problems() == []
    assert arena.ledger.excess == {}
