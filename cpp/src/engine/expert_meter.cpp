#include "engine/expert_meter.h"

#include <algorithm>
#include <utility>

namespace quire {

void ExpertMeter::observe(std::vector<ExpertLoad> loads, double now) {
  last_time_ = now;
  double sum_of_layers = 0.0;
  size_t num_layers = 0;  // in which a token chose
  for (size_t layer = 0; layer < loads.size(); ++layer) {
    const std::vector<uint64_t>& counts = loads[layer].num_tokens;
    uint64_t total = 0, highest = 0;
    for (size_t expert = 0; expert < counts.size(); ++expert) {
      const uint64_t grown = counts[expert] - loads_[layer].num_tokens[expert];
      total += grown;
      highest = std::max(highest, grown);
    }
    if (total == 0) continue;
    num_expert_tokens_ += total;
    sum_of_layers += static_cast<double>(highest * counts.size()) / static_cast<double>(total);
    ++num_layers;
  }
  if (num_layers > 0) imbalance_ = sum_of_layers / static_cast<double>(num_layers);
  loads_ = std::move(loads);
}

}  // namespace quire
