// Which adapters are in memory, and which go for others.
#include "engine/lora_registry_rig.h"

namespace quire {
namespace {

using LoraRegistryMemoryTest = LoraRegistryTest;

TEST_F(LoraRegistryMemoryTest, TheOneUsedLeastRecentlyGoes) {
  add("a");
  add("b");
  registry.use("a");
  add("c");
  EXPECT_EQ(names(), "a+b-c+");
  EXPECT_EQ(loader.most, 2U);
  const auto held = registry.use("a");
  add("d");
  add("e");
  EXPECT_EQ(names(), "a+b-c-d-e+");
}

TEST_F(LoraRegistryMemoryTest, WhileAllAreInUseNoneCanBeAdded) {
  add("a");
  add("b");
  auto a = registry.use("a");
  const auto b = registry.use("b");
  EXPECT_EQ(error_of<ResourceExhausted>([&] { add("c"); }), kAllLorasInUse);
  EXPECT_EQ(names(), "a+b+");
  a.reset();
  EXPECT_TRUE(add("c"));
  EXPECT_EQ(names(), "a-b+c+");
}

TEST_F(LoraRegistryMemoryTest, WhatIsPinnedStays) {
  EXPECT_FALSE(registry.pin("a"));
  for (const char* name : {"a", "b", "c"}) add(name);
  EXPECT_TRUE(registry.pin("a"));  // and is read first
  EXPECT_TRUE(info("a").is_pinned);
  EXPECT_EQ(info("a").num_requests, 0);
  add("d");
  add("e");
  EXPECT_EQ(names(), "a+b-c-d-e+");
  EXPECT_TRUE(registry.pin("e"));
  EXPECT_EQ(error_of<ResourceExhausted>([&] { registry.pin("b"); }), kAllLorasInUse);
  // Nobody will make room: who waits is told.
  EXPECT_EQ(LoraWaiter(registry, "b").wait(), kAllLorasInUse);
  EXPECT_TRUE(registry.remove("a"));
  EXPECT_EQ(LoraWaiter(registry, "b").wait(), "");
}

TEST_F(LoraRegistryMemoryTest, WhoWaitsForAPinnedOneThatWasRemovedGetsItsPlace) {
  for (const char* name : {"a", "b", "c"}) add(name);
  registry.pin("a");
  registry.pin("b");
  auto b = registry.use("b");
  registry.remove("b");
  LoraWaiter c(registry, "c");
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(c.is_told());
  b.reset();
  EXPECT_EQ(c.wait(), "");
}

TEST_F(LoraRegistryMemoryTest, FilesThatChangedSinceTheyWereAddedAreRefused) {
  for (const char* name : {"a", "b", "c"}) add(name);
  loader.stamps["/adapters/a"] = "another";
  const std::string expected =
      "lora_name 'a' cannot be read again: its files have changed since it was added: remove it, and add it "
      "anew";
  EXPECT_EQ(LoraWaiter(registry, "a").wait(), expected);
  EXPECT_EQ(error_of([&] { registry.load_now(*registry.use("a")); }), expected);
  EXPECT_EQ(error_of([&] { registry.pin("a"); }), expected);
  EXPECT_FALSE(info("a").is_pinned);
  settle();
  registry.remove("a");
  EXPECT_TRUE(add("a"));
  EXPECT_EQ(registry.use("a")->fingerprint(), "1");
  EXPECT_EQ(loader.loaded().size(), 2U);
}

TEST_F(LoraRegistryMemoryTest, WhatFailsToLoadLeavesItsRoom) {
  add("a");
  loader.failure = "torn";
  for (int i = 0; i < 3; ++i) EXPECT_EQ(add_error({"b", 0, "/adapters/b"}), "torn");
  EXPECT_FALSE(registry.has("b"));
  loader.failure.clear();
  add("b");
  add("c");
  // A request's client has a name, and no path.
  loader.failure = "/adapters/a/file: torn";
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(LoraWaiter(registry, "a").wait(), "lora_name 'a' cannot be read again: lora_path/file: torn");
  }
  loader.failure.clear();
  EXPECT_EQ(LoraWaiter(registry, "a").wait(), "");
  const auto a = registry.use("a");
  EXPECT_EQ(LoraWaiter(registry, "b").wait(), "");
  EXPECT_EQ(loader.loaded().size(), 2U);
}

TEST_F(LoraRegistryMemoryTest, WhatMemoryHasNoRoomForIsToldByName) {
  for (const char* name : {"a", "b", "c"}) add(name);
  loader.before_load = [] { throw ResourceExhausted("/adapters/a/file: has no room"); };
  const std::string told = "; remove others, or lower max_cpu_loras";
  EXPECT_EQ(LoraWaiter(registry, "a").wait(),
            "there is no memory for adapter 'a': lora_path/file: has no room" + told);
  loader.before_load = [] { throw std::bad_alloc(); };
  EXPECT_EQ(error_of<ResourceExhausted>([&] { registry.add({"d", 0, "/adapters/d"}); }),
            "there is no memory for adapter 'd': none can be allocated" + told);
  loader.before_load = nullptr;
  EXPECT_EQ(LoraWaiter(registry, "a").wait(), "");
  EXPECT_EQ(LoraWaiter(registry, "b").wait(), "");
  EXPECT_EQ(loader.loaded().size(), 2U);
}

}  // namespace
}  // namespace quire
