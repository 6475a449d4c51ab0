#include "engine/expert_meter.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

std::vector<ExpertLoad> loads(std::vector<uint64_t> first, std::vector<uint64_t> second) {
  return {{"first", std::move(first)}, {"second", std::move(second)}};
}

TEST(ExpertMeterTest, LooksOnceASecondAndWhenAllIsDone) {
  ExpertMeter meter(loads({0, 0}, {0, 0}));
  EXPECT_TRUE(meter.is_due(100.0, /*is_last=*/false));
  meter.observe(loads({1, 0}, {1, 0}), 100.0);
  EXPECT_FALSE(meter.is_due(100.9, false));
  EXPECT_TRUE(meter.is_due(100.9, true));
  EXPECT_TRUE(meter.is_due(101.0, false));
  EXPECT_FALSE(ExpertMeter({}).is_due(100.0, true)) << "there are no experts";
}

TEST(ExpertMeterTest, ImbalanceIsOfWhatCameSinceTheLastLook) {
  ExpertMeter meter(loads({0, 0, 0, 0}, {0, 0, 0, 0}));
  EXPECT_EQ(meter.imbalance(), 0.0);
  meter.observe(loads({9, 1, 1, 1}, {3, 3, 3, 3}), 1.0);
  EXPECT_EQ(meter.imbalance(), (3.0 + 1.0) / 2);
  EXPECT_EQ(meter.num_expert_tokens(), 24U);
  meter.observe(loads({9, 1, 1, 1}, {3, 3, 3, 11}), 2.0);
  EXPECT_EQ(meter.imbalance(), 4.0) << "a layer that nothing came to has none";
  meter.observe(loads({9, 1, 1, 1}, {3, 3, 3, 11}), 3.0);
  EXPECT_EQ(meter.imbalance(), 4.0) << "nothing came";
  EXPECT_EQ(meter.num_expert_tokens(), 32U);
}

}  // namespace
}  // namespace quire
