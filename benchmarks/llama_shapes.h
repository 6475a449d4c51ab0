// The config.json of the models that the H200 tables are about: the shapes of Llama-3.1-8B and Llama-3.1-70B.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

namespace quire {

inline constexpr const char* kLlama8B = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "max_position_embeddings": 131072,
"rms_norm_eps": 1e-05, "hidden_act": "silu", "rope_theta": 500000.0, "tie_word_embeddings": false,
"dtype": "bfloat16", "eos_token_id": 128001})";
inline constexpr const char* kLlama70B = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "max_position_embeddings": 131072,
"rms_norm_eps": 1e-05, "hidden_act": "silu", "rope_theta": 500000.0, "tie_word_embeddings": false,
"dtype": "bfloat16", "eos_token_id": 128001})";
inline constexpr int kLlamaVocabSize = 128256;

// A directory with such a file alone, for load_format "dummy".
inline std::string make_llama_directory(const std::string& name, const char* config) {
  const auto directory = std::filesystem::temp_directory_path() / ("quire-" + name);
  std::filesystem::create_directories(directory);
  std::ofstream(directory / "config.json") << config;
  return directory.string();
}
inline std::string make_llama_8b_directory() { return make_llama_directory("llama-8b", kLlama8B); }

}  // namespace quire
