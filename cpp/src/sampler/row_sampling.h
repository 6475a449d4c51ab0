// The part of a request's SamplingParams that every step reads: less than a cache line, where the whole takes
// several.
#pragma once

#include <cstdint>

#include "quire/sampling_params.h"

namespace quire {

struct RowSampling {
  RowSampling() = default;
  RowSampling(const SamplingParams& params, uint64_t seed)
      : temperature(params.temperature),
        top_p(params.top_p),
        min_p(params.min_p),
        top_k(params.top_k < 0 ? 0 : params.top_k),
        seed(seed),
        min_tokens(params.min_tokens),
        is_penalized(params.presence_penalty != 0 || params.frequency_penalty != 0 ||
                     params.repetition_penalty != 1),
        is_biased(!params.logit_bias.empty()),
        wants_logprobs(params.wants_logprobs()),
        has_grammar(params.structured_outputs.has_value()) {}

  bool is_filtered() const { return temperature > 0 && (top_k > 0 || top_p < 1 || min_p > 0); }

  float temperature = 1, top_p = 1, min_p = 0;
  int32_t top_k = 0;  // 0: all
  uint64_t seed = 0;
  int32_t min_tokens = 0;
  bool is_penalized = false, is_biased = false, wants_logprobs = false, has_grammar = false;
};

}  // namespace quire
