"""A small GPT-OSS that was trained (tools/demo_model/train_moe.py): its greedy text is transformers'."""

from __future__ import annotations

import json
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
def llm(moe_model: Path) -> LLM:
    return LLM(moe_model, dtype="float32", enable_prefix_caching=False)


@pytest.fixture(scope="module")
def answers(llm: LLM, prompts: list[list[int]]) -> list[list[int]]:
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert llm.stats().num_preemptions == 0
    return [list(output.outputs[0].token_ids) for output in outputs]


def test_greedy_tokens_and_loads_of_experts_equal_transformers(
    moe_model: Path, llm: LLM, prompts: list[list[int]], answers: list[list[int]]
) -> None:
    assert len(prompts) == 100
    model: Any = AutoModelForCausalLM.from_pretrained(
        moe_model, dtype=torch.float32, attn_implementation="eager", experts_implementation="grouped_mm"
    ).eval()
    chosen: list[list[torch.Tensor]] = [[] for _ in model.model.layers]  # by layer, the experts of each token
    for layer, found in zip(model.model.layers, chosen, strict=True):
        layer.mlp.router.register_forward_hook(lambda _, __, out, found=found: found.append(out[2]))
    wanted: list[torch.Tensor] = []  # those of the last layer's that are of tokens whose logits are wanted
    # Rows of like lengths share a pass; what pads them lies behind all that is looked at.
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    for batch in (order[i : i + 10] for i in range(0, len(order), 10)):
        sequences = [prompts[i] + answers[i] for i in batch]
        width = max(map(len, sequences))
        rows = torch.tensor([sequence + [0] * (width - len(sequence)) for sequence in sequences])
        is_computed = torch.arange(width) < torch.tensor([[len(sequence) - 1] for sequence in sequences])
        is_wanted = is_computed & (
            torch.arange(width) >= torch.tensor([[len(prompts[i]) - 1] for i in batch])
        )
        # One pass over prompt and answer: if each token is the likeliest after those before it, then greedy
        # decoding with transformers gives the same.
        with torch.no_grad():
            logits = model(rows).logits
        wanted.append(chosen[-1][-1][is_wanted.flatten()])
        for found in chosen:
            found[-1] = found[-1][is_computed.flatten()]
        for row, sequence in zip(logits, sequences, strict=True):
            end = len(sequence)
            likeliest = row[end - NUM_TOKENS - 1 : end - 1].argmax(-1).tolist()
            assert likeliest == sequence[end - NUM_TOKENS :]
    windows = [layer.self_attn.sliding_window for layer in model.model.layers]
    assert windows == [64, None] * 3
    assert sum(len(prompt) > 64 for prompt in prompts) >= 30  # so that they end within texts
    num_experts = model.config.num_local_experts
    loads = llm.expert_loads()
    assert list(loads) == [f"model.layers.{i}.mlp" for i in range(len(chosen))]
    for counted, found in zip(loads.values(), chosen, strict=True):
        counts = torch.bincount(torch.cat(found).flatten(), minlength=num_experts)
        if found is not chosen[-1]:
            assert counted == counts.tolist()
        else:  # of prompts it has the last tokens, and others only in short steps
            at_least = torch.bincount(torch.cat(wanted).flatten(), minlength=num_experts)
            assert (at_least <= torch.tensor(counted)).all() and (torch.tensor(counted) <= counts).all()
            assert sum(counted) < counts.sum()
        shares = counts / sum(map(len, found))
        assert shares.min() > 0.3 * 2 / num_experts and shares.max() < 3 * 2 / num_experts, shares


def test_answers_are_text(answers: list[list[int]]) -> None:
    assert len({token for answer in answers for token in answer}) > 300
    assert len({tuple(answer) for answer in answers}) == len(answers)


def test_a_story_goes_on_without_collapsing(moe_model: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
    ids = LLM(moe_model).generate("Once upon a time", params, use_tqdm=False)[0].outputs[0].token_ids
    fourgrams = [tuple(ids[i : i + 4]) for i in range(len(ids) - 3)]
    assert len(set(fourgrams)) > 0.8 * len(fourgrams)
