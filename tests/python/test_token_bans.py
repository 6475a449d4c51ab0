"""Allowed tokens and bad words mean what vLLM means by them, and transformers' processors compute."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from quire import LLM, BatchUpdate, LogitsProcessor, SamplingParams
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    NoBadWordsLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

PROMPTS = ["Tell me a short story about a lighthouse.", "The baker said", "Once upon a time"]
WORDS = ["the", "lighthouse", " little", "was a", "of the sea", "bread", ".", "zebra crossing"]
FILLER = 3  # in front of the output, for a processor that wants sequences no longer than its input


@pytest.fixture(scope="module")
def reference(demo_model: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(demo_model, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tokenizer(demo_model: Path) -> Any:
    return AutoTokenizer.from_pretrained(demo_model)


@pytest.fixture(scope="module")
def llm(demo_model: Path) -> Iterator[LLM]:
    yield LLM(demo_model, dtype="float32", max_model_len=256)


def sequences(tokenizer: Any, words: list[str]) -> list[list[int]]:
    """A word's tokens, and with a blank before it where that is another token and as many."""
    found: list[list[int]] = []
    for word in words:
        bare = tokenizer.encode(word.lstrip(), add_special_tokens=False)
        spaced = tokenizer.encode(" " + word.lstrip(), add_special_tokens=False)
        found.append(bare)
        if spaced[0] != bare[0] and len(spaced) == len(bare):
            found.append(spaced)
    return found


def expect_likeliest(reference: Any, prompt: list[int], output: list[int], processors: list[Any]) -> None:
    """Each token is the likeliest of those that the processors leave, up to the rounding of fp32."""
    with torch.no_grad():
        logits = reference(torch.tensor([[*prompt, *output]])).logits[0].float()
    for i, token in enumerate(output):
        scores = logits[len(prompt) - 1 + i][None].clone()
        seen = torch.tensor([[FILLER] * 16 + output[:i]])
        for processor in processors:
            scores = processor(seen, scores)
        assert scores[0, token] >= scores[0].max() - 1e-3, (i, token)


def test_bad_words_are_those_of_transformers(llm: LLM, reference: Any, tokenizer: Any) -> None:
    bad = sequences(tokenizer, WORDS)
    assert {len(sequence) for sequence in bad} >= {1, 2, 3}
    params = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True, bad_words=WORDS)
    plain = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True)
    changed = 0
    for prompt in PROMPTS:
        [free] = llm.generate(prompt, plain, use_tqdm=False)
        [output] = llm.generate(prompt, params, use_tqdm=False)
        ids = output.outputs[0].token_ids
        changed += ids != free.outputs[0].token_ids
        expect_likeliest(reference, output.prompt_token_ids, ids, [NoBadWordsLogitsProcessor(bad)])
        for sequence in bad:
            ends = range(len(ids) - len(sequence) + 1)
            assert not any(ids[i : i + len(sequence)] == sequence for i in ends), sequence
    assert changed >= 2


def test_a_word_that_begins_in_the_prompt_may_come(llm: LLM, tokenizer: Any) -> None:
    plain = SamplingParams(temperature=0, max_tokens=1)
    [free] = llm.generate("Tell me a short story about a", plain, use_tqdm=False)
    pair = tokenizer.decode([free.prompt_token_ids[-1], free.outputs[0].token_ids[0]])
    params = SamplingParams(temperature=0, max_tokens=1, bad_words=[pair])
    [output] = llm.generate("Tell me a short story about a", params, use_tqdm=False)
    assert output.outputs[0].token_ids == free.outputs[0].token_ids


def test_allowed_tokens_are_all_that_come(llm: LLM, reference: Any) -> None:
    allowed = list(range(100, 2000, 7))
    suppressed = sorted(set(range(reference.config.vocab_size)) - set(allowed))
    params = SamplingParams(temperature=0, max_tokens=24, allowed_token_ids=allowed, logprobs=2)
    for prompt in PROMPTS:
        [output] = llm.generate(prompt, params, use_tqdm=False)
        completion = output.outputs[0]
        assert set(completion.token_ids) <= set(allowed)
        processor = SuppressTokensLogitsProcessor(suppressed)
        expect_likeliest(reference, output.prompt_token_ids, list(completion.token_ids), [processor])
        # Log-probabilities are the model's own: the likeliest tokens are others.
        assert completion.logprobs is not None
        likeliest = [min(p.values(), key=lambda entry: entry.rank).token_id for p in completion.logprobs]
        assert set(likeliest) - set(allowed)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 16, "max_num_seqs": 8},
        {"num_gpu_blocks_override": 18, "max_num_seqs": 8, "enable_prefix_caching": False},
    ],
    ids=lambda options: "-".join(f"{value}" for value in options.values()),
)
def test_bans_do_not_depend_on_the_schedule(
    demo_model: Path, options: dict[str, Any], asynchronous: bool
) -> None:
    base: dict[str, Any] = {"temperature": 0.8, "seed": 3, "max_tokens": 56, "ignore_eos": True}
    params = [
        SamplingParams(**base, bad_words=WORDS),
        SamplingParams(**base, allowed_token_ids=list(range(50, 900))),
        SamplingParams(**base),
        SamplingParams(**base, bad_words=["a", "and the"], allowed_token_ids=list(range(10, 3000))),
    ]
    prompts = [prompt * 6 for prompt in (*PROMPTS, "One")]
    alone = LLM(demo_model, max_model_len=256, max_num_seqs=1, enable_prefix_caching=False)
    expected = [
        alone.generate(prompt, given, use_tqdm=False)[0].outputs[0].token_ids
        for prompt, given in zip(prompts, params, strict=True)
    ]
    llm = LLM(demo_model, max_model_len=256, async_scheduling=asynchronous, **options)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert [output.outputs[0].token_ids for output in outputs] == expected
    assert (llm.stats().num_preemptions > 0) == ("num_gpu_blocks_override" in options)


class ForbidsAll(LogitsProcessor):
    extra_arg_names = ("forbid_all",)

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        pass

    def apply(self, logits: Any) -> None:
        logits[:] = -float("inf")


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("filters", [{}, {"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.1}])
def test_where_no_token_is_left_the_request_fails_alone(
    demo_model: Path, tokenizer: Any, temperature: float, filters: dict[str, Any]
) -> None:
    llm = LLM(demo_model, max_model_len=128, logits_processors=[ForbidsAll])
    base: dict[str, Any] = {"temperature": temperature, "seed": 5, "max_tokens": 8, "ignore_eos": True}
    [bread] = tokenizer.encode(" bread", add_special_tokens=False)
    [the] = tokenizer.encode(" the", add_special_tokens=False)
    none_left = [
        SamplingParams(**base, **filters, extra_args={"forbid_all": True}),
        SamplingParams(
            **{**base, "ignore_eos": False},
            **filters,
            allowed_token_ids=[bread],
            structured_outputs={"regex": "[0-9]+"},
            logprobs=1,
        ),
        # One token fits.
        SamplingParams(
            **{**base, "ignore_eos": False},
            **filters,
            allowed_token_ids=tokenizer.encode("b", add_special_tokens=False),
            structured_outputs={"choice": ["bread"]},
        ),
    ]
    others = [SamplingParams(**base, **filters), SamplingParams(**base, allowed_token_ids=[bread, the])]
    alone = [llm.generate(PROMPTS[0], params, use_tqdm=False)[0].outputs[0].token_ids for params in others]
    outputs = llm.generate([PROMPTS[0]] * 5, [*none_left, *others], use_tqdm=False)
    for i, output in enumerate(outputs[:3]):
        completion = output.outputs[0]
        assert completion.finish_reason == "error"
        assert completion.error.startswith("allowed_token_ids, bad_words, structured_outputs, ")
        assert completion.text == ("b" if i == 2 else "")
        assert f"error='{completion.error}'" in repr(completion)
    assert "error=" not in repr(outputs[3].outputs[0])
    assert [output.outputs[0].token_ids for output in outputs[3:]] == alone
