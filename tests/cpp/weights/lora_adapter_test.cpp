#include "weights/lora_adapter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <set>

#include "quire/error.h"
#include "util/error_of.h"
#include "util/half_float.h"
#include "util/str.h"
#include "weights/model_directory.h"

namespace quire {
namespace {

constexpr const char* kConfig = "adapter_config.json";
constexpr const char* kTensors = "adapter_model.safetensors";
constexpr const char* kQ = "model.layers.0.self_attn.q_proj";
constexpr const char* kMerge =
    "merge the adapter into its model with peft's merge_and_unload, and give that model";

// The values 1, 2, 3, ... as floats of a dtype.
std::string counted(const char* dtype, int64_t count) {
  std::string bytes;
  for (int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>(i + 1);
    if (dtype == std::string_view("F32")) {
      bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    } else {
      const uint16_t bits = dtype == std::string_view("F16") ? float_to_fp16(value) : float_to_bf16(value);
      bytes.append(reinterpret_cast<const char*>(&bits), sizeof bits);
    }
  }
  return bytes;
}

NamedTensor matrix(const std::string& name, int64_t rows, int64_t columns, const char* dtype = "F32") {
  return {name, dtype, {rows, columns}, counted(dtype, rows * columns)};
}

// The two of a module with three inputs and two outputs.
std::vector<NamedTensor> pair(const std::string& module, int64_t rank, const char* dtype = "F32") {
  return {matrix("base_model.model." + module + ".lora_A.weight", rank, 3, dtype),
          matrix("base_model.model." + module + ".lora_B.weight", 2, rank, dtype)};
}

std::vector<NamedTensor> operator+(std::vector<NamedTensor> a, const std::vector<NamedTensor>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// With rank 4 and alpha 8, and `more` members.
std::string config_with(const std::string& more = "") {
  return R"({"peft_type": "LORA", "r": 4, "lora_alpha": 8)" + (more.empty() ? "" : ", " + more) + "}";
}

void write_adapter(const ModelDirectory& directory, const std::string& config,
                   const std::vector<NamedTensor>& tensors) {
  directory.write(kConfig, config);
  write_safetensors(directory, tensors, kTensors);
}

std::vector<LoraAdapterModule> modules_of(const std::string& config,
                                          const std::vector<NamedTensor>& tensors) {
  const ModelDirectory directory;
  write_adapter(directory, config, tensors);
  return LoraAdapter::open(directory.path()).modules();
}

// What opening says, with the directory's path as "D".
std::string open_error(const ModelDirectory& directory) {
  std::string error = error_of([&] { LoraAdapter::open(directory.path()); });
  for (size_t at = 0; (at = error.find(directory.path(), at)) != error.npos;)
    error.replace(at, directory.path().size(), "D");
  return error;
}
std::string open_error(const std::string& config, const std::vector<NamedTensor>& tensors) {
  const ModelDirectory directory;
  write_adapter(directory, config, tensors);
  return open_error(directory);
}
std::string config_error(const std::string& more) { return open_error(config_with(more), pair(kQ, 4)); }
std::string tensors_error(const std::vector<NamedTensor>& tensors) {
  return open_error(config_with(), tensors);
}

std::vector<float> read(const LoraAdapter& adapter, const TensorView& view) {
  std::vector<std::byte> bytes(static_cast<size_t>(view.numel()) * dtype_bytes(view.dtype));
  adapter.checkpoint().read(view.as<std::byte>(), view.dtype, view.numel(), bytes.data());
  std::vector<float> values;
  for (size_t at = 0; at < bytes.size(); at += dtype_bytes(view.dtype)) {
    float value = 0;
    uint16_t half = 0;
    std::memcpy(&half, &bytes[at], sizeof half);
    if (view.dtype == DType::kFloat32) {
      std::memcpy(&value, &bytes[at], sizeof value);
    } else {
      value = view.dtype == DType::kFloat16 ? fp16_to_float(half) : bf16_to_float(half);
    }
    values.push_back(value);
  }
  return values;
}

TEST(LoraAdapterTest, AnAdapterHasItsModulesByNameWithTheirScales) {
  const ModelDirectory directory;
  write_adapter(directory, config_with(R"("base_model_name_or_path": "org/base", "bias": "none")"),
                pair("model.layers.1.mlp.up_proj", 4) + pair(kQ, 4));
  const LoraAdapter adapter = LoraAdapter::open(directory.path());
  EXPECT_EQ(adapter.base_model(), "org/base");
  EXPECT_EQ(adapter.max_rank(), 4);
  ASSERT_EQ(adapter.modules().size(), 2U);
  EXPECT_EQ(adapter.modules()[0].name, kQ);
  EXPECT_EQ(adapter.modules()[1].name, "model.layers.1.mlp.up_proj");
  const LoraAdapterModule& q = adapter.modules()[0];
  EXPECT_EQ(q.rank, 4);
  EXPECT_EQ(q.scale, 2);
  EXPECT_EQ(std::pair(q.a.shape[0], q.a.shape[1]), std::pair(int64_t{4}, int64_t{3}));
  EXPECT_EQ(std::pair(q.b.shape[0], q.b.shape[1]), std::pair(int64_t{2}, int64_t{4}));
}

TEST(LoraAdapterTest, ValuesAreReadAsTheyAreStored) {
  for (const auto& [name, dtype] :
       {std::pair{"F32", DType::kFloat32}, {"F16", DType::kFloat16}, {"BF16", DType::kBFloat16}}) {
    const ModelDirectory directory;
    write_adapter(directory, R"({"peft_type": "LORA", "r": 1, "lora_alpha": 0.5})", pair(kQ, 1, name));
    LoraAdapter opened = LoraAdapter::open(directory.path());
    const LoraAdapter adapter = std::move(opened);  // views stay
    const LoraAdapterModule& q = adapter.modules().at(0);
    EXPECT_EQ(q.a.dtype, dtype);
    EXPECT_EQ(q.scale, 0.5F);
    EXPECT_EQ(read(adapter, q.a), (std::vector<float>{1, 2, 3})) << name;
    EXPECT_EQ(read(adapter, q.b), (std::vector<float>{1, 2})) << name;
    EXPECT_EQ(adapter.checkpoint().main_dtype(), name);
  }
}

TEST(LoraAdapterTest, AValueThatIsNotFiniteIsRefusedWhenItIsRead) {
  const ModelDirectory directory;
  std::vector<NamedTensor> tensors = pair(kQ, 4);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(tensors[1].bytes.data() + 8, &nan, sizeof nan);
  write_adapter(directory, config_with(), tensors);
  const LoraAdapter adapter = LoraAdapter::open(directory.path());
  const LoraAdapterModule& q = adapter.modules().at(0);
  EXPECT_EQ(read(adapter, q.a).size(), 12U);
  EXPECT_EQ(
      error_of([&] { read(adapter, q.b); }),
      directory.path() + "/adapter_model.safetensors: tensor 'base_model.model." + kQ +
          ".lora_B.weight' holds NaN or an infinite value, at place 2 of 8; the file is damaged, or was "
          "written by a training run that had diverged");
}

TEST(LoraAdapterTest, RankStabilizedScalesDivideByTheRoot) {
  EXPECT_EQ(modules_of(config_with(R"("use_rslora": true)"), pair(kQ, 4)).at(0).scale, 4);
  EXPECT_EQ(modules_of(config_with(R"("use_rslora": false)"), pair(kQ, 4)).at(0).scale, 2);
  // By the root of the module's own rank.
  EXPECT_EQ(modules_of(config_with(R"("use_rslora": true, "rank_pattern": {"q_proj": 16})"), pair(kQ, 16))
                .at(0)
                .scale,
            2);
}

// The scale of q_proj of layer 0, of rank 4, under a pattern with alpha 100.
float scale_under(const std::string& pattern) {
  return modules_of(config_with(R"("alpha_pattern": {")" + pattern + R"(": 100})"), pair(kQ, 4)).at(0).scale;
}

TEST(LoraAdapterTest, APatternIsAModulesNameOrItsEndFromADotOn) {
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

TEST(LoraAdapterTest, TheFirstOfThePatternsInTheFilesOrderHolds) {
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

TEST(LoraAdapterTest, RanksAndAlphasHavePatternsOfTheirOwn) {
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

TEST(LoraAdapterTest, PatternsThatAreNotNamesAreRefused) {
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

TEST(LoraAdapterTest, TensorsMayHaveTheAdaptersName) {
  const std::string stem = str("base_model.model.", kQ);
  const std::vector<NamedTensor> tensors = {matrix(stem + ".lora_A.default.weight", 4, 3),
                                            matrix(stem + ".lora_B.default.weight", 2, 4)};
  EXPECT_EQ(modules_of(config_with(), tensors).at(0).name, kQ);
  EXPECT_EQ(
      tensors_error(tensors + std::vector{matrix(stem + ".lora_A.other.weight", 4, 3)}),
      "D/adapter_model.safetensors: holds tensors of two adapters, 'default' and 'other'; save each in a "
      "directory of its own");
  EXPECT_NE(tensors_error(tensors + pair(kQ, 4)), "");
  EXPECT_EQ(modules_of(config_with(), pair("lm_head", 4)).at(0).name, "lm_head");
}

TEST(LoraAdapterTest, WhatIsNeutralOrUnknownInTheConfigIsFine) {
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

TEST(LoraAdapterTest, WhatIsMoreThanProductsOfMatricesIsRefusedByItsKey) {
  for (const char* member :
       {R"("use_dora": true)", R"("lora_bias": true)", R"("modules_to_save": ["lm_head"])",
        R"("trainable_token_indices": [1])", R"("target_parameters": ["mlp.experts.down_proj"])",
        R"("layer_replication": [[0, 4], [2, 5]])", R"("kasa_config": {"beta": 1})",
        R"("use_bdlora": {"nblocks": 2})", R"("velora_config": {"num_groups": 64})",
        R"("monteclora_config": {"num_samples": 8})", R"("use_qalora": true)",
        R"("alora_invocation_tokens": [1, 2])", R"("arrow_config": {"top_k": 3})",
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

TEST(LoraAdapterTest, ALongValueIsShortenedBetweenItsCharacters) {
  std::string list = "[\"";
  for (int i = 0; i < 100; ++i) list += "\u00e4";
  for (const char* more : {"", "x"}) {  // one byte on: the other half of a character
    const std::string text = config_error(R"("modules_to_save": )" + list + more + "\"]");
    EXPECT_NE(text.find("\u00e4...: an adapter that"), text.npos) << text;
    EXPECT_LT(text.size(), 320U);
    list.insert(2, 1, 'x');
  }
}

TEST(LoraAdapterTest, AdaptersOfChangedWeightsAreRefused) {
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

TEST(LoraAdapterTest, KeysOfOtherTypesAndRangesAreRefused) {
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

TEST(LoraAdapterTest, AScaleThatWouldBeZeroIsRefused) {
  EXPECT_EQ(open_error(R"({"peft_type": "LORA", "r": 4, "lora_alpha": 1e-45})", pair(kQ, 4)),
            str("D/adapter_config.json: module '", kQ,
                "' of rank 4 has an alpha of 1e-45, which makes a scale that is 0 in 32 bits"));
}

TEST(LoraAdapterTest, ARankThatTheConfigDoesNotSayIsRefused) {
  EXPECT_EQ(tensors_error(pair(kQ, 2)), str("D/adapter_model.safetensors: module '", kQ,
                                            "' has rank 2, but 'r' of D/adapter_config.json says 4"));
  EXPECT_EQ(config_error(R"("rank_pattern": {"q_proj": 8})"),
            str("D/adapter_model.safetensors: module '", kQ,
                "' has rank 4, but 'rank_pattern' of D/adapter_config.json says 8"));
}

TEST(LoraAdapterTest, BothOfAPairMustBeThere) {
  const std::vector<NamedTensor> both = pair(kQ, 4);
  EXPECT_EQ(tensors_error({both[0]}), str("D/adapter_model.safetensors: module '", kQ,
                                          "' has lora_A, but no lora_B; both must be there"));
  EXPECT_EQ(tensors_error({both[1]}), str("D/adapter_model.safetensors: module '", kQ,
                                          "' has lora_B, but no lora_A; both must be there"));
  EXPECT_EQ(
      tensors_error({}),
      "D/adapter_model.safetensors: holds no tensors; an adapter has at least one pair of lora_A and lora_B");
}

TEST(LoraAdapterTest, ShapesThatMakeNoProductAreRefused) {
  const std::string a = str("base_model.model.", kQ, ".lora_A.weight"),
                    b = str("base_model.model.", kQ, ".lora_B.weight");
  EXPECT_EQ(
      tensors_error({matrix(a, 4, 3), matrix(b, 2, 5)}),
      str("D/adapter_model.safetensors: module '", kQ,
          "' has lora_A of shape [4, 3] and lora_B of [2, 5]; the first size of one and the second of the "
          "other are the rank, and must be equal"));
  EXPECT_EQ(tensors_error({{a, "F32", {4, 3, 1}, counted("F32", 12)}, matrix(b, 2, 4)}),
            str("D/adapter_model.safetensors: tensor '", a,
                "' has shape [4, 3, 1]; a linear's adapter has two dimensions"));
  EXPECT_EQ(tensors_error({matrix(a, 4, 3), {b, "F32", {8}, counted("F32", 8)}}),
            str("D/adapter_model.safetensors: tensor '", b,
                "' has shape [8]; a linear's adapter has two dimensions"));
  const std::string empty =
      ", and no values; gather the parameters of a distributed training before it is saved";
  EXPECT_EQ(tensors_error({matrix(a, 4, 0), matrix(b, 2, 4)}),
            str("D/adapter_model.safetensors: tensor '", a, "' has shape [4, 0]", empty));
  EXPECT_EQ(tensors_error({matrix(a, 4, 3), matrix(b, 0, 4)}),
            str("D/adapter_model.safetensors: tensor '", b, "' has shape [0, 4]", empty));
  EXPECT_EQ(tensors_error({matrix(a, 0, 3), matrix(b, 2, 0)}),
            str("D/adapter_model.safetensors: tensor '", a, "' has shape [0, 3]", empty));
  constexpr int64_t kLarge = (int64_t{1} << 32) + 4;  // 4 in 32 bits
  EXPECT_EQ(
      tensors_error({matrix(a, kLarge, 0), matrix(b, 0, kLarge)}),
      str("D/adapter_model.safetensors: module '", kQ, "' has rank 4294967300; it is at most 2147483647"));
  EXPECT_EQ(
      tensors_error({{a, "I8", {4, 3}, std::string(12, '\0')}, matrix(b, 2, 4)}),
      str("D/adapter_model.safetensors: tensor '", a, "' has dtype I8; F32, F16 and BF16 are supported"));
}

TEST(LoraAdapterTest, OtherTensorsAreRefusedByName) {
  const std::string stem = str("base_model.model.", kQ);
  const auto error = [](const std::string& name) {
    return tensors_error(pair(kQ, 4) + std::vector{matrix(name, 4, 3)});
  };
  const auto expected = [](const std::string& name, const char* what) {
    return str("D/adapter_model.safetensors: tensor '", name, "' ", what, "; ", kMerge);
  };
  const std::string embedding = "base_model.model.model.embed_tokens.lora_embedding_A";
  EXPECT_EQ(error(embedding), expected(embedding, "is of an embedding's adapter, which is not supported"));
  const std::string magnitude = stem + ".lora_magnitude_vector";
  EXPECT_EQ(error(magnitude), expected(magnitude, "is of DoRA, which is not supported"));
  const std::string bias = stem + ".lora_B.bias";
  EXPECT_EQ(error(bias), expected(bias, "is a bias in the adapter, which is not supported"));
  for (const std::string& name :
       {std::string("base_model.model.lm_head.weight"),
        std::string("base_model.model.model.embed_tokens.weight"), std::string(kQ) + ".lora_A.weight",
        stem + ".lora_A", stem + ".lora_C.weight", stem + ".lora_A.scales", stem + ".lora_A.bias",
        std::string("base_model.model.lora_A.weight"), std::string("base_model.model.weight"),
        std::string("base_model.model..weight"), stem + ".lora_A..weight", stem + ".lora_A.a.b.weight",
        stem + ".xlora_A.weight", std::string("")}) {
    EXPECT_EQ(error(name), expected(name,
                                    "is not a linear's adapter, which is called "
                                    "base_model.model.<module>.lora_A.weight or lora_B.weight"));
  }
  // PEFT saves it beside an adapter of lm_head.
  EXPECT_EQ(
      error("base_model.model.lm_head.base_layer.weight"),
      "D/adapter_model.safetensors: tensor 'base_model.model.lm_head.base_layer.weight' is a copy of the "
      "model's own weights; save the adapter with save_embedding_layers=False of peft's save_pretrained");
  const std::string text = error(std::string(1001, '.'));
  EXPECT_NE(text.find("...' has a name of 1001 bytes; names have at most 1000"), text.npos) << text;
}

TEST(LoraAdapterTest, MissingFilesAreNamed) {
  const std::string advice =
      "; an adapter is one with adapter_config.json and adapter_model.safetensors, as peft saves it";
  EXPECT_EQ(error_of([] { LoraAdapter::open("/nowhere/adapter"); }),
            "/nowhere/adapter: there is no such directory" + advice);
  const ModelDirectory directory;
  directory.write("file", "");
  EXPECT_EQ(error_of([&] { LoraAdapter::open(directory.path() + "/file"); }),
            directory.path() + "/file: is not a directory" + advice);
  EXPECT_EQ(open_error(directory),
            "D: has no adapter_config.json, which peft saves beside adapter_model.safetensors");
  directory.write(kConfig, config_with());
  EXPECT_EQ(open_error(directory), "D: has no adapter_model.safetensors");
  directory.write("adapter_model.bin", "pickled");
  EXPECT_EQ(
      open_error(directory),
      "D: has no adapter_model.safetensors; adapter_model.bin is a pickle, which may hold code: load it with "
      "peft, and save it again with safe_serialization=True");
  directory.write(kTensors, "torn");
  EXPECT_EQ(open_error(directory),
            "D/adapter_model.safetensors: has 4 bytes; a safetensors file has at least 8");
  std::filesystem::remove(directory.path() + "/" + kConfig);
  std::filesystem::create_directory(directory.path() + "/" + kConfig);
  EXPECT_EQ(open_error(directory), "D/adapter_config.json: is not a file");
}

TEST(LoraAdapterTest, AStampTellsWhetherEitherFileIsAnother) {
  const ModelDirectory directory;
  const auto stamp = [&] { return LoraAdapter::open(directory.path()).stamp(); };
  write_adapter(directory, config_with(), pair(kQ, 4));
  const std::string first = stamp();
  EXPECT_EQ(stamp(), first);
  directory.write(kConfig, config_with(R"("use_rslora": true)"));
  const std::string second = stamp();
  EXPECT_NE(second, first);
  write_safetensors(directory, pair(kQ, 4) + pair("lm_head", 4), kTensors);
  EXPECT_NE(stamp(), second);
}

TEST(LoraAdapterTest, AFingerprintTellsWhatAnAdapterComputesWhereverItLies) {
  const auto fingerprint = [](const std::string& config, const std::vector<NamedTensor>& tensors) {
    const ModelDirectory directory;
    write_adapter(directory, config, tensors);
    return LoraAdapter::open(directory.path()).fingerprint();
  };
  const std::vector<NamedTensor> tensors = pair(kQ, 4) + pair("lm_head", 4);
  const std::string one = fingerprint(config_with(), tensors);
  EXPECT_EQ(one.size(), 64U);
  EXPECT_EQ(one.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(fingerprint(config_with(), pair("lm_head", 4) + pair(kQ, 4)), one);
  EXPECT_EQ(fingerprint(config_with(R"("task_type": "CAUSAL_LM")"), tensors), one);
  std::set<std::string> others = {one};
  others.insert(fingerprint(config_with(R"("use_rslora": true)"), tensors));
  others.insert(fingerprint(config_with(), pair(kQ, 4)));
  others.insert(fingerprint(config_with(), pair(kQ, 4, "BF16") + pair("lm_head", 4)));
  others.insert(fingerprint(config_with(), pair(kQ, 4) + pair("model.lm_head", 4)));
  for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
    std::vector<NamedTensor> changed = tensors;
    changed[tensor].bytes[changed[tensor].bytes.size() - 2] ^= 1;
    others.insert(fingerprint(config_with(), changed));
  }
  EXPECT_EQ(others.size(), 9U);
}

// It is read in pieces.
TEST(LoraAdapterTest, AFingerprintIsOfAllOfALargeTensor) {
  const ModelDirectory directory;
  std::vector<NamedTensor> tensors = {matrix(str("base_model.model.", kQ, ".lora_A.weight"), 4, 150'000),
                                      matrix(str("base_model.model.", kQ, ".lora_B.weight"), 2, 4)};
  std::set<std::string> fingerprints;
  for (const size_t place : {size_t{0}, size_t{1 << 20}, size_t{4 * 600'000 - 4}}) {
    tensors[0].bytes[place] ^= 1;
    write_adapter(directory, config_with(), tensors);
    fingerprints.insert(LoraAdapter::open(directory.path()).fingerprint());
  }
  EXPECT_EQ(fingerprints.size(), 3U);
}

}  // namespace
}  // namespace quire
