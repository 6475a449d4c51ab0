// Adapters of parameters: which pair of a file is whose, and what is refused by name.
#include <gtest/gtest.h>

#include "weights/lora_adapter_files.h"

namespace quire {
namespace {

constexpr const char* kExperts = "model.layers.0.mlp.experts";
constexpr const char* kBoth = R"("target_parameters": ["mlp.experts.down_proj", "mlp.experts.gate_up_proj"])";

class LoraParametersTest : public LoraFilesTest {
 protected:
  // Of so many experts with rank 4.
  static std::vector<NamedTensor> stack(const std::string& module, int64_t num_experts) {
    return pair(module, 4 * num_experts);
  }
  static std::vector<NamedTensor> both(int64_t of_gate_up, int64_t of_down) {
    return stack(str(kExperts, ".base_layer"), of_gate_up) + stack(kExperts, of_down);
  }
};

TEST_F(LoraParametersTest, TheInnerPairIsOfTheParameterThatComesFirst) {
  const auto modules = modules_of(
      config_with(
          str(kBoth, R"(, "rank_pattern": {"experts.down_proj": 2}, "alpha_pattern": {"gate_up_proj": 6})")),
      both(3, 3) + pair(kQ, 4));
  ASSERT_EQ(modules.size(), 3U);
  EXPECT_EQ(modules[0].name, str(kExperts, ".down_proj"));
  EXPECT_EQ(modules[0].rank, 2);
  EXPECT_EQ(modules[0].num_experts, 6);
  EXPECT_EQ(modules[0].scale, 4.0F);
  EXPECT_EQ(modules[1].name, str(kExperts, ".gate_up_proj"));
  EXPECT_EQ(modules[1].rank, 4);
  EXPECT_EQ(modules[1].num_experts, 3);
  EXPECT_EQ(modules[1].scale, 1.5F);
  EXPECT_EQ(modules[1].a.shape[0], 12);
  EXPECT_EQ(modules[2].name, kQ);
  EXPECT_EQ(modules[2].num_experts, 0);
}

TEST_F(LoraParametersTest, OneParameterIsNotWrapped) {
  for (const char* name : {"gate_up_proj", "down_proj"}) {
    const std::string config = config_with(
        str(R"("target_parameters": [")", name, R"("], "rank_pattern": {".*\\.)", name, R"(": 8})"));
    const auto modules = modules_of(config, stack(kExperts, 4));
    ASSERT_EQ(modules.size(), 1U);
    EXPECT_EQ(modules[0].name, str(kExperts, ".", name));
    EXPECT_EQ(modules[0].rank, 8);
    EXPECT_EQ(modules[0].num_experts, 2);
  }
}

TEST_F(LoraParametersTest, AWeightIsItsModules) {
  const std::string gate = "model.layers.0.mlp.gate";
  const auto modules = modules_of(
      config_with(
          R"("target_parameters": ["gate.weight"], "rank_pattern": {"mlp.gate.weight": 2, "gate": 9})"),
      pair(gate, 2) + pair("model.layers.0.mlp.up_proj", 4));
  ASSERT_EQ(modules.size(), 2U);
  EXPECT_EQ(modules[0].name, gate);
  EXPECT_EQ(modules[0].num_experts, 1);
  EXPECT_EQ(modules[1].num_experts, 0);
}

TEST_F(LoraParametersTest, LayersMayHaveDifferentParameters) {
  const auto modules = modules_of(
      config_with(R"("target_parameters": ["layers.0.mlp.experts.gate_up_proj", "experts.down_proj"])"),
      both(2, 2) + stack("model.layers.1.mlp.experts", 2));
  ASSERT_EQ(modules.size(), 3U);
  EXPECT_EQ(modules[2].name, "model.layers.1.mlp.experts.down_proj");
}

TEST_F(LoraParametersTest, OtherParametersAreRefused) {
  for (const char* name :
       {"mlp.experts.gate_up_proj_bias", "experts.weight", "weight", "", ".", ".weight", "sinks",
        "self_attn.sinks", "mlp.gate_up_proj", "experts.down_proj.weight.bias", ".down_proj"}) {
    EXPECT_EQ(config_error(str(R"("target_parameters": [")", name, "\"]")),
              str("D/adapter_config.json: 'target_parameters' has '", name,
                  "'; adapters may change the parameters gate_up_proj and down_proj of experts, and those "
                  "called <module>.weight"));
  }
  const std::string text =
      config_error(R"("target_parameters": [")" + std::string(77, 'x') + "\u00e4\u00e4\"]");
  EXPECT_NE(text.find(std::string(77, 'x') + "...'; adapters"), text.npos) << text;
  for (const char* value : {"\"down_proj\"", "{\"a\": 1}", "[1]", "true"}) {
    EXPECT_TRUE(config_error(str(R"("target_parameters": )", value))
                    .starts_with("D/adapter_config.json: 'target_parameters' must be a list of strings"))
        << value;
  }
  EXPECT_EQ(config_error(R"("target_parameters": null)"), "");
  EXPECT_EQ(config_error(R"("target_parameters": [])"), "");
}

TEST_F(LoraParametersTest, AModuleHasAPairForEachOfItsParameters) {
  const std::string file = "D/adapter_model.safetensors: ";
  const auto missing = [&](const std::string& parameter, const std::string& module) {
    return str(file, "has nothing of '", kExperts, ".", parameter,
               "', which 'target_parameters' of D/adapter_config.json names: module '", module,
               "' is missing");
  };
  EXPECT_EQ(open_error(config_with(kBoth), stack(kExperts, 2)),
            missing("gate_up_proj", str(kExperts, ".base_layer")));
  EXPECT_EQ(open_error(config_with(kBoth), stack(str(kExperts, ".base_layer"), 2)),
            missing("down_proj", kExperts));
  EXPECT_EQ(open_error(config_with(kBoth), both(2, 2) + stack(str(kExperts, ".base_layer.base_layer"), 2)),
            str(file, "module '", kExperts,
                ".base_layer.base_layer' has rank 8, but 'r' of D/adapter_config.json "
                "says 4"));
  std::vector<NamedTensor> torn = both(2, 2);
  torn.pop_back();
  EXPECT_EQ(open_error(config_with(kBoth), torn),
            str(file, "module '", kExperts, ".down_proj' has lora_A, but no lora_B; both must be there"));
  EXPECT_EQ(open_error(config_with(kBoth), both(2, 2) + pair(str(kExperts, ".down_proj"), 4)),
            str(file, "has '", kExperts, ".down_proj' as a module and as a parameter"));
}

TEST_F(LoraParametersTest, RanksAreWholeForEachExpert) {
  EXPECT_EQ(
      open_error(config_with(str(kBoth, R"(, "rank_pattern": {"gate_up_proj": 3})")), both(2, 2)),
      str("D/adapter_model.safetensors: module '", kExperts,
          ".gate_up_proj' has rank 8, but 'rank_pattern' of D/adapter_config.json says 3 of each expert"));
}

TEST_F(LoraParametersTest, AFingerprintTellsHowManyExpertsThereAre) {
  const auto fingerprint = [](const std::string& more) {
    const ModelDirectory directory;
    write_adapter(directory,
                  config_with(str(R"("use_rslora": true, "target_parameters": ["down_proj"])", more)),
                  stack(kExperts, 4));
    return LoraAdapter::open(directory.path()).fingerprint(1);
  };
  EXPECT_NE(fingerprint(""),
            fingerprint(R"(, "rank_pattern": {"down_proj": 16}, "alpha_pattern": {"down_proj": 16})"));
}

}  // namespace
}  // namespace quire
