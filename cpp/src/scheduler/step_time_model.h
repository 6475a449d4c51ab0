// How long a step takes, as measured lately, and what follows from it for a request that has just come.
#pragma once

#include <algorithm>
#include <cstdint>

#include "messages/engine_core_messages.h"

namespace quire {

// Least squares of seconds = time_per_step + time_per_token * tokens, older steps weighing less and less.
class StepTimeModel {
 public:
  void observe(int32_t num_tokens, double seconds) {
    const auto x = static_cast<double>(num_tokens);
    const auto add = [](double& sum, double value) { sum = sum * kMemory + value; };
    add(n_, 1.0);
    add(x_, x);
    add(y_, seconds);
    add(xx_, x * x);
    add(xy_, x * seconds);
    const double variance = n_ * xx_ - x_ * x_;
    // Steps of one size say nothing about the slope: all of the time is then the tokens'.
    time_per_token_ = variance > 1e-6 * n_ * xx_ ? (n_ * xy_ - x_ * y_) / variance : y_ / x_;
    time_per_token_ = std::clamp(time_per_token_, 0.0, y_ / x_);
    time_per_step_ = std::max((y_ - time_per_token_ * x_) / n_, 0.0);
  }
  double time_per_step() const { return time_per_step_; }
  double time_per_token() const { return time_per_token_; }

 private:
  static constexpr double kMemory = 0.98;  // about the last fifty steps
  double n_ = 0, x_ = 0, y_ = 0, xx_ = 0, xy_ = 0;
  double time_per_step_ = 0, time_per_token_ = 0;
};

struct TtftQuestion {
  int32_t num_prompt_tokens = 0;
  int32_t num_pending_reqs = 0;    // accepted after `stats` were taken
  int64_t num_pending_tokens = 0;  // prompt tokens of pending requests
  int32_t max_num_seqs = 0;
  int32_t max_num_batched_tokens = 0;
};

// Seconds until a request that comes now has its first token: all prompt tokens before it and its own, in
// steps that also carry the running requests, and the wait for a place to run. 0 while nothing was measured.
inline double predict_ttft(const SchedulerStats& stats, const TtftQuestion& question) {
  const auto num_running = static_cast<double>(stats.num_running_reqs);
  const double tokens_a_step = std::max(question.max_num_batched_tokens - num_running, 1.0);
  const auto time_of = [&](double num_tokens) {
    const double steps = std::max(num_tokens / tokens_a_step, 1.0);
    return steps * (stats.time_per_step + stats.time_per_token * num_running) +
           stats.time_per_token * num_tokens;
  };
  const auto own = static_cast<double>(question.num_prompt_tokens);
  const double ahead =
      static_cast<double>(stats.num_waiting_tokens + stats.num_prefill_tokens + question.num_pending_tokens);
  // Requests leave one after the other, max_num_seqs of them in the time that one takes.
  const int32_t num_ahead = stats.num_running_reqs + stats.num_waiting_reqs + question.num_pending_reqs;
  const int32_t num_must_leave = std::max(num_ahead + 1 - question.max_num_seqs, 0);
  const double wait = stats.mean_service_time * num_must_leave / question.max_num_seqs;
  return std::max(time_of(ahead + own), wait + time_of(own));
}

}  // namespace quire
