"""GPT-OSS with experts in MXFP4: the engine computes with the weights that transformers makes of them."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import quire
import torch
from logits_parity import Logits, assert_close, reference, run_quire_logits
from model_cases import CASES, gpt_oss, mixtral
from mxfp4_models import SECTION, quantize_mxfp4, split
from quantized_models import quantize
from quire import LLM, SamplingParams
from safetensors.torch import load_file, save_file

SMALL: dict[str, Any] = {
    "device": "cpu",
    "max_model_len": 128,
    "kv_cache_memory_bytes": 16 << 20,
    "skip_tokenizer_init": True,
}
EXPERTS = "model.layers.1.mlp.experts."
# Two ranks divide 96 values of each expert in the middle of a block.
NARROW = gpt_oss(intermediate_size=96, hidden_size=192)


@pytest.fixture(scope="session")
def quire_logits(build_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Logits]:
    return functools.partial(run_quire_logits, build_dir, tmp_path_factory.mktemp("logits") / "out")


@pytest.mark.parametrize("config", [CASES["gpt-oss-mha-80"], NARROW], ids=["mha-80", "narrow"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_are_transformers_bit_for_bit(
    config: Any,
    dtype: str,
    make_model: Callable[..., Path],
    quire_logits: Callable[..., Logits],
    tmp_path: Path,
) -> None:
    meant = quantize_mxfp4(make_model(config, dtype=dtype), tmp_path)
    split(tmp_path)
    for ranks in (1, 2):
        ours = quire_logits(tmp_path, config, dtype=dtype, ranks=ranks)
        np.testing.assert_array_equal(ours, quire_logits(meant, config, dtype=dtype, ranks=ranks))
        if dtype == "float32":
            assert_close(ours, reference(tmp_path, config))  # transformers' own reading of these files
    # The weights were quantized: these are not the logits of the model that they were made of.
    plain = quire_logits(make_model(config, dtype=dtype), config, dtype=dtype)
    assert np.abs(ours - plain).max() > 0.1


def tokens(llm: LLM) -> list[int]:
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, detokenize=False)
    return list(llm.generate([1, 2, 3, 4], params, use_tqdm=False)[0].outputs[0].token_ids)


def test_plans_packed_and_dummy_weights_and_updates(make_model: Callable[..., Path], tmp_path: Path) -> None:
    model = tmp_path / "model"
    meant = quantize_mxfp4(make_model(NARROW, dtype="bfloat16"), model)
    llm = LLM(model, **SMALL)
    expected = tokens(LLM(meant, **SMALL))
    assert tokens(llm) == expected
    options = {key: value for key, value in SMALL.items() if key != "skip_tokenizer_init"}
    assert quire.plan(model, **options)["memory"] == llm.model.memory
    dummy = LLM(model, load_format="dummy", **SMALL)
    assert dummy.model.memory == llm.model.memory
    assert len(tokens(dummy)) == 20
    quire.pack_weights(model, tmp_path / "packed", device="cpu")
    assert tokens(LLM(tmp_path / "packed", **SMALL)) == expected

    weights = load_file(model / "model.safetensors")
    other = {name: 255 - tensor if name.endswith("_blocks") else tensor for name, tensor in weights.items()}
    llm.update_weights(other)
    assert tokens(llm) != expected
    llm.update_weights(model)
    assert tokens(llm) == expected
    bad = weights[EXPERTS + "down_proj_scales"].clone()
    bad.view(-1)[7] = 255
    with pytest.raises(ValueError, match=r"down_proj_scales' holds 255, which is NaN, at place 7"):
        llm.update_weights(other | {EXPERTS + "down_proj_scales": bad})
    part = {name: other[name] for name in other if EXPERTS + "down_proj_" in name and "bias" not in name}
    llm.update_weights(part, partial=True)
    assert tokens(llm) != expected
    del part[EXPERTS + "down_proj_scales"]
    with pytest.raises(ValueError, match="down_proj_scales' is missing, the scales of"):
        llm.update_weights(part, partial=True)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "gate_up_proj_scales",
            None,
            r"gate_up_proj_scales' is missing, the scales of '.*gate_up_proj_blocks'",
        ),
        ("gate_up_proj_blocks", None, r"gate_up_proj_blocks' is missing"),
        (
            "down_proj_scales",
            lambda x: x[:, :, :2],
            r"down_proj_scales' is U8 \[8, 192, 2\]; expected: U8, of the",
        ),
        (
            "down_proj_scales",
            lambda x: x.to(torch.int8),
            r"down_proj_scales' is I8 \[8, 192, 3\]; expected: U8",
        ),
        (
            "down_proj_blocks",
            lambda x: x[..., :8],
            r"down_proj_blocks' is U8 .*; expected: U8, the last dimension 16",
        ),
        ("down_proj", lambda x: x[:, :64], r"down_proj_blocks' has shape \[8, 64, 96\], the config asks for"),
        (
            "down_proj_scales",
            lambda x: torch.full_like(x, 255),
            r"down_proj_scales' holds 255, which is NaN, at place 0",
        ),
        (
            "down_proj_scales",
            lambda x: torch.full_like(x, 254),
            r"down_proj_blocks' holds NaN or an infinite value",
        ),
    ],
)
def test_what_is_wrong_is_named(
    name: str,
    change: Callable[[torch.Tensor], torch.Tensor] | None,
    message: str,
    make_model: Callable[..., Path],
    tmp_path: Path,
) -> None:
    quantize_mxfp4(make_model(NARROW), tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    for full in [
        EXPERTS + name + end for end in ("", "_blocks", "_scales") if EXPERTS + name + end in tensors
    ]:
        tensor = tensors.pop(full)
        if change is not None:
            tensors[full] = change(tensor).contiguous()
    save_file(tensors, file)
    with pytest.raises(ValueError, match=message):
        LLM(tmp_path, **SMALL)


def test_mixtures_that_are_quantized_otherwise_are_refused(
    make_model: Callable[..., Path], tmp_path: Path
) -> None:
    for config, mxfp4 in ((gpt_oss(), ", or one whose quant_method is mxfp4"), (mixtral(), "16$")):
        quantize(make_model(config), tmp_path, ignore=("lm_head", "re:.*router", "re:.*gate"))
        with pytest.raises(
            ValueError, match=f"mixture of experts that are quantized like this are not .*{mxfp4}"
        ):
            LLM(tmp_path, **SMALL)
    path = tmp_path / "config.json"
    shutil.copytree(make_model(mixtral()), tmp_path, dirs_exist_ok=True)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": SECTION}))
    for options in ({}, {"load_format": "dummy"}):
        with pytest.raises(
            ValueError, match="mixture of experts that are quantized like this are not supported"
        ):
            LLM(tmp_path, **SMALL, **options)
    quantize_mxfp4(make_model(NARROW), tmp_path)
    section = SECTION | {"modules_to_not_convert": ["model.layers.0.mlp.experts"]}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": section}))
    with pytest.raises(
        ValueError, match=r"'modules_to_not_convert' has 'model.layers.0.mlp.experts'; experts are"
    ):
        LLM(tmp_path, **SMALL)
