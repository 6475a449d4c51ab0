"""Directories that other tools wrote: what they hold is named before anything of it is read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from quire import LLM, Tokenizer
from safetensors.torch import load_file, save_file


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def strip(model: Path) -> None:
    """Without what a model's config is not enough to be refused for."""
    (model / "tokenizer.json").unlink()
    (model / "model.safetensors").unlink()


GPTQ = {"bits": 4, "group_size": 128, "desc_act": True, "sym": True}


@pytest.mark.parametrize(
    ("key", "section", "named"),
    [
        ("quantization_config", {"quant_method": "gptq", **GPTQ}, "gptq, 4 bits"),
        ("quantization_config", {"quant_method": "awq", "bits": 4, "version": "gemm"}, "awq, 4 bits"),
        ("quantization_config", {"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8"),
        ("quantization_config", {"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
        ("quantization_config", {"load_in_8bit": True}, "bitsandbytes"),
        ("quantization_config", {}, "no quant_method"),
        ("compression_config", {"quant_method": "bitnet"}, "bitnet"),
    ],
)
def test_a_quantized_model_is_refused_by_its_method(
    copy: Path, key: str, section: dict[str, Any], named: str
) -> None:
    strip(copy)
    edit(copy / "config.json", **{key: section})
    for options in ({}, {"load_format": "dummy", "skip_tokenizer_init": True}):
        with pytest.raises(
            ValueError,
            match=rf"config\.json: '{key}' \({named}.*not supported; use the model that was quantized",
        ):
            LLM(copy, **options)


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("quantize_config.json", GPTQ, "gptq, 4 bits"),
        ("quant_config.json", {"w_bit": 4, "q_group_size": 128, "zero_point": True}, "awq, 4 bits"),
        ("hf_quant_config.json", {"quantization": {"quant_algo": "FP8"}}, "modelopt FP8"),
    ],
)
def test_a_file_beside_the_config_tells_of_quantization_too(
    copy: Path, name: str, content: dict[str, Any], named: str
) -> None:
    strip(copy)
    (copy / name).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=rf"{name}: the weights are quantized \({named}\): "):
        LLM(copy)


def test_no_quantization_is_none(copy: Path) -> None:
    edit(copy / "config.json", quantization_config=None)
    assert LLM(copy).generate("hello", use_tqdm=False)[0].finished


@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.1.mlp.down_proj.weight"])
def test_a_weight_that_is_nan_is_named(copy: Path, name: str) -> None:
    path = copy / "model.safetensors"
    tensors = load_file(path)
    tensors[name].view(-1)[5] = float("nan")
    save_file(tensors, path)
    with pytest.raises(
        ValueError, match=rf"safetensors: tensor '{name}' holds NaN or an infinite value, at place 5"
    ):
        LLM(copy)


def test_an_unknown_architecture_is_named_before_its_tokenizer(copy: Path) -> None:
    strip(copy)
    (copy / "tokenizer.model").write_bytes(b"\n\x0e\n\x05<unk>")
    edit(copy / "config.json", architectures=["GemmaForCausalLM"])
    with pytest.raises(ValueError, match="architecture 'GemmaForCausalLM' is not supported"):
        LLM(copy)


def test_a_broken_tokenizer_in_another_form_is_named(copy: Path) -> None:
    (copy / "tokenizer.json").unlink()
    for names, pattern in (
        (["vocab.json", "merges.txt"], "vocab.json: not valid JSON"),
        (["tokenizer.model"], "tokenizer.model: is no SentencePiece model: a field of 14 bytes where"),
    ):
        for name in names:
            (copy / name).write_bytes(b"\n\x0e\n\x05<unk>")
        pattern = f"{re.escape(str(copy))}/{pattern}"
        with pytest.raises(ValueError, match=pattern):
            LLM(copy)
        with pytest.raises(ValueError, match=pattern):
            Tokenizer(str(copy))
    llm = LLM(copy, skip_tokenizer_init=True)
    assert llm.generate([1, 2, 3], use_tqdm=False)[0].outputs[0].token_ids


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model.bin.index.json"])
def test_weights_in_another_form_are_named(copy: Path, name: str) -> None:
    (copy / "model.safetensors").rename(copy / name)
    pattern = "has neither model.safetensors nor .*; pytorch_model.bin is a pickle, .*'quire export'"
    with pytest.raises(ValueError, match=pattern):
        LLM(copy)
