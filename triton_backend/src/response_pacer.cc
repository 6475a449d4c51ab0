#include "response_pacer.h"

#include <algorithm>
#include <thread>

namespace quire::triton {

void ResponsePacer::before_send(int num_messages) {
  const Clock::duration wait = enter(Clock::now(), num_messages);
  if (wait > Clock::duration::zero()) std::this_thread::sleep_for(wait);
}

ResponsePacer::Clock::duration ResponsePacer::enter(Clock::time_point now, int num_messages) {
  using Milliseconds = std::chrono::duration<double, std::milli>;
  const std::lock_guard lock(mutex_);
  level_ = std::max(0.0, level_ - Milliseconds(now - last_).count() * per_millisecond());
  last_ = now;
  level_ += num_messages;
  if (level_ <= burst_) return Clock::duration::zero();
  // A whole millisecond at least: sleeping is not worth less.
  return std::chrono::duration_cast<Clock::duration>(
      Milliseconds(std::max(1.0, (level_ - burst_) / per_millisecond())));
}

}  // namespace quire::triton
