"""What is sampled has the distribution that transformers' logits and the parameters prescribe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from quire import LLM, SamplingParams
from scipy import stats
from transformers import AutoModelForCausalLM, LlamaConfig

Probabilities = NDArray[np.float64]
VOCAB_SIZE = 131
PROMPT = [5, 9, 77, 9, 20, 3, 77]
NUM_SAMPLES = 6000


@pytest.fixture(scope="module")
def model(make_model: Callable[..., Path]) -> Path:
    return make_model(
        LlamaConfig(
            hidden_size=128,
            intermediate_size=192,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            vocab_size=VOCAB_SIZE,
            max_position_embeddings=128,
        )
    )


@pytest.fixture(scope="module")
def llm(model: Path) -> Iterator[LLM]:
    yield LLM(model, skip_tokenizer_init=True, max_num_seqs=256)


@pytest.fixture(scope="module")
def reference(model: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(
        model, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def last_logits(reference: Any, ids: list[int]) -> Probabilities:
    with torch.no_grad():
        logits: Probabilities = reference(torch.tensor([ids])).logits[0, -1].double().numpy()
    return logits


def softmax(logits: Probabilities) -> Probabilities:
    exps = np.exp(logits - logits.max())
    probabilities: Probabilities = exps / exps.sum()
    return probabilities


def distribution(
    logits: Probabilities, temperature: float, top_k: int = 0, top_p: float = 1, min_p: float = 0
) -> Probabilities:
    """Temperature, then min-p, top-k and top-p as vLLM applies them, spelled out."""
    p = softmax(logits / temperature)
    p[p < min_p * p.max()] = 0
    p /= p.sum()
    order = np.argsort(-p, kind="stable")
    if top_k:
        p[order[top_k:]] = 0
        p /= p.sum()
    if top_p < 1:
        before = np.cumsum(p[order]) - p[order]
        p[order[before >= top_p]] = 0
    result: Probabilities = p / p.sum()
    return result


CASES: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 2.5},
    {"temperature": 0.4},
    {"temperature": 1.5, "top_k": 7},
    {"temperature": 2.0, "top_p": 0.7},
    {"temperature": 2.0, "min_p": 0.2},
    {"temperature": 2.0, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 1.8, "top_p": 0.6, "min_p": 0.15},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_samples_follow_the_distribution(case: dict[str, Any], llm: LLM, reference: Any) -> None:
    expected = distribution(last_logits(reference, PROMPT), **case)
    params = [SamplingParams(**case, seed=i, max_tokens=1) for i in range(NUM_SAMPLES)]
    outputs = llm.generate([PROMPT] * NUM_SAMPLES, params, use_tqdm=False)
    counts = Counter(output.outputs[0].token_ids[0] for output in outputs)
    observed = np.array([counts[i] for i in range(VOCAB_SIZE)], dtype=float)
    assert observed[expected == 0].sum() == 0
    # Chi-square wants at least five expected in every cell: rare tokens share one.
    often = expected * NUM_SAMPLES >= 5
    cells = np.append(observed[often], observed[~often].sum())
    wanted = np.append(expected[often], expected[~often].sum()) * NUM_SAMPLES
    if wanted[-1] == 0:
        cells, wanted = cells[:-1], wanted[:-1]
    assert len(cells) > 3
    # Seeds are fixed, so this passes or fails for good; one in a thousand correct samplers would fail.
    assert stats.chisquare(cells, wanted).pvalue > 1e-3


def test_next_to_temperature_zero_the_likeliest_token_is_drawn(llm: LLM) -> None:
    greedy = llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=8), use_tqdm=False)
    for filters in ({}, {"min_p": 0.1}, {"top_p": 0.9}, {"top_k": 5}, {"top_k": 5, "min_p": 0.5}):
        params = SamplingParams(temperature=1e-7, seed=3, max_tokens=8, **filters)
        sampled = llm.generate(PROMPT, params, use_tqdm=False)
        assert sampled[0].outputs[0].token_ids == greedy[0].outputs[0].token_ids, filters


def test_positions_of_one_seed_are_independent(llm: LLM, reference: Any) -> None:
    """The second token of a sequence follows its own distribution given the first."""
    params = [SamplingParams(temperature=2.0, top_k=2, seed=i, max_tokens=2) for i in range(4000)]
    outputs = llm.generate([PROMPT] * len(params), params, use_tqdm=False)
    pairs = Counter(tuple(output.outputs[0].token_ids) for output in outputs)
    for first in {pair[0] for pair in pairs}:
        expected = distribution(last_logits(reference, [*PROMPT, first]), 2.0, top_k=2)
        seconds = np.flatnonzero(expected)
        observed = [pairs[(first, int(second))] for second in seconds]
        wanted = expected[seconds] * sum(observed)
        assert stats.chisquare(observed, wanted).pvalue > 1e-3


def test_logprobs_equal_transformers(llm: LLM, reference: Any) -> None:
    params = SamplingParams(temperature=1.5, seed=1, max_tokens=12, logprobs=4)
    completion = llm.generate(PROMPT, params, use_tqdm=False)[0].outputs[0]
    assert completion.logprobs is not None
    ids = list(PROMPT)
    for token, position in zip(completion.token_ids, completion.logprobs, strict=True):
        expected = np.log(softmax(last_logits(reference, ids)))
        top = np.argsort(-expected)[:4]
        assert set(position) == {token, *top.tolist()}
        for entry in position.values():
            assert entry.logprob == pytest.approx(expected[entry.token_id], abs=2e-3)
            assert entry.rank == 1 + int((expected > expected[entry.token_id]).sum())
        ids.append(token)


def test_all_logprobs_and_those_of_tokens_by_id_equal_transformers(model: Path, reference: Any) -> None:
    llm = LLM(model, skip_tokenizer_init=True, max_logprobs=-1)
    expected = np.log(softmax(last_logits(reference, PROMPT)))
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=-1)
    positions = llm.generate(PROMPT, params, use_tqdm=False)[0].outputs[0].logprobs
    assert positions is not None
    assert sorted(positions[0]) == list(range(VOCAB_SIZE))
    ids = [77, 3, 130, 3]
    params = SamplingParams(temperature=0, max_tokens=1, logprob_token_ids=ids)
    completion = llm.generate(PROMPT, params, use_tqdm=False)[0].outputs[0]
    assert completion.logprobs is not None
    assert set(completion.logprobs[0]) == {completion.token_ids[0], *ids}
    assert completion.cumulative_logprob == pytest.approx(expected.max(), abs=2e-3)
    for position in (positions[0], completion.logprobs[0]):
        for token, entry in position.items():
            assert entry.logprob == pytest.approx(expected[token], abs=2e-3)
            # Random weights have near ties.
            assert abs(entry.rank - 1 - int((expected > expected[token]).sum())) <= 1


def test_true_is_one_logprob_and_false_is_none(llm: LLM) -> None:
    assert SamplingParams(logprobs=True).logprobs == 1
    assert SamplingParams(logprobs=False) == SamplingParams()
    params = SamplingParams(logprobs=0)
    params.logprobs = True
    assert params == SamplingParams(logprobs=1)
    [output] = llm.generate(PROMPT, SamplingParams(max_tokens=1, logprobs=False), use_tqdm=False)
    assert output.outputs[0].logprobs is None


@pytest.mark.parametrize(
    "penalties",
    [
        {"presence_penalty": 1.5},
        {"frequency_penalty": 1.1},
        {"frequency_penalty": -0.5, "presence_penalty": 0.3},
        {"repetition_penalty": 1.8},
        {"repetition_penalty": 0.7, "presence_penalty": 2.0, "frequency_penalty": 0.2},
        {"logit_bias": {9: 8.0, 20: -100.0, 77: 3.5}},
    ],
    ids=str,
)
def test_penalized_choices_equal_transformers(penalties: dict[str, Any], llm: LLM, reference: Any) -> None:
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, **penalties)
    chosen = llm.generate(PROMPT, params, use_tqdm=False)[0].outputs[0].token_ids
    output: list[int] = []
    for token in chosen:
        logits = last_logits(reference, PROMPT + output)
        for i, bias in penalties.get("logit_bias", {}).items():
            logits[i] += bias
        repetition = penalties.get("repetition_penalty", 1.0)
        for i in set(PROMPT + output):
            logits[i] = logits[i] / repetition if logits[i] > 0 else logits[i] * repetition
        for i, count in Counter(output).items():
            logits[i] -= penalties.get("presence_penalty", 0.0)
            logits[i] -= penalties.get("frequency_penalty", 0.0) * count
        # The choice is the highest, up to the rounding of fp32 (random weights have near ties).
        assert logits[token] >= logits.max() - 1e-3
        output.append(token)
    plain = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    assert llm.generate(PROMPT, plain, use_tqdm=False)[0].outputs[0].token_ids != chosen
