// A loop over independent pieces of a few microseconds to a millisecond each, by several threads when it is
// long.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace quire {

// One caller at a time.
class ParallelFor {
 public:
  // `num_threads` besides the caller's; they are started by the first loop that wants them.
  explicit ParallelFor(int32_t num_threads) : num_threads_(static_cast<size_t>(num_threads)) {}
  ~ParallelFor();
  ParallelFor(const ParallelFor&) = delete;
  ParallelFor& operator=(const ParallelFor&) = delete;

  // Calls body(i) once for each i below `count`, and returns when all have returned. It must not throw.
  void run(size_t count, const std::function<void(size_t)>& body);

 private:
  // Below that, waking a thread takes as long as the loop.
  static constexpr size_t kMinCount = 16;

  void work();
  void take_pieces();

  const size_t num_threads_;
  std::atomic<size_t> next_{0};  // piece of the loop at hand
  const std::function<void(size_t)>* body_ = nullptr;
  size_t count_ = 0;

  std::mutex mutex_;
  std::condition_variable begun_, ended_;
  bool is_open_ = false;  // a loop may be joined
  size_t num_working_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace quire
