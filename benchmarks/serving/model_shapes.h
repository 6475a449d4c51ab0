// Published models' shapes, for engines with random weights, and what a step of decoding must read of each.
#pragma once

#include <cmath>
#include <cstdint>

#include "../llama_shapes.h"

namespace quire {

struct ModelShape {
  const char* name;
  const char* config;  // config.json
  int32_t vocab_size;
  int32_t layers, hidden, heads, kv_heads, head_size;
  int64_t intermediate;
  int32_t experts = 0, top_k = 0;  // 0: dense
  int32_t full_layers = 0;         // that attend to everything; the others to `window` tokens
  int32_t window = 0;

  // Bytes in bfloat16 that one step of `batch` requests of `context` tokens reads, at the least: every weight
  // but the embedding once, of the experts those that are likely to be touched when each is as likely, and
  // keys and values.
  double decode_bytes(double batch, double context) const {
    const double attention = 2.0 * hidden * head_size * (heads + kv_heads);
    const double expert = 3.0 * hidden * static_cast<double>(intermediate);
    const double feed_forward =
        experts == 0 ? expert
                     : expert * experts * (1 - std::pow(1 - static_cast<double>(top_k) / experts, batch)) +
                           static_cast<double>(hidden) * experts;
    const double kv_of_token = 2.0 * kv_heads * head_size;
    const double in_window = window > 0 ? std::fmin(context, window) : context;
    const double kv = batch * kv_of_token * (full_layers * context + (layers - full_layers) * in_window);
    return 2 * (layers * (attention + feed_forward) + static_cast<double>(hidden) * vocab_size + kv);
  }
  // Operations of the linears and experts of a prompt.
  double product_flops(double tokens) const {
    const double expert = 3.0 * hidden * static_cast<double>(intermediate);
    const double of_layer =
        2.0 * hidden * head_size * (heads + kv_heads) + (experts == 0 ? expert : top_k * expert);
    return 2 * tokens * layers * of_layer;
  }
  // Operations of its causal attention: each token's with those before it, as far as the layer's window goes.
  double attention_flops(double tokens) const {
    const double near = window > 0 ? std::fmin(tokens, window) : tokens;
    const double in_window = tokens * near - near * near / 2, in_full = tokens * tokens / 2;
    return 4.0 * heads * head_size * (full_layers * in_full + (layers - full_layers) * in_window);
  }
};

inline constexpr ModelShape kModelShapes[] = {
    {.name = "llama-3.1-8b",
     .config = kLlama8B,
     .vocab_size = kLlamaVocabSize,
     .layers = 32,
     .hidden = 4096,
     .heads = 32,
     .kv_heads = 8,
     .head_size = 128,
     .intermediate = 14336,
     .full_layers = 32},
    {.name = "mixtral-8x7b",
     .config = R"({"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 4096,
"intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
"num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000, "max_position_embeddings": 32768,
"rms_norm_eps": 1e-05, "hidden_act": "silu", "rope_theta": 1000000.0, "sliding_window": null,
"tie_word_embeddings": false, "dtype": "bfloat16", "eos_token_id": 2})",
     .vocab_size = 32000,
     .layers = 32,
     .hidden = 4096,
     .heads = 32,
     .kv_heads = 8,
     .head_size = 128,
     .intermediate = 14336,
     .experts = 8,
     .top_k = 2,
     .full_layers = 32},
    {.name = "qwen3-30b-a3b",
     .config = R"({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048,
"intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 48, "num_attention_heads": 32,
"num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": true,
"decoder_sparse_step": 1, "mlp_only_layers": [], "vocab_size": 151936, "max_position_embeddings": 40960,
"rms_norm_eps": 1e-06, "hidden_act": "silu", "rope_theta": 1000000.0, "rope_scaling": null,
"attention_bias": false, "tie_word_embeddings": false, "dtype": "bfloat16", "eos_token_id": 151645})",
     .vocab_size = 151936,
     .layers = 48,
     .hidden = 2048,
     .heads = 32,
     .kv_heads = 4,
     .head_size = 128,
     .intermediate = 768,
     .experts = 128,
     .top_k = 8,
     .full_layers = 48},
    {.name = "gemma-3-12b",
     .config = R"({"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_size": 3840,
"intermediate_size": 15360, "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 8,
"head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 1024, "sliding_window_pattern": 6,
"vocab_size": 262208, "max_position_embeddings": 131072, "rms_norm_eps": 1e-06,
"hidden_activation": "gelu_pytorch_tanh", "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "attention_bias": false, "tie_word_embeddings": true,
"dtype": "bfloat16", "eos_token_id": 1})",
     .vocab_size = 262208,
     .layers = 48,
     .hidden = 3840,
     .heads = 16,
     .kv_heads = 8,
     .head_size = 256,
     .intermediate = 15360,
     .full_layers = 8,
     .window = 1024},
    {.name = "gpt-oss-20b",
     .config = R"({"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880,
"intermediate_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8,
"head_dim": 64, "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128, "vocab_size": 201088,
"max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "hidden_act": "silu", "rope_theta": 150000.0,
"rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
"original_max_position_embeddings": 4096}, "attention_bias": true, "tie_word_embeddings": false,
"dtype": "bfloat16", "eos_token_id": 200002})",
     .vocab_size = 201088,
     .layers = 24,
     .hidden = 2880,
     .heads = 64,
     .kv_heads = 8,
     .head_size = 64,
     .intermediate = 2880,
     .experts = 32,
     .top_k = 4,
     .full_layers = 12,
     .window = 128},
};

}  // namespace quire
