"""Checkpoints of compressed-tensors, written with the library's own compressors, and what they stand for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import load_file, save_file


def quantize(
    source: Path,
    directory: Path,
    layout: str = "pack-quantized",
    symmetric: bool = True,
    ignore: tuple[str, ...] = ("lm_head",),
    targets: tuple[str, ...] = ("Linear",),
) -> Path:
    """Writes `source` to `directory` with its linears in int8, but for those that `ignore` names.

    Returns a directory with the weights that the library makes of them again.
    """
    arguments = QuantizationArgs(num_bits=8, type="int", symmetric=symmetric, strategy="channel")
    scheme = QuantizationScheme(targets=list(targets), weights=arguments, format=layout)
    compressor = BaseCompressor.get_value_from_registry(layout)
    written: dict[str, torch.Tensor] = {}
    meant: dict[str, torch.Tensor] = {}
    for name, weight in load_file(source / "model.safetensors").items():
        layer = name.removesuffix(".weight")
        is_linear = layer.endswith("_proj") or layer == "lm_head"
        if not is_linear or name == layer or layer in ignore:
            written[name] = meant[name] = weight
            continue
        low, high = weight.float().aminmax(dim=1, keepdim=True)
        scale, zero_point = calculate_qparams(low, high, arguments)
        state = {"weight": weight, "weight_scale": scale.to(weight.dtype)}
        if not symmetric:
            state["weight_zero_point"] = zero_point.to(torch.int8)
        compressed = compressor.compress(state, scheme)
        for part, tensor in compressed.items():
            written[f"{layer}.{part}"] = tensor.contiguous()
        meant[name] = compressor.decompress(compressed, scheme)["weight"].contiguous()
    config = json.loads((source / "config.json").read_text())
    save(directory / "meant", meant, config)
    section = quantization_config(layout, arguments, ignore, targets)
    save(directory, written, config | {"quantization_config": section})
    return directory / "meant"


def quantization_config(
    layout: str, arguments: QuantizationArgs, ignore: tuple[str, ...], targets: tuple[str, ...]
) -> dict[str, Any]:
    """The section that llm-compressor writes."""
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "quantization_status": "compressed",
        "ignore": list(ignore),
        "kv_cache_scheme": None,
        "sparsity_config": {},
        "config_groups": {
            "group_0": {
                "targets": list(targets),
                "weights": json.loads(arguments.model_dump_json()),
                "input_activations": None,
                "output_activations": None,
            }
        },
    }


def save(directory: Path, tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config))
