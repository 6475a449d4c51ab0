"""A small GPT-OSS that was trained (tools/demo_model/train_moe.py): its greedy text is transformers'."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from paths import ROOT
from quire import LLM, SamplingParams
from transformers import AutoModelForCausalLM, AutoTokenizer

DATA = ROOT / "tests" / "python" / "data"
PROMPTS = json.loads((DATA / "demo_prompts.json").read_text())[::2]
NUM_TOKENS = 64


@pytest.fixture(scope="module")
def moe_model(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its weights with the demo model's tokenizer, which it was trained with."""
    directory = shutil.copytree(DATA / "moe_model", tmp_path_factory.mktemp("moe") / "model")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(demo_model / name, directory)
    return directory


@pytest.fixture(scope="module")
def prompts(moe_model: Path) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(moe_model)
    texts = [
        entry["prompt"]
        if "prompt" in entry
        else tokenizer.apply_chat_template(entry["messages"], tokenize=False, add_generation_prompt=True)
        for entry in PROMPTS
    ]
    ids: list[list[int]] = tokenizer(texts)["input_ids"]
    return ids


@pytest.fixture(scope="module")
def answers(moe_model: Path, prompts: list[list[int]]) -> list[list[int]]:
    llm = LLM(moe_model, dtype="float32")
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def test_greedy_tokens_equal_transformers_and_all_experts_are_used(
    moe_model: Path, prompts: list[list[int]], answers: list[list[int]]
) -> None:
    assert len(prompts) == 100
    model: Any = AutoModelForCausalLM.from_pretrained(
        moe_model, dtype=torch.float32, attn_implementation="eager", experts_implementation="grouped_mm"
    ).eval()
    chosen: list[list[torch.Tensor]] = [[] for _ in model.model.layers]  # by layer, the experts of each token
    for layer, found in zip(model.model.layers, chosen, strict=True):
        layer.mlp.router.register_forward_hook(lambda _, __, out, found=found: found.append(out[2]))
    # Rows of like lengths share a pass; what pads them lies behind all that is looked at.
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    for batch in (order[i : i + 10] for i in range(0, len(order), 10)):
        sequences = [prompts[i] + answers[i] for i in batch]
        width = max(map(len, sequences))
        rows = torch.tensor([sequence + [0] * (width - len(sequence)) for sequence in sequences])
        is_text = torch.arange(width) < torch.tensor([[len(sequence)] for sequence in sequences])
        # One pass over prompt and answer: if each token is the likeliest after those before it, then greedy
        # decoding with transformers gives the same.
        with torch.no_grad():
            logits = model(rows).logits
        for found in chosen:
            found[-1] = found[-1][is_text.flatten()]
        for row, sequence in zip(logits, sequences, strict=True):
            end = len(sequence)
            likeliest = row[end - NUM_TOKENS - 1 : end - 1].argmax(-1).tolist()
            assert likeliest == sequence[end - NUM_TOKENS :]
    windows = [layer.self_attn.sliding_window for layer in model.model.layers]
    assert windows == [64, None] * 3
    assert sum(len(prompt) > 64 for prompt in prompts) >= 30  # so that they end within texts
    num_experts = model.config.num_local_experts
    for found in chosen:
        shares = torch.bincount(torch.cat(found).flatten(), minlength=num_experts) / sum(map(len, found))
        assert shares.min() > 0.3 * 2 / num_experts and shares.max() < 3 * 2 / num_experts, shares


def test_answers_are_text(answers: list[list[int]]) -> None:
    assert len({token for answer in answers for token in answer}) > 300
    assert len({tuple(answer) for answer in answers}) == len(answers)


def test_a_story_goes_on_without_collapsing(moe_model: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
    ids = LLM(moe_model).generate("Once upon a time", params, use_tqdm=False)[0].outputs[0].token_ids
    fourgrams = [tuple(ids[i : i + 4]) for i in range(len(ids) - 3)]
    assert len(set(fourgrams)) > 0.8 * len(fourgrams)
