// The threads that the CPU kernels borrow.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

#include "quire/kernels/launch_context.h"

namespace quire {

// A fixed team that runs one task at a time on all of its threads, the caller's included.
//
// The ops of a forward pass follow each other within microseconds, so a worker spins for some tens of
// microseconds after a task and then sleeps: hand-off takes about a microsecond in the middle of a step,
// and an idle pool uses no CPU. With more threads than CPUs nobody spins.
//
// One caller at a time: run() is neither reentrant nor to be called from two threads at once.
class ThreadPool {
 public:
  // `num_threads` counts the caller: num_threads - 1 workers are started. With `cpus` given, worker i is
  // pinned to cpus[(i + 1) % cpus.size()]; cpus[0] is left to the caller, who is not moved.
  // Throws std::system_error when a thread cannot be started.
  explicit ThreadPool(int32_t num_threads, std::span<const int> cpus = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int32_t num_threads() const { return host_parallel_.num_threads; }
  // Calls task(arg, i, num_threads) once for each i, index 0 on the calling thread, and returns when all
  // have returned. Tasks must not throw.
  void run(HostParallel::Task task, void* arg);
  // What LaunchContext::host wants; lives as long as the pool.
  const HostParallel* host_parallel() const { return &host_parallel_; }

  // The CPUs this process may run on, in ascending order.
  static std::vector<int> available_cpus();

 private:
  void work(int32_t index);
  void stop();

  HostParallel host_parallel_;
  int spins_;
  // What the next task is; written by the caller before it advances generation_.
  HostParallel::Task task_ = nullptr;
  void* arg_ = nullptr;
  bool stopping_ = false;
  // On lines of their own: one is polled by the workers, the other by the caller.
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<int32_t> unfinished_{0};
  std::vector<std::thread> workers_;
};

}  // namespace quire
