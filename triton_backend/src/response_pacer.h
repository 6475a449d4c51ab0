// Keeps bursts of responses from overrunning the server.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>

namespace quire::triton {

// Each of the server's HTTP threads takes what is to be written through a socket that holds some 280
// messages, two for the first response of a stream, and loses what exceeds it: the stream hangs, or its bytes
// come without a status line. A backend cannot see how far they are, nor which requests came over HTTP, so
// all responses of the process share a leaky bucket: a burst goes out at once, more than that at a rate that
// the threads keep up with. Whoever waits here sends more tokens in one response next time. Thread-safe.
class ResponsePacer {
 public:
  using Clock = std::chrono::steady_clock;

  // `burst` messages may be under way at once, >= 1: at most 48 for each HTTP thread, which may be kept from
  // its work by those that compute; a twelfth of that leaves in a millisecond.
  explicit ResponsePacer(int64_t burst) : burst_(static_cast<double>(burst)) {}

  // Call before each response. May sleep for some milliseconds.
  void before_send(int num_messages = 1);

  // How long a response at `now` has to wait. Changes the level as if it were sent then.
  Clock::duration enter(Clock::time_point now, int num_messages = 1);

 private:
  double per_millisecond() const { return burst_ / 12.0; }

  const double burst_;
  std::mutex mutex_;
  double level_ = 0.0;  // responses that may still be under way
  Clock::time_point last_{};
};

}  // namespace quire::triton
