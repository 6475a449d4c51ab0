// How ops spread over the threads that the caller lends.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "quire/kernels/launch_context.h"

namespace quire::cpu {

// Calls f(index, count) on every lent thread, and returns when all have returned.
template <typename F>
void on_all_threads(const LaunchContext& ctx, const F& f) {
  if (ctx.host == nullptr || ctx.host->num_threads <= 1) {
    f(0, 1);
    return;
  }
  ctx.host->run(
      ctx.host->self,
      [](void* arg, int32_t index, int32_t count) { (*static_cast<const F*>(arg))(index, count); },
      const_cast<F*>(&f));
}

// Calls f(begin, end) for ranges that cover [0, n), one per thread. Work worth fewer than two grains
// stays on the calling thread: waking another costs about a microsecond or two.
template <typename F>
void parallel_ranges(const LaunchContext& ctx, int64_t n, int64_t grain, const F& f) {
  if (n < 2 * grain) {
    if (n > 0) f(int64_t{0}, n);
    return;
  }
  on_all_threads(ctx, [&](int32_t index, int32_t count) {
    const int64_t begin = n * index / count, end = n * (index + 1) / count;
    if (begin < end) f(begin, end);
  });
}

// Hands out [0, n) to whichever thread asks next, so that a thread that is slowed down by another program
// does not hold up the rest.
class WorkQueue {
 public:
  // One at a time.
  explicit WorkQueue(int64_t n) : WorkQueue(n, 1, n) {}
  // Shrinking chunks of whole grains: long stretches first, an even finish at the end.
  WorkQueue(int64_t n, int64_t grain, int64_t num_threads)
      : n_(n), grain_(grain), shares_(std::max<int64_t>(1, 2 * num_threads)) {}

  bool take(int64_t* begin, int64_t* end) {
    *begin = next_.load(std::memory_order_relaxed);
    do {
      if (*begin >= n_) return false;
      const int64_t share = (n_ - *begin) / shares_ / grain_ * grain_;
      *end = std::min(n_, *begin + std::max(grain_, share));
    } while (!next_.compare_exchange_weak(*begin, *end, std::memory_order_relaxed));
    return true;
  }

 private:
  std::atomic<int64_t> next_{0};
  const int64_t n_, grain_, shares_;
};

// Scratch of the calling thread, 64-byte aligned, kept until the thread ends. It grows when a larger
// shape is first seen, so the steady state allocates nothing. One user at a time.
void* thread_scratch(size_t bytes);

}  // namespace quire::cpu
