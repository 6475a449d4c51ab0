// Adapters of experts on a CUDA device against the CPU, which is held to PEFT: of the trained mixture of the
// tests. Skipped where there is no device.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "engine/cuda_fixture.h"
#include "util/str.h"
#include "weights/model_directory.h"

namespace quire {
namespace {

constexpr int64_t kExperts = 8, kHidden = 192, kInter = 64, kQueries = 256;
constexpr int kLayers = 6;

class CudaExpertLoraTest : public CudaEngineTest {
 protected:
  // Small values, so that an answer is another one and still no noise.
  static NamedTensor random_tensor(const std::string& name, int64_t rows, int64_t columns,
                                   std::mt19937& rng) {
    std::normal_distribution<float> normal(0.0F, 0.5F / std::sqrt(static_cast<float>(columns)));
    std::string bytes;
    for (int64_t i = 0; i < rows * columns; ++i) {
      const float value = normal(rng);
      bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    return {name, "F32", {rows, columns}, std::move(bytes)};
  }
  enum Kind : uint8_t { kAll, kSome, kNone };
  // Of all experts as parameters, of some by themselves, or of attention alone.
  static void write_adapter(const ModelDirectory& directory, Kind kind, uint32_t seed) {
    std::mt19937 rng(seed);
    std::vector<NamedTensor> tensors;
    const auto add = [&](const std::string& module, int64_t inputs, int64_t outputs, int64_t ranks) {
      const std::string name = "base_model.model.model.layers." + module;
      tensors.push_back(random_tensor(name + ".lora_A.weight", ranks, inputs, rng));
      tensors.push_back(random_tensor(name + ".lora_B.weight", outputs, ranks, rng));
    };
    constexpr int64_t kRank = 6;
    for (int layer = 0; layer < kLayers; ++layer) {
      const std::string experts = str(layer, ".mlp.experts");
      if (kind == kNone) add(str(layer, ".self_attn.q_proj"), kHidden, kQueries, kRank);
      if (kind == kAll) {
        add(experts + ".base_layer", kHidden, 2 * kInter, kExperts * kRank);
        add(experts, kInter, kHidden, kExperts * kRank);
      }
      for (int expert = 0; expert < kExperts && kind == kSome; expert += 1 + expert % 2) {
        add(str(experts, ".", expert, ".w1"), kHidden, kInter, kRank);
        add(str(experts, ".", expert, ".w2"), kInter, kHidden, kRank);
      }
    }
    directory.write("adapter_config.json",
                    str(R"({"peft_type": "LORA", "r": 6, "lora_alpha": 12, "target_parameters": [)",
                        kind == kAll ? R"("experts.gate_up_proj", "experts.down_proj")" : "", "]}"));
    write_safetensors(directory, tensors, "adapter_model.safetensors");
  }
  void SetUp() override {
    CudaEngineTest::SetUp();
    if (IsSkipped()) return;
    write_adapter(all_, kAll, 1);
    write_adapter(some_, kSome, 2);
    write_adapter(attention_, kNone, 3);
  }

  static EngineConfig config(const std::string& device, const std::string& dtype = "float32") {
    EngineConfig config = demo_config(device, dtype);
    config.model = "tests/python/data/moe_model";
    config.skip_tokenizer_init = true;
    config.enable_prefix_caching = false;
    config.enable_lora = true;
    config.max_loras = 3;
    config.max_lora_rank = 8;
    return config;
  }
  static std::vector<EngineRequest> requests(int count, int32_t max_tokens) {
    const std::string names[] = {"all", "", "attention", "some"};
    std::vector<EngineRequest> requests;
    for (int i = 0; i < count; ++i) {
      requests.push_back(request("", max_tokens));
      requests.back().lora_name = names[i % 4];
      for (int token = 0; token < 5 + 9 * i; ++token)
        requests.back().prompt_token_ids.push_back(100 + 31 * i + 7 * token);
    }
    return requests;
  }
  std::vector<std::vector<int32_t>> generate(const EngineConfig& config, int count = 11) const {
    Engine engine(config);
    engine.add_lora({"all", 0, all_.path()});
    engine.add_lora({"some", 0, some_.path()});
    engine.add_lora({"attention", 0, attention_.path()});
    std::vector<std::vector<int32_t>> tokens;
    for (const RequestOutput& output : engine.generate(requests(count, 30))) {
      EXPECT_EQ(output.outputs.at(0).error, "");
      tokens.push_back(output.outputs.at(0).token_ids);
    }
    return tokens;
  }

  ModelDirectory all_, some_, attention_;
};

TEST_F(CudaExpertLoraTest, AMixedBatchIsTheCpus) {
  const auto expected = generate(config("cpu"));
  EXPECT_EQ(generate(config("cuda")), expected);
  EngineConfig plain = config("cpu");
  plain.enable_lora = false;
  Engine engine(plain);
  std::vector<EngineRequest> without = requests(4, 30);
  for (EngineRequest& one : without) one.lora_name.clear();
  const auto outputs = engine.generate(std::move(without));
  EXPECT_NE(outputs[0].outputs.at(0).token_ids, expected[0]);
  EXPECT_EQ(outputs[1].outputs.at(0).token_ids, expected[1]);
  EXPECT_NE(outputs[2].outputs.at(0).token_ids, expected[2]);
  EXPECT_NE(outputs[3].outputs.at(0).token_ids, expected[3]);
}

TEST_F(CudaExpertLoraTest, AdaptersThatTakeTurnsInOneSlotAreTheCpus) {
  const auto expected = generate(config("cpu"), 12);
  for (const bool async : {false, true}) {
    EngineConfig one_slot = config("cuda");
    one_slot.max_loras = 1;
    one_slot.max_cpu_loras = 3;
    one_slot.async_scheduling = async;
    one_slot.max_num_seqs = 5;
    EXPECT_EQ(generate(one_slot, 12), expected);
  }
}

// Of so few rows, which the same kernels compute in whatever company.
TEST_F(CudaExpertLoraTest, GraphsAndStepsInFlightChangeNothing) {
  for (const char* dtype : {"float32", "bfloat16", "float16"}) {
    EngineConfig one = config("cuda", dtype);
    one.max_num_seqs = 1;
    one.enforce_eager = true;
    one.async_scheduling = false;
    const auto expected = generate(one, 6);
    for (const bool eager : {false, true}) {
      for (const bool async : {false, true}) {
        one.enforce_eager = eager;
        one.async_scheduling = async;
        EXPECT_EQ(generate(one, 6), expected) << dtype << " eager " << eager << " async " << async;
      }
    }
  }
}

TEST_F(CudaExpertLoraTest, ExpertsAreInTheMemoryThatIsPlanned) {
  EngineConfig with = config("cuda", "bfloat16"), without = with;
  without.enable_lora_experts = false;
  const Engine one(with), other(without);
  // Gate, up and down of rank 8.
  const int64_t each = kLayers * kExperts * 8 * (2 * (kHidden + kInter) + kInter + kHidden) * 2;
  const int64_t more = one.model().memory.adapters - other.model().memory.adapters;
  EXPECT_GE(more, 3 * each);
  EXPECT_LT(more, 3 * each + (64 << 10)) << "where it lies";
  EXPECT_EQ(2 * one.model().memory.graphs, 3 * other.model().memory.graphs);
}

}  // namespace
}  // namespace quire
