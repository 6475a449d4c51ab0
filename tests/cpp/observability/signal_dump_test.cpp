#include "observability/signal_dump.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>
#include <vector>

#include "quire/error.h"

namespace quire {
namespace {

constexpr int kSignal = SIGUSR2;

void expect_call(const std::atomic<int>& calls) {
  const int before = calls;
  kill(getpid(), kSignal);
  for (int i = 0; i < 20000 && calls == before; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_GT(calls, before);
}

template <typename Action>
void on_threads(int count, Action action) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(action);
  for (std::thread& thread : threads) thread.join();
}

TEST(SignalDumpTest, ASignalCallsWhoeverIsThere) {
  std::atomic<int> first{0}, second{0};
  const SignalDump a(kSignal, [&] { ++first; });
  {
    const SignalDump b(kSignal, [&] { ++second; });
    expect_call(second);
  }
  const int gone = second;
  expect_call(first);
  EXPECT_EQ(second, gone);
  EXPECT_THROW(SignalDump(SIGUSR1, [] {}), InvalidArgument);
}

TEST(SignalDumpTest, TheSignalMeansWhatItMeantBefore) {
  static std::atomic<int> handled{0};
  struct sigaction own{}, before{};
  own.sa_handler = [](int) { ++handled; };
  sigaction(kSignal, &own, &before);
  std::atomic<int> calls{0};
  {
    const SignalDump dump(kSignal, [&] { ++calls; });
    expect_call(calls);
    EXPECT_EQ(handled, 0);
  }
  expect_call(handled);
  sigaction(kSignal, &before, nullptr);
}

// Engines come and go on several threads while signals come.
TEST(SignalDumpTest, ComeAndGoUnderSignals) {
  std::atomic<int> calls{0};
  const SignalDump stays(kSignal, [&] { ++calls; });
  std::atomic<bool> done{false};
  std::thread sender([&] {
    while (!done) kill(getpid(), kSignal);
  });
  on_threads(4, [] {
    for (int i = 0; i < 200; ++i) {
      int own_calls = 0;
      const SignalDump dump(kSignal, [&] { ++own_calls; });
    }
  });
  done = true;
  sender.join();
  expect_call(calls);
}

// The last one to go takes the watcher along, the next one makes another.
TEST(SignalDumpTest, TheFirstAndTheLastComeAndGo) {
  on_threads(4, [] {
    for (int i = 0; i < 200; ++i) const SignalDump dump(kSignal, [] {});
  });
  std::atomic<int> calls{0};
  const SignalDump dump(kSignal, [&] { ++calls; });
  expect_call(calls);
}

}  // namespace
}  // namespace quire
