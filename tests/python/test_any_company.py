"""Whole engines with random settings against one that serves a request at a time.

On the CPU a request's tokens and log-probabilities depend, bitwise, on nothing but the request, the block
size and the number of ranks: not on how steps are cut, who is in them, what is cached, preempted or asleep in
between. QUIRE_TESTS=full tries thousands of requests (tests/run_long.sh).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from quire import LLM, RequestOutput, SamplingParams

ENGINES = 200 if os.environ.get("QUIRE_TESTS") == "full" else 3  # of each block size and number of ranks
MAX_MODEL_LEN = 512
WORDS = (
    *("the", "a", "baker", "said", "once", "upon", "time", "king", "queen", "river", "bread", "and"),
    *("then", "she", "he", "went", "to", "see", "moon", "cat", "dog", "red", "blue"),
)

Request = tuple[str, dict[str, Any]]


def random_prompt(rng: random.Random, is_crowd: bool) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.choice([3, 20] if is_crowd else [3, 20, 60, 150])))


def random_params(rng: random.Random, is_crowd: bool) -> dict[str, Any]:
    params: dict[str, Any] = {
        "max_tokens": rng.choice([40, 160] if is_crowd else [1, 2, 7, 20, 40]),
        "temperature": rng.choice([0, 0, 0.7, 1.3]),
    }
    if rng.random() < 0.06:
        return {"beam_width": rng.choice([2, 4]), "max_tokens": params["max_tokens"], "temperature": 0}
    params["seed"] = rng.randrange(1 << 30)
    for chance, field, values in (
        (0.3, "top_k", [1, 5, 50]),
        (0.3, "top_p", [0.3, 0.9]),
        (0.2, "min_p", [0.05]),
        (0.25, "logprobs", [0, 1, 5]),
        (0.2, "prompt_logprobs", [0, 3]),
        (0.2, "presence_penalty", [0.7]),
        (0.2, "frequency_penalty", [-0.4]),
        (0.2, "repetition_penalty", [1.2]),
        (0.2, "stop", [["."], ["he ", "an"], ["\n"]]),
        (0.15, "n", [2, 3]),
        (0.15, "bad_words", [["the", "bread"]]),
        (0.15, "logit_bias", [{17: 5.0, 120: -5.0}]),
    ):
        if rng.random() < chance:
            params[field] = rng.choice(values)
    if rng.random() < 0.12:
        params["structured_outputs"] = rng.choice(
            [
                {"regex": "[a-z]{3,9} [0-9]+"},
                {"choice": ["yes", "no way"]},
                {"json": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}},
            ]
        )
    elif is_crowd or rng.random() < 0.3:
        params["min_tokens"] = min(5, params["max_tokens"])
        params["ignore_eos"] = is_crowd or rng.random() < 0.5
    return params


def random_settings(rng: random.Random, block_size: int, is_crowd: bool) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "max_num_seqs": 16 if is_crowd else rng.choice([1, 2, 5, 16]),
        "max_num_batched_tokens": max(rng.choice([16, 48, 128, 512]), block_size),
        "enable_prefix_caching": rng.random() < 0.7,
        "async_scheduling": rng.random() < 0.6,
        "scheduling_policy": rng.choice(["fcfs", "priority"]),
    }
    if is_crowd or rng.random() < 0.5:
        settings["num_gpu_blocks_override"] = (
            (36 if is_crowd else rng.choice([40, 60, 120])) * 16 // block_size
        )
    if rng.random() < 0.3:
        settings["long_prefill_token_threshold"] = 16
    if rng.random() < 0.2 and settings["max_num_seqs"] > 1:
        settings["max_num_partial_prefills"] = 2
    return settings


def random_requests(rng: random.Random, is_crowd: bool) -> list[Request]:
    shared = random_prompt(rng, is_crowd) + " "
    return [
        (shared * (rng.random() < 0.5) + random_prompt(rng, is_crowd), random_params(rng, is_crowd))
        for _ in range(20 if is_crowd else rng.choice([3, 8, 20]))
    ]


def told(output: RequestOutput) -> list[Any]:
    """All that a request is told, numbers to their last bit."""
    completions = [
        (list(each.token_ids), each.finish_reason, each.stop_reason, each.text, repr(each.logprobs))
        for each in output.outputs
    ]
    return [*completions, repr(output.prompt_logprobs)]


def answers(llm: LLM, requests: list[Request]) -> list[list[Any]]:
    prompts = [prompt for prompt, _ in requests]
    params = [SamplingParams(**fields) for _, fields in requests]
    return [told(output) for output in llm.generate(prompts, params, use_tqdm=False)]


@pytest.fixture(
    scope="module",
    params=[(16, 1), (32, 1), (16, 2)],
    ids=lambda each: f"blocks-of-{each[0]}-{each[1]}-ranks",
)
def make_engine(request: pytest.FixtureRequest) -> Iterator[Callable[..., LLM]]:
    block_size, ranks = request.param

    def make(**settings: Any) -> LLM:
        return LLM(block_size=block_size, tensor_parallel_size=ranks, max_model_len=MAX_MODEL_LEN, **settings)

    make.block_size = block_size  # type: ignore[attr-defined]
    yield make


def test_answers_are_those_of_a_request_alone(make_engine: Any) -> None:
    alone = make_engine(
        max_num_seqs=1, enable_prefix_caching=False, async_scheduling=False, max_num_batched_tokens=512
    )
    num_preemptions = num_hits = 0
    for seed in range(ENGINES):
        rng = random.Random(seed)
        is_crowd = seed % 2 == 1  # whose answers outgrow the memory that their prompts fit
        settings = random_settings(rng, make_engine.block_size, is_crowd)
        requests = random_requests(rng, is_crowd)
        expected = [answers(alone, [each])[0] for each in requests]
        llm = make_engine(**settings)
        for again in range(2):  # with what is cached, and perhaps after a sleep
            if again and rng.random() < 0.5:
                llm.sleep(level=rng.choice([1, 2]))
                llm.wake_up()
            for each, got, wanted in zip(requests, answers(llm, requests), expected, strict=True):
                assert got == wanted, (seed, again, settings, each)
        num_preemptions += llm.stats().num_preemptions
        num_hits += llm.stats().prefix_cache_hits
    assert num_preemptions > 0
    assert num_hits > 0
