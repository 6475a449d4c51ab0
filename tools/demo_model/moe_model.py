"""A small GPT-OSS in plain PyTorch: windows on every other layer, sinks, two of eight experts a token.

Every expert is computed for every token and those that the router did not choose count nothing, which for
so small a model is faster than to sort tokens by expert. `export` writes a GptOssForCausalLM of transformers.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import GptOssConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssRotaryEmbedding

MAX_POSITIONS = 2048


def moe_config(vocab_size: int) -> GptOssConfig:
    return GptOssConfig(
        architectures=["GptOssForCausalLM"],
        vocab_size=vocab_size,
        hidden_size=192,
        intermediate_size=64,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        sliding_window=64,
        num_local_experts=8,
        num_experts_per_tok=2,
        max_position_embeddings=MAX_POSITIONS,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": MAX_POSITIONS // 4,
        },
        tie_word_embeddings=True,
        eos_token_id=[0, 2],
        pad_token_id=0,
        dtype="bfloat16",
    )


def _normal(std: float, *shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape) * std)


def _zeros(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(shape))


class MixtureOfExperts(nn.Module):
    """Weights are fp32; under autocast the products are bf16, the residual stream and the router fp32."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: GptOssConfig, max_length: int) -> None:
        super().__init__()
        c = self.config = config
        layers, hidden, experts, width = (
            c.num_hidden_layers,
            c.hidden_size,
            c.num_local_experts,
            c.intermediate_size,
        )
        q_size, kv_size = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        std = hidden**-0.5
        out_std = std / (2 * layers) ** 0.5  # what a layer adds to the residual stream starts small
        self.embed = _normal(0.02, c.vocab_size, hidden)
        # Attention's as nn.Linear has them, [out, in]; experts' as transformers has them, [in, out].
        self.q = _normal(std, layers, q_size, hidden)
        self.k = _normal(std, layers, kv_size, hidden)
        self.v = _normal(std, layers, kv_size, hidden)
        self.o = _normal(out_std, layers, hidden, q_size)
        self.gate = _normal(std, layers, experts, hidden, width)
        self.up = _normal(std, layers, experts, hidden, width)
        self.down = _normal(out_std, layers, experts, width, hidden)
        self.q_bias, self.k_bias = _zeros(layers, q_size), _zeros(layers, kv_size)
        self.v_bias, self.o_bias = _zeros(layers, kv_size), _zeros(layers, hidden)
        self.gate_bias, self.up_bias = _zeros(layers, experts, width), _zeros(layers, experts, width)
        self.down_bias = _zeros(layers, experts, hidden)
        self.router, self.router_bias = _normal(0.02, layers, experts, hidden), _zeros(layers, experts)
        self.sinks = _zeros(layers, c.num_attention_heads)
        self.attention_norm = nn.Parameter(torch.ones(layers, hidden))
        self.mlp_norm = nn.Parameter(torch.ones(layers, hidden))
        self.final_norm = nn.Parameter(torch.ones(hidden))

        rotary = GptOssRotaryEmbedding(config)
        cos, sin = rotary(torch.zeros(1), torch.arange(max_length)[None])
        self.register_buffer("cos", cos[0])
        self.register_buffer("sin", sin[0])

    def matrices(self) -> list[nn.Parameter]:
        return [self.q, self.k, self.v, self.o, self.gate, self.up, self.down]

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x.float(), (x.shape[-1],), weight, self.config.rms_norm_eps)

    def _rotate(self, x: Tensor) -> Tensor:
        """RoPE over [batch, heads, length, head_dim]; the two halves of a head are the pairs."""
        cos, sin = self.cos[: x.shape[-2]], self.sin[: x.shape[-2]]
        first, second = x.float().chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)

    def _attention(self, layer: int, x: Tensor) -> Tensor:
        c = self.config
        batch, length, _ = x.shape
        query, key, value = (
            F.linear(x, w[layer], b[layer]).view(batch, length, -1, c.head_dim).transpose(1, 2)
            for w, b in ((self.q, self.q_bias), (self.k, self.k_bias), (self.v, self.v_bias))
        )
        repeats = c.num_attention_heads // c.num_key_value_heads
        key = self._rotate(key).repeat_interleave(repeats, dim=1)
        scores = self._rotate(query) @ key.mT * c.head_dim**-0.5
        at = torch.arange(length, device=x.device)
        distance = at[:, None] - at[None, :]
        visible = distance >= 0
        if c.layer_types[layer] == "sliding_attention":
            visible = visible & (distance < c.sliding_window)
        scores = scores.float().masked_fill(~visible, float("-inf"))
        sinks = self.sinks[layer].view(1, -1, 1, 1).expand(batch, -1, length, 1)
        shares = torch.cat((scores, sinks), dim=-1).softmax(-1)[..., :-1].to(value.dtype)
        mixed = shares @ value.repeat_interleave(repeats, dim=1)
        return F.linear(mixed.transpose(1, 2).reshape(batch, length, -1), self.o[layer], self.o_bias[layer])

    def _experts(self, layer: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """What chosen experts add for x [T, hidden], and how unevenly they were chosen: 1 if all alike."""
        c = self.config
        experts, top_k = c.num_local_experts, c.num_experts_per_tok
        with torch.autocast(x.device.type, enabled=False):
            logits = F.linear(x, self.router[layer], self.router_bias[layer])
            best, chosen = logits.topk(top_k, dim=-1)
            weights = torch.zeros_like(logits).scatter(-1, chosen, best.softmax(-1))
            load = F.one_hot(chosen, experts).sum(1).float().mean(0) / top_k
            unevenness = experts * (load * logits.softmax(-1).mean(0)).sum()
        # All experts side by side: [hidden, E * width].
        side_by_side = [w[layer].transpose(0, 1).flatten(1) for w in (self.gate, self.up)]
        gate = x @ side_by_side[0] + self.gate_bias[layer].flatten()
        up = x @ side_by_side[1] + self.up_bias[layer].flatten()
        limit, alpha = getattr(c, "swiglu_limit", 7.0), getattr(c, "swiglu_alpha", 1.702)
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        active = (up + 1) * gate * torch.sigmoid(gate * alpha)
        weighted = (active.view(-1, experts, c.intermediate_size) * weights[..., None]).flatten(1)
        return weighted @ self.down[layer].flatten(0, 1) + weights @ self.down_bias[layer], unevenness

    def hidden_states(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x = F.embedding(ids, self.embed)
        unevenness = []
        for layer in range(self.config.num_hidden_layers):
            x = x + self._attention(layer, self._norm(x, self.attention_norm[layer]))
            added, uneven = self._experts(layer, self._norm(x, self.mlp_norm[layer]).flatten(0, 1))
            x = x + added.view_as(x)
            unevenness.append(uneven)
        return self._norm(x, self.final_norm), torch.stack(unevenness).mean()

    def logits(self, ids: Tensor) -> Tensor:
        return F.linear(self.hidden_states(ids)[0], self.embed)

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Mean loss of predicting rows[:, 1:], and the experts' unevenness."""
        hidden, unevenness = self.hidden_states(rows[:, :-1])
        logits = F.linear(hidden, self.embed).flatten(0, 1).float()
        return F.cross_entropy(logits, rows[:, 1:].reshape(-1)), unevenness


def _interleaved(gate: Tensor, up: Tensor) -> Tensor:
    return torch.stack((gate, up), dim=-1).flatten(-2)


def export(model: MixtureOfExperts, out: Path) -> None:
    """Writes config.json and model.safetensors in bf16. The embedding is also the output head."""
    weights: dict[str, Tensor] = {
        "model.embed_tokens.weight": model.embed,
        "model.norm.weight": model.final_norm,
    }
    names = {
        "input_layernorm.weight": model.attention_norm,
        "post_attention_layernorm.weight": model.mlp_norm,
        "mlp.router.weight": model.router,
        "mlp.router.bias": model.router_bias,
        "mlp.experts.gate_up_proj": _interleaved(model.gate, model.up),
        "mlp.experts.gate_up_proj_bias": _interleaved(model.gate_bias, model.up_bias),
        "mlp.experts.down_proj": model.down,
        "mlp.experts.down_proj_bias": model.down_bias,
        "self_attn.sinks": model.sinks,
    }
    for part in ("q", "k", "v", "o"):
        names[f"self_attn.{part}_proj.weight"] = getattr(model, part)
        names[f"self_attn.{part}_proj.bias"] = getattr(model, f"{part}_bias")
    for name, stack in names.items():
        for layer, weight in enumerate(stack.unbind(0)):
            weights[f"model.layers.{layer}.{name}"] = weight
    tensors = {
        name: weight.detach().to("cpu", torch.bfloat16).contiguous() for name, weight in weights.items()
    }
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    model.config.save_pretrained(out)
