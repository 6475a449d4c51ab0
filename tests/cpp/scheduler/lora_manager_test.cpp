#include "scheduler/lora_manager.h"

#include <gtest/gtest.h>

#include "quire/error.h"

namespace quire {
namespace {

using Loads = std::vector<LoraLoad>;

Loads loads_of(LoraManager& manager) {
  Loads loads = {{.lora_id = 99, .slot = 99}};  // what was there goes
  manager.take_loads(loads);
  return loads;
}

void run(LoraManager& manager, LoraId id) {
  manager.begin(id);
  manager.end(id);
}

TEST(LoraManagerTest, AnAdapterIsLoadedOnceForAllItsRequests) {
  LoraManager manager(/*max_loras=*/2);
  manager.begin(7);
  manager.begin(7);
  EXPECT_EQ(loads_of(manager), (Loads{{7, 0}}));
  EXPECT_EQ(manager.num_running(), 1);
  manager.begin(8);
  EXPECT_EQ(loads_of(manager), (Loads{{8, 1}}));
  EXPECT_EQ(loads_of(manager), Loads{});
}

TEST(LoraManagerTest, LoadsComeInTheOrderOfTheirRequests) {
  LoraManager manager(3);
  for (LoraId id : {9, 7, 8}) manager.begin(id);
  EXPECT_EQ(loads_of(manager), (Loads{{9, 0}, {7, 1}, {8, 2}}));
}

TEST(LoraManagerTest, ASlotIsKeptWhileAnyRequestRuns) {
  LoraManager manager(1);
  manager.begin(7);
  manager.begin(7);
  EXPECT_FALSE(manager.has_room(8));
  EXPECT_TRUE(manager.has_room(7));
  manager.end(7);
  EXPECT_TRUE(manager.is_running(7));
  EXPECT_FALSE(manager.has_room(8));
  EXPECT_THROW(manager.begin(8), InternalError);
  manager.end(7);
  EXPECT_FALSE(manager.is_running(7));
  EXPECT_EQ(manager.num_running(), 0);
  EXPECT_TRUE(manager.has_room(8));
  manager.begin(8);
  EXPECT_FALSE(manager.has_room(7));
  EXPECT_EQ(loads_of(manager), (Loads{{7, 0}, {8, 0}}));
}

TEST(LoraManagerTest, WhatLiesInASlotStillIsNotLoadedAgain) {
  LoraManager manager(2);
  run(manager, 7);
  run(manager, 8);
  loads_of(manager);
  run(manager, 7);
  EXPECT_EQ(loads_of(manager), Loads{});
}

TEST(LoraManagerTest, TheAdapterThatBeganLongestAgoGoesOfThoseThatDoNotRun) {
  LoraManager manager(3);
  for (LoraId id : {7, 8, 9}) run(manager, id);
  run(manager, 7);
  manager.begin(8);
  loads_of(manager);
  manager.begin(10);  // 8 is older than 9, but runs
  manager.begin(11);
  EXPECT_EQ(loads_of(manager), (Loads{{10, 2}, {11, 0}}));
  EXPECT_FALSE(manager.has_room(7));
  EXPECT_FALSE(manager.has_room(9));
  EXPECT_TRUE(manager.is_running(8));
}

TEST(LoraManagerTest, WhatComesForALaterStepKeepsItsSlotUntilThisOneIsSent) {
  LoraManager manager(3);
  manager.begin(7);
  run(manager, 8);
  EXPECT_TRUE(manager.bring(7));  // which it has
  EXPECT_TRUE(manager.bring(8));  // which lies there
  EXPECT_TRUE(manager.bring(9));
  EXPECT_FALSE(manager.bring(10));
  EXPECT_TRUE(manager.has_slot(9));
  EXPECT_FALSE(manager.has_slot(10));
  EXPECT_EQ(manager.num_running(), 1);
  EXPECT_EQ(loads_of(manager), (Loads{{7, 0}, {8, 1}, {9, 2}}));
  EXPECT_TRUE(manager.bring(10));
  EXPECT_EQ(loads_of(manager), (Loads{{10, 1}}));  // for 8 came first
}

TEST(LoraManagerTest, WhatDoesNotRunCannotEnd) {
  LoraManager manager(1);
  EXPECT_THROW(manager.end(7), InternalError);
  run(manager, 7);
  EXPECT_THROW(manager.end(7), InternalError);
}

TEST(LoraManagerTest, WithoutSlotsThereIsNoRoom) { EXPECT_FALSE(LoraManager(0).has_room(7)); }

// 7 runs in slot 0, 8 lies in slot 1 and is older than 9 in slot 2; nobody took the load of 9 along.
LoraManager some_manager() {
  LoraManager manager(4);
  manager.begin(7);
  run(manager, 8);
  loads_of(manager);
  run(manager, 9);
  return manager;
}

LoraSlotsSnapshot snapshot_of(const LoraManager& manager) {
  LoraSlotsSnapshot snapshot;
  manager.save(snapshot);
  return snapshot;
}

TEST(LoraManagerTest, ARestoredOneGoesOnAsTheFirstWould) {
  LoraManager first = some_manager();
  LoraManager second(4);
  second.restore(snapshot_of(first));
  EXPECT_TRUE(second.resume(7));
  EXPECT_FALSE(second.resume(10));
  EXPECT_EQ(second.num_running(), 1);
  const auto go_on = [](LoraManager& manager) {
    for (LoraId id : {10, 8, 11}) manager.begin(id);
    EXPECT_FALSE(manager.has_room(9));
    return loads_of(manager);
  };
  EXPECT_EQ(go_on(second), (Loads{{9, 2}, {10, 3}, {11, 2}}));
  EXPECT_EQ(go_on(first), (Loads{{9, 2}, {10, 3}, {11, 2}}));
  // Among them what was used is as old as it was.
  second.end(8);
  second.end(10);
  second.begin(12);
  EXPECT_EQ(loads_of(second), (Loads{{12, 3}}));
}

TEST(LoraManagerTest, WhatNoManagerCanHaveSavedIsRefused) {
  const LoraSlotsSnapshot good = snapshot_of(some_manager());
  const auto expect_refused = [&](const auto& damage) {
    LoraSlotsSnapshot bad = good;
    damage(bad);
    EXPECT_THROW(LoraManager(4).restore(bad), InvalidArgument);
  };
  LoraManager(4).restore(good);
  EXPECT_THROW(LoraManager(3).restore(good), InvalidArgument);
  expect_refused([](auto& bad) { bad.ids.pop_back(); });
  expect_refused([](auto& bad) { bad.last_used.push_back(0); });
  expect_refused([](auto& bad) { bad.ids[2] = bad.ids[0]; });
  expect_refused([](auto& bad) { bad.last_used[1] = bad.num_uses + 1; });
  expect_refused([](auto& bad) { bad.loads[0].slot = 4; });
  expect_refused([](auto& bad) { bad.loads[0].slot = -1; });
  expect_refused([](auto& bad) { bad.loads[0].lora_id = 0; });
}

}  // namespace
}  // namespace quire
