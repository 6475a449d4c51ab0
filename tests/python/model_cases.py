"""Small models of each architecture, by name: as configurations of transformers."""

from __future__ import annotations

from typing import Any

from transformers import (
    BloomConfig,
    Gemma2Config,
    Gemma3TextConfig,
    Glm4Config,
    Glm4MoeConfig,
    GPT2Config,
    GPTNeoXConfig,
    GptOssConfig,
    GraniteConfig,
    GraniteMoeConfig,
    LlamaConfig,
    MinistralConfig,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    Olmo3Config,
    OPTConfig,
    Phi3Config,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
    StableLmConfig,
)

SPECIAL: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}


def llama(**changes: Any) -> LlamaConfig:
    base: dict[str, Any] = {
        "hidden_size": 256,
        "intermediate_size": 320,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 515,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
    }
    return LlamaConfig(**(base | changes))


def sizes(**changes: Any) -> dict[str, Any]:
    """What all of them call alike, as llama() has it."""
    config = llama().to_diff_dict()
    keys = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    base = {key: config[key] for key in (*keys, "num_key_value_heads", "vocab_size")}
    return base | SPECIAL | {"max_position_embeddings": 512} | changes


def qwen2(**changes: Any) -> Qwen2Config:
    return Qwen2Config(**sizes(**changes))


def qwen3(**changes: Any) -> Qwen3Config:
    return Qwen3Config(**sizes(**changes))


def gemma2(**changes: Any) -> Gemma2Config:
    """Caps that bend these small models' scores and logits, and a window that ends within the prompt."""
    base = {
        "head_dim": 64,
        "query_pre_attn_scalar": 96,
        "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 12.0,
        "sliding_window": 50,
    }
    return Gemma2Config(**sizes(**(base | changes)))


def gemma3(**changes: Any) -> Gemma3TextConfig:
    """Five layers with windows that end within the prompt, then one without."""
    base = {"head_dim": 64, "query_pre_attn_scalar": 96, "sliding_window": 50, "num_hidden_layers": 6}
    return Gemma3TextConfig(**sizes(**(base | changes)))


def granite(**changes: Any) -> GraniteConfig:
    base = {
        "embedding_multiplier": 1.5,
        "residual_multiplier": 0.7,
        "attention_multiplier": 0.2,
        "logits_scaling": 0.8,
        "tie_word_embeddings": False,
    }
    return GraniteConfig(**sizes(**(base | changes)))


def glm4(**changes: Any) -> Glm4Config:
    return Glm4Config(**sizes(**({"head_dim": 64} | changes)))


def ministral(**changes: Any) -> MinistralConfig:
    kinds = ["full_attention", "sliding_attention", "full_attention"]
    base = {"num_hidden_layers": 3, "head_dim": 64, "sliding_window": 50, "layer_types": kinds}
    return MinistralConfig(**sizes(**(base | changes)))


def phi3(**changes: Any) -> Phi3Config:
    return Phi3Config(**sizes(**(changes)))


def smollm3(**changes: Any) -> SmolLM3Config:
    return SmolLM3Config(**sizes(**({"num_hidden_layers": 4} | changes)))


def gpt_neox(**changes: Any) -> GPTNeoXConfig:
    base = sizes(**changes)
    del base["num_key_value_heads"]
    return GPTNeoXConfig(**base)


def gpt2(**changes: Any) -> GPT2Config:
    base = SPECIAL | {"n_embd": 256, "n_layer": 2, "n_head": 4, "vocab_size": 515, "n_positions": 512}
    return GPT2Config(**(base | changes))


def opt(**changes: Any) -> OPTConfig:
    base = SPECIAL | {
        "hidden_size": 256,
        "ffn_dim": 320,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 515,
        "max_position_embeddings": 512,
        "word_embed_proj_dim": 256,
    }
    return OPTConfig(**(base | changes))


def bloom(**changes: Any) -> BloomConfig:
    base = SPECIAL | {"hidden_size": 256, "n_layer": 2, "n_head": 4, "vocab_size": 515}
    return BloomConfig(**(base | changes))


def stablelm(**changes: Any) -> StableLmConfig:
    return StableLmConfig(**sizes(**changes))


def rope(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **parameters}}


FACTORS = [1.0 + 0.1 * i for i in range(32)]
DENSE_CASES: dict[str, Any] = {
    "llama-gqa-64": llama(),
    "llama-mha-64-tied": llama(num_key_value_heads=4, tie_word_embeddings=True),
    "llama-mqa-128": llama(num_attention_heads=2, num_key_value_heads=1),
    "llama-gqa-80": llama(hidden_size=320, head_dim=80, vocab_size=1001),
    "llama-mha-96-tied": llama(hidden_size=384, num_key_value_heads=4, head_dim=96, tie_word_embeddings=True),
    "llama-biases": llama(attention_bias=True, mlp_bias=True),
    "llama-deep-gqa-8": llama(num_attention_heads=16, hidden_size=512, head_dim=64, num_hidden_layers=4),
    "qwen2-gqa-64-tied": qwen2(tie_word_embeddings=True),
    "qwen2-mha-128": qwen2(num_attention_heads=2, num_key_value_heads=2),
    "qwen2-gqa-80": qwen2(hidden_size=320),
    "qwen2-gqa-96": qwen2(hidden_size=384),
    "qwen2-window": qwen2(use_sliding_window=True, sliding_window=50, max_window_layers=1),
    "qwen3-gqa-128": qwen3(head_dim=128),
    "qwen3-mha-64-tied": qwen3(head_dim=64, num_key_value_heads=4, tie_word_embeddings=True),
    "qwen3-gqa-80": qwen3(head_dim=80),
    "qwen3-gqa-96": qwen3(head_dim=96, attention_bias=True),
    "gemma2-gqa-64": gemma2(),
    "gemma2-mha-128-untied": gemma2(head_dim=128, num_key_value_heads=4, tie_word_embeddings=False),
    "gemma2-gqa-256-3-layers": gemma2(head_dim=256, num_hidden_layers=3, sliding_window=100),
    "gemma2-no-caps": gemma2(
        attn_logit_softcapping=None,
        final_logit_softcapping=None,
        query_pre_attn_scalar=2000,  # or scores without a cap leave bfloat16 no clear token
        layer_types=["full_attention", "sliding_attention"],
    ),
    "mistral-window": MistralConfig(**sizes(sliding_window=50)),
    "mistral-no-window-128": MistralConfig(**sizes(sliding_window=None, head_dim=128)),
    "ministral-windows-of-some": ministral(),
    "ministral-gqa-80-tied": ministral(
        hidden_size=320, head_dim=80, layer_types=["full_attention"] * 3, tie_word_embeddings=True
    ),
    "gemma3-gqa-64": gemma3(),
    "gemma3-mha-128-untied-linear": gemma3(
        head_dim=128,
        num_key_value_heads=4,
        tie_word_embeddings=False,
        num_hidden_layers=3,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        },
    ),
    "smollm3-nope": smollm3(),
    "smollm3-nope-windows-biases": smollm3(
        num_hidden_layers=3,
        no_rope_layers=[0, 1, 0],
        use_sliding_window=True,
        sliding_window=70,
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=False,
    ),
    "phi3-mha-64": phi3(num_key_value_heads=4),
    "phi3-gqa-window-partial-longrope": phi3(
        original_max_position_embeddings=128,
        sliding_window=50,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.75,
            "short_factor": FACTORS[:24],
            "long_factor": [2 * f for f in FACTORS[:24]],
            "original_max_position_embeddings": 128,
        },
    ),
    "glm4-gqa-64": glm4(),
    "glm4-mqa-128-tied": glm4(
        head_dim=128, num_key_value_heads=1, tie_word_embeddings=True, attention_bias=False
    ),
    "olmo2-mha-64": Olmo2Config(**sizes(num_key_value_heads=4)),
    "olmo2-gqa-80-biases": Olmo2Config(**sizes(hidden_size=320, attention_bias=True)),
    "olmo3-windows": Olmo3Config(
        **sizes(
            num_hidden_layers=4,
            sliding_window=50,
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e5},
                "full_attention": {
                    "rope_type": "yarn",
                    "rope_theta": 1e5,
                    "factor": 4.0,
                    "original_max_position_embeddings": 128,
                },
            },
        )
    ),
    "olmo3-mha-80-biases-plain-angles": Olmo3Config(
        **sizes(
            hidden_size=320,
            num_key_value_heads=4,
            num_hidden_layers=3,
            attention_bias=True,
            sliding_window=70,
            layer_types=["full_attention", "sliding_attention", "full_attention"],
        )
    ),
    "granite-gqa-64": granite(),
    "granite-mha-biases-tied": granite(
        num_key_value_heads=4, attention_bias=True, mlp_bias=True, tie_word_embeddings=True
    ),
    "gpt-neox-mha-64": gpt_neox(),
    "gpt-neox-mha-80-sequential-no-bias": gpt_neox(
        hidden_size=320,
        use_parallel_residual=False,
        attention_bias=False,
        hidden_act="gelu_new",
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.6},
    ),
    "gpt2-mha-64": gpt2(),
    "gpt2-mha-80-wide-untied": gpt2(
        n_embd=320, n_inner=800, tie_word_embeddings=False, activation_function="relu"
    ),
    "opt-mha-64": opt(),
    "opt-mha-128-no-bias-untied": opt(
        num_attention_heads=2, enable_bias=False, tie_word_embeddings=False, activation_function="gelu"
    ),
    "bloom-mha-64": bloom(),
    "bloom-6-heads-untied": bloom(hidden_size=384, n_head=6, tie_word_embeddings=False),
    "stablelm-gqa-64": stablelm(),
    "stablelm-mha-128-parallel-norms": stablelm(
        num_attention_heads=2,
        num_key_value_heads=2,
        use_parallel_residual=True,
        qk_layernorm=True,
        use_qkv_bias=True,
    ),
    "rope-theta": llama(rope_parameters={"rope_type": "default", "rope_theta": 5e5}),
    "rope-linear": llama(**rope("linear", factor=4.0)),
    "rope-dynamic-short": llama(**rope("dynamic", factor=4.0)),
    "rope-dynamic-long": llama(**rope("dynamic", factor=4.0), max_position_embeddings=128),
    "rope-llama3": llama(
        **rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=128,
        )
    ),
    "rope-yarn": llama(**rope("yarn", factor=4.0, original_max_position_embeddings=128)),
    "rope-yarn-mscale": qwen3(
        head_dim=64,
        **rope(
            "yarn",
            factor=4.0,
            original_max_position_embeddings=128,
            mscale=0.7,
            mscale_all_dim=1.2,
            beta_fast=16.0,
            beta_slow=2.0,
            truncate=False,
        ),
    ),
    "rope-longrope-short": llama(
        **rope(
            "longrope",
            short_factor=FACTORS,
            long_factor=[2 * f for f in FACTORS],
            original_max_position_embeddings=400,
        ),
    ),
    "rope-longrope-long": llama(
        **rope(
            "longrope",
            short_factor=FACTORS,
            long_factor=[2 * f for f in FACTORS],
            original_max_position_embeddings=128,
        ),
    ),
}


def mixtral(**changes: Any) -> MixtralConfig:
    return MixtralConfig(**sizes(**({"num_local_experts": 6, "num_experts_per_tok": 2} | changes)))


def qwen2_moe(**changes: Any) -> Qwen2MoeConfig:
    base = {"num_experts": 10, "num_experts_per_tok": 3, "moe_intermediate_size": 96}
    return Qwen2MoeConfig(**sizes(**(base | {"shared_expert_intermediate_size": 160} | changes)))


def qwen3_moe(**changes: Any) -> Qwen3MoeConfig:
    base = {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 96, "head_dim": 64}
    return Qwen3MoeConfig(**sizes(**(base | {"norm_topk_prob": True} | changes)))


def granite_moe(**changes: Any) -> GraniteMoeConfig:
    factors = granite().to_diff_dict()
    keys = ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")
    base = {key: factors[key] for key in keys} | {"num_local_experts": 8, "num_experts_per_tok": 2}
    return GraniteMoeConfig(**sizes(**(base | changes)))


def glm4_moe(**changes: Any) -> Glm4MoeConfig:
    """One dense layer, one of 16 experts in four groups."""
    base = {
        "head_dim": 64,
        "n_routed_experts": 16,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 96,
        "n_group": 4,
        "topk_group": 2,
        "first_k_dense_replace": 1,
    }
    return Glm4MoeConfig(**sizes(**(base | changes)))


def gpt_oss(**changes: Any) -> GptOssConfig:
    base = {"head_dim": 64, "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 50}
    return GptOssConfig(**sizes(**(base | changes)))


MOE_CASES: dict[str, Any] = {
    "mixtral-gqa-64": mixtral(),
    "mixtral-window-128-tied": mixtral(
        head_dim=128, sliding_window=50, num_experts_per_tok=3, tie_word_embeddings=True
    ),
    "qwen2-moe-gqa-64": qwen2_moe(),
    "qwen2-moe-mha-dense-layers": qwen2_moe(
        num_hidden_layers=4,
        num_key_value_heads=4,
        mlp_only_layers=[1],
        decoder_sparse_step=2,
        norm_topk_prob=True,
        num_experts_per_tok=1,
    ),
    "qwen3-moe-gqa-64": qwen3_moe(),
    "qwen3-moe-gqa-80-raw-weights": qwen3_moe(
        head_dim=80, norm_topk_prob=False, num_experts_per_tok=16, moe_intermediate_size=40
    ),
    "granite-moe-gqa-64": granite_moe(),
    "granite-moe-mha-tied": granite_moe(
        num_key_value_heads=4, tie_word_embeddings=True, attention_bias=True, num_experts_per_tok=5
    ),
    "glm4-moe-gqa-64": glm4_moe(),
    "glm4-moe-norms-no-groups": glm4_moe(
        use_qk_norm=True,
        attention_bias=True,
        n_group=1,
        topk_group=1,
        n_shared_experts=2,
        routed_scaling_factor=2.5,
        first_k_dense_replace=0,
    ),
    "gpt-oss-gqa-64": gpt_oss(),
    "gpt-oss-mha-80": gpt_oss(hidden_size=320, head_dim=80, num_key_value_heads=4, num_hidden_layers=3),
}
CASES = DENSE_CASES | MOE_CASES

# Prompts of some thousand tokens take other kernels, and windows may be wider than a prompt of 300 tells.
LONG: dict[str, Any] = {"max_position_embeddings": 9000}
LONG_MOE_CASES: dict[str, Any] = {
    "qwen3-moe-gqa-128": qwen3_moe(head_dim=128, **LONG),
    "gpt-oss-gqa-64": gpt_oss(**LONG),
}
LONG_CASES: dict[str, Any] = LONG_MOE_CASES | {
    "llama-gqa-8-128": llama(num_attention_heads=8, num_key_value_heads=1, head_dim=128, **LONG),
    "qwen2-mha-128-windows": qwen2(
        num_attention_heads=2,
        num_key_value_heads=2,
        use_sliding_window=True,
        sliding_window=4200,
        max_window_layers=1,
        **LONG,
    ),
    "gemma3-gqa-256": gemma3(
        head_dim=256,
        num_hidden_layers=3,
        sliding_window=600,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        **LONG,
    ),
    "gemma2-gqa-128": gemma2(head_dim=128, sliding_window=600, **LONG),
    "bloom-mha-64": bloom(),
}
