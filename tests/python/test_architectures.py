"""Every architecture in an engine: chunks of prompts, shared prefixes and preemption change no token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from logits_parity import token_ids
from model_cases import CASES
from quire import LLM, SamplingParams
from transformers import AutoModelForCausalLM

# One of each architecture.
NAMES = [
    "llama-gqa-64",
    "qwen2-window",
    "qwen3-gqa-128",
    "gemma2-gqa-64",
    "gemma3-gqa-64",
    "mistral-window",
    "ministral-windows-of-some",
    "smollm3-nope-windows-biases",
    "phi3-mha-64",
    "glm4-gqa-64",
    "olmo2-gqa-80-biases",
    "olmo3-windows",
    "granite-gqa-64",
    "gpt-neox-mha-64",
    "stablelm-gqa-64",
    "gpt2-mha-64",
    "opt-mha-64",
    "bloom-6-heads-untied",
    "mixtral-gqa-64",
    "qwen2-moe-mha-dense-layers",
    "qwen3-moe-gqa-64",
    "granite-moe-gqa-64",
    "glm4-moe-norms-no-groups",
    "gpt-oss-gqa-64",
]
# Layers with windows need less of a cache that is to be too small.
NUM_BLOCKS = {"gemma3-gqa-64": 15, "mistral-window": 13, "olmo3-windows": 14, "ministral-windows-of-some": 24}
MAX_TOKENS = 40
MARGIN = 2e-3  # how much less likely than transformers' choice a token may be, in logits of about 10


@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_transformers(name: str, make_model: Callable[..., Path]) -> None:
    config = CASES[name]
    model = make_model(config)
    ids = token_ids(config)
    # The second begins as the third does, and the last as it does, of which it finds the blocks.
    prompts = [ids[:5], ids[:150], ids[:200], ids[5:130], ids[:200]]
    llm = LLM(
        model,
        skip_tokenizer_init=True,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        num_gpu_blocks_override=NUM_BLOCKS.get(name, 22),
        max_model_len=256,
    )
    params = SamplingParams(max_tokens=MAX_TOKENS, temperature=0, ignore_eos=True, detokenize=False)
    outputs = [list(out.outputs[0].token_ids) for out in llm.generate(prompts, params, use_tqdm=False)]
    assert llm.stats().num_preemptions > 0
    assert llm.generate(prompts[-1:], params, use_tqdm=False)[0].num_cached_tokens > 0
    reference = AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager").eval()
    for prompt, output in zip(prompts, outputs, strict=True):
        assert len(output) == MAX_TOKENS
        with torch.no_grad():
            logits = reference(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
        chosen = logits.gather(1, torch.tensor(output)[:, None])[:, 0]
        assert (logits.max(1).values - chosen).max() < MARGIN
