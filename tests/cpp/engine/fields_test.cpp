#include "quire/fields.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/field_samples.h"
#include "util/error_of.h"
#include "util/sanitized.h"

namespace quire {
namespace {

EngineRequest read(const std::string& json) {
  EngineRequest request;
  set_fields(request, json, "body");
  return request;
}

std::string error(const std::string& json) {
  return error_of([&] { read(json); });
}

std::string config_error(const std::string& name, const std::string& text) {
  EngineConfig config;
  return error_of([&] { set_field(config, name, text); });
}

TEST(FieldsTest, AFieldOfEngineConfigIsReadFromTextAndOutOfItsRangeRefusedByName) {
  for_each_field(kEngineConfigFields, [](const auto& field) {
    EngineConfig config;
    config.model = "here";
    if constexpr (std::is_arithmetic_v<std::remove_cvref_t<decltype(config.*field.member)>>) {
      EXPECT_TRUE(field.range.contains(static_cast<double>(config.*field.member))) << field.name;
      for (const double end : {field.range.min, field.range.max}) {
        if (!std::isfinite(end)) continue;
        const double beyond = end == field.range.min ? end - 1 : end + 1;
        set_field(config, field.name, std::to_string(static_cast<int64_t>(beyond)));
        if (field.range.contains(beyond)) continue;
        const std::string what = error_of([&] { config.validate(); });
        EXPECT_TRUE(what.starts_with(std::string(field.name) + " must be " + describe(field.range))) << what;
      }
    }
    EXPECT_NE(*field.doc, '\0') << field.name;
  });
}

TEST(FieldsTest, RangesSayWhatWouldDo) {
  EXPECT_EQ(describe(one_of("a bc d")), "'a', 'bc' or 'd'");
  EXPECT_EQ(describe(one_of("16 32")), "16 or 32");
  EXPECT_EQ(describe(Range{.min = 0, .max = 1, .excludes_max = true}), "at least 0 and below 1");
  EXPECT_FALSE((Range{.min = 0, .max = 1, .excludes_max = true}).contains(1));
  EXPECT_TRUE((Range{.min = 2, .besides = 0}).contains(0));
  EXPECT_FALSE((Range{.min = 2, .besides = 0}).contains(1));
  EngineConfig config;
  config.model = "here";
  config.block_size = 1632;
  EXPECT_EQ(error_of([&] { config.validate(); }), "block_size must be 16, 32 or 64, got 1632");
  config.block_size = 32;
  config.dtype = "auto float32";
  EXPECT_EQ(error_of([&] { config.validate(); }),
            "dtype must be 'auto', 'float32', 'bfloat16' or 'float16', got 'auto float32'");
  config.dtype = "auto";
  config.flight_recorder_minutes = std::numeric_limits<double>::infinity();
  config.validate();
}

TEST(FieldsTest, AListOfTheConfigurationIsAnArrayOrOneString) {
  EngineConfig config;
  set_field(config, "logits_processors", R"(["a", "./b.so"])");
  EXPECT_EQ(config.logits_processors, (std::vector<std::string>{"a", "./b.so"}));
  set_field(config, "logits_processors", "/plugins/c.so");
  EXPECT_EQ(config.logits_processors, std::vector<std::string>{"/plugins/c.so"});
  set_field(config, "think_end_token_ids", "[5, 6]");
  EXPECT_EQ(config.think_end_token_ids, (std::vector<int32_t>{5, 6}));
  set_field(config, "prefix_caching_hash_seed", "[1]");
  EXPECT_EQ(config.prefix_caching_hash_seed, "[1]");
}

TEST(FieldsTest, EveryFieldReadsItsValueAndTheSameInAString) {
  std::vector<std::string> names;
  for_each_request_field([&](const auto& field, auto part_of) {
    if (field.set_by != SetBy::kClients) return;
    names.emplace_back(field.name);
    EngineRequest expected;
    const auto sample = sample_of(field.range, part_of(expected).*field.member);
    part_of(expected).*field.member = sample.value;
    EngineRequest plain = read("{\"" + names.back() + "\": " + sample.json + "}");
    EXPECT_TRUE(same_fields(plain, expected)) << field.name;
    using Value = std::remove_cvref_t<decltype(sample.value)>;
    const bool is_text = sample.json.front() == '"' || std::is_same_v<Value, std::vector<std::string>>;
    if (is_text) return;  // a string is its own value
    EngineRequest quoted;
    set_field(quoted, field.name, nlohmann::json(sample.json).dump());
    EXPECT_TRUE(same_fields(quoted, expected)) << field.name;
  });
  EXPECT_EQ(names, request_field_names());
  EXPECT_EQ(read(R"({"seed": 18446744073709551615})").sampling_params.seed, UINT64_MAX);
}

TEST(FieldsTest, WhatIsTheDoorsBusinessHasNoName) {
  for_each_request_field([](const auto& field, auto) {
    if (field.set_by == SetBy::kClients) return;
    EXPECT_NE(error("{\"" + std::string(field.name) + "\": 1}").find("is not a field"), std::string::npos);
  });
}

TEST(FieldsTest, TrueIsOneLogprobAndFalseIsNone) {
  EXPECT_EQ(read(R"({"logprobs": true})").sampling_params.logprobs, 1);
  EXPECT_EQ(read(R"({"logprobs": "True"})").sampling_params.logprobs, 1);
  EXPECT_EQ(read(R"({"logprobs": 0})").sampling_params.logprobs, 0);
  EXPECT_EQ(read(R"({"logprobs": false})").sampling_params.logprobs, std::nullopt);
}

TEST(FieldsTest, NullLeavesTheDefaultOfEveryField) {
  for (const std::string& name : request_field_names()) {
    EngineRequest request;
    set_field(request, name, "null");
    EXPECT_EQ(request.sampling_params, SamplingParams()) << name;
  }
}

TEST(FieldsTest, AWholeNumberMayBeWrittenAsARealOne) {
  EXPECT_EQ(read(R"({"max_tokens": 5.0})").sampling_params.max_tokens, 5);
  EXPECT_NE(error(R"({"max_tokens": 5.5})"), "");
}

TEST(FieldsTest, OneStopStringIsAnArrayOfOne) {
  EXPECT_EQ(read(R"({"stop": "[1]"})").sampling_params.stop, std::vector<std::string>{"[1]"});
}

TEST(FieldsTest, AComplaintNamesFieldValueAndWhatWouldDo) {
  EXPECT_EQ(error(R"({"max_tokens": "many"})"),
            R"(max_tokens must be an integer from -2147483648 to 2147483647, got "many")");
  EXPECT_EQ(error(R"({"temperature": [1]})"), "temperature must be a number, got an array");
  EXPECT_EQ(error(R"({"stop_token_ids": [1, "x"]})").substr(0, 18), "stop_token_ids[1] ");
  EXPECT_NE(error(R"({"temprature": 1})").find("temperature"), std::string::npos);
}

TEST(FieldsTest, NoFieldTakesAnotherType) {
  for (const std::string& name : request_field_names()) {
    const std::string complaint = error("{\"" + name + R"(": [{"a": {}}]})");
    EXPECT_EQ(complaint.substr(0, name.size()), name);
    if (name == "extra_args") continue;  // which is any object
    EXPECT_NE(error("{\"" + name + R"(": {"x": []}})"), "") << name;
  }
}

TEST(FieldsTest, NumbersThatDoNotFitAreRefused) {
  for (const char* number : {"2147483648", "-2147483649", "1e10", "18446744073709551616", "1e999",
                             "\"1e999\"", "NaN", "\"NaN\"", "\"Infinity\"", "\"0x10\"", "\"\"", "\" \""}) {
    EXPECT_NE(error(std::string(R"({"top_k": )") + number + "}"), "") << number;
  }
  for (const char* number : {"1e39", "-1e39", "\"nan\"", "\"inf\""}) {
    EXPECT_NE(error(std::string(R"({"temperature": )") + number + "}"), "") << number;
  }
  EXPECT_NE(error(R"({"seed": -1})"), "");
  EXPECT_NE(error(R"({"logit_bias": {"99999999999": 1}})"), "");
  EXPECT_NE(error(R"({"logit_bias": {"1 ": 1}})"), "");
}

TEST(FieldsTest, InvalidUtf8IsRefused) {
  EXPECT_NE(error("{\"user\": \"\xC3\"}"), "");
  EXPECT_NE(error("{\"\xFF\": 1}"), "");
}

// A client decides how deep it nests; no part of reading may recurse with it.
TEST(FieldsTest, DeepNestingIsRefusedInEveryField) {
  std::string deep(kTooDeep, '[');
  EXPECT_NE(error(deep), "");
  deep.append(kTooDeep, ']');
  EXPECT_NE(error(deep), "");
  for (const char* name : {"temperature", "top_k", "seed", "ignore_eos", "user", "stop", "stop_token_ids",
                           "logit_bias", "logprobs", "extra_args", "best_of", "unknown"}) {
    EXPECT_NE(error("{\"" + std::string(name) + "\": " + deep + "}"), "") << name;
    EXPECT_NE(error("{\"" + std::string(name) + "\": {\"1\": " + deep + "}}"), "") << name;
  }
  EXPECT_NE(error("{\"stop_token_ids\": \"" + deep + "\"}"), "");
}

TEST(FieldsTest, VllmsOtherFieldsAreAcceptedWhereTheyChangeNothing) {
  EXPECT_EQ(
      error(R"({"best_of": 1, "use_beam_search": false, "length_penalty": 1.0, "early_stopping": "false",
                      "prompt_logprobs": null, "spaces_between_special_tokens": true})"),
      "");
  EXPECT_NE(error(R"({"best_of": 2})").find("best_of"), std::string::npos);
}

TEST(FieldsTest, OnlyAnObjectHasMembers) {
  for (const char* text : {"", "[]", "1", "null", "{", "{} {}"}) {
    EXPECT_EQ(error(text).substr(0, 4), "body") << text;
  }
}

TEST(FieldsTest, AConfigurationIsReadFromText) {
  EngineConfig config;
  set_field(config, "model", "some/where");
  set_field(config, "max_num_seqs", "12");
  set_field(config, "enable_prefix_caching", "False");
  set_field(config, "watermark", "0.5");
  set_field(config, "gpu_memory_utilization", "0.25");
  EXPECT_FALSE(config.async_scheduling.has_value());
  set_field(config, "async_scheduling", "false");
  set_field(config, "kv_cache_memory_bytes", "8589934592");
  set_field(config, "seed", "18446744073709551615");
  EXPECT_EQ(config.model, "some/where");
  EXPECT_EQ(config.max_num_seqs, 12);
  EXPECT_FALSE(config.enable_prefix_caching);
  EXPECT_EQ(config.watermark, 0.5F);
  EXPECT_EQ(config.gpu_memory_utilization, 0.25);
  EXPECT_EQ(config.async_scheduling, false);
  EXPECT_EQ(config.kv_cache_memory_bytes, 8589934592);
  EXPECT_EQ(config.seed, UINT64_MAX);
}

TEST(FieldsTest, ABadConfigurationIsNamedWithItsValue) {
  EXPECT_EQ(config_error("max_num_seqs", "64k"),
            R"(max_num_seqs must be an integer from -2147483648 to 2147483647, got "64k")");
  EXPECT_NE(config_error("kv_arena", "1").find("kv_arena"), std::string::npos);
  EXPECT_NE(config_error("enable_prefix_caching", "1"), "");
  EXPECT_NE(config_error("watermark", ""), "");
  EXPECT_EQ(config_error("model", std::string(1'000'000, '[')), "");
}

}  // namespace
}  // namespace quire
