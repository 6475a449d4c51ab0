// Follows the loads of a model's experts, which are looked at about once a second: on a device that is a
// copy.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "quire/expert_load.h"

namespace quire {

class ExpertMeter {
 public:
  // `loads` are as they begin; empty: the model has no experts, and none are ever due.
  explicit ExpertMeter(std::vector<ExpertLoad> loads) : loads_(std::move(loads)) {}

  // After a step, at `now`, a time in seconds; `is_last`: there is no work left.
  bool is_due(double now, bool is_last) const {
    return !loads_.empty() && (is_last || now - last_time_ >= kSeconds);
  }
  void observe(std::vector<ExpertLoad> loads, double now);

  // Choices of all tokens in all layers, so far.
  uint64_t num_expert_tokens() const { return num_expert_tokens_; }
  // The busiest expert's tokens over the mean of all, between the last two looks that saw any: the mean of
  // the layers. 1 when all have as many, and at most the number of experts; 0 before.
  double imbalance() const { return imbalance_; }

 private:
  static constexpr double kSeconds = 1.0;

  std::vector<ExpertLoad> loads_;
  double last_time_ = 0.0;
  uint64_t num_expert_tokens_ = 0;
  double imbalance_ = 0.0;
};

}  // namespace quire
