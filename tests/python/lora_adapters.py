"""Adapters with random values that PEFT writes, what PEFT makes of them, and what is compared with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

if TYPE_CHECKING:
    from quire import LoRARequest

FLOAT32_ERROR = 1e-4  # of the largest logit
NUM_TOKENS = 300
# What a config's adapters are: ranks, scales and modules that differ.
KINDS: list[dict[str, Any]] = [
    {"r": 8},
    {"r": 1, "lora_alpha": 3},
    {"r": 16, "use_rslora": True},
    {"r": 12, "lora_alpha": 5},
]
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
LLAMA_KINDS: list[dict[str, Any]] = [
    *KINDS,
    {"r": 16, "target_modules": ["q_proj"]},
    {"r": 4, "target_modules": ["k_proj", "v_proj", "up_proj"]},
    {"r": 32, "target_modules": ["o_proj", "down_proj"]},
    {"r": 5, "target_modules": ["gate_proj", "q_proj"], "rank_pattern": {"q_proj": 9}},
    {"r": 3, "alpha_pattern": {"model.layers.0.mlp.up_proj": 1, "down_proj": 24}},
    {"r": 64, "lora_alpha": 64, "layers_to_transform": [1], "target_modules": [*ATTENTION, "up_proj"]},
]
# Of each way in which a checkpoint has its linears.
MODELS: dict[str, list[dict[str, Any]]] = {
    "llama-biases": KINDS,
    "qwen3-gqa-128": KINDS,
    "gemma3-gqa-64": KINDS,
    "phi3-mha-64": KINDS,
    "gpt-neox-mha-64": KINDS,
    "gpt2-mha-64": KINDS,
    "opt-mha-64": KINDS,
    "bloom-mha-64": KINDS,
    "mixtral-gqa-64": [kind | {"target_modules": ATTENTION} for kind in KINDS],
    "qwen2-moe-gqa-64": [
        kind | {"target_modules": [*ATTENTION, "shared_expert.gate_proj", "shared_expert.down_proj"]}
        for kind in KINDS
    ],
}


def write_adapter(model: Path, directory: Path, seed: int, **changes: Any) -> Path:
    """One that changes what the model says: at all linears, unless `changes` of LoraConfig say otherwise."""
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    options: dict[str, Any] = {"r": 8, "lora_alpha": 16, "target_modules": "all-linear"}
    config = LoraConfig(**(options | changes))
    adapted: Any = get_peft_model(base, config)
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.normal_(0, parameter.shape[-1] ** -0.5 * 0.7)
    adapted.save_pretrained(directory)
    return directory


class Peft:
    """The model as PEFT computes it, with each of some adapters and without."""

    def __init__(self, model: Path, adapters: dict[str, Path], dtype: torch.dtype = torch.float32) -> None:
        base: Any = AutoModelForCausalLM.from_pretrained(model, dtype=dtype, attn_implementation="eager")
        self._model: Any = base.eval()
        for i, (name, adapter) in enumerate(adapters.items()):
            # Else it computes adapters of half precision in float32.
            options: dict[str, Any] = {"adapter_name": name, "autocast_adapter_dtype": False}
            if i == 0:
                self._model = PeftModel.from_pretrained(base, adapter, **options).eval()
            else:
                self._model.load_adapter(adapter, **options)
        if dtype != torch.float32:
            self._model.to(dtype)

    def logits(self, token_ids: list[int], adapter: str | None) -> torch.Tensor:
        """[tokens, vocabulary], as float32."""
        ids = torch.tensor([token_ids])
        with torch.no_grad():
            if adapter is not None:
                self._model.set_adapter(adapter)
                logits: torch.Tensor = self._model(ids).logits[0].float()
            elif isinstance(self._model, PeftModel):
                with self._model.disable_adapter():
                    logits = self._model(ids).logits[0].float()
            else:
                logits = self._model(ids).logits[0].float()
        return logits


def merged_logits(model: Path, adapter: Path, token_ids: list[int]) -> torch.Tensor:
    """Of the model with the adapter's part added to its weights."""
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
    merged: Any = PeftModel.from_pretrained(base, adapter).merge_and_unload()
    with torch.no_grad():
        logits: torch.Tensor = merged.eval()(torch.tensor([token_ids])).logits[0].float()
    return logits


def write_adapter_of_each_expert(
    model: Path,
    directory: Path,
    seed: int,
    names: Sequence[str] = ("gate_proj", "up_proj", "down_proj"),
    mixture: str = "mlp",
    rank_of: Callable[[int, str], int] = lambda expert, name: 4,
) -> Path:
    """As PEFT had it when experts were linears, by their names in checkpoints; of rank 0 are none."""
    generator = torch.Generator().manual_seed(seed)
    tensors, ranks = {}, {}
    for layer, experts in _experts_of(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)):
        hidden, inter = experts.gate_up_proj.shape[2], experts.down_proj.shape[2]
        if experts.is_transposed:
            hidden, inter = experts.down_proj.shape[2], experts.down_proj.shape[1]
        for expert in range(experts.down_proj.shape[0]):
            for name in names:
                rank = rank_of(expert, name)
                inputs, outputs = (inter, hidden) if name == names[2] else (hidden, inter)
                module = f"model.layers.{layer}.{mixture}.experts.{expert}.{name}"
                if rank == 0:
                    continue
                ranks[module] = rank
                for matrix, shape in {"lora_A": (rank, inputs), "lora_B": (outputs, rank)}.items():
                    values = torch.randn(shape, generator=generator) * shape[1] ** -0.5 * 0.7
                    tensors[f"base_model.model.{module}.{matrix}.weight"] = values
    directory.mkdir()
    save_file(tensors, directory / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8}
    pattern = {module: rank for module, rank in ranks.items() if rank != 4}
    config |= {"target_modules": list(names), "rank_pattern": pattern}
    (directory / "adapter_config.json").write_text(json.dumps(config))
    return directory


def logits_with_each_expert(
    model: Path, adapter: Path, token_ids: list[int], names: Sequence[str], dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Of the model with what `write_adapter_of_each_expert` wrote added to its weights."""
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
    layers = dict(_experts_of(loaded))
    tensors = load_file(adapter / "adapter_model.safetensors")
    with torch.no_grad():
        for key, a in tensors.items():
            if not key.endswith(".lora_A.weight"):
                continue
            part = key.split(".")
            experts, expert, name = layers[int(part[4])], int(part[7]), part[8]
            delta = tensors[key.replace("lora_A", "lora_B")] @ a * (8 / a.shape[0])
            if name == names[2]:
                weight = experts.down_proj[expert]
                weight += delta.T if experts.is_transposed else delta
                continue
            both = experts.gate_up_proj[expert]
            which = names.index(name)
            if experts.is_transposed:
                both[:, which::2] += delta.T
            else:
                both[which * len(delta) : (which + 1) * len(delta)] += delta
        logits: torch.Tensor = loaded.to(dtype).eval()(torch.tensor([token_ids])).logits[0].float()
    return logits


def _experts_of(model: Any) -> list[tuple[int, Any]]:
    """By layer, the module that has them."""
    return [
        (int(name.split(".")[2]), module)
        for name, module in model.named_modules()
        if name.endswith(".experts") and hasattr(module, "gate_up_proj")
    ]


def make_adapters(model: Path, root: Path, kinds: Sequence[dict[str, Any]]) -> dict[str, Path]:
    return {f"a{i}": write_adapter(model, root / f"a{i}", i, **kind) for i, kind in enumerate(kinds)}


def make_prompts(count: int, vocab_size: int, longest: int = NUM_TOKENS) -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [
        [int(t) for t in rng.integers(0, vocab_size, longest - longest * i // (count + 1))]
        for i in range(count)
    ]


def assert_logits_agree(ours: NDArray[np.float64], theirs: torch.Tensor) -> None:
    """Ours are log-probabilities: up to what a row has in common, they are logits."""
    assert theirs.abs().max() > 5
    expected = torch.log_softmax(theirs.double(), -1).numpy()[:-1]
    difference = ours - expected
    difference -= difference.mean(axis=1, keepdims=True)
    assert np.abs(difference).max() <= FLOAT32_ERROR * max(1.0, float(theirs.abs().max()))


def requests(adapters: Mapping[str, Path], names: Sequence[str | None]) -> list[LoRARequest | None]:
    """With each of these adapters, where one is named."""
    from quire import LoRARequest  # not above: on devices, adapters are tested without the package

    return [None if name is None else LoRARequest(name, 0, adapters[name]) for name in names]
