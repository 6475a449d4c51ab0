"""Adapters of the experts of mixtures add what PEFT adds, in either form in which they are published."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lora_adapters import (
    Peft,
    assert_logits_agree,
    logits_with_each_expert,
    make_prompts,
    requests,
    write_adapter,
    write_adapter_of_each_expert,
)
from model_cases import CASES
from mxfp4_models import quantize_mxfp4
from peft import PeftModel
from quire import LoRARequest
from test_lora import make_llm, prompt_logprobs
from transformers import AutoModelForCausalLM

NUM_TOKENS = 130
BOTH = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
KINDS: list[dict[str, Any]] = [
    {"target_parameters": BOTH, "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "o_proj"]},
    {"target_parameters": ["down_proj"], "r": 3, "use_rslora": True, "target_modules": []},
    {
        "target_parameters": [*BOTH, "mlp.gate.weight"],
        "target_modules": ["v_proj"],
        "rank_pattern": {"experts.gate_up_proj": 7, "mlp.gate.weight": 2},
        "alpha_pattern": {"model.layers.1.mlp.experts.down_proj": 3},
    },
    {"target_parameters": ["gate_up_proj"], "r": 16, "lora_alpha": 40, "target_modules": []},
]
# What transformers calls the mixture and its router in memory.
MODELS = {
    "mixtral-gqa-64": ("mlp", "gate"),
    "qwen2-moe-gqa-64": ("mlp", "gate"),
    "qwen3-moe-gqa-64": ("mlp", "gate"),
    "gpt-oss-gqa-64": ("mlp", "router"),
    "glm4-moe-gqa-64": ("mlp", "gate"),
    "granite-moe-gqa-64": ("block_sparse_moe", "router"),
}
# What older checkpoints, and adapters, call a mixture and the linears of its experts.
# That of models that never had such linears is vLLM's.
QWEN_NAMES, MIXTRAL_NAMES = ("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2")
FORMS = {
    "mixtral-gqa-64": ("block_sparse_moe", MIXTRAL_NAMES),
    "qwen3-moe-gqa-64": ("mlp", QWEN_NAMES),
    "gpt-oss-gqa-64": ("mlp", MIXTRAL_NAMES),
    "glm4-moe-gqa-64": ("mlp", QWEN_NAMES),
    "granite-moe-gqa-64": ("block_sparse_moe", MIXTRAL_NAMES),
}


def kinds_of(name: str) -> list[dict[str, Any]]:
    mixture, router = MODELS[name]
    text = json.dumps(KINDS).replace("mlp.gate", f"mlp.{router}").replace("mlp.", mixture + ".")
    kinds: list[dict[str, Any]] = json.loads(text)
    return kinds


def some_experts(expert: int, name: str) -> int:
    """Not all of them, nor all that one has; ranks differ."""
    is_left_out = expert % 3 == 2 or (expert == 1 and name in ("up_proj", "w3"))
    return 0 if is_left_out else 1 + (expert + len(name) + ord(name[-1])) % 5


@pytest.mark.parametrize("name", MODELS)
def test_parameters_of_all_experts(name: str, make_model: Callable[..., Path], tmp_path: Path) -> None:
    """Several adapters and none in a batch, whose prompts are cut."""
    config = CASES[name]
    model = make_model(config)
    adapters = {
        f"a{i}": write_adapter(model, tmp_path / f"a{i}", i, **kind) for i, kind in enumerate(kinds_of(name))
    }
    names = [*adapters, None]
    prompts = make_prompts(len(names), config.vocab_size, NUM_TOKENS)
    ours = prompt_logprobs(make_llm(model), prompts, requests(adapters, names))
    for rows, prompt, adapter in zip(ours, prompts, names, strict=True):
        # Those of one PEFT model would have to be of the same parameters.
        peft = Peft(model, {adapter: adapters[adapter]} if adapter else {})
        theirs = peft.logits(prompt, adapter)
        assert adapter is None or (theirs - peft.logits(prompt, None)).abs().max() > 0.3
        assert_logits_agree(rows, theirs)


@pytest.mark.parametrize("name", FORMS)
def test_experts_by_themselves(name: str, make_model: Callable[..., Path], tmp_path: Path) -> None:
    config = CASES[name]
    model = make_model(config)
    mixture, names_of_linears = FORMS[name]
    adapters = {
        form: write_adapter_of_each_expert(model, tmp_path / form, seed, names_of_linears, mixture, **options)
        for seed, (form, options) in enumerate({"all": {}, "some": {"rank_of": some_experts}}.items())
    }
    names = [*adapters, None]
    prompts = make_prompts(len(names), config.vocab_size, NUM_TOKENS)
    ours = prompt_logprobs(make_llm(model), prompts, requests(adapters, names))
    for rows, prompt, adapter in zip(ours, prompts, names, strict=True):
        if adapter is None:
            assert_logits_agree(rows, Peft(model, {}).logits(prompt, None))
        else:
            theirs = logits_with_each_expert(model, adapters[adapter], prompt, names_of_linears)
            assert_logits_agree(rows, theirs)


def test_an_older_adapter_is_what_peft_makes_of_it(make_model: Callable[..., Path], tmp_path: Path) -> None:
    """Read as it was published, and as PEFT saves it today."""
    config = CASES["mixtral-gqa-64"]
    model = make_model(config)
    mixture, names_of_linears = FORMS["mixtral-gqa-64"]
    older = write_adapter_of_each_expert(model, tmp_path / "older", 0, names_of_linears, mixture)
    base: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
    PeftModel.from_pretrained(base, older).save_pretrained(tmp_path / "newer")
    adapters = {"older": older, "newer": tmp_path / "newer"}
    prompts = make_prompts(2, config.vocab_size, NUM_TOKENS)
    ours = prompt_logprobs(make_llm(model), prompts, requests(adapters, [*adapters]))
    for rows, prompt, adapter in zip(ours, prompts, adapters, strict=True):
        assert_logits_agree(rows, Peft(model, {"older": older}).logits(prompt, "older"))
        assert (adapters[adapter] / "adapter_config.json").read_text().count("target_parameters") == (
            adapter == "newer"
        )


@pytest.mark.parametrize("name", ["qwen3-moe-gqa-64", "gpt-oss-gqa-64"])
def test_two_ranks_have_their_shares(name: str, make_model: Callable[..., Path], tmp_path: Path) -> None:
    config = CASES[name]
    model = make_model(config)
    names_of_linears = FORMS[name][1]
    adapters = {
        "all": write_adapter(model, tmp_path / "all", 0, **kinds_of(name)[2]),
        "each": write_adapter_of_each_expert(
            model, tmp_path / "each", 1, names_of_linears, rank_of=some_experts
        ),
    }
    prompts = make_prompts(2, config.vocab_size, NUM_TOKENS)
    llm = make_llm(model, tensor_parallel_size=2)
    ours = prompt_logprobs(llm, prompts, requests(adapters, [*adapters]))
    assert_logits_agree(ours[0], Peft(model, {"all": adapters["all"]}).logits(prompts[0], "all"))
    theirs = logits_with_each_expert(model, adapters["each"], prompts[1], names_of_linears)
    assert_logits_agree(ours[1], theirs)


def test_no_bit_depends_on_the_others(make_model: Callable[..., Path], tmp_path: Path) -> None:
    """Alone, in company, with chunks of other sizes; and without an adapter as in an engine that has none."""
    config = CASES["qwen3-moe-gqa-64"]
    model = make_model(config, dtype="bfloat16")
    adapters = {
        "all": write_adapter(model, tmp_path / "all", 0, **KINDS[0]),
        "down": write_adapter(model, tmp_path / "down", 1, **KINDS[1]),
        "each": write_adapter_of_each_expert(model, tmp_path / "each", 2, rank_of=some_experts),
    }
    names = [*adapters, "all", None]
    prompts = make_prompts(len(names), config.vocab_size, NUM_TOKENS)
    given = requests(adapters, names)
    llm = make_llm(model, dtype="bfloat16")
    mixed = prompt_logprobs(llm, prompts, given)
    chunks = make_llm(model, dtype="bfloat16", max_num_batched_tokens=37, max_num_seqs=8, num_threads=2)
    for prompt, request, expected in zip(prompts, given, mixed, strict=True):
        for engine in (llm, chunks):
            np.testing.assert_array_equal(prompt_logprobs(engine, [prompt], [request])[0], expected)
    for options in ({"enable_lora": False}, {"enable_lora_experts": False}):
        plain = make_llm(model, dtype="bfloat16", **options)
        np.testing.assert_array_equal(prompt_logprobs(plain, prompts[-1:], [None])[0], mixed[-1])


def test_experts_in_mxfp4_have_adapters_too(make_model: Callable[..., Path], tmp_path: Path) -> None:
    config = CASES["gpt-oss-gqa-64"]
    plain = make_model(config)
    adapter = write_adapter(plain, tmp_path / "a", 0, **kinds_of("gpt-oss-gqa-64")[0])
    meant = quantize_mxfp4(plain, tmp_path / "quantized")
    prompts = make_prompts(2, config.vocab_size, 60)
    expected, found = (
        prompt_logprobs(make_llm(model), prompts, requests({"a": adapter}, ["a", None]))
        for model in (meant, tmp_path / "quantized")
    )
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_bfloat16_is_as_good_as_pefts(make_model: Callable[..., Path], tmp_path: Path) -> None:
    config = CASES["qwen3-moe-gqa-80-raw-weights"]
    assert config.num_experts == config.num_experts_per_tok  # there are no close choices
    model = make_model(config, dtype="bfloat16")
    adapters = {"a": write_adapter(model, tmp_path / "a", 0, **KINDS[0])}
    prompts = make_prompts(2, config.vocab_size, 60)
    llm = make_llm(model, dtype="bfloat16")
    ours = prompt_logprobs(llm, prompts, requests(adapters, ["a", "a"]))
    exact, theirs = Peft(model, adapters), Peft(model, adapters, torch.bfloat16)
    errors = np.zeros(2)
    for rows, prompt in zip(ours, prompts, strict=True):
        right = torch.log_softmax(exact.logits(prompt, "a").double(), -1).numpy()[:-1]
        peft = torch.log_softmax(theirs.logits(prompt, "a").double(), -1).numpy()[:-1]
        errors += [np.square(rows - right).sum(), np.square(peft - right).sum()]
    assert 0 < errors[0] <= errors[1]


def test_an_engine_without_experts_refuses_them(make_model: Callable[..., Path], tmp_path: Path) -> None:
    model = make_model(CASES["qwen3-moe-gqa-64"])
    adapter = write_adapter(model, tmp_path / "a", 0, **KINDS[0])
    llm = make_llm(model, enable_lora_experts=False)
    with pytest.raises(ValueError, match=r"mlp\.experts\.down_proj' is of a mixture's experts, and enable_"):
        llm.add_lora(LoRARequest("a", 0, adapter))
