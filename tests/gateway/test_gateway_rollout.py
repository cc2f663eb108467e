"""Traffic while something is rolled out: who answers, what is counted as whose, and what nobody may ever get."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from bayplan.gateway.endpoints import EngineFacts, view_model
from bayplan.gateway.generations import SESSION_HEADER
from bayplan.gateway.places import Place
from bayplan.gateway.settings import GatewaySettings
from bayplan.planning.admission.records import AdmissionRequest, End
from bayplan.planning.rollout.cohort import Cohort, cohort_key, find_cohort
from tests.fakes.clock import until
from tests.gateway.conftest import MakeScripted, MakeTown
from tests.gateway.gatewaytown import Town, raw_model
from tests.gateway.scriptedengine import HEAD, Connection, Script, ScriptedEngine, event, whole_answer, whole_stream

SALT = "0123456789abcdef"
CANDIDATE = {"serving": "r1", "candidate": "r2", "cohortSalt": SALT, "candidateReplicas": 1}


def session_of(cohort: Cohort, weight: int, baseline: int = 0, *, skip: int = 0) -> str:
    """A session of that cohort, as the gateway will find it."""
    for n in range(100_000):
        key = cohort_key(session=f"anonymous s{n}", conversation=None, request_id="x")
        found = find_cohort(key, salt=SALT, weight_percent=weight, baseline_percent=baseline)
        if found is cohort:
            if skip == 0:
                return f"s{n}"
            skip -= 1
    raise AssertionError("no session belongs there")


class Trial:
    """A serving engine (r1) and a candidate (r2) behind one gateway."""

    def __init__(self, town: Town, serving: ScriptedEngine, candidate: ScriptedEngine) -> None:
        self.town = town
        self.serving = serving
        self.candidate = candidate
        town.model(serving=("r1",))
        self.pods = {
            "serving": town.head("serving", serving.host, revision="r1"),
            "candidate": town.head("candidate", candidate.host, revision="r2"),
        }

    def plan(self, epoch: int, **fields: Any) -> None:
        self.town.plan(epoch=epoch, **(CANDIDATE | fields))

    async def ask(self, session: str = "", **fields: Any) -> int:
        headers = {SESSION_HEADER: session} if session else None
        return (await self.town.post(headers=headers, **fields))[0]

    async def lead(self, number: int = 20) -> None:
        """Let the pool have requests first, so that the candidate's share is no bound for one."""
        for n in range(number):
            assert await self.ask(session_of(Cohort.REST, 50, 0, skip=n % 5)) == 200

    async def rows(self) -> Counter[tuple[str, str]]:
        """Requests by pod and arm."""
        rows = (await self.town.evidence())["rows"]
        return Counter({(row["pod"].removeprefix("pod-"), row["arm"]): row["requests"] for row in rows})

    async def errors(self, pod: str) -> dict[str, int]:
        rows = (await self.town.evidence())["rows"]
        found: Counter[str] = Counter()
        for row in rows:
            if row["pod"] == f"pod-{pod}":
                found.update(row["errors"])
        return dict(found)


MakeTrial = Callable[..., Any]


@pytest.fixture
async def make_trial(make_town: MakeTown, scripted: MakeScripted) -> MakeTrial:
    async def make(*, serving: Script = whole_answer, candidate: Script = whole_answer) -> Trial:
        return Trial(await make_town(), await scripted(serving), await scripted(candidate))

    return make


@pytest.fixture
async def trial(make_trial: MakeTrial) -> Trial:
    made: Trial = await make_trial()
    return made


MINE = session_of(Cohort.CANDIDATE, 50)
OTHERS = session_of(Cohort.REST, 50)


class TestWithoutAPlan:
    async def test_pods_of_the_listed_revisions_get_everything(self, trial: Trial) -> None:
        for session in (MINE, OTHERS):
            assert await trial.ask(session) == 200
        assert await trial.rows() == {("serving", "serving"): 2}
        assert trial.town.gateway.directory.epochs() == {}

    async def test_rollout_that_has_no_plan_yet_changes_nothing(self, trial: Trial) -> None:
        trial.town.plan()
        assert await trial.ask(MINE) == 200
        assert await trial.rows() == {("serving", "serving"): 1}
        assert trial.town.gateway.directory.epochs() == {}

    async def test_plan_that_is_gone_leaves_what_the_model_lists(self, trial: Trial) -> None:
        view = trial.town.plan(epoch=1, serving="r2")
        assert await trial.ask() == 200
        trial.town.rollouts.discard(view.key, view.uid, 10**9)
        assert await trial.ask() == 200
        assert await trial.rows() == {("candidate", "serving"): 1, ("serving", "serving"): 1}
        assert trial.town.gateway.directory.epochs() == {}

    async def test_plan_of_an_earlier_model_of_that_name_is_nothing_to_this_one(self, trial: Trial) -> None:
        trial.town.plan(epoch=1, serving="r2", model_uid="the one before")
        assert await trial.ask() == 200
        trial.town.plan(epoch=2, serving="r2")
        assert await trial.ask() == 200
        assert await trial.rows() == {("serving", "serving"): 1, ("candidate", "serving"): 1}

    async def test_plan_of_another_model_is_nothing_to_this_one(self, trial: Trial) -> None:
        trial.town.plan("another", epoch=1, serving="r2")
        assert await trial.ask() == 200
        assert await trial.rows() == {("serving", "serving"): 1}


class TestCanary:
    async def test_candidates_sessions_go_there_and_all_others_do_not(self, trial: Trial) -> None:
        trial.plan(1, weight=50)
        await trial.lead()
        for _ in range(5):
            assert await trial.ask(MINE) == 200
            assert await trial.ask(OTHERS) == 200
        assert await trial.rows() == {("serving", "serving"): 25, ("candidate", "candidate"): 5}

    async def test_candidate_gets_nothing_before_the_plan_gives_it_a_weight(self, trial: Trial) -> None:
        trial.plan(1)
        await trial.lead()
        assert await trial.ask(MINE) == 200
        assert await trial.rows() == {("serving", "serving"): 21}

    async def test_weight_that_is_taken_away_counts_from_the_next_request_on(self, trial: Trial) -> None:
        trial.plan(1, weight=50)
        await trial.lead()
        assert await trial.ask(MINE) == 200
        trial.plan(2)
        for _ in range(5):
            assert await trial.ask(MINE) == 200
        assert await trial.rows() == {("serving", "serving"): 25, ("candidate", "candidate"): 1}

    async def test_share_is_kept_when_all_sessions_are_the_candidates(self, trial: Trial) -> None:
        trial.plan(1, weight=20)
        mine = session_of(Cohort.CANDIDATE, 20)
        for _ in range(50):
            assert await trial.ask(mine) == 200
        assert (await trial.rows())["candidate", "candidate"] == 10

    async def test_two_gateways_that_know_nothing_of_each_other_keep_to_the_weight_together(
        self, make_town: MakeTown, scripted: MakeScripted
    ) -> None:
        serving, candidate = await scripted(whole_answer), await scripted(whole_answer)
        trials = [Trial(await make_town(), serving, candidate) for _ in range(2)]
        mine = session_of(Cohort.CANDIDATE, 20)
        for trial in trials:
            trial.plan(1, weight=20)
        for number in range(41):
            assert await trials[number % 3 == 0].ask(mine) == 200
            assert 5 * len(candidate.received) <= number + 1
        assert len(candidate.received) >= 6

    async def test_conversation_without_a_session_stays_with_its_arm(self, trial: Trial) -> None:
        trial.plan(1, weight=50)
        await trial.lead()
        arms = set()
        for topic in range(12):
            before = await trial.rows()
            talk = [{"role": "system", "content": "be brief"}, {"role": "user", "content": f"topic {topic}"}]
            for turn in range(3):
                talk += [{"role": "assistant", "content": "well"}, {"role": "user", "content": f"and {turn}?"}]
                assert (await trial.town.post("/v1/chat/completions", messages=talk))[0] == 200
                await trial.lead(3)
            grown = (await trial.rows()) - before
            mine = grown["candidate", "candidate"]
            assert mine in (0, 3)
            arms.add(mine)
        assert arms == {0, 3}

    async def test_baseline_cohort_goes_to_the_baselines_pod(self, trial: Trial, scripted: MakeScripted) -> None:
        other = await scripted(whole_answer)
        trial.town.head("other", other.host, revision="r1")
        trial.plan(1, weight=30, baseline=["pod-other"])
        rest, mine = session_of(Cohort.REST, 30, 30), session_of(Cohort.BASELINE, 30, 30)
        for _ in range(12):
            assert await trial.ask(rest) == 200
        for _ in range(4):
            assert await trial.ask(mine) == 200
        assert await trial.rows() == {("serving", "serving"): 12, ("other", "baseline"): 4}

    @pytest.mark.parametrize("change", [{"warm": False}, {"ready": False}, {"draining": True}, {"warm_on": "another"}])
    async def test_candidate_pod_that_is_not_warm_and_ready_gets_nothing(
        self, trial: Trial, change: dict[str, Any]
    ) -> None:
        trial.plan(1, weight=50)
        await trial.lead()
        trial.town.head("candidate", trial.candidate.host, revision="r2", **change)
        for _ in range(3):
            assert await trial.ask(MINE) == 200
        assert ("candidate", "candidate") not in await trial.rows()

    async def test_pod_outside_the_plan_gets_nothing_whatever_the_models_status_lists(
        self, trial: Trial, scripted: MakeScripted
    ) -> None:
        old = await scripted(whole_answer)
        trial.town.head("old", old.host, revision="r0")
        trial.town.model(serving=("r0", "r1", "r2"))
        assert await trial.ask() == 200
        trial.plan(1, weight=0)
        before = len(old.received), len(trial.candidate.received)
        for _ in range(10):
            assert await trial.ask() == 200
        assert (len(old.received), len(trial.candidate.received)) == before

    async def test_gateway_whose_lease_lapsed_sends_candidates_sessions_to_serving(self, trial: Trial) -> None:
        trial.plan(1, weight=50)
        await trial.lead()
        lapsed = True
        trial.town.gateway.has_lapsed = lambda: lapsed
        assert await trial.ask(MINE) == 200
        assert ("candidate", "candidate") not in await trial.rows()
        lapsed = False
        assert await trial.ask(MINE) == 200
        assert (await trial.rows())["candidate", "candidate"] == 1

    async def test_what_the_candidate_has_no_room_for_goes_to_serving(self, trial: Trial) -> None:
        few = EngineFacts(kv_blocks=4, block_size=16, max_num_seqs=64, max_model_len=4096)
        trial.town.head("candidate", trial.candidate.host, revision="r2", facts=few)
        trial.plan(1, weight=50)
        await trial.lead()
        assert await trial.ask(MINE, max_tokens=300) == 200
        assert await trial.ask(MINE, max_tokens=8) == 200
        assert await trial.rows() == {("serving", "serving"): 21, ("candidate", "candidate"): 1}

    async def test_candidate_of_shorter_sequences_changes_nothing_for_serving(self, trial: Trial) -> None:
        short = EngineFacts(kv_blocks=1000, block_size=16, max_num_seqs=64, max_model_len=100)
        trial.town.head("candidate", trial.candidate.host, revision="r2", facts=short)
        trial.plan(1, weight=50)
        await trial.lead()
        assert await trial.ask(MINE, max_tokens=500) == 200
        assert await trial.ask(MINE, max_tokens=8) == 200
        assert await trial.rows() == {("serving", "serving"): 21, ("candidate", "candidate"): 1}


async def die(connection: Connection) -> None:
    connection.reset()


async def refuse(connection: Connection) -> None:
    await connection.answer(503, {"error": {"message": "full"}})


class TestWhenSomethingFails:
    @pytest.mark.parametrize("fault", [die, refuse])
    async def test_request_that_the_candidate_does_not_serve_is_served_by_serving(
        self, make_trial: MakeTrial, fault: Script
    ) -> None:
        trial = await make_trial(candidate=fault)
        trial.plan(1, weight=50)
        await trial.lead()
        assert await trial.ask(MINE) == 200
        assert await trial.rows() == {("serving", "serving"): 21, ("candidate", "candidate"): 1}
        assert await trial.errors("candidate") == {"failed": 1}
        assert await trial.errors("serving") == {}

    async def test_request_of_the_pool_is_never_tried_at_the_candidate(self, make_trial: MakeTrial) -> None:
        trial = await make_trial(serving=die)
        trial.plan(1, weight=50)
        for _ in range(4):
            assert await trial.ask(OTHERS) == 503
        assert trial.candidate.received == []

    async def test_candidates_pod_that_vanishes_takes_no_request_with_it(self, make_trial: MakeTrial) -> None:
        async def wait(connection: Connection) -> None:
            await connection.until_client_leaves()

        trial = await make_trial(candidate=wait)
        trial.plan(1, weight=50)
        await trial.lead()
        asked = asyncio.ensure_future(trial.ask(MINE))
        await until(lambda: bool(trial.candidate.received))
        trial.town.gone(trial.pods["candidate"])
        assert await asked == 200
        assert trial.town.held == 0

    async def test_candidate_gets_no_second_chance_where_nobody_else_is_left(self, make_trial: MakeTrial) -> None:
        serving_left = asyncio.Event()

        async def fail_late(connection: Connection) -> None:
            await serving_left.wait()
            connection.reset()

        trial = await make_trial(candidate=fail_late)
        trial.plan(1, weight=50)
        await trial.lead()
        asked = asyncio.ensure_future(trial.ask(MINE))
        await until(lambda: bool(trial.candidate.received))
        trial.town.gone(trial.pods["serving"])
        serving_left.set()
        assert await asked == 503
        assert len(trial.candidate.received) == 1

    async def test_place_that_the_plan_has_taken_away_meanwhile_is_left_before_anything_is_sent(
        self, trial: Trial
    ) -> None:
        """The wait ends and the plan changes in the same turn of the loop."""
        few = EngineFacts(kv_blocks=4, block_size=16, max_num_seqs=64, max_model_len=4096)
        trial.town.head("serving", trial.serving.host, revision="r1", facts=few)
        (pool,) = trial.town.gateway.directory
        place = await pool.enter(AdmissionRequest(tenant="anonymous", prompt_tokens=1, max_output_tokens=50))
        assert isinstance(place, Place)
        asked = asyncio.ensure_future(trial.ask())
        await until(lambda: trial.town.queued() == 1)
        place.release(End.COMPLETED)
        trial.town.plan(epoch=1, serving="r2")
        assert await asked == 200
        assert trial.serving.received == []
        assert await trial.rows() == {("candidate", "serving"): 1}

    async def test_request_that_runs_when_the_weight_is_taken_away_runs_on(self, make_trial: MakeTrial) -> None:
        go_on = asyncio.Event()

        async def slow(connection: Connection) -> None:
            await go_on.wait()
            await whole_answer(connection)

        trial = await make_trial(candidate=slow)
        trial.plan(1, weight=50)
        await trial.lead()
        asked = asyncio.ensure_future(trial.ask(MINE))
        await until(lambda: bool(trial.candidate.received))
        trial.plan(2)
        (row,) = [row for row in (await trial.town.evidence())["rows"] if row["arm"] == "candidate"]
        assert row["running"] == 1
        go_on.set()
        assert await asked == 200
        assert await trial.rows() == {("serving", "serving"): 20, ("candidate", "candidate"): 1}


class TestCachedPrefixes:
    async def test_serving_keeps_what_it_has_cached_when_the_spec_moves_on(self, trial: Trial) -> None:
        """A salt of the spec's new artifact would make every cache of the old revision worthless at once."""
        await trial.ask(OTHERS)
        model = raw_model(serving=("r1",))
        model["spec"]["model"]["revision"] = "another"
        trial.town.models.put(view_model(model))
        trial.plan(1, weight=50)
        await trial.lead()
        await trial.ask(MINE)
        before, after = trial.serving.received[0], trial.serving.received[-1]
        assert before.body["cache_salt"] == after.body["cache_salt"]
        assert trial.candidate.received[0].body["cache_salt"] != after.body["cache_salt"]


class TestPromotion:
    async def test_promoted_pods_join_the_pool_and_the_old_ones_leave_it_at_the_end(self, trial: Trial) -> None:
        trial.plan(1, weight=50)
        trial.town.plan(epoch=2, serving="r2", previous="r1")
        assert set(await asyncio.gather(*(trial.ask(OTHERS) for _ in range(20)))) == {200}
        rows = await trial.rows()
        assert set(rows) == {("serving", "serving"), ("candidate", "serving")}
        trial.town.plan(epoch=3, serving="r2")
        for _ in range(5):
            assert await trial.ask(OTHERS) == 200
        assert (await trial.rows()) - rows == {("candidate", "serving"): 5}

    async def test_candidate_that_answers_alone_gets_everything(self, trial: Trial) -> None:
        trial.town.gone(trial.pods["serving"])
        trial.plan(1, weight=100)
        for session in (MINE, OTHERS):
            assert await trial.ask(session) == 200
        assert await trial.rows() == {("candidate", "candidate"): 2}


class TestAcknowledging:
    async def test_epoch_is_told_once_it_is_routed_by(self, trial: Trial) -> None:
        told: list[dict[str, int]] = []
        trial.town.gateway.on_change = lambda: told.append(trial.town.gateway.directory.epochs())
        trial.plan(4, weight=50)
        assert told[-1] == {"rollout-default-trial": 4}
        trial.plan(5)
        assert told[-1] == {"rollout-default-trial": 5}
        assert (await trial.town.evidence())["models"]["default/tiny"]["plan"] == {
            "rollout": "rollout-default-trial",
            "epoch": 5,
        }

    async def test_of_two_rollouts_of_one_model_the_older_counts(self, trial: Trial) -> None:
        trial.town.plan(name="newer", created="2026-11-30T00:00:01Z", epoch=9, serving="r2")
        trial.town.plan(name="older", created="2026-11-30T00:00:00Z", epoch=3, serving="r1")
        assert trial.town.gateway.directory.epochs() == {"rollout-default-older": 3}
        assert await trial.ask() == 200
        assert await trial.rows() == {("serving", "serving"): 1}

    async def test_older_rollout_without_a_plan_takes_nothing_from_the_newer_one(self, trial: Trial) -> None:
        trial.town.plan(name="newer", created="2026-11-30T00:00:01Z", epoch=9, serving="r2")
        trial.town.plan(name="older", created="2026-11-30T00:00:00Z")
        assert trial.town.gateway.directory.epochs() == {"rollout-default-newer": 9}
        assert await trial.ask() == 200
        assert await trial.rows() == {("candidate", "serving"): 1}

    async def test_plan_that_comes_before_its_model_is_obeyed_from_the_first_request_on(
        self, make_town: MakeTown, scripted: MakeScripted
    ) -> None:
        town, engine = await make_town(), await scripted(whole_answer)
        town.plan(epoch=1, serving="r2")
        town.head("candidate", engine.host, revision="r2")
        town.model(serving=("r1",))
        assert (await town.post())[0] == 200


async def slow_stream(connection: Connection) -> None:
    await connection.send(HEAD)
    await connection.chunk(event("x"))
    await connection.until_client_leaves()


class TestCopies:
    def shadow(self, trial: Trial, epoch: int = 1, share: int = 100) -> None:
        trial.plan(epoch, shadowShare=share, baseline=["pod-serving"])

    async def test_copy_is_sent_and_its_answer_dropped(self, make_trial: MakeTrial) -> None:
        async def wrong(connection: Connection) -> None:
            await connection.answer(200, {"choices": [{"index": 0, "text": "no", "finish_reason": "stop"}]})

        trial = await make_trial(candidate=wrong)
        self.shadow(trial)
        status, answer, _ = await trial.town.post(user="me")
        assert (status, answer["choices"][0]["text"]) == (200, "hi")
        await until(lambda: bool(trial.candidate.received))
        ours, theirs = trial.candidate.received[0], trial.serving.received[0]
        assert ours.headers["x-request-id"] == theirs.headers["x-request-id"] + "-copy"
        assert ours.body["cache_salt"] != theirs.body["cache_salt"]
        assert ours.body | {"cache_salt": ""} == theirs.body | {"cache_salt": ""}
        assert await trial.rows() == {("serving", "baseline"): 1, ("candidate", "shadow"): 1}

    async def test_copy_is_no_request_of_a_users(self, trial: Trial) -> None:
        self.shadow(trial)
        assert await trial.ask() == 200
        await until(lambda: bool(trial.candidate.received))
        await until(lambda: trial.town.reserved_tokens() == 0)
        metrics = await trial.town.metrics()
        assert 'bayplan_gateway_requests_total{model="tiny",namespace="default",outcome="completed"} 1.0' in metrics
        assert 'bayplan_gateway_demand_requests_total{model="tiny",namespace="default"} 1.0' in metrics
        assert 'bayplan_gateway_copies_total{model="tiny",namespace="default",outcome="sent"} 1.0' in metrics
        for arm, revision in (("shadow", "r2"), ("baseline", "r1")):
            labels = f'arm="{arm}",class="default",model="tiny",namespace="default",revision="{revision}"'
            assert f"bayplan_gateway_sent_requests_total{{{labels}}} 1.0" in metrics

    async def test_failing_candidate_is_seen_in_its_row_alone(self, make_trial: MakeTrial) -> None:
        trial = await make_trial(candidate=die)
        self.shadow(trial)
        for _ in range(3):
            assert await trial.ask() == 200
        await until(lambda: len(trial.candidate.received) == 3)
        await until(lambda: trial.town.reserved_tokens() == 0)
        assert await trial.errors("candidate") == {"failed": 3}
        assert await trial.errors("serving") == {}

    async def test_copy_holds_room_and_what_finds_none_is_dropped(self, make_trial: MakeTrial) -> None:
        trial = await make_trial(candidate=slow_stream, serving=whole_stream)
        few = EngineFacts(kv_blocks=20, block_size=16, max_num_seqs=64, max_model_len=4096)
        trial.town.head("candidate", trial.candidate.host, revision="r2", facts=few)
        self.shadow(trial)
        for _ in range(3):
            async with trial.town.open_stream() as response:
                assert (await response.read()).endswith(b"[DONE]\n\n")
        await until(lambda: len(trial.candidate.received) == 1)
        pods = (await trial.town.evidence())["models"]["default/tiny"]["pods"]
        assert 0 < pods["pod-candidate"]["reservedKvBlocks"] <= 20
        assert 'outcome="dropped"} 2.0' in await trial.town.metrics()
        assert trial.town.held == 0

    async def test_candidate_with_requests_of_its_own_has_no_copies(self, make_trial: MakeTrial) -> None:
        trial = await make_trial(candidate=slow_stream, serving=whole_stream)
        self.shadow(trial)
        async with trial.town.open_stream() as response:
            await response.read()
        await until(lambda: len(trial.candidate.received) == 1)
        trial.plan(2, weight=10)
        await asyncio.wait_for(trial.candidate.left.wait(), 5)
        await until(lambda: trial.town.reserved_tokens() == 0)
        assert await trial.errors("candidate") == {"cancelled": 1}

    async def test_copy_ends_when_its_requests_client_leaves(self, make_trial: MakeTrial) -> None:
        trial = await make_trial(candidate=slow_stream, serving=slow_stream)
        self.shadow(trial)
        async with trial.town.open_stream() as response:
            await response.content.readany()
            await until(lambda: len(trial.candidate.received) == 1)
            response.close()
        await asyncio.wait_for(trial.candidate.left.wait(), 5)

    async def test_copy_goes_on_when_its_request_has_ended_well(self, make_trial: MakeTrial) -> None:
        go_on = asyncio.Event()

        async def late(connection: Connection) -> None:
            await go_on.wait()
            await whole_answer(connection)

        trial = await make_trial(candidate=late)
        self.shadow(trial)
        assert await trial.ask() == 200
        go_on.set()
        await until(lambda: trial.town.reserved_tokens() == 0)
        (row,) = [row for row in (await trial.town.evidence())["rows"] if row["arm"] == "shadow"]
        assert (row["requests"], row["errors"], row["e2e"]["total"]) == (1, {}, 1)

    async def test_endless_answer_is_read_to_a_bound_and_is_no_error(
        self, make_trial: MakeTrial, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def endless(connection: Connection) -> None:
            await connection.send(HEAD)
            while True:
                await connection.chunk(event("x" * 1000))

        monkeypatch.setattr("bayplan.gateway.copies.MOST_COPY_BYTES", 100_000)
        trial = await make_trial(candidate=endless, serving=whole_stream)
        self.shadow(trial)
        async with trial.town.open_stream() as response:
            await response.read()
        await asyncio.wait_for(trial.candidate.left.wait(), 5)
        await until(lambda: trial.town.reserved_tokens() == 0)
        assert await trial.errors("candidate") == {"cancelled": 1}

    async def test_nothing_is_copied_while_the_gateway_is_busy(
        self, trial: Trial, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("bayplan.gateway.copies.MOST_COPIES", 0)
        self.shadow(trial)
        assert await trial.ask() == 200
        assert await trial.rows() == {("serving", "baseline"): 1}
        assert 'outcome="dropped"} 1.0' in await trial.town.metrics()

    async def test_nothing_is_copied_while_half_of_the_memory_for_bodies_is_taken(
        self, make_town: MakeTown, scripted: MakeScripted
    ) -> None:
        town = await make_town(settings=GatewaySettings(max_buffered_bytes=2000))
        trial = Trial(town, await scripted(whole_answer), await scripted(whole_answer))
        self.shadow(trial)
        assert await trial.ask(prompt="x" * 700) == 200
        assert await trial.ask(prompt="x") == 200
        await until(lambda: bool(trial.candidate.received))
        assert await trial.rows() == {("serving", "baseline"): 2, ("candidate", "shadow"): 1}
        assert 'outcome="dropped"} 1.0' in await town.metrics()

    async def test_leaving_gateway_ends_its_copies(self, make_trial: MakeTrial) -> None:
        trial = await make_trial(candidate=slow_stream, serving=whole_stream)
        self.shadow(trial)
        async with trial.town.open_stream() as response:
            await response.read()
        await until(lambda: len(trial.candidate.received) == 1)
        trial.town.gateway.refuse_new()
        await asyncio.wait_for(trial.candidate.left.wait(), 5)
        assert trial.town.gateway.held == 0

    async def test_bodies_of_copies_are_given_back(self, trial: Trial) -> None:
        self.shadow(trial)
        for _ in range(3):
            assert await trial.ask() == 200
        await until(lambda: len(trial.candidate.received) == 3)
        await until(lambda: trial.town.gateway.generations.buffered_bytes == 0)
