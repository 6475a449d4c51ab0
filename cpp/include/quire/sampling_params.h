// How the next token is chosen, when to stop, and what to report.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "quire/export.h"

namespace quire {

// What a stream of RequestOutputs carries: everything so far, only what is new, or one at the end.
enum class RequestOutputKind : uint8_t { kCumulative = 0, kDelta = 1, kFinalOnly = 2 };

struct QUIRE_API SamplingParams {
  // Choosing. temperature 0 is greedy: the likeliest token, the lowest id among equals.
  float temperature = 1.0F;        // >= 0, finite
  int32_t top_k = 0;               // keep the k likeliest tokens; 0 (or -1) keeps all
  float top_p = 1.0F;              // (0, 1]: keep the smallest set with at least this probability
  float min_p = 0.0F;              // [0, 1]: before those, drop tokens below min_p times the likeliest one
  float presence_penalty = 0.0F;   // [-2, 2]: subtracted once from each token already generated
  float frequency_penalty = 0.0F;  // [-2, 2]: subtracted for each time a token was generated
  float repetition_penalty =
      1.0F;  // (0, inf): divides (or multiplies) logits of seen tokens, prompt included
  std::map<int32_t, float> logit_bias;  // token id -> [-100, 100], added to its logit
  std::optional<uint64_t> seed;         // same seed, same tokens; absent: drawn afresh

  // Stopping.
  int32_t max_tokens = 16;              // >= 1; capped by what max_model_len leaves
  int32_t min_tokens = 0;               // [0, max_tokens]: no stop token before this many
  std::vector<std::string> stop;        // stop when the text contains one of these (non-empty strings)
  std::vector<int32_t> stop_token_ids;  // stop after one of these
  bool ignore_eos = false;              // go on past the model's end-of-sequence tokens
  bool include_stop_str_in_output = false;

  // Reporting.
  int32_t n = 1;  // [1, 256] completions of one prompt
  std::optional<int32_t>
      logprobs;            // [0, 100]: log-probabilities of the chosen and this many likeliest tokens
  bool detokenize = true;  // false: token ids only
  bool skip_special_tokens = true;
  RequestOutputKind output_kind = RequestOutputKind::kCumulative;

  // Throws InvalidArgument naming the first field out of range, its value and what would do.
  // `vocab_size` bounds the token ids.
  void validate(int32_t vocab_size) const;

  bool operator==(const SamplingParams&) const = default;
};

}  // namespace quire
