#include "grammar/parallel_for.h"

#include "util/thread_name.h"

namespace quire {

ParallelFor::~ParallelFor() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  begun_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ParallelFor::run(size_t count, const std::function<void(size_t)>& body) {
  if (count < kMinCount || num_threads_ == 0) {
    for (size_t i = 0; i < count; ++i) body(i);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    while (threads_.size() < num_threads_) threads_.emplace_back([this] { work(); });
    body_ = &body;
    count_ = count;
    next_ = 0;
    is_open_ = true;
  }
  begun_.notify_all();
  take_pieces();
  std::unique_lock lock(mutex_);
  // Threads that have not come by now are not waited for: where all cores are busy that takes longer than the
  // loop.
  is_open_ = false;
  ended_.wait(lock, [this] { return num_working_ == 0; });
}

void ParallelFor::take_pieces() {
  for (size_t i = next_++; i < count_; i = next_++) (*body_)(i);
}

void ParallelFor::work() {
  name_this_thread("quire-mask");
  std::unique_lock lock(mutex_);
  while (true) {
    begun_.wait(lock, [this] { return stopping_ || (is_open_ && next_ < count_); });
    if (stopping_) return;
    ++num_working_;
    lock.unlock();
    take_pieces();
    lock.lock();
    if (--num_working_ == 0) ended_.notify_one();
  }
}

}  // namespace quire
