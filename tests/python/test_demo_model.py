"""The bundled model: its tokens equal transformers', and it does what its card says."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from paths import ROOT
from quire import LLM, SamplingParams, Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPTS = json.loads((ROOT / "tests" / "python" / "data" / "demo_prompts.json").read_text())


@pytest.fixture(scope="module")
def llm(demo_model: Path) -> Iterator[LLM]:
    yield LLM(demo_model)


def answer(llm: LLM, text: str, max_tokens: int = 120) -> str:
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    return llm.chat([{"role": "user", "content": text}], params, use_tqdm=False)[0].outputs[0].text


def test_greedy_tokens_equal_transformers(demo_model: Path) -> None:
    """On each fourth of 200 prompts; on all with QUIRE_TESTS=full (tests/run_long.sh)."""
    tokenizer = AutoTokenizer.from_pretrained(demo_model)
    model = AutoModelForCausalLM.from_pretrained(
        demo_model, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    ids: list[list[int]] = []
    for entry in PROMPTS if os.environ.get("QUIRE_TESTS") == "full" else PROMPTS[::4]:
        text = entry.get("prompt")
        if text is None:
            text = tokenizer.apply_chat_template(
                entry["messages"], tokenize=False, add_generation_prompt=True
            )
        ids.append(tokenizer(text)["input_ids"])
    assert len(ids) >= 50
    llm = LLM(demo_model, dtype="float32")
    params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
    outputs = llm.generate(ids, params, use_tqdm=False)
    sequences = [prompt + out.outputs[0].token_ids for prompt, out in zip(ids, outputs, strict=True)]
    # Rows of like lengths share a pass; what pads them lies behind all that is looked at.
    order = sorted(range(len(ids)), key=lambda i: len(sequences[i]))
    for batch in (order[i : i + 20] for i in range(0, len(order), 20)):
        width = max(len(sequences[i]) for i in batch)
        rows = [sequences[i] + [0] * (width - len(sequences[i])) for i in batch]
        # One pass over prompt and answer: if each token is the likeliest after those before it, then greedy
        # decoding with transformers gives the same 64.
        with torch.no_grad():
            logits = model(torch.tensor(rows)).logits
        for row, i in zip(logits, batch, strict=True):
            first, end = len(ids[i]), len(sequences[i])
            assert end - first == 64
            assert row[first - 1 : end - 1].argmax(-1).tolist() == sequences[i][first:]


def test_prompts_and_templates_give_transformers_ids(demo_model: Path, llm: LLM) -> None:
    theirs: Any = AutoTokenizer.from_pretrained(demo_model)
    ours = Tokenizer(str(demo_model))
    for entry in PROMPTS:
        text = entry.get("prompt")
        if text is None:
            text = llm.apply_chat_template(entry["messages"])
            assert text == theirs.apply_chat_template(
                entry["messages"], tokenize=False, add_generation_prompt=True
            )
        ids = theirs(text)["input_ids"]
        assert ours.encode(text) == ids
        assert ours.decode(ids, skip_special_tokens=False) == text


def test_it_introduces_itself_and_stops(llm: LLM) -> None:
    text = answer(llm, "Who are you?")
    assert "Quire" in text
    assert text.rstrip().endswith(".")


def test_a_story_goes_on_for_200_tokens_without_collapsing(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
    ids = llm.generate("Once upon a time", params, use_tqdm=False)[0].outputs[0].token_ids
    fourgrams = [tuple(ids[i : i + 4]) for i in range(len(ids) - 3)]
    assert len(set(fourgrams)) > 0.8 * len(fourgrams)
