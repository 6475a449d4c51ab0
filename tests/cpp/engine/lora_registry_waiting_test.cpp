// Who waits for an adapter to be read.
#include <optional>

#include "engine/lora_registry_rig.h"

namespace quire {
namespace {

using LoraRegistryWaitingTest = LoraRegistryTest;

TEST_F(LoraRegistryWaitingTest, WhoseTimeIsOverIsToldAndTheOthersGoOn) {
  for (const char* name : {"a", "b", "c", "d"}) add(name);
  auto a = std::make_optional<LoraWaiter>(registry, "a"), b = std::make_optional<LoraWaiter>(registry, "b");
  EXPECT_EQ(a->wait(), "");
  EXPECT_EQ(b->wait(), "");
  const auto in_ms = [](int ms) { return LoraRegistry::Clock::now() + std::chrono::milliseconds(ms); };
  LoraWaiter late(registry, "c", in_ms(30)), later(registry, "c", in_ms(60)), stays(registry, "c"),
      alone(registry, "d", in_ms(45)), passed(registry, "d", in_ms(-1));
  EXPECT_EQ(passed.wait(), LoraRegistry::kTimeIsOver);
  EXPECT_EQ(late.wait(), LoraRegistry::kTimeIsOver);
  EXPECT_EQ(alone.wait(), LoraRegistry::kTimeIsOver);
  EXPECT_EQ(later.wait(), LoraRegistry::kTimeIsOver);
  EXPECT_FALSE(stays.is_told());
  const int num_loads = loader.num_loads;
  a.reset();
  EXPECT_EQ(stays.wait(), "");
  EXPECT_EQ(loader.num_loads, num_loads + 1);  // nobody waits for d any more
  LoraWaiter again(registry, "d", in_ms(60'000));
  b.reset();
  EXPECT_EQ(again.wait(), "");
}

// Also while somebody reads, which may take long.
TEST_F(LoraRegistryWaitingTest, WhoseTimeIsOverIsToldWhileAnotherIsRead) {
  for (const char* name : {"a", "b", "c", "d"}) add(name);
  std::promise<void> begun, go_on;
  loader.before_load = [&, is_first = std::make_shared<std::atomic<bool>>(true)] {
    if (!is_first->exchange(false)) return;
    begun.set_value();
    go_on.get_future().wait();
  };
  const auto until = LoraRegistry::Clock::now() + std::chrono::milliseconds(20);
  LoraWaiter of_what_is_read(registry, "a", until);
  begun.get_future().wait();
  LoraWaiter behind(registry, "b", until);
  EXPECT_EQ(of_what_is_read.wait(), LoraRegistry::kTimeIsOver);
  EXPECT_EQ(behind.wait(), LoraRegistry::kTimeIsOver);
  // Nobody wants it any more, and nobody can name it: it goes when it has come.
  const LoraId id = of_what_is_read.use->id();
  of_what_is_read.use.reset();
  registry.remove("a");
  go_on.set_value();
  EXPECT_EQ(LoraWaiter(registry, "b").wait(), "");
  while (loader.loaded().contains(id)) std::this_thread::yield();
  behind.use.reset();
  settle();
  for (const char* name : {"e", "f"}) add(name);
  EXPECT_EQ(loader.loaded().size(), 2U);
  EXPECT_EQ(loader.most, 2U);
}

TEST_F(LoraRegistryWaitingTest, WhoStopsWaitingIsForgottenAndNothingIsReadForIt) {
  for (const char* name : {"a", "b", "c"}) add(name);
  auto b = registry.use("b"), c = registry.use("c");
  const LoraWaiter gone(registry, "a"), gone_too(registry, "a");
  EXPECT_EQ(gone.use.use_count(), 2);  // here, and in what it would be told with
  registry.stop_waiting(*gone.use);
  EXPECT_EQ(gone.use.use_count(), 1);
  EXPECT_EQ(gone_too.use.use_count(), 2);
  registry.stop_waiting(*gone_too.use);
  registry.stop_waiting(*b);  // does not wait
  b.reset();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(gone.is_told() || gone_too.is_told());
  EXPECT_EQ(names(), "a-b+c+");
}

// While others have all of the memory, and new ones come all the time.
TEST_F(LoraRegistryWaitingTest, WhoWaitsForRoomIsPassedOverByNoMoreThanSoMany) {
  for (const char* name : {"cold", "a", "b"}) add(name);
  auto a = registry.use("a"), b = registry.use("b");
  LoraWaiter cold(registry, "cold");
  for (int i = 0; i < LoraRegistry::kMostPassedOver; ++i) {
    auto next = std::make_unique<LoraWaiter>(registry, i % 2 == 0 ? "a" : "b");
    ASSERT_TRUE(next->was_there) << i;
    (i % 2 == 0 ? a : b) = next->use;  // one of each is always unfinished
  }
  EXPECT_FALSE(registry.has_not_to_wait(*a));
  auto kept = std::make_unique<LoraWaiter>(registry, "a"),
       behind = std::make_unique<LoraWaiter>(registry, "b");
  EXPECT_FALSE(kept->was_there || behind->was_there || cold.is_told());
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // nothing else wakes who reads
  a.reset();  // that one waits does not keep what it waits for
  EXPECT_EQ(cold.wait(), "");
  EXPECT_EQ(behind->wait(), "");  // is there
  EXPECT_FALSE(kept->is_told());
  EXPECT_EQ(names(), "cold+a-b+");
  behind.reset();
  b.reset();
  EXPECT_EQ(kept->wait(), "");
  EXPECT_EQ(loader.most, 2U);
}

TEST_F(LoraRegistryWaitingTest, WhoWaitsGetsTheRoomOfOneThatWasJustAdded) {
  for (const char* name : {"cold", "a", "b"}) add(name);
  const auto a = registry.use("a");
  std::optional<LoraWaiter> cold;
  loader.before_load = [&, is_first = std::make_shared<std::atomic<bool>>(true)] {
    if (!is_first->exchange(false)) return;
    cold.emplace(registry, "cold");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  };
  add("c");
  EXPECT_EQ(cold->wait(), "");
  EXPECT_EQ(names(), "cold+a+b-c-");
}

// It has no room to give.
TEST_F(LoraRegistryWaitingTest, WhoHasAPinnedOneWaitsForNobody) {
  for (const char* name : {"cold", "a", "b"}) add(name);
  registry.pin("a");
  const auto b = registry.use("b");
  const LoraWaiter cold(registry, "cold");
  for (int i = 0; i < 2 * LoraRegistry::kMostPassedOver; ++i)
    ASSERT_TRUE(LoraWaiter(registry, "a").was_there) << i;
  EXPECT_FALSE(LoraWaiter(registry, "b").was_there);
  registry.stop_waiting(*cold.use);
  while (info("b").num_requests > 1) std::this_thread::yield();  // it is first by now, and there
}

TEST_F(LoraRegistryWaitingTest, WhatIsInMemoryIsNotWaitedFor) {
  add("a");
  const LoraWaiter waiter(registry, "a");
  EXPECT_TRUE(waiter.was_there);
  EXPECT_FALSE(waiter.is_told());
  EXPECT_EQ(loader.num_loads, 1);
}

TEST_F(LoraRegistryWaitingTest, WhoWaitsForTheSameIsToldAtTheSameTimeInOrder) {
  for (const char* name : {"a", "b", "c"}) add(name);
  auto b = registry.use("b"), c = registry.use("c");
  std::vector<int> order;
  std::promise<void> last;
  const auto a = registry.use("a");
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(registry.is_loaded(*a, [&, i](const std::string& error) {
      EXPECT_EQ(error, "");
      order.push_back(i);
      if (i == 2) last.set_value();
    }));
  }
  b.reset();
  last.get_future().wait();
  EXPECT_EQ(order, (std::vector{0, 1, 2}));
  EXPECT_EQ(loader.num_loads, 4);
}

TEST_F(LoraRegistryWaitingTest, WhoWaitsForRoomGetsItsTurnWhenAnotherEnds) {
  for (const char* name : {"a", "b", "c", "d"}) add(name);
  auto c = registry.use("c"), d = registry.use("d");
  LoraWaiter a(registry, "a"), b(registry, "b");
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(a.was_there || a.is_told());
  c.reset();
  EXPECT_EQ(a.wait(), "");
  EXPECT_FALSE(b.is_told());
  EXPECT_EQ(names(), "a+b-c-d+");
  d.reset();
  EXPECT_EQ(b.wait(), "");
  EXPECT_EQ(loader.most, 2U);
}

// The first waits for room that has who waits behind it.
TEST_F(LoraRegistryWaitingTest, WhoWaitsForWhatSomebodyElseHasReadIsToldAtOnce) {
  for (const char* name : {"z", "a", "b", "c"}) add(name);
  auto c = registry.use("c");
  std::promise<void> begun, go_on;
  loader.before_load = [&, is_first = std::make_shared<std::atomic<bool>>(true)] {
    if (!is_first->exchange(false)) return;
    begun.set_value();
    go_on.get_future().wait();
  };
  LoraWaiter z(registry, "z");
  begun.get_future().wait();
  LoraWaiter a(registry, "a");
  auto b = std::make_unique<LoraWaiter>(registry, "b");
  c.reset();
  registry.load_now(*b->use);
  go_on.set_value();
  EXPECT_EQ(z.wait(), "");
  EXPECT_EQ(b->wait(), "");
  EXPECT_FALSE(a.is_told());
  b.reset();
  EXPECT_EQ(a.wait(), "");
}

TEST_F(LoraRegistryWaitingTest, OneThatIsRemovedWhileItIsAwaitedComesAndGoes) {
  for (const char* name : {"a", "b", "c"}) add(name);
  auto b = registry.use("b"), c = registry.use("c");
  {
    LoraWaiter a(registry, "a");
    registry.remove("a");
    b.reset();
    EXPECT_EQ(a.wait(), "");
    EXPECT_TRUE(loader.loaded().contains(a.use->id()));
  }
  while (loader.loaded().size() > 1) std::this_thread::yield();
  EXPECT_EQ(loader.loaded(), std::set{c->id()});
}

TEST_F(LoraRegistryWaitingTest, OthersAreUsedWhileOneIsRead) {
  add("a");
  std::promise<void> begun, go_on;
  loader.before_load = [&] {
    begun.set_value();
    go_on.get_future().wait();
  };
  auto adding = std::async(std::launch::async, [&] { return add("b"); });
  begun.get_future().wait();
  EXPECT_FALSE(registry.has("b"));
  EXPECT_TRUE(LoraWaiter(registry, "a").was_there);
  EXPECT_EQ(names(), "a+");
  go_on.set_value();
  EXPECT_TRUE(adding.get());
  loader.before_load = nullptr;
}

TEST_F(LoraRegistryWaitingTest, WhoLoadsNowWaitsForWhoReadsItAlready) {
  for (const char* name : {"a", "b", "c"}) add(name);
  std::promise<void> begun, go_on;
  loader.before_load = [&] {
    begun.set_value();
    go_on.get_future().wait();
  };
  LoraWaiter waiter(registry, "a");
  begun.get_future().wait();
  auto loading = std::async(std::launch::async, [&] { registry.load_now(*registry.use("a")); });
  go_on.set_value();
  loading.get();
  EXPECT_EQ(waiter.wait(), "");
  EXPECT_EQ(loader.num_loads, 4);
  loader.before_load = nullptr;
}

}  // namespace
}  // namespace quire
