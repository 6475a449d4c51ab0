"""A Llama in plain PyTorch, arranged for fast training: the layers' matrices are stacked.

`export` writes it under the names that transformers gives a LlamaForCausalLM.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn


@dataclass(frozen=True)
class ModelConfig:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float
    rms_norm_eps: float

    @staticmethod
    def load(path: Path) -> ModelConfig:
        config = json.loads(path.read_text())
        return ModelConfig(
            vocab_size=config["vocab_size"],
            hidden_size=config["hidden_size"],
            intermediate_size=config["intermediate_size"],
            num_layers=config["num_hidden_layers"],
            num_heads=config["num_attention_heads"],
            num_kv_heads=config["num_key_value_heads"],
            head_dim=config["head_dim"],
            rope_theta=config["rope_theta"],
            rms_norm_eps=config["rms_norm_eps"],
        )


def _matrices(count: int, rows: int, columns: int, std: float) -> nn.Parameter:
    return nn.Parameter(torch.randn(count, rows, columns) * std)


class Llama(nn.Module):
    """Weights are fp32; under autocast the products are bf16 and the residual stream is fp32."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig, max_length: int) -> None:
        super().__init__()
        c = self.config = config
        q_size, kv_size = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        std = c.hidden_size**-0.5
        # What a layer adds to the residual stream starts small.
        out_std = std / (2 * c.num_layers) ** 0.5
        self.embed = nn.Parameter(torch.randn(c.vocab_size, c.hidden_size) * 0.02)
        self.q = _matrices(c.num_layers, q_size, c.hidden_size, std)
        self.k = _matrices(c.num_layers, kv_size, c.hidden_size, std)
        self.v = _matrices(c.num_layers, kv_size, c.hidden_size, std)
        self.o = _matrices(c.num_layers, c.hidden_size, q_size, out_std)
        self.gate = _matrices(c.num_layers, c.intermediate_size, c.hidden_size, std)
        self.up = _matrices(c.num_layers, c.intermediate_size, c.hidden_size, std)
        self.down = _matrices(c.num_layers, c.hidden_size, c.intermediate_size, out_std)
        self.attention_norm = nn.Parameter(torch.ones(c.num_layers, c.hidden_size))
        self.mlp_norm = nn.Parameter(torch.ones(c.num_layers, c.hidden_size))
        self.final_norm = nn.Parameter(torch.ones(c.hidden_size))

        exponents = torch.arange(0, c.head_dim, 2, dtype=torch.float64) / c.head_dim
        angles = torch.outer(torch.arange(max_length, dtype=torch.float64), c.rope_theta ** (-exponents))
        self.register_buffer("cos", torch.cat((angles, angles), -1).cos().float())
        self.register_buffer("sin", torch.cat((angles, angles), -1).sin().float())

    def matrices(self) -> list[nn.Parameter]:
        return [self.q, self.k, self.v, self.o, self.gate, self.up, self.down]

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x.float(), (x.shape[-1],), weight, self.config.rms_norm_eps)

    def _rotate(self, x: Tensor) -> Tensor:
        """RoPE over [batch, heads, length, head_dim]; the two halves of a head are the pairs."""
        length = x.shape[-2]
        first, second = x.float().chunk(2, dim=-1)
        turned = torch.cat((-second, first), dim=-1)
        return (x.float() * self.cos[:length] + turned * self.sin[:length]).to(x.dtype)

    def hidden_states(self, ids: Tensor) -> Tensor:
        c = self.config
        batch, length = ids.shape
        x = F.embedding(ids, self.embed)
        layers = zip(
            *(stack.unbind(0) for stack in self.matrices()),
            self.attention_norm.unbind(0),
            self.mlp_norm.unbind(0),
            strict=True,
        )
        sizes = [c.num_heads, c.num_kv_heads, c.num_kv_heads]
        for q, k, v, o, gate, up, down, attention_norm, mlp_norm in layers:
            h = self._norm(x, attention_norm)
            qkv = F.linear(h, torch.cat((q, k, v)))
            heads = qkv.view(batch, length, -1, c.head_dim).transpose(1, 2)
            query, key, value = torch.split(heads, sizes, dim=1)
            mixed = F.scaled_dot_product_attention(
                self._rotate(query), self._rotate(key), value, is_causal=True, enable_gqa=True
            )
            x = x + F.linear(mixed.transpose(1, 2).reshape(batch, length, -1), o)
            h = self._norm(x, mlp_norm)
            gated, straight = F.linear(h, torch.cat((gate, up))).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gated) * straight, down)
        return self._norm(x, self.final_norm)

    def forward(self, rows: Tensor) -> Tensor:
        """Mean loss of predicting rows[:, 1:]."""
        logits = F.linear(self.hidden_states(rows[:, :-1]), self.embed)
        targets = rows[:, 1:].reshape(-1)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets)


def export(model: Llama, path: Path) -> None:
    """Writes model.safetensors in bf16. The embedding is also the output head."""
    weights: dict[str, Tensor] = {
        "model.embed_tokens.weight": model.embed,
        "model.norm.weight": model.final_norm,
    }
    names = {
        "self_attn.q_proj": model.q,
        "self_attn.k_proj": model.k,
        "self_attn.v_proj": model.v,
        "self_attn.o_proj": model.o,
        "mlp.gate_proj": model.gate,
        "mlp.up_proj": model.up,
        "mlp.down_proj": model.down,
        "input_layernorm": model.attention_norm,
        "post_attention_layernorm": model.mlp_norm,
    }
    for name, stack in names.items():
        for layer, weight in enumerate(stack.unbind(0)):
            weights[f"model.layers.{layer}.{name}.weight"] = weight
    tensors = {
        name: weight.detach().to("cpu", torch.bfloat16).contiguous() for name, weight in weights.items()
    }
    save_file(tensors, path, metadata={"format": "pt"})
