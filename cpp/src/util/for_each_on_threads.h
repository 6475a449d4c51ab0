// Independent pieces of work, on threads that are there for them only.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace quire {

// task(i) for each i below `count`, on the caller's thread and up to num_threads - 1 others; on fewer where
// these cannot be started. Throws what one of them throws; others may then be left out.
template <typename Task>
void for_each_on_threads(size_t count, size_t num_threads, const Task& task) {
  std::atomic<size_t> next{0};
  std::exception_ptr error;
  std::mutex mutex;
  const auto work = [&] {
    try {
      for (size_t i = next++; i < count; i = next++) task(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
      next = count;
    }
  };
  std::vector<std::jthread> threads;
  try {
    while (threads.size() + 1 < std::min(num_threads, count)) threads.emplace_back(work);
  } catch (const std::system_error&) {  // those that there are do it
  }
  work();
  threads.clear();
  if (error) std::rethrow_exception(error);
}

}  // namespace quire
