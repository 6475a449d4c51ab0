"""The bundled model: its tokens equal transformers', and it does what its card says."""

from __future__ import annotations

import json
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


def test_greedy_tokens_equal_transformers_on_200_prompts(demo_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(demo_model)
    model = AutoModelForCausalLM.from_pretrained(
        demo_model, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    ids: list[list[int]] = []
    for entry in PROMPTS:
        text = entry.get("prompt")
        if text is None:
            text = tokenizer.apply_chat_template(
                entry["messages"], tokenize=False, add_generation_prompt=True
            )
        ids.append(tokenizer(text)["input_ids"])
    assert len(ids) == 200
    llm = LLM(demo_model, dtype="float32")
    params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
    for prompt, output in zip(ids, llm.generate(ids, params, use_tqdm=False), strict=True):
        ours = output.outputs[0].token_ids
        assert len(ours) == 64
        # One pass over prompt and answer: if each token is the likeliest after those before it, then greedy
        # decoding with transformers gives the same 64.
        with torch.no_grad():
            logits = model(torch.tensor([prompt + ours])).logits[0, len(prompt) - 1 : -1]
        assert logits.argmax(-1).tolist() == ours


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
