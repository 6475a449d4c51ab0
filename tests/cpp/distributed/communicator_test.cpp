#include "distributed/communicator.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "quire/error.h"

namespace quire {
namespace {

// Runs `body(communicator)` on a thread for each rank.
void on_ranks(int32_t world_size, const auto& body) {
  const auto ranks = make_shared_memory_communicators(world_size, 1 << 16);
  std::vector<std::thread> threads;
  for (const auto& rank : ranks) threads.emplace_back([&body, &rank] { body(*rank); });
  for (std::thread& thread : threads) thread.join();
}

// Returns when every rank is here.
void meet(Communicator& c) {
  float x = 0;
  c.all_reduce_sum({}, {&x, DType::kFloat32, 1});
}

TEST(CommunicatorTest, AllReduceAddsOverRanks) {
  on_ranks(3, [](Communicator& c) {
    for (int round = 0; round < 200; ++round) {
      std::vector<float> x = {static_cast<float>(c.rank()), 10.0F * static_cast<float>(round), 1.0F};
      c.all_reduce_sum({}, {x.data(), DType::kFloat32, 3});
      ASSERT_EQ(x, (std::vector<float>{3.0F, 30.0F * static_cast<float>(round), 3.0F}));
    }
  });
}

TEST(CommunicatorTest, EveryRankHoldsTheSameBits) {
  // In fp32 the order of these three changes the sum; all ranks must use one order.
  const float values[] = {1e8F, 1.0F, -1e8F};
  std::vector<float> results(3);
  on_ranks(3, [&](Communicator& c) {
    float x = values[c.rank()];
    c.all_reduce_sum({}, {&x, DType::kFloat32, 1});
    results[static_cast<size_t>(c.rank())] = x;
  });
  EXPECT_EQ(results[0], (1e8F + 1.0F) + -1e8F);
  EXPECT_EQ(results[1], results[0]);
  EXPECT_EQ(results[2], results[0]);
}

TEST(CommunicatorTest, AllReduceRoundsBfloat16Once) {
  on_ranks(2, [](Communicator& c) {
    uint16_t x = c.rank() == 0 ? 0x3F80 : 0x3B80;  // 1 and 2^-8: the sum is halfway, and rounds to even
    c.all_reduce_sum({}, {&x, DType::kBFloat16, 1});
    ASSERT_EQ(x, 0x3F80);
  });
}

TEST(CommunicatorTest, AllGatherPutsRanksSideBySide) {
  on_ranks(2, [](Communicator& c) {
    const auto base = static_cast<float>(10 * c.rank());
    std::vector<float> x = {base, base + 1, base + 2, base + 3};
    std::vector<float> out(8);
    c.all_gather_columns({}, {out.data(), DType::kFloat32, 2, 4}, {x.data(), DType::kFloat32, 2, 2});
    ASSERT_EQ(out, (std::vector<float>{0, 1, 10, 11, 2, 3, 12, 13}));
  });
}

// Three ranks of two columns, and an output of five in rows of seven: what does not fit is padding.
TEST(CommunicatorTest, AllGatherWritesTheColumnsThatThereAre) {
  on_ranks(3, [](Communicator& c) {
    const auto base = static_cast<float>(10 * c.rank());
    std::vector<float> x = {base, base + 1, base + 2, base + 3};
    std::vector<float> out(14, -1);
    c.all_gather_columns({}, TensorView(out.data(), DType::kFloat32, 2, 7).columns(0, 5),
                         {x.data(), DType::kFloat32, 2, 2});
    ASSERT_EQ(out, (std::vector<float>{0, 1, 10, 11, 20, -1, -1, 2, 3, 12, 13, 22, -1, -1}));
  });
}

TEST(CommunicatorTest, AFailedRankKeepsNobodyWaiting) {
  on_ranks(2, [](Communicator& c) {
    if (c.rank() == 1) {
      c.abort();
    } else {
      EXPECT_THROW(meet(c), InternalError);
    }
  });
}

TEST(CommunicatorTest, AfterAResetRanksMeetAgain) {
  const auto ranks = make_shared_memory_communicators(2, 64);
  std::thread waiting([&] { EXPECT_THROW(meet(*ranks[0]), InternalError); });
  ranks[1]->abort();
  waiting.join();
  EXPECT_THROW(meet(*ranks[1]), InternalError);
  ranks[0]->reset();
  std::thread other([&] {
    for (int i = 0; i < 100; ++i) meet(*ranks[0]);
  });
  for (int i = 0; i < 100; ++i) meet(*ranks[1]);
  other.join();
}

TEST(CommunicatorTest, RanksMayBeProcesses) {
  const auto ranks = make_shared_memory_communicators(2, 64);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  float x = child == 0 ? 1.0F : 2.0F;
  ranks[child == 0 ? 1 : 0]->all_reduce_sum({}, {&x, DType::kFloat32, 1});
  if (child == 0) _exit(x == 3.0F ? 0 : 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(x, 3.0F);
}

}  // namespace
}  // namespace quire
