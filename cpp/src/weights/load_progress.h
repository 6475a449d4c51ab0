#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace quire {

// While it lives, a line on standard error says how much of something is done, rewritten a few times a
// second; gone when it ends. Nothing is written within the first moments, or where standard error is no
// terminal.
class LoadProgress {
 public:
  // `done` is called on a thread of its own, and says how many of `total` bytes are.
  LoadProgress(int64_t total, std::function<int64_t()> done);
  ~LoadProgress();
  LoadProgress(const LoadProgress&) = delete;
  LoadProgress& operator=(const LoadProgress&) = delete;

  // "loading weights:  43 % [#########           ] 6.43 of 14.96 GiB"
  static std::string line(int64_t done, int64_t total);

 private:
  void run();

  const int64_t total_;
  const std::function<int64_t()> done_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace quire
