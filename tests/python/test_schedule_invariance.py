"""However requests are scheduled, their tokens and log-probabilities are bitwise those of the plain run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from quire import LLM, KVArena, RequestOutput, SamplingParams
from quire._core import replay_recording

PREFIX = "You are a lighthouse keeper who answers in short sentences. "
PROMPTS = [PREFIX + ending for ending in ("Who are you?", "What do you see?", "Is it cold?")] + [
    "Tell me a short story about a lighthouse.",
    "The baker said " * 12,
    "One",
    "Once upon a time " * 5,
    PREFIX + "Who are you?",
]
PARAMS = SamplingParams(temperature=0.8, seed=7, max_tokens=40, ignore_eos=True, logprobs=3)


def results(outputs: list[RequestOutput]) -> list[tuple[list[int], list[list[tuple[int, float]]]]]:
    """Tokens, and the log-probabilities of the chosen and the likeliest ones, exactly."""
    return [
        (
            list(completion.token_ids),
            [
                [(id, value.logprob) for id, value in position.items()]
                for position in completion.logprobs or []
            ],
        )
        for output in outputs
        for completion in output.outputs
    ]


@pytest.fixture(scope="module")
def plain(demo_model: Path) -> Iterator[Any]:
    """One request at a time, in one step each, nothing cached."""
    llm = LLM(demo_model, max_model_len=256, max_num_seqs=1, enable_prefix_caching=False)
    yield results([llm.generate(prompt, PARAMS, use_tqdm=False)[0] for prompt in PROMPTS])


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 24, "max_num_seqs": 8},
        {"long_prefill_token_threshold": 7},
        {"num_gpu_blocks_override": 22, "max_num_seqs": 8, "scheduling_policy": "priority"},
        {"num_gpu_blocks_override": 22, "max_num_seqs": 8, "enable_prefix_caching": False},
        {"scheduling_policy": "cache_aware", "max_num_seqs": 2},
        {"scheduling_policy": "fair", "max_num_partial_prefills": 1, "long_prefill_token_threshold": 16},
    ],
    ids=lambda options: "-".join(f"{value}" for value in options.values()) or "default",
)
def test_results_do_not_depend_on_the_schedule(
    demo_model: Path, plain: Any, options: dict[str, Any], asynchronous: bool
) -> None:
    llm = LLM(demo_model, max_model_len=256, async_scheduling=asynchronous, **options)
    # Twice: the second time prefixes are cached.
    for _ in range(2):
        outputs = llm.generate(
            PROMPTS, PARAMS, use_tqdm=False, priority=[-i for i in range(len(PROMPTS))], user=list("ababcabc")
        )
        assert results(outputs) == plain
    stats = llm.stats()
    assert (stats.num_preemptions > 0) == ("num_gpu_blocks_override" in options)
    assert stats.num_free_blocks == stats.num_total_blocks
    if options.get("enable_prefix_caching", True):
        assert stats.prefix_cache_hits > 0


def test_two_models_in_one_arena_lend_each_other_blocks(demo_model: Path, plain: Any, tmp_path: Path) -> None:
    # Room for about three sequences of max_model_len: either engine alone would fill it.
    arena = KVArena(4 << 20)
    options: dict[str, Any] = {"max_model_len": 256, "kv_arena": arena, "max_num_seqs": 8}
    first, second = LLM(demo_model, **options), LLM(demo_model, **options)
    for llm in (first, second, first):
        assert results(llm.generate(PROMPTS, PARAMS, use_tqdm=False)) == plain
    # What each engine decided depended on the other; it replays all the same.
    for name, llm in (("first", first), ("second", second)):
        llm.dump_flight_recorder(tmp_path / name)
        report = replay_recording(str(tmp_path / name))
        assert report.divergence == ""
        assert report.num_identical == report.num_steps > 30
    with pytest.raises(ValueError, match="lower max_model_len, or raise the bytes of kv_arena"):
        LLM(demo_model, kv_arena=KVArena(1 << 16), max_num_seqs=1)
    # Each is sure of one sequence, 1 MiB here: there is not room for two.
    small = KVArena(3 << 19)
    alone = LLM(demo_model, max_model_len=256, kv_arena=small, max_num_seqs=8)
    with pytest.raises(
        ValueError, match="the KV arena of 1572864 bytes has 524288 bytes that no other engine"
    ):
        LLM(demo_model, max_model_len=256, kv_arena=small, max_num_seqs=8)
    assert alone.generate("Once", PARAMS, use_tqdm=False)[0].finished


def test_n_samples_share_their_prompts_blocks(demo_model: Path) -> None:
    llm = LLM(demo_model, max_model_len=256)
    prompt = PREFIX * 3
    params = SamplingParams(n=4, seed=3, max_tokens=8, ignore_eos=True)
    together = llm.generate(prompt, params, use_tqdm=False)[0]
    num_prompt_tokens = len(together.prompt_token_ids)
    stats = llm.stats()
    # The first of the four computes the prompt's full blocks, the others find them.
    assert stats.prefix_cache_hits == 3 * ((num_prompt_tokens - 1) // 16 * 16)
    apart = LLM(demo_model, max_model_len=256, enable_prefix_caching=False)
    assert [c.token_ids for c in apart.generate(prompt, params, use_tqdm=False)[0].outputs] == [
        c.token_ids for c in together.outputs
    ]
