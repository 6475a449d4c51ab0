#include "sampler/logprobs.h"

#include <algorithm>
#include <numeric>

namespace quire {

Logprob logprob_of(std::span<const float> logprobs, int32_t id) {
  const auto at = static_cast<size_t>(id);
  const float own = logprobs[at];
  int32_t num_likelier = 0;
  for (const float other : logprobs) num_likelier += other > own;
  for (const float other : logprobs.first(at)) num_likelier += other == own;
  return {id, own, num_likelier + 1};
}

void append_top_logprobs(std::span<const float> logprobs, int32_t num_top, PositionLogprobs& position,
                         std::vector<int32_t>& scratch) {
  const size_t count = std::min(static_cast<size_t>(num_top), logprobs.size());
  if (count == 0) return;
  const auto likelier = [&](int32_t a, int32_t b) {
    const float x = logprobs[static_cast<size_t>(a)], y = logprobs[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  scratch.resize(logprobs.size());
  std::iota(scratch.begin(), scratch.end(), 0);
  std::partial_sort(scratch.begin(), scratch.begin() + static_cast<std::ptrdiff_t>(count), scratch.end(),
                    likelier);
  for (size_t i = 0; i < count; ++i) {
    position.push_back({scratch[i], logprobs[static_cast<size_t>(scratch[i])], static_cast<int32_t>(i) + 1});
  }
}

}  // namespace quire
