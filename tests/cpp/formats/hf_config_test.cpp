#include "formats/hf_config.h"

#include <gtest/gtest.h>

#include "quire/error.h"
#include "util/error_of.h"

namespace quire {
namespace {

TEST(HfConfigTest, ReadsKeysWithinTheirRange) {
  const HfConfig config =
      HfConfig::parse(R"({"a": 5, "b": 4096.0, "c": 0.5, "d": null, "e": [1, 2]})", "config.json");
  EXPECT_EQ(config.get_int("a", 1, 10), 5);
  EXPECT_EQ(config.get_int("b", 1, 5000), 4096);
  EXPECT_EQ(config.get_positive("c"), 0.5);
  EXPECT_EQ(config.get_int("d", 1, 10, 7), 7);  // null is absent
  EXPECT_EQ(config.get_ints("e", 0, 9), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(config.get_ints("a", 0, 9), (std::vector<int32_t>{5}));
}

TEST(HfConfigTest, ErrorsNameFileKeyValueAndWhatWouldDo) {
  const HfConfig config = HfConfig::parse(R"({"a": "many", "rope": {"factor": -1}})", "config.json");
  EXPECT_EQ(error_of([&] { config.get_int("a", 1, 10); }),
            "config.json: 'a' must be a whole number from 1 to 10, got \"many\"");
  EXPECT_EQ(error_of([&] { config.get_int("b", 1, 10); }), "config.json: key 'b' is missing");
  EXPECT_EQ(error_of([&] { config.get_object("rope")->get_positive("factor"); }),
            "config.json: 'rope.factor' must be a number above 0 that fits 32 bits, got -1");
  for (const char* number : {"1e39", "1e-60", "true", "\"1\""}) {
    const HfConfig one = HfConfig::parse(std::string(R"({"scale": )") + number + "}", "c");
    EXPECT_EQ(error_of([&] { one.get_positive("scale"); }),
              std::string("c: 'scale' must be a number above 0 that fits 32 bits, got ") +
                  (number == std::string("1e39") ? "1e+39" : number));
  }
}

TEST(HfConfigTest, WhatIsNoObjectIsRefused) {
  EXPECT_EQ(error_of([] { HfConfig::parse("[1]", "x.json"); }), "x.json: must hold a JSON object");
  EXPECT_EQ(error_of([] { HfConfig::parse("{", "x.json"); }).rfind("x.json: not valid JSON", 0), 0U);
  EXPECT_EQ(error_of([] { HfConfig::load("/nowhere/config.json"); }),
            "/nowhere/config.json: no such file, or it cannot be read");
}

TEST(HfConfigTest, IntegersOutsideTheirRangeDoNotWrap) {
  const HfConfig config = HfConfig::parse(R"({"a": 18446744073709551615, "b": 4294967297, "c": 1e300})", "c");
  for (const char* key : {"a", "b", "c"}) {
    EXPECT_NE(error_of([&] { config.get_int(key, 0, 1 << 30); }), "") << key;
  }
}

TEST(HfConfigTest, OlderNamesAndDefaultsFillWhatIsMissing) {
  const HfConfig config =
      HfConfig::parse(R"({"n_embd": 64, "n_head": 4, "num_heads": 8, "n_inner": null})", "c");
  const HfConfig adapted = config.with_alias("hidden_size", "n_embd")
                               .with_alias("num_heads", "n_head")
                               .with_alias("intermediate_size", "n_inner")
                               .with_default("intermediate_size", 256)
                               .with_default("hidden_size", 1);
  EXPECT_EQ(adapted.get_int("hidden_size", 1, 100), 64);
  EXPECT_EQ(adapted.get_int("num_heads", 1, 100), 8) << "it was there";
  EXPECT_EQ(adapted.get_int("intermediate_size", 1, 1000), 256);
  EXPECT_FALSE(config.has("hidden_size"));
  try {
    config.with_alias("hidden_size", "n_embed").get_int("hidden_size", 1, 9);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "c: key 'hidden_size' is missing");
  }
}

}  // namespace
}  // namespace quire
