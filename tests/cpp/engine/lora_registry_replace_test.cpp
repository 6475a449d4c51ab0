// An adapter takes the place of another one of its name: LoraRequest::load_inplace.
#include <optional>

#include "engine/lora_registry_rig.h"

namespace quire {
namespace {

class LoraRegistryReplaceTest : public LoraRegistryTest {
 protected:
  bool replace(const std::string& name, int32_t number = 0, const std::string& path = "") {
    return registry.add({name, number, path.empty() ? "/adapters/" + name : path, /*load_inplace=*/true});
  }
};

TEST_F(LoraRegistryReplaceTest, WhatIsNotThereIsAdded) {
  EXPECT_TRUE(replace("a", 5));
  EXPECT_EQ(names(), "a+");
  EXPECT_EQ(info("a").lora_int_id, 5);
}

TEST_F(LoraRegistryReplaceTest, RequestsKeepWhatTheyHaveAndOthersGetTheNewOne) {
  add("a", 5);
  add("b");
  const auto old = registry.use("a");
  registry.remove("b");
  loader.stamps["/adapters/a"] = "tuesday";
  EXPECT_TRUE(replace("a"));
  const auto now = registry.use("a");
  EXPECT_NE(now->id(), old->id());
  EXPECT_EQ(old->fingerprint(), "");
  EXPECT_EQ(now->fingerprint(), "1");
  EXPECT_EQ(loader.loaded(), (std::set{old->id(), now->id()}));
  EXPECT_EQ(info("a").num_requests, 1);
  EXPECT_EQ(info("a").lora_int_id, 5);
}

TEST_F(LoraRegistryReplaceTest, TheOldOneGoesWithItsLastRequest) {
  add("a");
  auto old = registry.use("a");
  const LoraId old_id = old->id();
  replace("a");
  EXPECT_TRUE(loader.loaded().contains(old_id));
  old.reset();
  EXPECT_EQ(loader.loaded(), std::set{registry.use("a")->id()});
  replace("a");
  EXPECT_EQ(loader.loaded().size(), 1U);  // nobody had it
}

TEST_F(LoraRegistryReplaceTest, TheSameFilesAreTheSameVersion) {
  add("a");
  replace("a");
  EXPECT_EQ(loader.num_loads, 2);
  EXPECT_EQ(registry.use("a")->fingerprint(), "");
}

TEST_F(LoraRegistryReplaceTest, ItHasThePlaceThePathAndTheNumberThatItIsGiven) {
  add("a", 5);
  add("b", 6);
  EXPECT_EQ(error_of([&] { replace("a", 6); }),
            "lora_int_id 6 is that of 'b': choose another number, or 0 for none");
  EXPECT_TRUE(replace("a", 7, "/elsewhere"));
  EXPECT_EQ(info("a").lora_path, "/elsewhere");
  EXPECT_EQ(info("a").lora_int_id, 7);
  EXPECT_EQ(names(), "a+b-");
  EXPECT_TRUE(replace("b", 5));  // nobody's any more
}

TEST_F(LoraRegistryReplaceTest, WhatCannotBeReadReplacesNothing) {
  add("a");
  const LoraId id = registry.use("a")->id();
  loader.failure = "torn";
  EXPECT_EQ(error_of([&] { replace("a"); }), "torn");
  EXPECT_EQ(registry.use("a")->id(), id);
  EXPECT_EQ(names(), "a+");
  loader.failure.clear();
  add("b");
  EXPECT_EQ(loader.loaded().size(), 2U);
}

TEST_F(LoraRegistryReplaceTest, OthersGiveRoomFirstAndThenTheOneThatIsReplaced) {
  add("a");
  add("b");
  registry.use("b");
  replace("a");
  EXPECT_EQ(names(), "a+b-");  // while it was read, a was there
  registry.load_now(*registry.use("b"));
  const auto b = registry.use("b");
  replace("a");
  EXPECT_EQ(names(), "a+b+");
  const auto a = registry.use("a");
  EXPECT_EQ(error_of<ResourceExhausted>([&] { replace("a"); }), kAllLorasInUse);
  EXPECT_EQ(registry.use("a")->id(), a->id());
  EXPECT_EQ(loader.most, 3U);  // the old a, the new one and b
}

// Its files may be what replaced them: it could not be read again.
TEST_F(LoraRegistryReplaceTest, WhatCannotBeReadReplacesNothingWhereThereIsNoRoomForBoth) {
  add("a");
  add("b");
  const auto b = registry.use("b");
  const LoraId id = registry.use("a")->id();
  for (const bool is_pinned : {false, true}) {
    if (is_pinned) registry.pin("a");
    loader.failure = "torn";
    EXPECT_EQ(error_of([&] { replace("a"); }), "torn");
    loader.failure.clear();
    EXPECT_EQ(names(), "a+b+");
    EXPECT_EQ(loader.loaded(), (std::set{id, b->id()}));
    EXPECT_EQ(info("a").is_pinned, is_pinned);
  }
  EXPECT_TRUE(replace("a"));
  EXPECT_EQ(loader.loaded().size(), 2U);
  EXPECT_EQ(error_of<ResourceExhausted>([&] { add("c"); }), kAllLorasInUse);
}

// Nobody else takes its place while the new one is read.
TEST_F(LoraRegistryReplaceTest, TheOldOneStaysUntilTheNewOneIsThere) {
  for (const char* name : {"c", "a", "b"}) add(name);
  auto b = registry.use("b");
  std::optional<LoraWaiter> c;
  loader.before_load = [&, is_first = std::make_shared<bool>(true)] {
    if (!std::exchange(*is_first, false)) return;
    c.emplace(registry, "c");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_FALSE(c->is_told());
  };
  EXPECT_TRUE(replace("a"));
  EXPECT_EQ(c->wait(), "");  // in the place of the new one, which nobody has
  EXPECT_EQ(names(), "c+a-b+");
}

TEST_F(LoraRegistryReplaceTest, WhatWasPinnedIsPinned) {
  add("a");
  add("b");
  registry.pin("a");
  registry.pin("b");
  replace("a");
  EXPECT_TRUE(info("a").is_pinned);
  EXPECT_EQ(names(), "a+b+");
  EXPECT_EQ(error_of<ResourceExhausted>([&] { add("c"); }), kAllLorasInUse);
}

TEST_F(LoraRegistryReplaceTest, OneThatIsRemovedMeanwhileIsJustAdded) {
  add("a", 5);
  registry.pin("a");
  loader.before_load = [&] { registry.remove("a"); };
  EXPECT_TRUE(replace("a"));
  EXPECT_EQ(names(), "a+");
  EXPECT_FALSE(info("a").is_pinned);
  EXPECT_EQ(info("a").lora_int_id, 0);
  EXPECT_EQ(loader.loaded().size(), 1U);
}

}  // namespace
}  // namespace quire
