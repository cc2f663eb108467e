"""Requests in a canary: whose cohort goes where, the share, and pods that get nothing."""

from typing import Any

import pytest

from bayplan.gateway.endpoints import EngineFacts, view_model
from bayplan.planning.rollout.cohort import Cohort
from tests.gateway.conftest import MakeScripted, MakeTown
from tests.gateway.gatewaytown import raw_model
from tests.gateway.rollouttrial import MINE, OTHERS, Trial, session_of
from tests.gateway.scriptedengine import whole_answer


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
