"""What is told of the experts of a mixture: to callers, in the stats and as metrics.

That the counts are those of transformers' routers is in test_moe_model.py.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from prometheus_samples import Samples
from quire import LLM, AsyncLLM, LLMEngine, PrometheusMetrics, SamplingParams

PROMPTS = [[5 + i] * (4 + 9 * i) for i in range(8)]
PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
NUM_COMPUTED = sum(len(prompt) + 11 for prompt in PROMPTS)
NUM_LAYERS, NUM_EXPERTS, TOP_K = 6, 8, 2


# The last layer may leave out tokens whose logits nobody wants: how many, batches decide.
NUM_WANTED = 12 * len(PROMPTS)


def of(llm: LLM) -> list[list[int]]:
    return list(llm.expert_loads().values())


@pytest.fixture(scope="module")
def expected(moe_model: Path) -> list[list[int]]:
    llm = LLM(moe_model, dtype="float32", enable_prefix_caching=False)
    assert of(llm) == [[0] * NUM_EXPERTS] * NUM_LAYERS
    llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    loads = of(llm)
    *all_but_last, last = [sum(counts) for counts in loads]
    assert all_but_last == [NUM_COMPUTED * TOP_K] * (NUM_LAYERS - 1)
    assert NUM_WANTED * TOP_K <= last < NUM_COMPUTED * TOP_K
    return loads


def test_two_ranks_count_once(moe_model: Path, expected: list[list[int]]) -> None:
    llm = LLM(moe_model, dtype="float32", enable_prefix_caching=False, tensor_parallel_size=2)
    llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    assert of(llm) == expected


def test_what_was_counted_stays_while_the_engine_sleeps(moe_model: Path, expected: list[list[int]]) -> None:
    llm = LLM(moe_model, dtype="float32", enable_prefix_caching=False)
    for level in (1, 2):
        llm.generate(PROMPTS[:4], PARAMS, use_tqdm=False)
        before = of(llm)
        llm.sleep(level=level)
        assert of(llm) == before
        llm.wake_up()
        llm.generate(PROMPTS[4:], PARAMS, use_tqdm=False)
        assert of(llm)[:-1] == [[level * count for count in counts] for counts in expected[:-1]]


def test_stats_and_metrics_say_the_same(moe_model: Path, expected: list[list[int]]) -> None:
    metrics = PrometheusMetrics(model_name="moe")
    engine = LLMEngine(moe_model, dtype="float32", enable_prefix_caching=False, metric_sink=metrics)
    for i, prompt in enumerate(PROMPTS):
        engine.add_request(str(i), prompt, PARAMS)
    engine.step()  # the first look comes with the first step
    running = Samples(metrics.render())("quire:expert_load_imbalance")
    assert 1 <= running <= NUM_EXPERTS
    assert engine.stats().expert_load_imbalance == running
    while engine.has_unfinished_requests():
        engine.step()
    stats, samples = engine.stats(), Samples(metrics.render())
    loads = list(engine.expert_loads().values())
    assert loads[:-1] == expected[:-1]
    assert stats.num_expert_tokens == sum(map(sum, loads))
    assert samples("quire:expert_tokens_total") == stats.num_expert_tokens
    assert samples("quire:expert_load_imbalance") == stats.expert_load_imbalance == 0


def test_the_imbalance_is_the_mean_layers_busiest_expert(moe_model: Path) -> None:
    engine = LLMEngine(moe_model, dtype="float32", enable_prefix_caching=False)
    engine.add_request("0", PROMPTS[-1], PARAMS)
    engine.step()
    loads = list(engine.expert_loads().values())
    busiest = [max(counts) / (sum(counts) / NUM_EXPERTS) for counts in loads]
    assert engine.stats().expert_load_imbalance == pytest.approx(sum(busiest) / NUM_LAYERS)


def test_they_can_be_asked_for_while_requests_run(moe_model: Path, expected: list[list[int]]) -> None:
    async def run() -> None:
        llm = AsyncLLM(moe_model, dtype="float32", enable_prefix_caching=False)

        async def ask(i: int) -> None:
            async for _ in llm.generate(PROMPTS[i], PARAMS, str(i)):
                pass

        asked = asyncio.gather(*(ask(i) for i in range(len(PROMPTS))))
        seen = [0]
        while not asked.done():
            seen.append(sum(map(sum, (await llm.expert_loads()).values())))
            await asyncio.sleep(0)
        await asked
        assert seen == sorted(seen)
        assert list((await llm.expert_loads()).values())[:-1] == expected[:-1]
        await llm.shutdown()
        with pytest.raises(MemoryError, match="has ended"):
            await llm.expert_loads()

    asyncio.run(run())


def test_a_dense_model_has_none(demo_model: Path) -> None:
    llm = LLM(demo_model)
    llm.generate([5, 6, 7], PARAMS, use_tqdm=False)
    assert llm.expert_loads() == {}
    assert llm.stats().num_expert_tokens == llm.stats().expert_load_imbalance == 0
