"""int8 weights of compressed-tensors: logits equal those of the weights that the library makes of them."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from logits_parity import Logits, assert_close, reference, run_quire_logits
from model_cases import CASES, llama
from quantized_models import quantize
from quire import LLM, SamplingParams

LAYOUTS = ["pack-quantized", "int-quantized", "naive-quantized"]


@pytest.fixture(scope="session")
def quire_logits(build_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Logits]:
    return functools.partial(run_quire_logits, build_dir, tmp_path_factory.mktemp("logits") / "out")


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_are_those_of_the_weights_it_stands_for(
    layout: str,
    symmetric: bool,
    make_model: Callable[..., Path],
    quire_logits: Callable[..., Logits],
    tmp_path: Path,
) -> None:
    config = CASES["qwen2-gqa-80"]
    meant = quantize(make_model(config), tmp_path, layout, symmetric)
    expected = reference(meant, config)
    whole = quire_logits(tmp_path, config)
    assert_close(whole, expected)
    # The weights were quantized: these are not the logits of the model that they were made of.
    assert np.abs(whole - reference(make_model(config), config)).max() > 0.01 * np.abs(expected).max()
    for chunk in (37, 1):
        np.testing.assert_array_equal(quire_logits(tmp_path, config, chunk=chunk), whole)
    assert_close(quire_logits(tmp_path, config, ranks=2), expected)


@pytest.mark.parametrize("name", ["llama-gqa-64", "gemma2-mha-128-untied"])
def test_bfloat16_logits_are_as_good_as_transformers(
    name: str, make_model: Callable[..., Path], quire_logits: Callable[..., Logits], tmp_path: Path
) -> None:
    """A quantized head too. Against exact arithmetic on weights that transformers rounds to bfloat16."""
    config = CASES[name]
    meant = quantize(make_model(config, dtype="bfloat16"), tmp_path, ignore=())
    exact = reference(meant, config)
    theirs = np.sqrt(np.mean((reference(meant, config, torch.bfloat16) - exact) ** 2))
    logits = quire_logits(tmp_path, config, dtype="bfloat16")
    # int8 weights stand for numbers that bfloat16 has not: transformers rounds those, hence its error.
    assert 0 < np.sqrt(np.mean((logits - exact) ** 2)) <= 1.3 * theirs
    np.testing.assert_array_equal(quire_logits(tmp_path, config, dtype="bfloat16", chunk=37), logits)
    two = quire_logits(tmp_path, config, dtype="bfloat16", ranks=2)
    assert np.abs(two - logits).max() <= 0.05 * np.abs(exact).max()


def test_layers_are_chosen_by_name(
    make_model: Callable[..., Path], quire_logits: Callable[..., Logits], tmp_path: Path
) -> None:
    """Names match by an expression, exactly, or not at all."""
    config = CASES["llama-gqa-64"]
    ignore = ("lm_head", "model.layers.1.mlp.down_proj")
    meant = quantize(make_model(config), tmp_path, ignore=ignore)
    expected = reference(meant, config)
    assert_close(quire_logits(tmp_path, config), expected)
    change(tmp_path, ignore=["lm_head", r"re:model\.layers\.1\.mlp\.d"])
    assert_close(quire_logits(tmp_path, config), expected)
    change(tmp_path, ignore=["re:.*head$", ignore[1]], targets=["re:.*self_attn.*", r"re:.*mlp\.\w+_proj"])
    assert_close(quire_logits(tmp_path, config), expected)


def change(directory: Path, ignore: list[str] | None = None, **group: Any) -> None:
    """Replaces `ignore` of the quantization's section, and the other keys of its config group."""
    path = directory / "config.json"
    config = json.loads(path.read_text())
    section = config["quantization_config"]
    if ignore is not None:
        section["ignore"] = ignore
    section["config_groups"]["group_0"] |= group
    path.write_text(json.dumps(config))


def test_text_from_the_demo_model(demo_model: Path, tmp_path: Path) -> None:
    """The int8 model goes on as the model that it stands for does."""
    meant = quantize(demo_model, tmp_path)
    for directory in (tmp_path, meant):
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            if (demo_model / name).exists():
                (directory / name).write_bytes((demo_model / name).read_bytes())
    greedy = SamplingParams(temperature=0, max_tokens=40)
    prompts = ["Once upon a time", "The lighthouse", "A small dog"]
    texts = [
        [output.outputs[0].text for output in LLM(model, dtype="float32").generate(prompts, greedy)]
        for model in (tmp_path, meant)
    ]
    assert texts[0] == texts[1]


WEIGHTS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ({"weights": WEIGHTS | {"num_bits": 4}}, "weights of 4 bits of type 'int' are not supported"),
        ({"weights": WEIGHTS | {"type": "float"}}, "weights of 8 bits of type 'float' are not supported"),
        (
            {"weights": WEIGHTS | {"strategy": "group"}},
            "'strategy' 'group' is not supported; supported: channel",
        ),
        ({"weights": None}, "'weights' is missing"),
        ({"weights": WEIGHTS | {"dynamic": True}}, "'dynamic' true is not supported"),
        ({"input_activations": WEIGHTS}, "'input_activations' is not supported"),
        ({"targets": ["re:("]}, r"the expression 're:\(' cannot be read"),
        ({"targets": ["re:" + "(a*)*" * 400]}, "cannot be read"),
        ({"format": "marlin-24"}, "'format' 'marlin-24' is not supported"),
        ({"targets": ["re:.*q_proj"]}, "are quantized differently, and are computed as one product"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    group: dict[str, Any], message: str, make_model: Callable[..., Path], tmp_path: Path
) -> None:
    quantize(make_model(llama()), tmp_path)
    change(tmp_path, **group)
    with pytest.raises(ValueError, match=message):
        LLM(tmp_path, skip_tokenizer_init=True)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("quantization_status", "frozen", "'quantization_status' 'frozen' is not supported"),
        ("kv_cache_scheme", {"num_bits": 8}, "'kv_cache_scheme' is not supported"),
        ("sparsity_config", {"format": "sparse-24-bitmask"}, "'sparsity_config' is not supported"),
        ("config_groups", {}, "'config_groups' is missing"),
        ("config_groups", {"group_0": 3}, "'quantization_config.config_groups.group_0' must be an object"),
    ],
)
def test_sections_that_say_more_are_refused_by_name(
    key: str, value: object, message: str, make_model: Callable[..., Path], tmp_path: Path
) -> None:
    quantize(make_model(llama()), tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"][key] = value
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        LLM(tmp_path, skip_tokenizer_init=True)


def test_contradictory_files_are_refused_by_tensor(make_model: Callable[..., Path], tmp_path: Path) -> None:
    quantize(make_model(llama()), tmp_path)
    change(tmp_path, weights=WEIGHTS | {"symmetric": False})
    with pytest.raises(
        ValueError, match=r"tensor 'model\.layers\.0\.self_attn\.q_proj\.weight_zero_point' is missing"
    ):
        LLM(tmp_path, skip_tokenizer_init=True)
    quantize(make_model(llama()), tmp_path, "int-quantized")
    change(tmp_path, format="pack-quantized")
    with pytest.raises(
        ValueError, match=r"tensor 'model\.layers\.0\.self_attn\.q_proj\.weight_shape' is missing"
    ):
        LLM(tmp_path, skip_tokenizer_init=True)


def test_dummy_weights(make_model: Callable[..., Path], tmp_path: Path) -> None:
    quantize(make_model(llama()), tmp_path)
    llm = LLM(tmp_path, skip_tokenizer_init=True, load_format="dummy")
    output = llm.generate({"prompt_token_ids": [1, 2, 3]}, SamplingParams(max_tokens=4, ignore_eos=True))[0]
    assert len(output.outputs[0].token_ids) == 4
