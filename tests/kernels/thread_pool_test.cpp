#include "device/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>

namespace quire {
namespace {

struct Counts {
  std::vector<int> calls;
  int32_t count = 0;
};

void count_call(void* arg, int32_t index, int32_t count) {
  auto& counts = *static_cast<Counts*>(arg);
  ++counts.calls[static_cast<size_t>(index)];
  if (index == 0) counts.count = count;
}

double cpu_seconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](timeval t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST(ThreadPoolTest, EachIndexRunsOnce) {
  for (const int32_t threads : {1, 2, 7}) {
    ThreadPool pool(threads);
    Counts counts{std::vector<int>(static_cast<size_t>(threads)), 0};
    for (int i = 0; i < 500; ++i) pool.run(count_call, &counts);
    EXPECT_EQ(counts.count, threads);
    EXPECT_EQ(counts.calls, std::vector<int>(static_cast<size_t>(threads), 500));
  }
}

TEST(ThreadPoolTest, IndexZeroRunsOnTheCaller) {
  ThreadPool pool(2);
  std::thread::id id;
  const auto note = [](void* arg, int32_t index, int32_t) {
    if (index == 0) *static_cast<std::thread::id*>(arg) = std::this_thread::get_id();
  };
  pool.run(note, &id);
  EXPECT_EQ(id, std::this_thread::get_id());
}

TEST(ThreadPoolTest, WakesAfterSleeping) {
  ThreadPool pool(3);
  Counts counts{std::vector<int>(3), 0};
  for (int i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    pool.run(count_call, &counts);
  }
  EXPECT_EQ(counts.calls, std::vector<int>(3, 5));
}

TEST(ThreadPoolTest, IdleUsesNoCpu) {
  ThreadPool pool(4);
  Counts counts{std::vector<int>(4), 0};
  pool.run(count_call, &counts);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(cpu_seconds() - before, 0.02);
}

TEST(ThreadPoolTest, WorkersCanBePinned) {
  const std::vector<int> cpus = ThreadPool::available_cpus();
  ASSERT_FALSE(cpus.empty());
  ThreadPool pool(2, cpus);
  Counts counts{std::vector<int>(2), 0};
  pool.run(count_call, &counts);
  EXPECT_EQ(counts.calls, std::vector<int>(2, 1));
}

}  // namespace
}  // namespace quire
