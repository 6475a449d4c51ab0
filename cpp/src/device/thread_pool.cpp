#include "device/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>

#include "util/thread_name.h"

namespace quire {
namespace {

// A pause takes 10 to 40 ns, so this is some tens of microseconds.
constexpr int kSpins = 2000;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Returns once `value` differs from `old`: polls `spins` times, then sleeps.
template <typename T>
void await_change(const std::atomic<T>& value, T old, int spins) {
  for (int i = 0; i < spins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause();
  }
  value.wait(old, std::memory_order_acquire);
}

void pin(std::thread& thread, int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  // Best effort: a CPU taken away since is no reason to fail.
  pthread_setaffinity_np(thread.native_handle(), sizeof set, &set);
}

}  // namespace

ThreadPool::ThreadPool(int32_t num_threads, std::span<const int> cpus) {
  num_threads = std::max(1, num_threads);
  host_parallel_ = {
      .self = this, .num_threads = num_threads, .run = [](void* self, HostParallel::Task task, void* arg) {
        static_cast<ThreadPool*>(self)->run(task, arg);
      }};
  spins_ = static_cast<size_t>(num_threads) <= available_cpus().size() ? kSpins : 0;
  workers_.reserve(static_cast<size_t>(num_threads) - 1);
  try {
    for (int32_t i = 1; i < num_threads; ++i) {
      workers_.emplace_back([this, i] { work(i); });
      if (!cpus.empty()) pin(workers_.back(), cpus[static_cast<size_t>(i) % cpus.size()]);
    }
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stopping_ = true;
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(HostParallel::Task task, void* arg) {
  const auto num_workers = static_cast<int32_t>(workers_.size());
  if (num_workers > 0) {
    task_ = task;
    arg_ = arg;
    unfinished_.store(num_workers, std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
    generation_.notify_all();  // makes no system call unless someone sleeps
  }
  task(arg, 0, num_workers + 1);
  for (;;) {
    const int32_t left = unfinished_.load(std::memory_order_acquire);
    if (left == 0) return;
    await_change(unfinished_, left, spins_);
  }
}

void ThreadPool::work(int32_t index) {
  name_this_thread("quire-compute");
  uint32_t seen = 0;
  for (;;) {
    await_change(generation_, seen, spins_);
    ++seen;  // the caller waits for every worker, so none can miss a generation
    if (stopping_) return;
    task_(arg_, index, num_threads());
    if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished_.notify_one();
  }
}

std::vector<int> ThreadPool::available_cpus() {
  std::vector<int> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  if (cpus.empty()) cpus.push_back(0);
  return cpus;
}

}  // namespace quire
