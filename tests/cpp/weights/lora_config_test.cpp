// What an adapter_config.json says.
#include <limits>

#include "weights/lora_adapter_files.h"

namespace quire {
namespace {

class LoraConfigTest : public LoraFilesTest {
 protected:
  // The scale of q_proj of layer 0, of rank 4, under a pattern with alpha 100.
  static float scale_under(const std::string& pattern) {
    return modules_of(config_with(R"("alpha_pattern": {")" + pattern + R"(": 100})"), pair(kQ, 4))
        .at(0)
        .scale;
  }
};

TEST_F(LoraConfigTest, RankStabilizedScalesDivideByTheRoot) {
  EXPECT_EQ(modules_of(config_with(R"("use_rslora": true)"), pair(kQ, 4)).at(0).scale, 4);
  EXPECT_EQ(modules_of(config_with(R"("use_rslora": false)"), pair(kQ, 4)).at(0).scale, 2);
  // By the root of the module's own rank.
  EXPECT_EQ(modules_of(config_with(R"("use_rslora": true, "rank_pattern": {"q_proj": 16})"), pair(kQ, 16))
                .at(0)
                .scale,
            2);
}

TEST_F(LoraConfigTest, APatternIsAModulesNameOrItsEndFromADotOn) {
  for (const char* matching :
       {"q_proj", "self_attn.q_proj", "0.self_attn.q_proj", R"(layers\\.0\\.self_attn\\.q_proj)",
        "model.layers.0.self_attn.q_proj", "^model.layers.0.self_attn.q_proj",
        R"(^model\\.layers\\.0\\.self_attn\\.q_proj)"})
    EXPECT_EQ(scale_under(matching), 25) << matching;
  for (const char* other :
       {"proj", "_proj", "q_pro", "attn.q_proj", "^q_proj", "^self_attn.q_proj", "self_attn", "0", "model",
        "x.model.layers.0.self_attn.q_proj", "k_proj", "Q_proj"})
    EXPECT_EQ(scale_under(other), 2) << other;
}

TEST_F(LoraConfigTest, TheFirstOfThePatternsInTheFilesOrderHolds) {
  const auto scale = [](const std::string& patterns) {
    return modules_of(config_with(R"("alpha_pattern": {)" + patterns + "}"), pair(kQ, 4)).at(0).scale;
  };
  // Not the order of the names, nor of their lengths.
  EXPECT_EQ(scale(R"("self_attn.q_proj": 4, "q_proj": 12, "0.self_attn.q_proj": 20)"), 1);
  EXPECT_EQ(scale(R"("q_proj": 12, "0.self_attn.q_proj": 20, "self_attn.q_proj": 4)"), 3);
  EXPECT_EQ(scale(R"("^model.layers.0.self_attn.q_proj": 4, "q_proj": 12)"), 1);
  EXPECT_EQ(scale(R"("q_proj": 12, "^model.layers.0.self_attn.q_proj": 4)"), 3);
  EXPECT_EQ(scale(R"("k_proj": 4, "self_attn\\.q_proj": 12, "self_attn.q_proj": 20)"), 3);
}

TEST_F(LoraConfigTest, RanksAndAlphasHavePatternsOfTheirOwn) {
  const ModelDirectory directory;
  write_adapter(directory, config_with(R"("rank_pattern": {"q_proj": 2, "layers.1.mlp.up_proj": 6.0},
                               "alpha_pattern": {"mlp.up_proj": 3, "down_proj": 0.5})"),
                pair(kQ, 2) + pair("model.layers.1.mlp.up_proj", 6) +
                    pair("model.layers.1.mlp.down_proj", 4) + pair("model.layers.2.self_attn.v_proj", 4));
  const LoraAdapter adapter = LoraAdapter::open(directory.path());
  EXPECT_EQ(adapter.max_rank(), 6);
  ASSERT_EQ(adapter.modules().size(), 4U);
  EXPECT_EQ(adapter.modules()[0].scale, 4);       // q_proj: 8 / 2
  EXPECT_EQ(adapter.modules()[1].scale, 0.125F);  // down_proj: 0.5 / 4
  EXPECT_EQ(adapter.modules()[2].scale, 0.5F);    // up_proj: 3 / 6
  EXPECT_EQ(adapter.modules()[2].rank, 6);
}

TEST_F(LoraConfigTest, PatternsThatAreNotNamesAreRefused) {
  for (const char* pattern : {".*q_proj", "(q|k)_proj", R"(layers\\.[0-9]+)", "q_proj$", "", "^", ".q_proj",
                              "q_proj.", "self_attn..q_proj", "q proj", R"(q\\_proj)", R"(q_proj\\)", "q^",
                              "^^q_proj", R"(\\.q_proj)", "pr\u00f6j"}) {
    const std::string text =
        config_error(R"("rank_pattern": {"a": 4, ")" + std::string(pattern) + R"(": 4})");
    EXPECT_TRUE(text.starts_with("D/adapter_config.json: 'rank_pattern' has the pattern '"))
        << pattern << text;
  }
  EXPECT_EQ(
      config_error(R"("alpha_pattern": {".*q_proj": 4})"),
      "D/adapter_config.json: 'alpha_pattern' has the pattern '.*q_proj', which is not a module's name "
      "nor the end of one from a dot on, like 'layers.0.self_attn.q_proj'; list by name what it matches");
}

TEST_F(LoraConfigTest, WhatIsNeutralOrUnknownInTheConfigIsFine) {
  EXPECT_EQ(config_error(R"("use_dora": false, "modules_to_save": null, "layer_replication": [],
      "trainable_token_indices": {}, "bias": null, "rank_pattern": null, "alpha_pattern": {},
      "init_lora_weights": null, "use_rslora": null, "base_model_name_or_path": null, "lora_dropout": 0.1,
      "fan_in_fan_out": true, "target_modules": "all-linear", "loftq_config": {"loftq_bits": 4},
      "a_key_to_come": [{"x": 1}], "inference_mode": true, "task_type": "CAUSAL_LM")"),
            "");
  for (const char* init :
       {"true", "false", "\"gaussian\"", "\"eva\"", "\"orthogonal\"", "\"mica\"", "\"Gaussian\""})
    EXPECT_EQ(config_error(str(R"("init_lora_weights": )", init)), "") << init;
}

TEST_F(LoraConfigTest, WhatIsMoreThanProductsOfMatricesIsRefusedByItsKey) {
  for (const char* member :
       {R"("use_dora": true)", R"("lora_bias": true)", R"("modules_to_save": ["lm_head"])",
        R"("trainable_token_indices": [1])", R"("layer_replication": [[0, 4], [2, 5]])",
        R"("kasa_config": {"beta": 1})", R"("use_bdlora": {"nblocks": 2})",
        R"("velora_config": {"num_groups": 64})", R"("monteclora_config": {"num_samples": 8})",
        R"("use_qalora": true)", R"("alora_invocation_tokens": [1, 2])", R"("arrow_config": {"top_k": 3})",
        R"("megatron_config": {"x": 1})", R"("use_dora": "yes")", R"("use_dora": 0)"}) {
    const std::string key = std::string(member).substr(1, std::string(member).find('"', 1) - 1);
    const std::string text = config_error(member);
    EXPECT_TRUE(text.starts_with("D/adapter_config.json: '" + key + "' is ")) << text;
    EXPECT_NE(text.find(" is not supported; "), text.npos) << text;
  }
  EXPECT_EQ(
      config_error(R"("use_dora": true)"),
      str("D/adapter_config.json: 'use_dora' is true: DoRA, which scales the model's own weights, is not "
          "supported; ",
          kMerge));
  EXPECT_EQ(
      config_error(R"("bias": "lora_only")"),
      str("D/adapter_config.json: 'bias' must be 'none', got 'lora_only': an adapter that replaces biases "
          "of the model is not supported; ",
          kMerge));
}

TEST_F(LoraConfigTest, ALongValueIsShortenedBetweenItsCharacters) {
  std::string list = "[\"";
  for (int i = 0; i < 100; ++i) list += "\u00e4";
  for (const char* more : {"", "x"}) {  // one byte on: the other half of a character
    const std::string text = config_error(R"("modules_to_save": )" + list + more + "\"]");
    EXPECT_NE(text.find("\u00e4...: an adapter that"), text.npos) << text;
    EXPECT_LT(text.size(), 320U);
    list.insert(2, 1, 'x');
  }
}

TEST_F(LoraConfigTest, AdaptersOfChangedWeightsAreRefused) {
  for (const char* init : {"pissa", "pissa_niter_16", "corda", "olora", "OLoRA", "lora_ga"}) {
    EXPECT_EQ(
        config_error(str(R"("init_lora_weights": ")", init, '"')),
        str("D/adapter_config.json: 'init_lora_weights' is '", init,
            "': the adapter belongs to weights that were changed when training began; save it with "
            "path_initial_model_for_weight_conversion of peft's save_pretrained, for the weights as they "
            "are"));
  }
  EXPECT_EQ(
      config_error(R"("init_lora_weights": "loftq")"),
      str("D/adapter_config.json: 'init_lora_weights' is 'loftq': the adapter belongs to weights that were "
          "quantized when training began; ",
          kMerge));
  EXPECT_EQ(
      config_error(R"("init_lora_weights": "new")"),
      "D/adapter_config.json: 'init_lora_weights' is 'new', which is not known; true, false, 'gaussian', "
      "'eva', 'orthogonal' and 'mica' leave the model's own weights as they are");
  EXPECT_NE(config_error(R"("init_lora_weights": 1)"), "");
}

TEST_F(LoraConfigTest, KeysOfOtherTypesAndRangesAreRefused) {
  const auto error = [](const std::string& config) { return open_error(config, pair(kQ, 4)); };
  EXPECT_EQ(error("[1]"), "D/adapter_config.json: must hold a JSON object");
  EXPECT_EQ(error(R"({"r": 4, "lora_alpha": 8})"), "D/adapter_config.json: key 'peft_type' is missing");
  EXPECT_EQ(error(R"({"peft_type": "IA3", "r": 4})"),
            "D/adapter_config.json: 'peft_type' must be 'LORA', got 'IA3'");
  EXPECT_EQ(error(R"({"peft_type": "LORA", "lora_alpha": 8})"), "D/adapter_config.json: key 'r' is missing");
  EXPECT_EQ(error(R"({"peft_type": "LORA", "r": 4})"), "D/adapter_config.json: key 'lora_alpha' is missing");
  for (const char* rank : {"0", "-4", "4.5", "\"4\"", "true", "2147483648", "1e300", "[4]"}) {
    const std::string is = str("must be a whole number from 1 to 2147483647, got ");
    EXPECT_NE(error(str(R"({"peft_type": "LORA", "lora_alpha": 8, "r": )", rank, "}")).find("'r' " + is),
              std::string::npos)
        << rank;
    EXPECT_NE(
        config_error(str(R"("rank_pattern": {"q_proj": )", rank, "}")).find("'rank_pattern.q_proj' " + is),
        std::string::npos)
        << rank;
  }
  for (const char* alpha : {"0", "-1", "1e39", "1e-60", "\"8\"", "true"}) {
    const std::string is = "must be a number above 0 that fits 32 bits, got ";
    EXPECT_NE(
        error(str(R"({"peft_type": "LORA", "r": 4, "lora_alpha": )", alpha, "}")).find("'lora_alpha' " + is),
        std::string::npos)
        << alpha;
    EXPECT_NE(
        config_error(str(R"("alpha_pattern": {"q_proj": )", alpha, "}")).find("'alpha_pattern.q_proj' " + is),
        std::string::npos)
        << alpha;
  }
  EXPECT_EQ(config_error(R"("use_rslora": 1)"),
            "D/adapter_config.json: 'use_rslora' must be true or false, got 1");
  EXPECT_EQ(config_error(R"("rank_pattern": [4])"),
            "D/adapter_config.json: 'rank_pattern' must be an object, got [4]");
  EXPECT_EQ(config_error(R"("r": 8)"), "D/adapter_config.json: 'r' is there twice");
  EXPECT_NE(config_error(R"("x": )" + std::string(300, '[') + std::string(300, ']')).find("deep"),
            std::string::npos);
  EXPECT_NE(error("{"), "");
  EXPECT_NE(config_error("\"x\": \"\xC3\""), "");
}

TEST_F(LoraConfigTest, AScaleThatWouldBeZeroIsRefused) {
  EXPECT_EQ(open_error(R"({"peft_type": "LORA", "r": 4, "lora_alpha": 1e-45})", pair(kQ, 4)),
            str("D/adapter_config.json: module '", kQ,
                "' of rank 4 has an alpha of 1e-45, which makes a scale that is 0 in 32 bits"));
}

}  // namespace
}  // namespace quire
