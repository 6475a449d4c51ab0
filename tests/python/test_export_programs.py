"""``quire export`` of what torch.export wrote: the configuration is found in the graph."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import quire
import torch
from logits_parity import assert_close, reference, run_quire_logits
from model_cases import CASES, smollm3
from transformers import AutoModelForCausalLM

SMALL = "llama-gqa-64"


def assert_same_logits(build_dir: Path, tmp_path: Path, written: Path, model: Path, name: str) -> None:
    found = run_quire_logits(build_dir, tmp_path / "out", written, CASES[name])
    assert_close(found, reference(model, CASES[name]))


@pytest.mark.parametrize(
    "name",
    [
        SMALL,
        "qwen2-gqa-80",
        "qwen3-gqa-128",
        "gemma2-mha-128-untied",
        "qwen2-window",
        "gemma2-no-caps",
        "mistral-window",
    ],
)
def test_torch_export(name: str, make_model: Callable[..., Path], build_dir: Path, tmp_path: Path) -> None:
    """The configuration is found in the graph, and the logits are compared."""
    model = make_model(CASES[name])
    attention = "sdpa" if "window" in name else "eager"
    archive = export_program(
        AutoModelForCausalLM.from_pretrained(model, dtype="auto").eval(), tmp_path / "model.pt2", attention
    )
    written = quire.export(archive, tmp_path / "exported")
    assert_same_logits(build_dir, tmp_path, written, model, name)
    # Another configuration than the graph's, with the same shapes.
    config = json.loads((written / "config.json").read_text())
    config["rms_norm_eps"] = 0.5
    with pytest.raises(ValueError, match=r"model\.pt2: the written model's log-probabilities differ by"):
        quire.export(archive, tmp_path / "other", config=config)
    assert not (tmp_path / "other").exists()


def test_weights_that_a_program_holds_as_constants(
    make_model: Callable[..., Path], build_dir: Path, tmp_path: Path
) -> None:
    model = make_model(CASES[SMALL])
    module = AutoModelForCausalLM.from_pretrained(model, dtype="auto").eval()
    for layer in list(module.modules()):
        for name in [name for name in layer._parameters if layer._parameters[name] is not None]:
            value = layer._parameters.pop(name).detach()
            layer.register_buffer(name, value, persistent=False)
    archive = export_program(module, tmp_path / "model.pt2")
    assert not torch.export.load(archive).state_dict
    written = quire.export(archive, tmp_path / "exported")
    assert_same_logits(build_dir, tmp_path, written, model, SMALL)


def export_program(module: torch.nn.Module, path: Path, attention: str = "eager") -> Path:
    class WithLogits(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            return self.inner(input_ids=input_ids, use_cache=False).logits

    module.config._attn_implementation = attention
    with torch.no_grad():
        program = torch.export.export(WithLogits(), (torch.zeros(1, 12, dtype=torch.int64),), strict=False)
    torch.export.save(program, path)
    return path


def of_two_layers(**changes: Any) -> Any:
    """As Llama, with a window on the first of two layers."""
    base = {"no_rope_layers": [1, 1], "layer_types": ["sliding_attention", "full_attention"]}
    base |= {"use_sliding_window": True, "sliding_window": 5, "num_hidden_layers": 2}
    return AutoModelForCausalLM.from_config(smollm3(**base, **changes)).eval()


def test_windows_on_some_layers_are_ministrals(tmp_path: Path) -> None:
    export_program(of_two_layers(), tmp_path / "a.pt2", "sdpa")
    written = quire.export(tmp_path / "a.pt2", tmp_path / "exported")
    assert json.loads((written / "config.json").read_text())["architectures"] == ["MinistralForCausalLM"]
    export_program(of_two_layers(attention_bias=True), tmp_path / "biases.pt2", "sdpa")
    with pytest.raises(ValueError, match=r"biases\.pt2: it has biases and a window, which neither"):
        quire.export(tmp_path / "biases.pt2", tmp_path / "other")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("rope-linear", "inv_freq is scaled, and the graph does not tell how; give config"),
        ("granite-gqa-64", "scores are scaled by 0.2 with the cap None, which Llama has not; give config"),
        (
            "gemma3-gqa-64",
            "is a program of none of Llama, Mistral, .* and has no config.json beside it; give",
        ),
        ("gpt2-mha-64", "is a program of none of Llama"),
        ("gpt-neox-mha-64", "is a program of none of Llama"),
    ],
)
def test_a_config_says_what_the_graph_does_not(
    name: str, said: str, make_model: Callable[..., Path], tmp_path: Path
) -> None:
    model = make_model(CASES[name])
    archive = tmp_path / "a.pt2"
    export_program(AutoModelForCausalLM.from_pretrained(model, dtype="auto").eval(), archive)
    with pytest.raises(ValueError, match=rf"a\.pt2: {said}"):
        quire.export(archive, tmp_path / "exported")
    quire.export(archive, tmp_path / "exported", config=model)
    shutil.copy(model / "config.json", tmp_path)
    quire.export(archive, tmp_path / "beside")


def test_a_program_may_take_its_ids_by_name(make_model: Callable[..., Path], tmp_path: Path) -> None:
    model = make_model(CASES[SMALL])
    module = AutoModelForCausalLM.from_pretrained(model, dtype="auto", attn_implementation="eager").eval()
    example = {"input_ids": torch.zeros(1, 12, dtype=torch.int64), "use_cache": False}
    torch.export.save(torch.export.export(module, (), example, strict=False), tmp_path / "a.pt2")
    written = quire.export(tmp_path / "a.pt2", tmp_path / "exported")
    assert json.loads((written / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]


def test_a_program_of_another_kind_wants_a_config(tmp_path: Path) -> None:
    torch.export.save(
        torch.export.export(torch.nn.Linear(3, 4), (torch.zeros(2, 3),)), tmp_path / "linear.pt2"
    )
    with pytest.raises(ValueError, match=r"linear\.pt2: is a program of none of .*; give config"):
        quire.export(tmp_path / "linear.pt2", tmp_path / "exported")
