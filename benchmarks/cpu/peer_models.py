"""The models that compare_peers.py measures: random weights as a directory, and the same as a GGUF file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

# Names, each with how it is made: the class of its config in transformers, and that class's arguments.
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-0.67b": (
        "LlamaConfig",
        {
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "num_hidden_layers": 12,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "vocab_size": 32000,
            "tie_word_embeddings": False,
            "max_position_embeddings": 2048,
        },
    ),
    # 2.07 B parameters, of which a token meets 0.65 B.
    "qwen3-moe-2b-a0.6b": (
        "Qwen3MoeConfig",
        {
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "moe_intermediate_size": 768,
            "num_experts": 32,
            "num_experts_per_tok": 8,
            "norm_topk_prob": True,
            "num_hidden_layers": 12,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "vocab_size": 32000,
            "tie_word_embeddings": False,
            "max_position_embeddings": 2048,
        },
    ),
    # As the published model is.
    "gemma-2-2b": (
        "Gemma2Config",
        {
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "vocab_size": 256000,
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
            "max_position_embeddings": 8192,
        },
    ),
}
ARCHITECTURES = {"llama": "llama", "qwen3_moe": "qwen3moe", "gemma2": "gemma2"}
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
}
GEMMA2_NAMES = NAMES | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def make_model(directory: Path, shape: str = "llama-0.67b") -> None:
    """Writes a shape with random weights in bfloat16."""
    import torch
    import transformers

    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)  # a float32 copy would need twice the memory
    kind, arguments = SHAPES[shape]
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind)(**arguments))
    model.to(torch.bfloat16).save_pretrained(directory)
    torch.set_default_dtype(torch.float32)


def make_gguf(directory: Path, path: Path) -> None:
    """Writes the same weights as bf16 GGUF, with the tokenizer.json (BPE) that lies beside them, or none."""
    import gguf
    import torch

    config = json.loads((directory / "config.json").read_text())
    kind = config["model_type"]
    writer = gguf.GGUFWriter(str(path), ARCHITECTURES[kind])
    add_sizes(writer, config)
    if (directory / "tokenizer.json").exists():
        add_vocabulary(writer, json.loads((directory / "tokenizer.json").read_text()), config)
    else:
        writer.add_tokenizer_model("no_vocab")
    names = GEMMA2_NAMES if kind == "gemma2" else NAMES
    for stem, tensor in tensors_of(directory / "model.safetensors"):
        target = names.get(stem, "")
        if stem.startswith("model.layers."):
            _, _, layer, part = stem.split(".", 3)
            target = f"blk.{layer}.{names[part]}"
            if kind == "llama":
                tensor = with_pairs_together(tensor, part, config)
        if tensor.ndim == 1 or target.endswith("ffn_gate_inp"):
            # The converter adds the one that gemma's norms add.
            one = 1.0 if kind == "gemma2" and target.endswith("norm") else 0.0
            writer.add_tensor(target + ".weight", (tensor.float() + one).numpy())
        else:
            raw = tensor.contiguous().view(torch.uint16).numpy().view(np.uint8)
            writer.add_tensor(target + ".weight", raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_sizes(writer: Any, config: dict[str, Any]) -> None:
    parameters = config.get("rope_parameters") or {}
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config.get("rope_theta", parameters.get("rope_theta", 10000.0)))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    if config["model_type"] == "qwen3_moe":
        writer.add_expert_count(config.get("num_experts") or config["num_local_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if config["model_type"] == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
        writer.add_sliding_window(config["sliding_window"])


def tensors_of(path: Path) -> Iterator[tuple[str, Any]]:
    """Names without ".weight"; experts of one layer in one tensor, as the last of them comes."""
    import torch
    from safetensors import safe_open

    experts: dict[str, dict[int, Any]] = {}
    with safe_open(path, "pt") as file:
        names = list(file.keys())
        for name in names:
            before, found, after = name.removesuffix(".weight").partition(".experts.")
            if not found:
                yield before, file.get_tensor(name)
                continue
            number, _, part = after.partition(".")
            stack = experts.setdefault(f"{before}.experts.{part}", {})
            stack[int(number)] = file.get_tensor(name)
            if len(stack) == sum(
                n.startswith(f"{before}.experts.") and n.endswith(f".{part}.weight") for n in names
            ):
                stem = f"{before}.experts.{part}"
                yield stem, torch.stack([stack[i] for i in range(len(stack))])
                del experts[stem]


def with_pairs_together(tensor: Any, part: str, config: dict[str, Any]) -> Any:
    """llama.cpp pairs neighbouring elements in RoPE where transformers pairs halves."""
    keys = {"self_attn.q_proj": "num_attention_heads", "self_attn.k_proj": "num_key_value_heads"}
    if part not in keys:
        return tensor
    halves = tensor.reshape(config[keys[part]], 2, config["head_dim"] // 2, -1)
    return halves.transpose(1, 2).reshape(tensor.shape)


def add_vocabulary(writer: Any, tokenizer: dict[str, Any], config: dict[str, Any]) -> None:
    import gguf

    special = {token["content"] for token in tokenizer["added_tokens"]}
    ids = tokenizer["model"]["vocab"] | {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    tokens = sorted(ids, key=ids.__getitem__)
    if len(tokens) != config["vocab_size"]:
        raise ValueError(f"tokenizer.json has {len(tokens)} tokens, config.json {config['vocab_size']}")
    kinds = [gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in tokens]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    end = config["eos_token_id"]
    end = end[0] if isinstance(end, list) else end
    writer.add_eos_token_id(end)
    writer.add_bos_token_id(end)
    writer.add_add_bos_token(False)
