// The config.json of the model that the H200 tables are about: the shape of Llama-3.1-8B.
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
inline constexpr int kLlama8BVocabSize = 128256;

// A directory with that file alone, for load_format "dummy".
inline std::string make_llama_8b_directory() {
  const auto directory = std::filesystem::temp_directory_path() / "quire-llama-8b";
  std::filesystem::create_directories(directory);
  std::ofstream(directory / "config.json") << kLlama8B;
  return directory.string();
}

}  // namespace quire
