"""Adapters with random values that PEFT writes, and what PEFT makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from quire import LoRARequest
from transformers import AutoModelForCausalLM


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


def requests(adapters: Mapping[str, Path], names: Sequence[str | None]) -> list[LoRARequest | None]:
    """With each of these adapters, where one is named."""
    return [None if name is None else LoRARequest(name, 0, adapters[name]) for name in names]
