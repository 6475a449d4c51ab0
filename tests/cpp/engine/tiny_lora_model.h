// A model of a few thousand random weights, and adapters for it.
#pragma once

#include <deque>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "quire/engine.h"
#include "util/str.h"
#include "weights/model_directory.h"

namespace quire {

class TinyLoraModel {
 public:
  static constexpr int32_t kVocabSize = 128;

  explicit TinyLoraModel(int num_adapters) {
    model_.write("config.json", R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
      "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
      "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 128, "max_position_embeddings": 256,
      "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": true,
      "torch_dtype": "float32"})");
    for (int i = 0; i < num_adapters; ++i) write_adapter(adapters_.emplace_back(), static_cast<uint32_t>(i));
  }

  const ModelDirectory& adapter(size_t i) const { return adapters_.at(i); }
  size_t num_adapters() const { return adapters_.size(); }
  EngineConfig config(int32_t max_loras, int32_t max_cpu_loras) const {
    EngineConfig config;
    config.model = model_.path();
    config.load_format = "dummy";
    config.skip_tokenizer_init = true;
    config.max_model_len = 64;
    config.block_size = 16;
    config.num_threads = 1;
    config.enable_lora = true;
    config.max_loras = max_loras;
    config.max_cpu_loras = max_cpu_loras;
    return config;
  }
  // Prompts of a family begin alike.
  static EngineRequest request(const std::string& lora_name, int32_t family, int32_t max_tokens) {
    EngineRequest request;
    for (int32_t i = 0; i < 18 + family % 3; ++i)
      request.prompt_token_ids.push_back((i * 7 + family * 31) % kVocabSize);
    request.lora_name = lora_name;
    request.sampling_params.temperature = 0;
    request.sampling_params.max_tokens = max_tokens;
    request.sampling_params.ignore_eos = true;
    return request;
  }

  // Of rank 1 to 4, at two linears, so large that it says something else than the model.
  static void write_adapter(const ModelDirectory& directory, uint32_t seed) {
    const int64_t rank = 1 + seed % 4;
    std::mt19937 rng(seed);
    std::vector<NamedTensor> tensors;
    for (const auto& [module, inputs, outputs] :
         {std::tuple<const char*, int64_t, int64_t>{"layers.0.self_attn.q_proj", 64, 64},
          {"layers.1.mlp.down_proj", 96, 64}}) {
      const std::string name = str("base_model.model.model.", module);
      tensors.push_back(random_tensor(name + ".lora_A.weight", rank, inputs, rng));
      tensors.push_back(random_tensor(name + ".lora_B.weight", outputs, rank, rng));
    }
    directory.write("adapter_config.json",
                    str(R"({"peft_type": "LORA", "lora_alpha": )", 4 * rank, R"(, "r": )", rank, "}"));
    write_safetensors(directory, tensors, "adapter_model.safetensors");
  }

 private:
  static NamedTensor random_tensor(const std::string& name, int64_t rows, int64_t columns,
                                   std::mt19937& rng) {
    std::string bytes;
    for (int64_t i = 0; i < rows * columns; ++i) {
      const float value = static_cast<float>(static_cast<int32_t>(rng() % 33) - 16) / 16;
      bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    return {name, "F32", {rows, columns}, std::move(bytes)};
  }

  ModelDirectory model_;
  std::deque<ModelDirectory> adapters_;
};

}  // namespace quire
