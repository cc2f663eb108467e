"""Which split wins, which one comes second and why, and what its ranks exchange."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.planning.layout.knownmodel import from_catalogue
from bayplan.planning.layout.links import StepFacts, collectives, step_facts
from bayplan.planning.layout.rules import RuleFacts, keeps_rules
from bayplan.planning.layout.search import Question, Ranking, Site, Wanted, candidates, search
from bayplan.planning.layout.split import Layout, Split, arranged
from bayplan.planning.memory.catalogue import catalogue_model
from bayplan.planning.memory.gpucatalogue import Gpu, Link
from bayplan.planning.memory.replica import replica_memory
from bayplan.planning.memory.request import EngineFlags, PlanRequest
from tests.planning.memory.questions import gpu

NODE = Site((8,), gpu="H100")


def question(model: str, on: Gpu, *, concurrency: int = 1, measured: Any = None, **flags: Any) -> Question:
    known = from_catalogue(catalogue_model(model))
    engine = EngineFlags(**{"max_model_len": 8192, "max_num_seqs": 256, **flags})

    def memory_of(layout: Layout) -> Any:
        return replica_memory(PlanRequest(known.architecture, known.weights, on, layout.ranks, engine, concurrency))

    step = step_facts(known.architecture, sequences=concurrency)
    return Question(known.facts, memory_of, gpu=on, step=step, measured=measured or {})


def best(asked: Question, site: Site = NODE, wanted: Wanted | None = None) -> Ranking:
    return search(asked, candidates(asked.facts, site, wanted or Wanted()))


def sizes(ranking: Ranking) -> tuple[int, int, int, bool, int]:
    assert ranking.chosen is not None
    return ranking.chosen.layout.sizes


def test_the_fewest_gpus_win_and_the_next_size_is_runner_up() -> None:
    ranking = best(question("Llama-3.1-8B", gpu()))

    assert sizes(ranking) == (1, 1, 1, False, 1)
    assert ranking.runner_up is not None
    assert ranking.lost == "takes 2 GPUs instead of 1"


def test_a_fast_domain_is_one_tensor_group_before_it_is_several_stages() -> None:
    """Three stages would take a GPU less than four ranks, and three times the steps."""
    ranking = best(question("Llama-3.3-70B-Instruct", gpu(), concurrency=8))

    assert sizes(ranking) == (4, 1, 1, False, 1)
    assert ranking.chosen is not None
    (exchange,) = ranking.chosen.exchanges
    assert (exchange.link, exchange.fast, exchange.times) == (Link.NVLINK, True, 160)
    assert best(question("Llama-3.3-70B-Instruct", gpu(), concurrency=8), Site((3,))).chosen is not None
    assert sizes(best(question("Llama-3.3-70B-Instruct", gpu(), concurrency=8), Site((3,)))) == (1, 3, 1, False, 1)


def test_stages_go_across_fast_domains() -> None:
    ranking = best(question("DeepSeek-V3", gpu(), max_model_len=8192), Site((8, 8), gpu="H100"), Wanted(data=1))

    assert ranking.chosen is not None
    assert (ranking.chosen.layout.tensor, ranking.chosen.layout.pipeline, ranking.chosen.layout.nodes) == (8, 2, 2)


def test_equal_room_is_decided_by_the_predicted_time_of_a_step() -> None:
    asked = question("Qwen3-30B-A3B", gpu("RTX PRO 6000 Blackwell"))
    same = asked.memory_of(Layout(1, gpus_per_node=1, nodes=1))
    layouts = [
        Layout(1, 2, gpus_per_node=2, nodes=1),
        Layout(1, data=2, expert=True, gpus_per_node=2, nodes=1),
    ]
    ranking = search(replace(asked, memory_of=lambda _: same), layouts)

    assert sizes(ranking) == layouts[0].sizes
    assert ranking.lost.startswith("is predicted at ")
    assert ranking.runner_up is not None
    assert ranking.chosen is not None
    assert (ranking.runner_up.step_seconds or 0) > (ranking.chosen.step_seconds or 0)


def test_without_a_fast_link_stages_win_and_the_tensor_group_is_named_as_outside() -> None:
    """vLLM's own advice for GPUs without NVLink, such as the L40S [docs, parallelism_scaling]."""
    ranking = best(question("Qwen3-32B", gpu("L40S"), concurrency=2))

    assert sizes(ranking) == (1, 2, 1, False, 1)
    assert ranking.lost == "has its tensor group over PCIe, outside the fast domain"
    assert ranking.runner_up is not None
    assert "outside the fast domain" in str(ranking.runner_up.exchanges[0])


def test_stages_over_nodes_name_the_network() -> None:
    asked = question("Llama-3.3-70B-Instruct", gpu(), concurrency=4)
    ranking = best(asked, Site((1, 1, 1, 1), gpu="H100"))

    assert ranking.chosen is not None
    assert ranking.chosen.layout.nodes == ranking.chosen.layout.pipeline > 1
    (exchange,) = ranking.chosen.exchanges
    assert exchange.link is Link.NETWORK
    assert "over network, outside the fast domain, 100 Gbit/s assumed" in str(exchange)


def test_one_latent_vector_makes_data_ranks_with_whole_experts_win() -> None:
    """A tensor group copies the latent cache; data ranks do not [recipes#762, vllm#51454]."""
    ranking = best(question("DeepSeek-V3", gpu("H200"), concurrency=64, max_model_len=32768))
    tensor = best(question("DeepSeek-V3", gpu("H200"), max_model_len=32768), wanted=Wanted(data=1, tensor=8))

    assert ranking.chosen is not None
    assert tensor.chosen is not None
    assert ranking.chosen.layout.gpus == tensor.chosen.layout.gpus == 8
    assert ranking.runner_up is not None
    assert ranking.chosen.layout.data > 1
    assert ranking.chosen.layout.expert
    assert ranking.chosen.kv_tokens > 1.25 * tensor.chosen.kv_tokens


def test_decode_context_parallelism_comes_only_where_nothing_else_of_the_size_fits() -> None:
    loose = best(question("Kimi-K2-Thinking", gpu("H200"), max_model_len=131072), wanted=Wanted(data=1))
    tight = best(question("Kimi-K2-Thinking", gpu("H200"), concurrency=16, max_model_len=131072), wanted=Wanted(data=1))

    assert sizes(loose)[4] == 1
    assert tight.chosen is not None
    assert tight.chosen.layout.decode_context > 1
    assert any(one.name == "decode context exchange" for one in tight.chosen.exchanges)


def test_a_measurement_settles_what_the_prediction_cannot() -> None:
    asked = question("Qwen3-32B", gpu(), concurrency=8, max_model_len=16384)
    first = best(asked)
    assert first.chosen is not None
    assert first.runner_up is not None
    # Two layouts of one size, predicted alike.
    layouts = [first.chosen.layout, replace(first.chosen.layout, expert=True)]
    measured = {layouts[0].sizes: Fraction(900), layouts[1].sizes: Fraction(1100)}
    settled = search(replace(asked, measured=measured), layouts)

    assert settled.chosen is not None
    assert settled.chosen.layout.sizes == layouts[1].sizes
    assert settled.lost == "was measured at 900 tokens/s, against 1100 tokens/s"


def test_a_measurement_does_not_reach_beyond_the_tie() -> None:
    asked = question("Qwen3-32B", gpu(), concurrency=8, max_model_len=16384)
    wider = Split(4)

    assert sizes(best(replace(asked, measured={wider.sizes: Fraction(10**6)}))) == (2, 1, 1, False, 1)


def test_losing_a_gpu_changes_the_layout_or_names_what_is_missing() -> None:
    asked = question("Llama-3.1-8B", gpu("T4"), concurrency=1, max_model_len=2048)
    whole, seven, one = (best(asked, Site((size,), gpu="T4")) for size in (8, 7, 1))

    assert whole.chosen is not None
    assert seven.chosen is not None
    assert seven.chosen.layout.gpus <= 7
    assert one.chosen is None
    assert one.closest is not None
    assert one.closest.memory is not None
    assert not one.closest.memory.fits


def test_a_declared_size_is_taken_as_it_is() -> None:
    asked = question("Llama-3.1-8B", gpu())

    assert sizes(best(asked, wanted=Wanted(tensor=4, pipeline=2))) == (4, 2, 1, False, 1)
    assert candidates(asked.facts, NODE, Wanted(tensor=4, pipeline=4)) == ()


def test_slices_of_experts_give_way_to_whole_experts_where_blocks_do_not_divide() -> None:
    facts = RuleFacts(layers=4, heads=64, kv_heads=(4,), experts=128, expert_width=1536, expert_block=128)
    found = {layout.tensor: layout.expert for layout in candidates(facts, NODE, Wanted(pipeline=1, data=1))}

    assert found == {1: False, 2: False, 4: False, 8: True}


def test_one_gpu_exchanges_nothing_and_every_other_layout_prices_its_links() -> None:
    facts = StepFacts(hidden_size=4096, layers=32, expert_layers=30, attention_width=4096, sequences=64)

    def priced(split: Split) -> list[str]:
        layout = arranged(split, gpus_of_node=8)
        assert layout is not None
        return [one.name for one in collectives(facts, layout, gpu())]

    assert priced(Split(1)) == []
    assert priced(Split(4)) == ["tensor all-reduce"]
    assert priced(Split(4, expert=True)) == ["tensor all-reduce", "expert exchange"]
    assert priced(Split(1, 2)) == ["pipeline transfer"]
    assert priced(Split(2, data=4, expert=True)) == ["tensor all-reduce", "expert exchange"]
    assert priced(Split(8, decode_context=2)) == ["tensor all-reduce", "decode context exchange"]


def test_widths_that_vllms_own_all_reduce_lacks_say_so() -> None:
    facts = StepFacts(hidden_size=4096, layers=32, expert_layers=0, attention_width=4096, sequences=1)
    (exchange,) = collectives(facts, Layout(16, gpus_per_node=16, nodes=1), gpu())

    assert "by NCCL" in str(exchange)


@pytest.mark.property
@given(
    st.integers(1, 8),
    st.lists(st.integers(1, 8), min_size=1, max_size=6).map(lambda n: tuple(sorted(n, reverse=True))),
    st.sampled_from(["Llama-3.1-8B", "Qwen3-30B-A3B", "DeepSeek-V3", "gpt-oss-120b"]),
)
def test_every_candidate_keeps_the_rules_and_has_its_nodes(layers: int, nodes: tuple[int, ...], model: str) -> None:
    facts = replace(from_catalogue(catalogue_model(model)).facts, layers=layers)
    site = Site(nodes)
    for layout in candidates(facts, site, Wanted()):
        assert keeps_rules(facts, layout)
        assert layout.tensor <= nodes[0]
        assert site.holds(layout)
        assert layout.gpus <= sum(nodes)


def test_a_search_over_64_gpus_looks_at_each_layout_once() -> None:
    """Work, not time: it bounds how long a search takes, on any machine."""
    asked = question("DeepSeek-V3", gpu("T4"), concurrency=64, max_model_len=65536)
    seen: list[tuple[int, int, int, bool, int]] = []

    def counted(layout: Layout) -> Any:
        seen.append(layout.sizes)
        return asked.memory_of(layout)

    ranking = best(replace(asked, memory_of=counted), Site((8,) * 8))

    assert ranking.chosen is None
    assert len(seen) == len(set(seen)) <= 150
