"""Checkpoints of GPT-OSS with experts in MXFP4, as openai publishes them, and what they stand for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from quantized_models import save
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import FP4_VALUES, convert_moe_packed_tensors

SECTION: dict[str, Any] = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}


def quantize_mxfp4(source: Path, directory: Path) -> Path:
    """Writes `source` to `directory` with its experts in MXFP4.

    Returns a directory with the weights that transformers makes of them again.
    """
    written: dict[str, torch.Tensor] = {}
    meant: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            written[name] = meant[name] = tensor
            continue
        blocks, scales = to_blocks(tensor.float().transpose(1, 2).contiguous())
        written[name + "_blocks"], written[name + "_scales"] = blocks, scales
        meant[name] = convert_moe_packed_tensors(blocks, scales, dtype=tensor.dtype)
    config = json.loads((source / "config.json").read_text())
    save(directory / "meant", meant, config)
    save(directory, written, config | {"quantization_config": SECTION})
    return directory / "meant"


def to_blocks(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[..., K] as [..., K / 32, 16] and [..., K / 32] bytes."""
    groups = weight.unflatten(-1, (-1, 32))
    exponents = torch.floor(torch.log2(groups.abs().amax(-1))) - 2  # the largest values have two
    scaled = groups / torch.exp2(exponents)[..., None]
    codes = (scaled[..., None] - torch.tensor(FP4_VALUES)).abs().argmin(-1).to(torch.uint8)
    return codes[..., 0::2] | codes[..., 1::2] << 4, (exponents + 127).to(torch.uint8)


def split(directory: Path) -> None:
    """Into two files, with no tensor of blocks beside its scales."""
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    weight_map: dict[str, str] = {}
    for number in (1, 2):
        file = f"model-0000{number}-of-00002.safetensors"
        part = {name: tensor for name, tensor in tensors.items() if name.endswith("_scales") == (number == 2)}
        save_file(part, directory / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    (directory / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )
