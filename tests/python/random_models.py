"""Models with random weights that transformers writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM


def write_random_model(config: Any, directory: Path, dtype: str) -> None:
    """Weights large enough that logits exceed 5, so that an absolute error means something."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            elif name.endswith("bias"):
                parameter.normal_(0, 0.5)
            else:
                parameter.normal_(0, parameter.shape[-1] ** -0.5 * 1.5)
        ids = torch.arange(64)[None] % config.vocab_size
        head = model.get_output_embeddings().weight
        head *= 9 / model(ids).logits.abs().max()
        assert model(ids).logits.abs().max() > 5
    model.to(getattr(torch, dtype)).save_pretrained(directory)
