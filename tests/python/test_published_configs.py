"""config.json files of published models, as they are on the hub: what they say is what is computed.

Whole, each gives a model of as many parameters as transformers counts. With its numbers made small, it gives
transformers' logits, of tensors under the names that the publisher has for them.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import quire
import torch
from logits_parity import Logits, assert_close, reference, run_quire_logits
from quire import LLM
from random_models import write_random_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

FILE = Path(__file__).parent / "data" / "published_configs.json"
PUBLISHED: dict[str, dict[str, Any]] = json.loads(FILE.read_text())
REFUSED = {"facebook/opt-350m": r"'do_layer_norm_before' false \(opt-350m\) is not supported"}
READ = [name for name in PUBLISHED if name not in REFUSED]
# Of every key that gives a size, a small one; lists of numbers become as long as these sizes make them.
SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "n_embed"), 256),
    **dict.fromkeys(("intermediate_size", "ffn_dim"), 320),
    **dict.fromkeys(("num_attention_heads", "n_head"), 4),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 8),
    **dict.fromkeys(("num_experts_per_tok", "experts_per_token"), 2),
    "moe_intermediate_size": 96,
    "shared_expert_intermediate_size": 160,
    "head_dim": 64,
    "word_embed_proj_dim": 256,
    "vocab_size": 515,
    "sliding_window": 50,
    "query_pre_attn_scalar": 64,
}
LAYERS = ("num_hidden_layers", "n_layer")


def shrink(config: dict[str, Any]) -> dict[str, Any]:
    """The same keys, as many layers as it takes to see each kind."""
    small = dict(config)
    num_layers = 6 if "sliding_window_pattern" in config else 4
    for key, value in config.items():
        if key in LAYERS:
            small[key] = num_layers
        elif key in ("layer_types", "no_rope_layers"):
            small[key] = value[:num_layers]
        elif key == "num_key_value_heads":
            small[key] = min(value, 4 if value == config["num_attention_heads"] else 2)
        elif key.endswith("token_id"):
            small[key] = [1, 2] if isinstance(value, list) else 1
        elif key == "text_config":
            small[key] = shrink(value) | {"head_dim": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
            small[key]["vocab_size"] = SMALL["vocab_size"]
        elif key == "rope_scaling" and value is not None:
            size = 32 if config.get("partial_rotary_factor", 1) == 1 else 24
            small[key] = {k: v[:size] if isinstance(v, list) else v for k, v in value.items()}
        elif key in SMALL and isinstance(value, int):
            small[key] = SMALL[key]
    return small


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """Of the model of text within."""
    if "text_config" not in config:
        return {key: value for key, value in config.items() if key not in ("quantization_config", "auto_map")}
    kind = {"gemma3_text": "Gemma3ForCausalLM", "mistral": "MistralForCausalLM"}
    text: dict[str, Any] = config["text_config"]
    return text | {"architectures": [kind[text["model_type"]]]}


def load_config(directory: Path, config: dict[str, Any]) -> Any:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    return AutoConfig.from_pretrained(directory)


@pytest.mark.parametrize("name", READ)
def test_it_has_as_many_parameters_as_in_transformers(name: str, tmp_path: Path) -> None:
    config = PUBLISHED[name]
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(load_config(tmp_path / "text", text_config(config)))
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count > 1e8
    (tmp_path / "config.json").write_text(json.dumps(config))
    plan = quire.plan(tmp_path, load_format="dummy", dtype="bfloat16", max_model_len=128, device="cpu")
    assert plan["memory"]["weights"] == pytest.approx(2 * count, rel=0.004)


Tensors = dict[str, torch.Tensor]


def without(prefix: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}


def gpt2_names(tensors: Tensors) -> Tensors:
    out = without("transformer.")(tensors)
    mask = torch.ones(1, 1, 512, 512).tril()
    return out | {f"h.{layer}.attn.bias": mask for layer in range(4)}


def pythia_names(tensors: Tensors) -> Tensors:
    out = dict(tensors)
    for layer in range(4):
        name = f"gpt_neox.layers.{layer}.attention."
        out[name + "bias"] = torch.ones(1, 1, 64, 64).tril()
        out[name + "masked_bias"] = torch.tensor(-1e9)
        out[name + "rotary_emb.inv_freq"] = torch.ones(8)
    return out


def with_layer_that_drafts(tensors: Tensors) -> Tensors:
    extra = {
        name.replace("layers.3.", "layers.4."): tensor
        for name, tensor in tensors.items()
        if "layers.3." in name
    }
    return tensors | extra | {"model.layers.4.eh_proj.weight": torch.ones(256, 512)}


def with_images(tensors: Tensors) -> Tensors:
    out = {f"language_model.{name}": tensor for name, tensor in tensors.items()}
    out["vision_tower.vision_model.post_layernorm.weight"] = torch.ones(8)
    out["multi_modal_projector.mm_input_projection_weight"] = torch.ones(8, 8)
    return out


def with_images_as_transformers_5_writes(tensors: Tensors) -> Tensors:
    out = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in tensors.items()}
    return out | {"model.vision_tower.patch_conv.weight": torch.ones(8, 8)}


WRITTEN: dict[str, list[Callable[[Tensors], Tensors]]] = {
    "openai-community/gpt2": [gpt2_names],
    "EleutherAI/pythia-410m": [pythia_names],
    "bigscience/bloom-560m": [without("transformer.")],
    "facebook/opt-125m": [without("model.")],
    "zai-org/GLM-4.5-Air": [with_layer_that_drafts],
    "google/gemma-3-4b-it": [with_images, with_images_as_transformers_5_writes],
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": [with_images, with_images_as_transformers_5_writes],
}


@pytest.fixture(scope="session")
def quire_logits(build_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Logits]:
    return functools.partial(run_quire_logits, build_dir, tmp_path_factory.mktemp("logits") / "out")


@pytest.mark.parametrize("name", READ)
def test_logits_are_transformers(name: str, quire_logits: Callable[..., Logits], tmp_path: Path) -> None:
    config = shrink(PUBLISHED[name])
    config.pop("quantization_config", None)  # test_mxfp4.py
    text = tmp_path / "text"
    write_random_model(load_config(text, text_config(config)), text, "float32")
    size = SimpleNamespace(vocab_size=SMALL["vocab_size"])
    expected = reference(text, size)
    tensors = load_file(text / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    for written in WRITTEN.get(name, [lambda tensors: tensors]):
        save_file({k: v.clone() for k, v in written(tensors).items()}, tmp_path / "model.safetensors")
        assert_close(quire_logits(tmp_path, size), expected)
    assert np.abs(expected[200] - expected[201]).max() > 0.2  # tokens make a difference


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_computed_is_refused_by_name(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED[name]))
    with pytest.raises(ValueError, match=REFUSED[name]):
        LLM(tmp_path, load_format="dummy", skip_tokenizer_init=True)


def test_a_model_of_images_without_its_text_config_is_refused(tmp_path: Path) -> None:
    config = PUBLISHED["google/gemma-3-4b-it"]
    (tmp_path / "config.json").write_text(json.dumps(config | {"text_config": None}))
    with pytest.raises(ValueError, match=r"config\.json: 'text_config' is missing"):
        LLM(tmp_path, load_format="dummy", skip_tokenizer_init=True)
