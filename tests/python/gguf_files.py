"""Writes GGUF files as llama.cpp's converter does, with the package gguf."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file, save_file

LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_attention_layernorm": "ffn_norm",
}
GEMMA2_NAMES = {
    "pre_feedforward_layernorm": "ffn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
MODEL_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_name(name: str, arch: str) -> str:
    stem, ending = name.rsplit(".", 1)
    if stem in MODEL_NAMES:
        return f"{MODEL_NAMES[stem]}.{ending}"
    layer, part = stem.removeprefix("model.layers.").split(".", 1)
    names = LAYER_NAMES | (GEMMA2_NAMES if arch == "gemma2" else {})
    return f"blk.{layer}.{names[part]}.{ending}"


def permuted(values: Any, num_heads: int) -> Any:
    """As convert_hf_to_gguf writes llama's q and k."""
    halves = values.reshape(num_heads, 2, values.shape[0] // num_heads // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def random_blocks(values: np.ndarray[Any, Any], kind: Type, rng: np.random.Generator) -> Any:
    """Bytes of a K-quant, any but for their scales."""
    block_values, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    shape = (*values.shape[:-1], values.shape[-1] // block_values)
    blocks = rng.integers(0, 256, (*shape, block_bytes), dtype=np.uint8)
    for at in (0, 2) if kind == Type.Q4_K else (208,):
        scale = np.full(shape, 1e-4, np.float16)[..., None].view(np.uint8)
        blocks[..., at : at + 2] = scale
    return blocks.reshape(*values.shape[:-1], -1)


def encoded(values: np.ndarray[Any, Any], kind: Type, rng: np.random.Generator) -> tuple[Any, Any]:
    """The bytes of a tensor, and what the gguf package reads from them."""
    data = random_blocks(values, kind, rng) if kind in (Type.Q4_K, Type.Q6_K) else gguf.quantize(values, kind)
    return data, gguf.dequantize(data, kind).astype(np.float32).reshape(values.shape)


def add_tokenizer(writer: gguf.GGUFWriter, directory: Path) -> None:
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    vocab: dict[str, int] = tokenizer["model"]["vocab"]
    special = {token["content"] for token in tokenizer["added_tokens"]}
    tokens = sorted(vocab | {t["content"]: t["id"] for t in tokenizer["added_tokens"]}, key=vocab.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [gguf.TokenType.CONTROL if t in special else gguf.TokenType.NORMAL for t in tokens]
    )
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(2)
    writer.add_chat_template(json.loads((directory / "tokenizer_config.json").read_text())["chat_template"])


def write_gguf(path: Path, directory: Path, arch: str, kind: Type) -> None:
    """A file of `directory`'s model, whose weights become those that the gguf package reads from the file."""
    config = json.loads((directory / "config.json").read_text())
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config.get("rope_theta") or config["rope_parameters"]["rope_theta"])
    if arch == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
        writer.add_sliding_window(config["sliding_window"])
    add_tokenizer(writer, directory)
    weights = load_file(directory / "model.safetensors")
    for name, tensor in weights.items():
        values = tensor.float().numpy()
        heads = 0
        if arch == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
        if values.ndim == 1:
            one = np.float32(1 if arch == "gemma2" else 0)
            stored = values + one
            writer.add_tensor(gguf_name(name, arch), permuted(stored, heads) if heads else stored)
            weights[name] = torch.from_numpy(stored - one)
            continue
        data, read = encoded(permuted(values, heads) if heads else values, kind, rng)
        writer.add_tensor(gguf_name(name, arch), data, raw_dtype=kind)
        if heads:  # the other way round
            size = read.shape[0] // heads
            read = read.reshape(heads, size // 2, 2, -1).swapaxes(1, 2).reshape(values.shape)
        weights[name] = torch.from_numpy(read.copy())
    finish(writer)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def copy_of(file: Path, to: Path, leave_out: Iterable[str] = (), **options: Any) -> gguf.GGUFWriter:
    """A writer that has all of a file's keys but some, and its tensors."""
    reader = gguf.GGUFReader(file)
    arch = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(to, arch, **options)
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key not in ("general.architecture", *leave_out):
            element = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), field.types[0], element)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    return writer
