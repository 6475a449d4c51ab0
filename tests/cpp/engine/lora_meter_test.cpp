#include "engine/lora_meter.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

using LoraNames = std::vector<std::string>;

TEST(LoraMeterTest, WhatDoesNotRunWaits) {
  LoraMeter meter(/*max_loras=*/4);
  EXPECT_FALSE(meter.take_change());
  meter.add(2, "b", 2);
  meter.add(1, "a", 1);
  meter.set_running(std::vector<RunningLora>{{2, 1}});
  auto info = meter.take_change();
  ASSERT_TRUE(info);
  EXPECT_EQ(info->max_lora, 4);
  EXPECT_EQ(info->waiting_lora_adapters, (LoraNames{"a", "b"}));
  EXPECT_EQ(info->running_lora_adapters, LoraNames{"b"});
  meter.set_running(std::vector<RunningLora>{{1, 1}, {2, 2}});
  info = meter.take_change();
  ASSERT_TRUE(info);
  EXPECT_EQ(info->waiting_lora_adapters, LoraNames{});
  EXPECT_EQ(info->running_lora_adapters, (LoraNames{"a", "b"}));
  meter.remove(1, 1);
  meter.remove(2, 2);
  info = meter.take_change();
  ASSERT_TRUE(info);
  EXPECT_EQ(info->running_lora_adapters, LoraNames{});
}

TEST(LoraMeterTest, OnlyChangesAreTold) {
  LoraMeter meter(4);
  meter.add(1, "a", 1);
  EXPECT_TRUE(meter.take_change());
  EXPECT_FALSE(meter.take_change());
  meter.add(1, "a", 1);  // it waits as well
  EXPECT_FALSE(meter.take_change());
  meter.add(2, "b", 1);
  meter.remove(2, 1);
  EXPECT_FALSE(meter.take_change());
}

// An aborted request may run for a step more; one that was replaced has the name of the one that came.
TEST(LoraMeterTest, WhatRunsWithoutARequestIsNotToldAndAnotherOfTheSameNameIsNotTheSame) {
  LoraMeter meter(4);
  meter.add(1, "a", 1);
  meter.set_running(std::vector<RunningLora>{{1, 1}});
  EXPECT_TRUE(meter.take_change());
  meter.remove(1, 1);
  meter.add(2, "a", 1);
  meter.set_running(std::vector<RunningLora>{{1, 1}});
  const auto info = meter.take_change();
  ASSERT_TRUE(info);
  EXPECT_EQ(info->waiting_lora_adapters, LoraNames{"a"});
  EXPECT_EQ(info->running_lora_adapters, LoraNames{});
}

}  // namespace
}  // namespace quire
