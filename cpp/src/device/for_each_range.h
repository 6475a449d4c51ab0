// Work cut into one range for each thread.
#pragma once

#include <cstdint>
#include <exception>
#include <mutex>

#include "quire/kernels/launch_context.h"

namespace quire {

// Calls task(begin, end) for ranges that cover [0, count), one on each thread that `host` lends; with null,
// or for one thing, on the caller's alone. Returns when all have returned, and throws the first exception of
// one.
template <typename Task>
void for_each_range(const HostParallel* host, int64_t count, const Task& task) {
  if (count <= 0) return;
  if (!host || count == 1) return task(int64_t{0}, count);
  struct Ranges {
    const Task& task;
    int64_t count;
    std::mutex mutex;
    std::exception_ptr error;  // threads that are lent must not throw
  } ranges{task, count, {}, {}};
  host->run(
      host->self,
      [](void* arg, int32_t index, int32_t num_threads) {
        Ranges& ranges = *static_cast<Ranges*>(arg);
        const int64_t begin = ranges.count * index / num_threads;
        const int64_t end = ranges.count * (index + 1) / num_threads;
        try {
          if (begin < end) ranges.task(begin, end);
        } catch (...) {
          const std::lock_guard lock(ranges.mutex);
          if (!ranges.error) ranges.error = std::current_exception();
        }
      },
      &ranges);
  if (ranges.error) std::rethrow_exception(ranges.error);
}

}  // namespace quire
