import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bayplan.cluster.errors import LeaseLost, NotFound, ServerError, Unreachable
from bayplan.cluster.lease import Elector, LeaseTimes
from bayplan.cluster.resources import LEASES, Key
from tests.fakes.api import FakeApi
from tests.fakes.clock import FakeClock, settle

LEASE = Key("bayplan-system", "bayplan-operator")


class Candidate:
    """One process: an elector on a clock of its own machine, taking and holding the Lease."""

    def __init__(self, api: FakeApi, clock: FakeClock, name: str, now: Callable[[], datetime]) -> None:
        self.elector = Elector(api, namespace=LEASE.namespace, name=LEASE.name, identity=name, clock=clock, now=now)
        self.task: asyncio.Task[None] | None = None
        self.led = False

    def start(self) -> None:
        async def lead() -> None:
            await self.elector.acquire()
            self.led = True
            await self.elector.hold()

        self.task = asyncio.create_task(lead())

    async def crash(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)

    @property
    def lost(self) -> bool:
        assert self.task is not None
        return self.task.done() and isinstance(self.task.exception(), LeaseLost)


class Stage:
    def __init__(self) -> None:
        self.api = FakeApi()
        self.clock = FakeClock()
        self.candidates: list[Candidate] = []

    def candidate(self, name: str, *, clock: FakeClock | None = None, wall_skew_hours: float = 0) -> Candidate:
        base = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=wall_skew_hours)
        clock = clock or self.clock
        origin = clock.time()
        found = Candidate(self.api, clock, name, lambda: base + timedelta(seconds=clock.time() - origin))
        self.candidates.append(found)
        return found

    def spec(self) -> dict[str, Any]:
        return self.api.objects(LEASES)[0]["spec"]


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage()
    yield stage
    for candidate in stage.candidates:
        await candidate.crash()


async def test_an_absent_lease_is_created_and_held(stage: Stage) -> None:
    one = stage.candidate("one")
    assert not one.elector.is_held()
    one.start()
    await settle()
    assert one.elector.is_held()
    assert stage.spec() == {
        "holderIdentity": "one",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-01-01T00:00:00.000000Z",
        "renewTime": "2026-01-01T00:00:00.000000Z",
        "leaseTransitions": 1,
    }


async def test_a_healthy_leader_stays_and_renews_every_two_seconds(stage: Stage) -> None:
    one, two = stage.candidate("one"), stage.candidate("two")
    one.start()
    await settle()
    two.start()
    await stage.clock.advance(120)
    assert one.elector.is_held()
    assert not two.led
    assert two.elector.holder == "one"
    renewals = sum(call[0] == "patch" for call in stage.api.log)
    assert 55 <= renewals <= 60
    assert stage.spec()["leaseTransitions"] == 1
    assert stage.spec()["acquireTime"] == "2026-01-01T00:00:00.000000Z"


@pytest.mark.parametrize("skew_hours", [-24, 0, 24])
async def test_a_crashed_leader_is_replaced_within_17_seconds_whatever_the_wall_clocks_say(
    stage: Stage, skew_hours: float
) -> None:
    one, two = stage.candidate("one"), stage.candidate("two", wall_skew_hours=skew_hours)
    one.start()
    await settle()
    two.start()
    await stage.clock.advance(30)
    await one.crash()
    await stage.clock.advance(12.9)
    assert not two.led, "a holder counts as alive for 15 s after its last change"
    await stage.clock.advance(17 - 12.9)
    assert two.led
    assert stage.spec()["holderIdentity"] == "two"
    assert stage.spec()["leaseTransitions"] == 2


async def test_a_lease_first_seen_is_given_its_full_duration_from_then(stage: Stage) -> None:
    """Its renewTime may be hours old by our clock, or by that of the machine that wrote it."""
    stage.api.seed(
        LEASES,
        {
            "metadata": {"namespace": LEASE.namespace, "name": LEASE.name},
            "spec": {"holderIdentity": "old", "leaseDurationSeconds": 15, "renewTime": "2001-01-01T00:00:00.000000Z"},
        },
    )
    one = stage.candidate("one")
    one.start()
    await stage.clock.advance(14.9)
    assert not one.led
    await stage.clock.advance(0.2)
    assert one.led


async def test_a_holder_with_a_longer_duration_is_given_it(stage: Stage) -> None:
    stage.api.seed(
        LEASES,
        {
            "metadata": {"namespace": LEASE.namespace, "name": LEASE.name},
            "spec": {"holderIdentity": "slow", "leaseDurationSeconds": 60},
        },
    )
    one = stage.candidate("one")
    one.start()
    await stage.clock.advance(59)
    assert not one.led
    await stage.clock.advance(2)
    assert one.led


async def test_a_clean_stop_hands_over_within_two_seconds(stage: Stage) -> None:
    one, two = stage.candidate("one"), stage.candidate("two")
    one.start()
    await settle()
    two.start()
    await stage.clock.advance(20)
    await one.crash()
    await one.elector.release()
    assert not one.elector.is_held()
    assert stage.spec()["holderIdentity"] == ""
    assert stage.spec()["leaseDurationSeconds"] == 1
    await stage.clock.advance(1.1)
    assert two.led


async def test_a_release_after_the_lease_was_lost_does_not_touch_it(stage: Stage) -> None:
    one, two = stage.candidate("one"), stage.candidate("two")
    one.start()
    await settle()
    two.start()
    await stage.clock.advance(1)
    await one.crash()
    await stage.clock.advance(17)
    assert two.led
    await one.elector.release()
    assert stage.spec()["holderIdentity"] == "two"


async def test_two_candidates_at_once_give_one_leader(stage: Stage) -> None:
    candidates = [stage.candidate(f"c{number}") for number in range(5)]
    for candidate in candidates:
        candidate.start()
    await stage.clock.advance(30)
    assert sum(candidate.led for candidate in candidates) == 1


async def test_a_stolen_lease_is_noticed_at_the_next_renewal(stage: Stage) -> None:
    one = stage.candidate("one")
    one.start()
    await settle()
    stage.api.edit(LEASES, LEASE, lambda lease: lease["spec"].update(holderIdentity="thief"))
    await stage.clock.advance(2.1)
    assert one.lost
    assert not one.elector.is_held()


async def test_a_deleted_lease_ends_the_leader(stage: Stage) -> None:
    one = stage.candidate("one")
    one.start()
    await settle()
    stage.api.remove(LEASES, LEASE)
    await stage.clock.advance(2.1)
    assert one.lost


async def test_a_foreign_edit_that_leaves_us_the_holder_is_survived(stage: Stage) -> None:
    one = stage.candidate("one")
    one.start()
    await settle()
    stage.api.edit(LEASES, LEASE, lambda lease: lease["metadata"].update(annotations={"who": "me"}))
    await stage.clock.advance(30)
    assert one.elector.is_held()
    assert not one.lost


@pytest.mark.parametrize(("failures", "lost"), [(10, False), (40, True)])
async def test_renewals_may_fail_for_ten_seconds(stage: Stage, failures: int, lost: bool) -> None:
    one = stage.candidate("one")
    one.start()
    await settle()
    for _ in range(failures):
        stage.api.fail_next("patch", "leases", ServerError("overloaded", status=500))
    await stage.clock.advance(14)
    assert one.lost is lost
    assert one.elector.is_held() is not lost


async def test_the_leader_counts_itself_out_before_anybody_else_counts_itself_in(stage: Stage) -> None:
    """The server takes renewals no more, from the leader only: at no time may two of them be allowed to write."""
    one, two = stage.candidate("one"), stage.candidate("two")
    one.start()
    await settle()
    two.start()
    await stage.clock.advance(9.3)
    held = stage.api.patch_merge

    async def cut_off(resource, namespace, name, body, **kwargs):
        if body["spec"].get("holderIdentity") == "one":
            raise Unreachable("cut off")
        return await held(resource, namespace, name, body, **kwargs)

    stage.api.patch_merge = cut_off  # type: ignore[method-assign]
    overlap = 0
    both_out = 0
    while not two.led:
        await stage.clock.advance(0.1)
        overlap += one.elector.is_held() and two.elector.is_held()
        both_out += not one.elector.is_held() and not two.elector.is_held()
    assert overlap == 0
    assert both_out > 0
    assert one.lost


async def test_a_renewal_that_is_never_answered_ends_the_leader_in_time(stage: Stage) -> None:
    one = stage.candidate("one")
    one.start()
    await settle()

    async def hang(*args, **kwargs):
        await asyncio.Event().wait()

    stage.api.patch_merge = hang  # type: ignore[method-assign]
    await stage.clock.advance(9.9)
    assert one.elector.is_held()
    await stage.clock.advance(0.1)
    assert not one.elector.is_held()
    await stage.clock.advance(6)
    assert one.lost


async def test_a_renewal_that_happened_though_it_seemed_to_fail_is_built_upon(stage: Stage) -> None:
    one = stage.candidate("one")
    one.start()
    await settle()
    for _ in range(3):
        stage.api.fail_next("patch", "leases", ServerError("late", status=500), after_success=True)
        await stage.clock.advance(4)
    assert one.elector.is_held()
    assert not one.lost


@pytest.mark.parametrize(("pause", "held"), [(9.9, True), (10.0, False), (3600.0, False)])
async def test_a_paused_process_knows_on_waking_whether_it_may_write(stage: Stage, pause: float, held: bool) -> None:
    one = stage.candidate("one")
    one.start()
    await settle()
    stage.clock.jump(pause)  # nothing ran meanwhile, not even the renewal
    assert one.elector.is_held() is held


async def test_a_former_leader_that_wakes_up_finds_its_successor_and_ends(stage: Stage) -> None:
    paused_clock = FakeClock(start=5.0)
    one, two = stage.candidate("one", clock=paused_clock), stage.candidate("two")
    one.start()
    await settle()
    two.start()
    await stage.clock.advance(16)  # the machine of `one` stands still
    assert two.led
    paused_clock.jump(16)
    assert not one.elector.is_held()
    await paused_clock.advance(0.1)
    assert one.lost
    assert two.elector.is_held()
    assert stage.spec()["holderIdentity"] == "two"


async def test_the_same_identity_takes_its_lease_back_at_once(stage: Stage) -> None:
    one = stage.candidate("one")
    one.start()
    await settle()
    await one.crash()
    again = stage.candidate("one")
    again.start()
    await settle()
    assert again.led
    assert stage.spec()["leaseTransitions"] == 1


async def test_acquiring_goes_on_while_the_server_is_away(stage: Stage) -> None:
    one = stage.candidate("one")
    for _ in range(5):
        stage.api.fail_next("get", "leases", Unreachable("down"))
    one.start()
    await stage.clock.advance(4.5)
    assert not one.led
    await stage.clock.advance(2)
    assert one.led


async def test_losing_the_race_to_create_is_no_failure(stage: Stage) -> None:
    one = stage.candidate("one")
    stage.api.seed(
        LEASES,
        {"metadata": {"namespace": LEASE.namespace, "name": LEASE.name}, "spec": {"holderIdentity": "fast"}},
    )
    stage.api.fail_next("get", "leases", NotFound("not yet", status=404))
    one.start()
    await stage.clock.advance(5)
    assert not one.led
    assert one.task is not None
    assert not one.task.done()


@pytest.mark.parametrize(
    "times",
    [
        {"duration": 10.0, "renew_deadline": 10.0},
        {"renew_deadline": 2.0, "retry": 2.0},
        {"retry": 0.0},
        {"observe": 0.0},
    ],
)
def test_lease_times_that_cannot_be_safe_are_refused(times: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="duration > renew_deadline > retry"):
        LeaseTimes(**times)


async def test_a_problem_that_lasts_is_said_again_but_not_at_every_try(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING")
    missing = NotFound('namespaces "bayplan-system" not found')
    stage.api.refuse = lambda *_: missing
    one = stage.candidate("one")
    assert one.elector.problem == "not read yet"
    one.start()
    for _ in range(65):
        await stage.clock.advance(1)
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 3
    assert "kubectl create namespace bayplan-system" in warnings[0]
    assert one.elector.problem is not None
    assert "kubectl create namespace bayplan-system" in one.elector.problem

    stage.api.refuse = None
    await stage.clock.advance(2)
    assert one.led
    assert one.elector.problem is None


async def test_a_standby_that_sees_the_lease_has_no_problem(stage: Stage) -> None:
    one, two = stage.candidate("one"), stage.candidate("two")
    one.start()
    await settle()
    two.start()
    await settle()
    assert not two.led
    assert two.elector.problem is None
