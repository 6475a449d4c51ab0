"""Adapters add what PEFT adds, each to the rows of its own requests, whatever else is in the batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lora_adapters import (
    KINDS,
    LLAMA_KINDS,
    MODELS,
    Peft,
    assert_logits_agree,
    make_adapters,
    make_prompts,
    merged_logits,
    requests,
)
from model_cases import CASES
from numpy.typing import NDArray
from quire import LLM, LoRARequest, RequestOutput, SamplingParams


def make_llm(model: Path, **changes: Any) -> LLM:
    options: dict[str, Any] = {
        "dtype": "float32",
        "enable_lora": True,
        "max_loras": 16,
        "max_lora_rank": 64,
        "max_logprobs": -1,
        "skip_tokenizer_init": True,
        "num_threads": 1,
        "max_num_batched_tokens": 256,  # prompts are cut
        "max_model_len": 512,
    }
    return LLM(model, **(options | changes))


def prompt_logprobs(
    llm: LLM, prompts: list[list[int]], given: list[LoRARequest | None]
) -> list[NDArray[np.float64]]:
    """Of all of the vocabulary, behind each token of each prompt but the last."""
    params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=-1, detokenize=False)
    outputs = llm.generate(prompts, params, lora_request=given, use_tqdm=False)
    found = []
    for output in outputs:
        assert output.outputs[0].error == "" and output.prompt_logprobs is not None
        rows = np.empty((len(output.prompt_logprobs) - 1, llm.model.vocab_size))
        for row, position in zip(rows, output.prompt_logprobs[1:], strict=True):
            assert position is not None and len(position) == len(row)
            for token, entry in position.items():
                row[token] = entry.logprob
        found.append(rows)
    return found


def test_ten_adapters_and_none_in_one_batch(make_model: Callable[..., Path], tmp_path: Path) -> None:
    model = make_model(CASES["llama-gqa-64"])
    adapters = make_adapters(model, tmp_path, LLAMA_KINDS)
    assert len(adapters) == 10
    names = [*adapters, None]
    prompts = make_prompts(len(names), CASES["llama-gqa-64"].vocab_size)
    given = requests(adapters, names)
    llm = make_llm(model)
    mixed = prompt_logprobs(llm, prompts, given)
    peft = Peft(model, adapters)
    base = [peft.logits(prompt, None) for prompt in prompts]
    for name, prompt, ours, without in zip(names, prompts, mixed, base, strict=True):
        theirs = peft.logits(prompt, name)
        assert name is None or (theirs - without).abs().max() > 1  # it says something else
        assert_logits_agree(ours, theirs)
    # Merged into the weights: the same up to rounding, which is another.
    for name, prompt, ours in list(zip(names, prompts, mixed, strict=True))[2:6]:
        assert name is not None
        assert_logits_agree(ours, merged_logits(model, adapters[name], prompt))
    # A request's bits do not depend on the others; and without an adapter they are those of a plain engine.
    for i in (0, 6, 10):
        [alone] = prompt_logprobs(llm, [prompts[i]], [given[i]])
        np.testing.assert_array_equal(alone, mixed[i])
    plain = make_llm(model, enable_lora=False)
    [alone] = prompt_logprobs(plain, [prompts[10]], [None])
    np.testing.assert_array_equal(alone, mixed[10])


@pytest.mark.parametrize("name", MODELS)
def test_adapters_of_each_kind_of_model(name: str, make_model: Callable[..., Path], tmp_path: Path) -> None:
    config = CASES[name]
    model = make_model(config)
    adapters = make_adapters(model, tmp_path, MODELS[name])
    names = [*adapters, None]
    prompts = make_prompts(len(names), config.vocab_size, 130)  # behind the end of each window
    peft = Peft(model, adapters)
    for ours, prompt, adapter in zip(
        prompt_logprobs(make_llm(model), prompts, requests(adapters, names)), prompts, names, strict=True
    ):
        assert_logits_agree(ours, peft.logits(prompt, adapter))


@pytest.mark.parametrize("name", ["llama-gqa-64", "gpt-neox-mha-64", "phi3-mha-64"])
def test_two_ranks_have_their_shares(name: str, make_model: Callable[..., Path], tmp_path: Path) -> None:
    config = CASES[name]
    model = make_model(config)
    adapters = make_adapters(model, tmp_path, KINDS[1:])
    names = [*adapters, None]
    prompts = make_prompts(len(names), config.vocab_size, 120)
    peft = Peft(model, adapters)
    ours = prompt_logprobs(make_llm(model, tensor_parallel_size=2), prompts, requests(adapters, names))
    for rows, prompt, adapter in zip(ours, prompts, names, strict=True):
        assert_logits_agree(rows, peft.logits(prompt, adapter))


def test_bfloat16_is_as_good_as_pefts(make_model: Callable[..., Path], tmp_path: Path) -> None:
    model = make_model(CASES["llama-gqa-64"], dtype="bfloat16")
    adapters = make_adapters(model, tmp_path, KINDS)
    names = list(adapters)
    prompts = make_prompts(len(names), CASES["llama-gqa-64"].vocab_size)
    ours = prompt_logprobs(make_llm(model, dtype="bfloat16"), prompts, requests(adapters, names))
    exact, theirs = Peft(model, adapters), Peft(model, adapters, torch.bfloat16)
    errors = np.zeros(2)
    for rows, prompt, name in zip(ours, prompts, names, strict=True):
        right = torch.log_softmax(exact.logits(prompt, name).double(), -1).numpy()[:-1]
        peft = torch.log_softmax(theirs.logits(prompt, name).double(), -1).numpy()[:-1]
        errors += [np.square(rows - right).sum(), np.square(peft - right).sum()]
    assert 0 < errors[0] <= errors[1]


def test_answers_are_the_same_however_they_are_scheduled(
    make_model: Callable[..., Path], tmp_path: Path
) -> None:
    """Chunks, cached prefixes, preemption, and fewer slots than adapters, so that these come and go."""
    config = CASES["llama-gqa-64"]
    model = make_model(config)
    adapters = make_adapters(model, tmp_path, LLAMA_KINDS[:6])
    shared, *others = make_prompts(9, config.vocab_size, 200)
    names = [*adapters, None, *adapters, None]
    prompts = [shared[: 64 + 16 * (i % 3)] + others[i % 8][:9] for i in range(len(names))]
    params = SamplingParams(max_tokens=60, temperature=0, ignore_eos=True, logprobs=1, detokenize=False)

    def answers(llm: LLM) -> list[list[tuple[int, float]]]:
        outputs = llm.generate(prompts, params, lora_request=requests(adapters, names), use_tqdm=False)
        return [scored(output) for output in outputs]

    expected = answers(make_llm(model))
    assert len({tuple(answer) for answer in expected[:7]}) == 7
    crowded = make_llm(
        model,
        max_loras=3,
        max_cpu_loras=4,
        num_gpu_blocks_override=26,
        max_num_batched_tokens=64,
        max_num_seqs=8,
        max_model_len=256,
    )
    for _ in range(2):
        assert answers(crowded) == expected
    stats = crowded.stats()
    assert stats.num_preemptions > 0
    assert stats.prefix_cache_hits > 0
    assert sum(info.is_loaded for info in crowded.list_loras()) == 4


def scored(output: RequestOutput) -> list[tuple[int, float]]:
    completion = output.outputs[0]
    assert completion.error == "" and completion.logprobs is not None
    return [
        (token, position[token].logprob)
        for token, position in zip(completion.token_ids, completion.logprobs, strict=True)
    ]
