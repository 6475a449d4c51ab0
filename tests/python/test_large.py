"""Sizes that small tests never reach, on tiny models: ``tests/run_long.sh large`` runs them.

Oracles are transformers, and the same engine at small sizes: on the CPU results do not depend on the
batch or on how a prompt is cut, to the last bit.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model_cases import llama
from quire import LLM, LLMEngine, SamplingParams
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.skipif(os.environ.get("QUIRE_TESTS") != "large", reason="QUIRE_TESTS=large")

MakeModel = Callable[..., Path]
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "detokenize": False}


def tiny(**changes: Any) -> Any:
    """One layer, 64 wide."""
    base: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 512,
    }
    return llama(**(base | changes))


def prompt(length: int, seed: int, vocab_size: int = 512) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(3, vocab_size, length).tolist()
    return ids


def engine(model: Path, **config: Any) -> LLM:
    base: dict[str, Any] = {"dtype": "float32", "skip_tokenizer_init": True, "device": "cpu"}
    return LLM(model, **(base | config))


def continuation(llm: LLM, ids: list[int], num_tokens: int = 4) -> list[tuple[int, float]]:
    """Greedy tokens, each with its log-probability."""
    params = SamplingParams(max_tokens=num_tokens, logprobs=0, **GREEDY)
    (output,) = llm.generate([ids], params)
    completion = output.outputs[0]
    assert completion.logprobs is not None
    logprobs = [
        position[token] for token, position in zip(completion.token_ids, completion.logprobs, strict=True)
    ]
    return [(token, entry.logprob) for token, entry in zip(completion.token_ids, logprobs, strict=True)]


def assert_transformers_agrees(model: Path, ids: list[int], found: list[tuple[int, float]]) -> None:
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa")
    with torch.no_grad():
        known = torch.tensor([ids + [token for token, _ in found[:-1]]])
        logits = reference(known, logits_to_keep=len(found)).logits[0].double()
    logprobs = torch.log_softmax(logits, dim=-1)
    for row, (token, logprob) in zip(logprobs, found, strict=True):
        assert row.argmax() == token or row.max() - row[token] < 1e-3
        assert abs(row[token] - logprob) < 1e-3


def test_blocks_beyond_four_gibibytes_hold_what_low_ones_hold(make_model: MakeModel) -> None:
    """64 KiB a token: prompts that differ fill the pool from its beginning to its end, and stay cached."""
    shape = {"num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 256}
    model = make_model(tiny(max_position_embeddings=2048, **shape))
    bytes_per_token = 32 * 256 * 2 * 4
    pool_bytes = 5 << 30
    llm = engine(model, kv_cache_memory_bytes=pool_bytes, max_model_len=2048, max_num_batched_tokens=1024)
    probe = prompt(1000, seed=1)
    low = continuation(llm, probe)
    seeds = range(100, 100 + int((4.6 * 2**30) / bytes_per_token / 1000))
    for seed in seeds:
        continuation(llm, prompt(1000, seed), num_tokens=1)
    # All are cached still, so they lie side by side.
    params = SamplingParams(max_tokens=1, **GREEDY)
    outputs = [llm.generate([prompt(1000, seed)], params)[0] for seed in seeds]
    assert sum(output.num_cached_tokens for output in outputs) * bytes_per_token > 4.5 * 2**30
    last = prompt(1000, seeds[-1])
    fresh = engine(model, max_model_len=2048, max_num_batched_tokens=1024, kv_cache_memory_bytes=256 << 20)
    high = continuation(llm, last)  # its prefix is read from beyond 4.5 GiB
    assert high == continuation(fresh, last)
    other = prompt(1000, seed=2)  # computed there
    assert continuation(llm, other) == continuation(fresh, other)
    assert continuation(llm, probe) == low == continuation(fresh, probe)


def test_1024_rows_run_at_once(make_model: MakeModel) -> None:
    model = make_model(tiny())
    prompts = [prompt(5 + i % 40, seed=i) for i in range(1024)]
    params = SamplingParams(max_tokens=12, **GREEDY)
    few = engine(model, max_num_seqs=8, max_model_len=256, kv_cache_memory_bytes=64 << 20)
    expected = [output.outputs[0].token_ids for output in few.generate(prompts, params)]
    many = LLMEngine(
        model, dtype="float32", skip_tokenizer_init=True, device="cpu", max_num_seqs=1024, max_model_len=256,
        max_num_batched_tokens=65536, kv_cache_memory_bytes=256 << 20,
    )  # fmt: skip
    for i, ids in enumerate(prompts):
        many.add_request(str(i), ids, params)
    most, found = 0, {}
    while many.has_unfinished_requests():
        for output in many.step():
            found[int(output.request_id)] = output.outputs[0].token_ids
        most = max(most, many.stats().num_running_reqs)
    assert most == 1024
    assert [found[i] for i in range(1024)] == expected


def test_a_prompt_of_16384_tokens_in_one_step(make_model: MakeModel) -> None:
    model = make_model(tiny(max_position_embeddings=32768))
    ids = prompt(16384, seed=3)
    config = {"max_model_len": 16640, "enable_prefix_caching": False, "kv_cache_memory_bytes": 256 << 20}
    whole = continuation(engine(model, max_num_batched_tokens=16384, **config), ids)
    assert whole == continuation(engine(model, max_num_batched_tokens=500, **config), ids)
    assert_transformers_agrees(model, ids, whole)


def test_a_vocabulary_of_262144(make_model: MakeModel) -> None:
    vocab_size = 262_144
    model = make_model(tiny(vocab_size=vocab_size))
    llm = engine(model, max_model_len=256, kv_cache_memory_bytes=64 << 20)
    ids = [*prompt(40, seed=4, vocab_size=vocab_size), vocab_size - 1]
    assert_transformers_agrees(model, ids, continuation(llm, ids, num_tokens=8))
    for last in (0, vocab_size - 1):
        for temperature in (0.0, 1.0):
            sampling = GREEDY | {"temperature": temperature, "seed": 1, "logit_bias": {last: 100.0}}
            params = SamplingParams(max_tokens=3, **sampling)
            assert llm.generate([ids], params)[0].outputs[0].token_ids == [last] * 3


def test_a_context_of_131072(make_model: MakeModel) -> None:
    model = make_model(tiny(max_position_embeddings=131_072))
    ids = prompt(131_072 - 8, seed=5)
    config = {"max_model_len": 131_072, "enable_prefix_caching": False, "kv_cache_memory_bytes": 512 << 20}
    large = continuation(engine(model, max_num_batched_tokens=8192, **config), ids, num_tokens=8)
    assert large == continuation(engine(model, max_num_batched_tokens=3000, **config), ids, num_tokens=8)
    assert_transformers_agrees(model, ids, large)
