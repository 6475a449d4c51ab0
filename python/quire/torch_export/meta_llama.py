"""Meta's own form of Llama: ``params.json``, and ``consolidated.NN.pth`` of each model-parallel rank."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.torch_export.sources import META_PARAMS, META_RANKS, Source, read_json, read_state_dict

if TYPE_CHECKING:
    import torch

_NAMES = {
    "tok_embeddings": "model.embed_tokens",
    "norm": "model.norm",
    "output": "lm_head",
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
# Along which dimension ranks have a part each; norms they have whole.
_DIMENSIONS = {
    "attention.wo": 1,
    "feed_forward.w2": 1,
    "attention_norm": None,
    "ffn_norm": None,
    "norm": None,
}


def open_consolidated(directory: Path) -> Source:
    params_path = directory / META_PARAMS
    params = read_json(params_path)
    files = sorted(directory.glob(META_RANKS))
    wanted = [META_RANKS.replace("*", f"{rank:02}") for rank in range(len(files))]
    missing = sorted(set(wanted) - {file.name for file in files})
    if missing:  # the others would make a smaller model
        raise ValueError(f"{directory}: has {', '.join(file.name for file in files)}, but no {missing[0]}")
    ranks = [read_state_dict(file) for file in files]
    for file, rank in zip(files, ranks, strict=True):
        if set(rank) != set(ranks[0]):
            odd = min(set(rank) ^ set(ranks[0]))
            raise ValueError(f"{file}: {odd!r} is not in all of the {len(files)} files")

    def count(key: str, default: int | None = None) -> int:
        value = params.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{params_path}: {key!r} must be a whole number above 0, got {value!r:.50}")
        return value

    heads = count("n_heads")
    kv_heads = count("n_kv_heads", heads)
    hidden = count("dim")
    tensors: dict[str, Callable[[], torch.Tensor]] = {}
    for name in ranks[0]:
        if name == "rope.freqs":
            continue
        tensors[_hf_name(name, files[0])] = _merged(name, files, ranks, hidden, heads, kv_heads)
    config = _config(params, params_path, tensors, count("n_layers"), hidden, heads, kv_heads)
    return Source(str(directory), tensors, config=config, directory=directory)


def _part(name: str) -> str:
    return re.sub(r"^layers\.\d+\.", "", name).removesuffix(".weight")


def _hf_name(name: str, file: Path) -> str:
    new = _NAMES.get(_part(name))
    if new is None or not name.endswith(".weight"):
        raise ValueError(f"{file}: tensor {name!r} is none of Llama's")
    layer = re.match(r"layers\.(\d+)\.", name)
    return f"model.layers.{layer[1]}.{new}.weight" if layer else f"{new}.weight"


def _merged(
    name: str, files: list[Path], ranks: list[Any], hidden: int, heads: int, kv_heads: int
) -> Callable[[], torch.Tensor]:
    def merge() -> torch.Tensor:
        import torch

        part = _part(name)
        place = f"{files[0]}: tensor {name!r}"
        parts = [rank[name] for rank in ranks]
        wanted = 1 if part.endswith("norm") else 2
        if any(each.dim() != wanted for each in parts):
            raise ValueError(f"{place} must have {wanted} dimensions, has {parts[0].dim()}")
        dimension = _DIMENSIONS.get(part, 0)
        if part == "tok_embeddings" and parts[0].shape[-1] != hidden:
            dimension = 1  # Llama 2's ranks have all rows
        if dimension is None or len(parts) == 1:
            whole = parts[0]
        else:
            try:
                whole = torch.cat(parts, dim=dimension)
            except RuntimeError:
                shapes = ", ".join(str(list(each.shape)) for each in parts)
                raise ValueError(f"{place} has shapes that are no parts of one: {shapes}") from None
        if part in ("attention.wq", "attention.wk"):
            whole = _permuted(whole, heads if part.endswith("q") else kv_heads, place)
        return whole

    return merge


def _permuted(weight: torch.Tensor, heads: int, place: str) -> torch.Tensor:
    """Rotated pairs that lie next to each other come to lie half a head apart."""
    rows, columns = weight.shape
    if rows % (2 * heads) != 0:
        raise ValueError(f"{place} has {rows} rows, which are no {heads} heads of an even size")
    pairs = weight.view(heads, rows // heads // 2, 2, columns)
    return pairs.transpose(1, 2).reshape(rows, columns)


def _config(
    params: dict[str, Any], path: Path, tensors: Any, layers: int, hidden: int, heads: int, kv_heads: int
) -> dict[str, Any]:
    for key in ("model.layers.0.mlp.gate_proj.weight", "model.embed_tokens.weight"):
        if key not in tensors:
            raise ValueError(f"{path.parent}: the files lack what becomes {key!r}")
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": tensors["model.layers.0.mlp.gate_proj.weight"]().shape[0],
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": params.get("norm_eps", 1e-5),
        "rope_theta": params.get("rope_theta", 10000.0),
        "max_position_embeddings": params.get("max_seq_len", 8192 if "rope_theta" in params else 4096),
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        "vocab_size": tensors["model.embed_tokens.weight"]().shape[0],
    }
    if params.get("use_scaled_rope"):
        config["max_position_embeddings"] = 131072
        config["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": params.get("rope_scaling_factor", 8.0),
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
    return config
