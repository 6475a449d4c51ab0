#include "layers/rotary_embedding.h"

#include <gtest/gtest.h>

#include "formats/hf_config.h"
#include "util/error_of.h"

namespace quire {
namespace {

RotaryConfig read(const std::string& keys) {
  return RotaryConfig::read(
      HfConfig::parse(R"({"max_position_embeddings": 256, )" + keys + "}", "config.json"), 64, 512);
}

constexpr const char* kPlain = R"("rope_parameters": {"rope_type": "default", "rope_theta": 500.0})";

// transformers 5 reads a rope_scaling that stands beside rope_parameters, and then only that.
TEST(RotaryConfigTest, ScalingThatWasAddedCounts) {
  const std::string scaling = R"("rope_scaling": {"rope_type": "linear", "factor": 4.0})";
  const RotaryConfig added = read(std::string(kPlain) + ", " + scaling);
  EXPECT_EQ(added.inverse_frequencies, read(scaling).inverse_frequencies);
  EXPECT_NE(added.inverse_frequencies, read(kPlain).inverse_frequencies);
  EXPECT_EQ(added.inverse_frequencies.at(0), 0.25);
}

TEST(RotaryConfigTest, ScalingThatIsEmptyDoesNot) {
  for (const char* scaling : {R"(, "rope_scaling": {})", R"(, "rope_scaling": null)"})
    EXPECT_EQ(read(std::string(kPlain) + scaling).inverse_frequencies, read(kPlain).inverse_frequencies);
}

TEST(RotaryConfigTest, ParametersForKindsOfLayersAreRefused) {
  for (const std::string name : {"rope_parameters", "rope_scaling"}) {
    EXPECT_EQ(error_of([&] { read('"' + name + R"(": {"full_attention": {"rope_theta": 1e6}})"); }),
              "config.json: '" + name +
                  ".full_attention' is an object; it must be one set of values for all layers");
  }
}

}  // namespace
}  // namespace quire
