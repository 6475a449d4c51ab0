"""Logits equal transformers' at every position, however the prompt is cut, on one rank and on two."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from logits_parity import CHUNKS, HALF_PRECISION_ERROR, Logits, assert_close, reference, run_quire_logits
from model_cases import CASES, MOE_CASES
from transformers import AutoModelForCausalLM

DTYPE_CASES = [
    "llama-gqa-64",
    "llama-mha-96-tied",
    "llama-gqa-80",
    "qwen2-mha-128",
    "qwen3-gqa-128",
    "gemma2-gqa-64",
    "mistral-window",
    "ministral-windows-of-some",
    "gemma3-gqa-64",
    "smollm3-nope",
    "phi3-mha-64",
    "glm4-gqa-64",
    "olmo2-mha-64",
    "olmo3-windows",
    "granite-gqa-64",
    "gpt-neox-mha-64",
    "stablelm-gqa-64",
    "gpt2-mha-64",
    "opt-mha-64",
    "bloom-mha-64",
    "mixtral-gqa-64",
    "qwen2-moe-gqa-64",
    "qwen3-moe-gqa-64",
    "granite-moe-gqa-64",
    "glm4-moe-gqa-64",
    "gpt-oss-gqa-64",
]
RANK_CASES = [
    "llama-gqa-64",
    "llama-mqa-128",
    "llama-biases",
    "qwen2-gqa-64-tied",
    "qwen3-gqa-96",
    "gemma2-mha-128-untied",
    "mistral-window",
    "ministral-gqa-80-tied",
    "gemma3-gqa-64",
    "smollm3-nope-windows-biases",
    "phi3-gqa-window-partial-longrope",
    "glm4-gqa-64",
    "olmo2-gqa-80-biases",
    "olmo3-mha-80-biases-plain-angles",
    "granite-mha-biases-tied",
    "gpt-neox-mha-64",
    "stablelm-mha-128-parallel-norms",
    "gpt2-mha-80-wide-untied",
    "opt-mha-64",
    "bloom-6-heads-untied",
    "mixtral-window-128-tied",
    "qwen2-moe-gqa-64",
    "qwen3-moe-gqa-64",
    "granite-moe-mha-tied",
    "glm4-moe-gqa-64",
    "gpt-oss-mha-80",
]


@pytest.fixture(scope="session")
def quire_logits(build_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Logits]:
    return functools.partial(run_quire_logits, build_dir, tmp_path_factory.mktemp("logits") / "out")


@pytest.mark.parametrize("name", CASES)
def test_float32_logits_equal_transformers(
    name: str, make_model: Callable[..., Path], quire_logits: Callable[..., Logits]
) -> None:
    config = CASES[name]
    model = make_model(config)
    whole = quire_logits(model, config)
    assert_close(whole, reference(model, config))
    # However the prompt is cut: bitwise the same.
    for chunk in CHUNKS:
        np.testing.assert_array_equal(quire_logits(model, config, chunk=chunk), whole)


@pytest.mark.parametrize("name", DTYPE_CASES)
def test_bfloat16_logits_are_as_good_as_transformers(
    name: str, make_model: Callable[..., Path], quire_logits: Callable[..., Logits]
) -> None:
    """Measured against fp32 arithmetic on the same bf16 weights, as transformers' error is.

    Which of two experts a near tie goes to differs between processors: of mixtures the worst positions are
    left out, one per cent of them.
    """
    config = CASES[name]
    model = make_model(config, dtype="bfloat16")
    exact = reference(model, config)
    theirs = reference(model, config, torch.bfloat16) - exact
    whole = quire_logits(model, config, dtype="bfloat16")
    ours = whole - exact
    assert 0 < np.linalg.norm(ours) <= HALF_PRECISION_ERROR * np.linalg.norm(theirs)
    left_out = len(ours) // 100 if name in MOE_CASES else 0
    worst = [np.sort(np.abs(errors).max(axis=1))[-1 - left_out] for errors in (ours, theirs)]
    assert worst[0] <= 1.5 * worst[1]
    for chunk in CHUNKS:
        np.testing.assert_array_equal(quire_logits(model, config, dtype="bfloat16", chunk=chunk), whole)


@pytest.mark.parametrize("name", RANK_CASES)
def test_two_ranks_give_the_same_logits(
    name: str, make_model: Callable[..., Path], quire_logits: Callable[..., Logits]
) -> None:
    config = CASES[name]
    model = make_model(config)
    assert_close(quire_logits(model, config, ranks=2), quire_logits(model, config))
    assert_close(quire_logits(model, config, ranks=2, chunk=37), reference(model, config))


@pytest.mark.parametrize("isa", ["avx512", "avx2", "generic"])
@pytest.mark.parametrize("name", ["llama-gqa-80", "qwen3-gqa-128"])
def test_every_instruction_set_gives_the_logits(
    name: str,
    isa: str,
    make_model: Callable[..., Path],
    quire_logits: Callable[..., Logits],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What this machine has of them; one it lacks is the best one once more."""
    monkeypatch.setenv("QUIRE_CPU_ISA", isa)
    config = CASES[name]
    assert_close(quire_logits(make_model(config), config), reference(make_model(config), config))
    model = make_model(config, dtype="bfloat16")
    exact = reference(model, config)
    theirs = np.sqrt(np.mean((reference(model, config, torch.bfloat16) - exact) ** 2))
    logits = quire_logits(model, config, dtype="bfloat16")
    assert 0 < np.sqrt(np.mean((logits - exact) ** 2)) <= HALF_PRECISION_ERROR * theirs
    np.testing.assert_array_equal(quire_logits(model, config, dtype="bfloat16", chunk=37), logits)


def test_sharded_and_half_precision_files_are_read(
    make_model: Callable[..., Path], quire_logits: Callable[..., Logits], tmp_path: Path
) -> None:
    config = CASES["llama-gqa-64"]
    model = AutoModelForCausalLM.from_pretrained(make_model(config), dtype=torch.float16)
    model.save_pretrained(tmp_path, max_shard_size="500KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    assert_close(quire_logits(tmp_path, config), reference(tmp_path, config))
