"""config.json files that nobody published: a key is absent, or says something else, or is of another model.

What is computed is transformers', or the key is named in a refusal. QUIRE_TESTS=full takes each key away from
each architecture, and makes thousands of random changes (tests/run_long.sh).
"""

from __future__ import annotations

import functools
import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from logits_parity import Logits, reference, run_quire_logits
from model_cases import CASES, FACTORS, MOE_CASES
from random_models import write_random_model
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

IS_FULL = os.environ.get("QUIRE_TESTS") == "full"
CHANGES = 2000 if IS_FULL else 20
NUM_TOKENS = 100
ERROR = 3e-4  # of the largest logit: some of these models are less even than those of model_cases
TIES = 0.05  # of the rows of a mixture of experts, whose routers' logits may be that close
Json = dict[str, Any]

# Sizes, without which a small model is a large one, and what transformers writes about itself.
KEPT = {
    *("model_type", "architectures", "vocab_size", "hidden_size", "n_embd", "num_hidden_layers", "n_layer"),
    *("num_attention_heads", "n_head", "intermediate_size", "ffn_dim", "word_embed_proj_dim", "num_experts"),
    *("num_local_experts", "n_routed_experts", "moe_intermediate_size", "shared_expert_intermediate_size"),
    *("max_position_embeddings", "n_positions", "transformers_version", "_name_or_path", "dtype"),
}


def config_of(name: str) -> Json:
    config: Json = CASES[name].to_dict()
    return config | {"architectures": [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config["model_type"]]]}


@pytest.fixture(scope="session")
def quire_logits(build_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Logits]:
    return functools.partial(run_quire_logits, build_dir, tmp_path_factory.mktemp("logits") / "out")


def write_model(config: Json, directory: Path) -> Any:
    """A model of transformers' by that config.json, which is left as it was."""
    directory.mkdir()
    path = directory / "config.json"
    path.write_text(json.dumps(config))
    loaded = AutoConfig.from_pretrained(directory)
    write_random_model(loaded, directory, "float32")
    path.write_text(json.dumps(config))
    return SimpleNamespace(vocab_size=loaded.vocab_size)


def assert_same(name: str, logits: Logits, expected: Logits) -> None:
    differences = np.abs(logits - expected).max(axis=1)
    share = (differences > ERROR * np.abs(expected).max()).mean()
    assert share <= (TIES if name in MOE_CASES else 0), f"rows {share:.2f}, {differences.max()}"


ABSENT = object()
LONG = {"short_factor": FACTORS, "long_factor": [2 * factor for factor in FACTORS]}
SMALL_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
FOUND: dict[str, tuple[str, Json]] = {
    "whole-heads-whatever-is-said": ("llama-gqa-64", {"partial_rotary_factor": 0.5}),
    "gemma3-has-no-cap-of-scores": ("gemma3-gqa-64", {"attn_logit_softcapping": 2.0}),
    "length-beside-the-parameters": (
        "llama-gqa-64",
        {"rope_parameters": {**SMALL_YARN, "rope_theta": 1e4}, "original_max_position_embeddings": 32},
    ),
    "length-of-phi3": ("phi3-gqa-window-partial-longrope", {"original_max_position_embeddings": ABSENT}),
    "yarn-of-phi3": ("phi3-mha-64", {"rope_parameters": ABSENT, "rope_scaling": {"type": "yarn", **LONG}}),
    "theta-of-gpt-neox": ("gpt-neox-mha-64", {"rope_parameters": ABSENT, "rope_theta": 1e6}),
    "base-of-gpt-neox": (
        "gpt-neox-mha-64",
        {"rope_parameters": ABSENT, "rotary_emb_base": 500, "rotary_pct": 0.5},
    ),
    "eps-of-mixtral": ("mixtral-gqa-64", {"rms_norm_eps": ABSENT}),
    "eps-of-phi3": ("phi3-mha-64", {"rms_norm_eps": ABSENT}),
    "eps-of-glm4-moe": ("glm4-moe-gqa-64", {"rms_norm_eps": ABSENT, "num_experts_per_tok": ABSENT}),
    "heads-of-mistral": (
        "mistral-window",
        {"num_attention_heads": 16, "head_dim": 64, "num_key_value_heads": ABSENT},
    ),
    "heads-of-qwen3-moe": ("qwen3-moe-gqa-64", {"num_attention_heads": 8, "num_key_value_heads": ABSENT}),
    "heads-of-glm4": ("glm4-mqa-128-tied", {"head_dim": ABSENT, "num_key_value_heads": ABSENT}),
    "heads-of-gpt-oss": ("gpt-oss-gqa-64", {"head_dim": ABSENT}),
    "angles-of-gpt-oss": ("gpt-oss-gqa-64", {"rope_parameters": ABSENT}),
    "experts-of-qwen2": ("qwen2-moe-gqa-64", {"num_experts_per_tok": ABSENT}),
    "experts-of-qwen3": ("qwen3-moe-gqa-64", {"num_experts_per_tok": ABSENT}),
}


def changed(config: Json, changes: Json) -> Json:
    return {key: value for key, value in (config | changes).items() if value is not ABSENT}


@pytest.mark.parametrize("found", FOUND)
def test_keys_mean_what_they_mean_to_transformers(
    found: str, quire_logits: Callable[..., Logits], tmp_path: Path
) -> None:
    name, changes = FOUND[found]
    model = tmp_path / "model"
    size = write_model(changed(config_of(name), changes), model)
    expected = reference(model, size, num_tokens=NUM_TOKENS)
    assert_same(name, quire_logits(model, size, num_tokens=NUM_TOKENS), expected)


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        (
            "llama-gqa-64",
            {"rope_parameters": {**SMALL_YARN, "partial_rotary_factor": 0.5}},
            "'partial_rotary_factor' must be 1 where 'rope_type' is 'yarn'",
        ),
        (
            "gpt-neox-mha-64",
            {"rope_parameters": ABSENT, "rotary_pct": 0.01},
            "'rotary_pct' gives a rotary size of 0",
        ),
        ("llama-gqa-64", {"num_key_value_heads": 3}, "'num_key_value_heads' 3 does not divide"),
    ],
)
def test_a_refusal_names_the_key(
    name: str, changes: Json, said: str, quire_logits: Callable[..., Logits], tmp_path: Path
) -> None:
    model = tmp_path / "model"
    size = write_model(config_of(name), model)
    (model / "config.json").write_text(json.dumps(changed(config_of(name), changes)))
    with pytest.raises(AssertionError, match=said):
        quire_logits(model, size)


BOTH = (True, False)
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
ROPES: tuple[Json | None, ...] = (
    *(None, {"type": "linear", "factor": 2.0}, {"rope_type": "dynamic", "factor": 2.0}, {"type": "default"}),
    *(LLAMA3 | {"original_max_position_embeddings": 64}, SMALL_YARN, {"rope_type": "yarn", "factor": 4.0}),
    {"type": "yarn", "factor": 4.0, "attention_factor": 0.8, "beta_fast": 16, "beta_slow": 2},
    {"rope_type": "yarn", "factor": 2, "mscale": 0.7, "mscale_all_dim": 0.5},
    {"rope_type": "linear", "factor": 2.0, "rope_theta": 3000.0},
    {"rope_type": "longrope", "original_max_position_embeddings": 64, **LONG},
    {"type": "longrope", "factor": 4.0, **LONG},
)
VALUES: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        ("hidden_act", "hidden_activation", "activation_function"),
        ("silu", "gelu", "relu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "relu2", "swish", "mish"),
    ),
    **dict.fromkeys(("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"), (1e-3, 1e-8, 0.05)),
    **dict.fromkeys(("attention_bias", "mlp_bias", "use_qkv_bias", "qk_layernorm", "use_qk_norm"), BOTH),
    **dict.fromkeys(("enable_bias", "bias", "qkv_bias", "use_parallel_residual", "norm_topk_prob"), BOTH),
    **dict.fromkeys(("use_cache", "output_router_logits", "use_mup", "slow_but_exact"), BOTH),
    **dict.fromkeys(("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "do_layer_norm_before"), BOTH),
    **dict.fromkeys(("sliding_window_pattern", "_sliding_window_pattern"), (2, 3)),
    "tie_word_embeddings": (True, False, None),
    "num_key_value_heads": (1, 2, 4, None),
    "head_dim": (None, 64, 128),
    "sliding_window": (None, 1, 7, 50, 1000),
    "max_window_layers": (0, 1, 5),
    "layer_types": (None,),
    "partial_rotary_factor": (0.25, 0.5, 1.0),
    "rotary_pct": (0.25, 1.0),
    "rope_theta": (5000.0, 1000000),
    "rope_scaling": ROPES,
    "original_max_position_embeddings": (32, 64, 512),
    "max_position_embeddings": (100, 128, 4096),
    "attn_logit_softcapping": (None, 2.0, 50),
    "final_logit_softcapping": (None, 15.0, 30),
    "query_pre_attn_scalar": (64, 100),
    "embedding_multiplier": (0.5, 2),
    "residual_multiplier": (0.5, 1.0),
    "attention_multiplier": (0.1, 1),
    "logits_scaling": (2, 0.5),
    "num_experts_per_tok": (1, 2, 3),
    "decoder_sparse_step": (1, 2),
    "mlp_only_layers": ([], [0], [1]),
    "n_group": (1, 2, 4),
    "topk_group": (1, 2),
    "routed_scaling_factor": (1.0, 2.5),
    "first_k_dense_replace": (0, 1, 2),
    "n_shared_experts": (1, 2),
    "no_rope_layers": (None, [0, 1, 0, 1], [1, 1, 1, 1]),
    "no_rope_layer_interval": (1, 2, 3),
    "pretraining_tp": (1, 2),
    "swiglu_limit": (2.0, 7.0),
    "rope_local_base_freq": (5000.0, 20000),
    "clip_qkv": (0.5,),
    "attention_dropout": (0.1,),
    "num_hidden_layers": (1, 3, 7),
    "logit_scale": (0.5,),
}


def random_changes(rng: random.Random, config: Json) -> Json:
    """Mostly of keys that it has."""
    changes: Json = {}
    own = [key for key in VALUES if key in config]
    for _ in range(rng.choice([1, 1, 2, 2, 3, 4])):
        key = rng.choice(own if rng.random() < 0.7 else list(VALUES))
        changes[key] = rng.choice(VALUES[key])
        if "rope_parameters" in config and key in ("rope_scaling", "rope_theta", "partial_rotary_factor"):
            changes["rope_parameters"] = ABSENT
    if rng.random() < 0.15:
        changes[rng.choice([key for key in config if key not in KEPT])] = ABSENT
    return changes


def trials() -> Iterator[tuple[str, Json]]:
    rng = random.Random(8)
    for _ in range(CHANGES):
        name = rng.choice(list(CASES))
        yield name, random_changes(rng, config_of(name))
    if IS_FULL:
        yield from ((name, {key: ABSENT}) for name in CASES for key in config_of(name) if key not in KEPT)


def contradicts_itself(name: str, changes: Json) -> bool:
    """Whether transformers does: SmolLM 3's mask has windows where its layers have none, and a rope_theta by
    itself is of one kind of Olmo 3's layers."""
    if name.startswith("olmo3"):
        return "rope_theta" in changes
    return name.startswith("smollm3") and "use_sliding_window" in changes


def test_a_random_config_is_computed_as_transformers_does_or_refused(
    quire_logits: Callable[..., Logits], tmp_path: Path
) -> None:
    outcomes: Counter[str] = Counter()
    torch.set_num_threads(1)
    for index, (name, changes) in enumerate(trials()):
        if contradicts_itself(name, changes):
            continue
        model = tmp_path / str(index)
        try:
            size = write_model(changed(config_of(name), changes), model)
            expected = reference(model, size, num_tokens=NUM_TOKENS)
        except Exception:  # whatever transformers has against it
            outcomes["refused by transformers"] += 1
            continue
        try:
            logits = quire_logits(model, size, num_tokens=NUM_TOKENS)
        except AssertionError as refusal:
            said = str(refusal)
            assert "config.json: " in said or "the config asks for" in said, (name, changes, said)
            outcomes["refused"] += 1
            continue
        try:
            assert_same(name, logits, expected)
        except AssertionError as error:
            raise AssertionError(f"{name} with {changes}: {error}") from None
        outcomes["the same"] += 1
        for path in model.iterdir():
            path.unlink()
    assert outcomes["the same"] > 0.6 * outcomes.total(), outcomes
