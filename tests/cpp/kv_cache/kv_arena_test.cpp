#include "kv_cache/kv_arena.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "quire/error.h"
#include "util/error_of.h"

namespace quire {
namespace {

TEST(KVArenaTest, AMemberIsSureOfItsMinimumAndNoMore) {
  const auto arena = std::make_shared<KVArena>(100);
  KVArena::Member a(arena, 30, {});
  KVArena::Member b(arena, 20, {});
  EXPECT_EQ(a.bytes_available(), 80);  // b's 20 are kept for it
  EXPECT_FALSE(a.take(81));
  EXPECT_TRUE(a.take(80));
  EXPECT_EQ(b.bytes_available(), 20);
  EXPECT_TRUE(b.take(20));
  EXPECT_EQ(arena->bytes_held(), 100);
}

TEST(KVArenaTest, WhoFindsNothingLeftAsksAndIsToldWhenSomeIsGivenBack) {
  int woken_a = 0;
  int woken_b = 0;
  const auto arena = std::make_shared<KVArena>(100);
  KVArena::Member a(arena, 10, [&] { ++woken_a; });
  KVArena::Member b(arena, 10, [&] { ++woken_b; });
  ASSERT_TRUE(a.take(90));
  EXPECT_FALSE(b.take(40));
  EXPECT_EQ(woken_a, 1);
  EXPECT_EQ(a.bytes_wanted_by_others(), 30);  // 10 lie free
  a.give_back(30);
  EXPECT_EQ(woken_b, 1);
  EXPECT_EQ(a.bytes_wanted_by_others(), 0);
  EXPECT_TRUE(b.take(40));
}

TEST(KVArenaTest, WhatIsNotAskedForAgainIsNotWantedAnyMore) {
  const auto arena = std::make_shared<KVArena>(100);
  KVArena::Member a(arena, 10, {});
  KVArena::Member b(arena, 10, {});
  ASSERT_TRUE(a.take(90));
  b.begin_schedule();
  EXPECT_FALSE(b.take(40));
  b.end_schedule();
  EXPECT_TRUE(a.is_wanted());
  b.begin_schedule();
  EXPECT_FALSE(b.take(40));
  b.end_schedule();
  EXPECT_TRUE(a.is_wanted());
  b.begin_schedule();  // its request was aborted: nobody asks
  b.end_schedule();
  EXPECT_FALSE(a.is_wanted());
}

TEST(KVArenaTest, AMemberThatGoesGivesBackAllThatItHeldAndTellsTheOthers) {
  int woken = 0;
  const auto arena = std::make_shared<KVArena>(100);
  KVArena::Member a(arena, 10, [&] { ++woken; });
  {
    KVArena::Member b(arena, 10, {});
    ASSERT_TRUE(b.take(80));
    EXPECT_FALSE(a.take(50));
  }
  EXPECT_EQ(woken, 1);
  EXPECT_TRUE(a.take(100));
}

TEST(KVArenaTest, AMemberThatJoinsWaitsForTheOthersToGiveBackWhatTheyDoNotUse) {
  const auto arena = std::make_shared<KVArena>(100);
  std::atomic<bool> asked = false;
  KVArena::Member a(arena, 10, [&] { asked = true; });
  ASSERT_TRUE(a.take(95));
  std::thread lender([&] {
    while (!asked) std::this_thread::yield();
    EXPECT_FALSE(a.take(1));  // what is free is the newcomer's
    a.give_back(50);
  });
  KVArena::Member b(arena, 40, {});
  lender.join();
  EXPECT_FALSE(a.is_wanted());
  EXPECT_TRUE(b.take(40));
}

TEST(KVArenaTest, RefusesAMemberWhoseMinimumIsNotThere) {
  const auto arena = std::make_shared<KVArena>(100);
  const KVArena::Member a(arena, 70, {});
  const std::string error = error_of([&] { const KVArena::Member b(arena, 40, {}); });
  for (const char* number : {"100", "30", "40"}) EXPECT_NE(error.find(number), error.npos) << error;
  EXPECT_THROW(KVArena(0), InvalidArgument);
}

// Each on a thread of its own, as engines are, and somebody who looks on.
TEST(KVArenaTest, MembersTakeAskAndGiveBackAtOnce) {
  const auto arena = std::make_shared<KVArena>(100);
  std::atomic<int> num_woken{0};
  std::atomic<bool> is_over{false};
  std::thread onlooker([&] {
    while (!is_over) {
      const int64_t held = arena->bytes_held();
      EXPECT_TRUE(held >= 0 && held <= 100) << held;
    }
  });
  std::vector<std::thread> engines;
  for (int i = 0; i < 3; ++i) {
    engines.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        KVArena::Member member(arena, 10, [&] { ++num_woken; });
        for (int step = 0; step < 20; ++step) {
          member.begin_schedule();
          if (member.bytes_available() >= 10 && member.take(10 + step)) {
            member.give_back(step);
          } else if (member.bytes_wanted_by_others() > 0 && member.bytes_held() > 10) {
            member.give_back(member.bytes_held() - 10);
          }
          member.end_schedule();
        }
      }
    });
  }
  for (std::thread& engine : engines) engine.join();
  is_over = true;
  onlooker.join();
  EXPECT_EQ(arena->bytes_held(), 0);
}

}  // namespace
}  // namespace quire
