// What requests that generate side by side take for a token.
#pragma once

#include <quire/engine.h>

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine_rows.h"

namespace quire {

// Tokens of requests that generate side by side, as they come on the engine's output thread.
class Generation {
 public:
  Generation(Engine& engine, const std::vector<std::vector<int32_t>>& prompts, int32_t max_tokens)
      : num_tokens_(prompts.size()) {
    std::vector<EngineRequest> requests;
    std::vector<OutputCallback> callbacks;
    for (size_t i = 0; i < prompts.size(); ++i) {
      requests.push_back(request(prompts[i], max_tokens));
      requests.back().sampling_params.output_kind = RequestOutputKind::kDelta;
      callbacks.emplace_back([this, i](RequestOutput&& output) { add(i, output); });
    }
    engine.add_requests(std::move(requests), std::move(callbacks));
    std::unique_lock lock(mutex_);
    all_ended_.wait(lock, [&] { return num_ended_ == num_tokens_.size(); });
    if (!error_.empty()) throw Error(error_);
  }

  // Whether there was a time when all generated.
  bool is_side_by_side() const { return end_.of_last > begin_.of_last; }
  // Then: of the one that began last.
  double seconds_per_token() const {
    return (end_.seconds - begin_.seconds) / static_cast<double>(end_.of_last - begin_.of_last);
  }
  // Of a request on average, half way through.
  double tokens_before() const {
    return static_cast<double>(begin_.of_all + end_.of_all) / 2.0 / static_cast<double>(num_tokens_.size());
  }

 private:
  struct Moment {
    double seconds = 0.0;
    int64_t of_last = 0, of_all = 0;  // tokens
  };

  void add(size_t i, const RequestOutput& output) {
    const std::lock_guard lock(mutex_);
    const CompletionOutput& completion = output.outputs.at(0);
    const auto tokens = static_cast<int64_t>(completion.token_ids.size());
    if (num_tokens_[i] == 0 && tokens > 0) ++num_begun_;
    num_tokens_[i] += tokens;
    total_ += tokens;
    const bool all_run = num_begun_ == num_tokens_.size() && num_ended_ == 0;
    if (all_run && begin_.of_all == 0) {
      last_ = i;
      begin_ = end_ = {now(), num_tokens_[i], total_};
    } else if (all_run && i == last_) {
      end_ = {now(), num_tokens_[i], total_};
    }
    if (!output.finished) return;
    if (completion.finish_reason != FinishReason::kLength)
      error_ = "a request did not reach its length: " + completion.error;
    if (++num_ended_ == num_tokens_.size()) all_ended_.notify_one();
  }

  std::mutex mutex_;
  std::condition_variable all_ended_;
  std::string error_;
  std::vector<int64_t> num_tokens_;
  size_t num_begun_ = 0, num_ended_ = 0, last_ = 0;
  int64_t total_ = 0;
  Moment begin_, end_;
};

}  // namespace quire
