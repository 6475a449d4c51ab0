"""What is drawn under bans, grammars and logits processors follows the renormalized softmax.

On the device of QUIRE_TEST_DEVICE, or else where the engine would compute.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from quire import LLM, BatchUpdate, LogitsProcessor, LogitsProcessorConfig, SamplingParams, Tokenizer
from scipy import stats
from test_sampling import Probabilities, distribution, last_logits
from transformers import AutoModelForCausalLM

VOCAB_SIZE = 4096
# A whole block, which is computed once for all samples, and one more token.
PROMPT = [*range(100, 117)]
NUM_SAMPLES = 2000
# A bias that a processor adds, the same in each run.
SHIFT = np.random.default_rng(5).normal(0, 2, VOCAB_SIZE)


class Shifts(LogitsProcessor):
    extra_arg_names = ("shift",)

    def __init__(self, config: LogitsProcessorConfig) -> None:
        self.shift = SHIFT.astype(np.float32)

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        pass

    def apply(self, logits: Any) -> None:
        logits += self.shift


@pytest.fixture(scope="module")
def llm(demo_model: Path) -> Iterator[LLM]:
    device = os.environ.get("QUIRE_TEST_DEVICE", "auto")
    yield LLM(
        demo_model,
        dtype="float32",
        device=device,
        max_num_seqs=256,
        max_model_len=64,
        logits_processors=[Shifts],
    )


@pytest.fixture(scope="module")
def reference(demo_model: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(demo_model, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tokenizer(demo_model: Path) -> Tokenizer:
    return Tokenizer(demo_model)


def samples(llm: LLM, **fields: Any) -> list[list[int]]:
    params = [SamplingParams(seed=i, **{"max_tokens": 1, **fields}) for i in range(NUM_SAMPLES)]
    outputs = llm.generate([PROMPT] * NUM_SAMPLES, params, use_tqdm=False)
    assert {output.outputs[0].finish_reason for output in outputs} <= {"length", "stop"}
    return [output.outputs[0].token_ids for output in outputs]


def expect_distribution(tokens: list[int], expected: Probabilities) -> None:
    counts = Counter(tokens)
    observed = np.array([counts[i] for i in range(VOCAB_SIZE)], dtype=float)
    assert observed[expected == 0].sum() == 0
    # Chi-square wants at least five expected in every cell: tokens that are about as rare share one.
    order = np.argsort(-expected, kind="stable")
    order = order[expected[order] > 0]
    cell = np.floor(np.cumsum(expected[order]) * len(tokens) / 10 - 1e-9).astype(int)
    cell[cell == cell[-1]] = max(cell[-1] - 1, 0)  # the last one may hold next to nothing
    _, index = np.unique(cell, return_inverse=True)
    cells = np.bincount(index, weights=observed[order])
    wanted = np.bincount(index, weights=expected[order]) * len(tokens)
    assert len(cells) > 2 and wanted.min() >= 5
    # Seeds are fixed, so this passes or fails for good; one in a thousand correct samplers would fail.
    assert stats.chisquare(cells, wanted).pvalue > 1e-3


FILTERS: list[dict[str, Any]] = [
    {"temperature": 3.0},
    {"temperature": 4.0, "top_p": 0.7},
    {"temperature": 4.0, "min_p": 0.1},
    {"temperature": 4.0, "top_k": 40, "top_p": 0.9, "min_p": 0.05},
]


def only(logits: Probabilities, allowed: np.ndarray[Any, Any]) -> Probabilities:
    return np.where(allowed, logits, -np.inf)


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_allowed_tokens_are_drawn_in_proportion(llm: LLM, reference: Any, filters: dict[str, Any]) -> None:
    ids = [*range(30, 900, 13), *range(2000, 2040)]
    allowed = np.isin(np.arange(VOCAB_SIZE), ids)
    drawn = samples(llm, allowed_token_ids=ids, **filters)
    expect_distribution(
        [t[0] for t in drawn], distribution(only(last_logits(reference, PROMPT), allowed), **filters)
    )


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_without_bad_words_the_others_are_drawn_in_proportion(
    llm: LLM, reference: Any, tokenizer: Tokenizer, filters: dict[str, Any]
) -> None:
    logits = last_logits(reference, PROMPT)
    # The likeliest tokens that a text makes by itself.
    words = []
    banned = np.zeros(VOCAB_SIZE, dtype=bool)
    for token in np.argsort(-logits)[:40].tolist():
        text = tokenizer.decode([token])
        forms = [tokenizer.encode(form, add_special_tokens=False) for form in (text, " " + text.lstrip())]
        if text.strip() and forms[0] == [token] and not text.startswith(" "):
            words.append(text)
            for form in forms:
                if len(form) == 1:
                    banned[form[0]] = True
    assert len(words) >= 3
    drawn = samples(llm, bad_words=words, **filters)
    expect_distribution([t[0] for t in drawn], distribution(only(logits, ~banned), **filters))


def test_behind_the_first_token_of_a_bad_word_the_second_is_left_out(
    llm: LLM, reference: Any, tokenizer: Tokenizer
) -> None:
    pairs = [tokenizer.encode(text, add_special_tokens=False) for text in ("he was", "it is", "she had")]
    first, second = next(pair for pair in pairs if len(pair) == 2)
    ids = sorted({first, second, 30, 43, 56, 69, 82})
    allowed = np.isin(np.arange(VOCAB_SIZE), ids)
    word = tokenizer.decode([first, second])
    fields = {"temperature": 4.0, "allowed_token_ids": ids, "bad_words": [word], "max_tokens": 2}
    drawn = [pair for pair in samples(llm, ignore_eos=True, **fields) if pair[0] == first]
    allowed[second] = False
    expected = distribution(only(last_logits(reference, [*PROMPT, first]), allowed), 4.0)
    assert len(drawn) > 100
    expect_distribution([pair[1] for pair in drawn], expected)


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_what_a_processor_changes_is_drawn_and_filtered(
    llm: LLM, reference: Any, filters: dict[str, Any]
) -> None:
    drawn = samples(llm, extra_args={"shift": True}, **filters)
    expect_distribution(
        [t[0] for t in drawn], distribution(last_logits(reference, PROMPT) + SHIFT, **filters)
    )


@pytest.mark.parametrize(
    ("filters", "shift"), [(FILTERS[0], False), *((filters, True) for filters in FILTERS)], ids=str
)
def test_what_a_grammar_permits_is_drawn_in_proportion(
    llm: LLM, reference: Any, tokenizer: Tokenizer, filters: dict[str, Any], shift: bool
) -> None:
    pattern = "[a-z]{2,12}"
    texts = [tokenizer.decode([i], skip_special_tokens=False) for i in range(VOCAB_SIZE)]
    # One letter is no answer yet, but a beginning.
    allowed = np.array([re.fullmatch("[a-z]{1,12}", text) is not None for text in texts])
    logits = last_logits(reference, PROMPT) + (SHIFT if shift else 0)
    drawn = samples(
        llm,
        structured_outputs={"regex": pattern},
        extra_args={"shift": True} if shift else None,
        **filters,
    )
    expect_distribution([t[0] for t in drawn], distribution(only(logits, allowed), **filters))
