"""``quire export`` of what torch.export wrote: the configuration is found in the graph."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import quire
import torch
from logits_parity import CASES, assert_close, reference, run_quire_logits
from transformers import AutoModelForCausalLM, MistralConfig

SMALL = "llama-gqa-64"


def assert_same_logits(build_dir: Path, tmp_path: Path, written: Path, model: Path, name: str) -> None:
    found = run_quire_logits(build_dir, tmp_path / "out", written, CASES[name])
    assert_close(found, reference(model, CASES[name]))


@pytest.mark.parametrize(
    "name",
    [SMALL, "qwen2-gqa-80", "qwen3-gqa-128", "gemma2-mha-128-untied", "qwen2-window", "gemma2-no-caps"],
)
def test_torch_export(name: str, make_model: Callable[..., Path], build_dir: Path, tmp_path: Path) -> None:
    """The configuration is found in the graph, and the logits are compared."""
    model = make_model(CASES[name])
    attention = "sdpa" if name == "qwen2-window" else "eager"
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


def test_a_window_that_the_architecture_has_not_is_named(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 99}
    config = MistralConfig(**sizes, intermediate_size=64, num_key_value_heads=2, sliding_window=5)
    export_program(AutoModelForCausalLM.from_config(config).eval(), tmp_path / "mistral.pt2", "sdpa")
    with pytest.raises(
        ValueError, match=r"mistral\.pt2: attention sees a window of 5, which Llama has not; give"
    ):
        quire.export(tmp_path / "mistral.pt2", tmp_path / "exported")


def test_a_program_of_another_kind_wants_a_config(make_model: Callable[..., Path], tmp_path: Path) -> None:
    torch.export.save(
        torch.export.export(torch.nn.Linear(3, 4), (torch.zeros(2, 3),)), tmp_path / "linear.pt2"
    )
    with pytest.raises(ValueError, match=r"linear\.pt2: has no config\.json beside it; give config"):
        quire.export(tmp_path / "linear.pt2", tmp_path / "exported")
