// What a request gives back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "quire/export.h"

namespace quire {

enum class FinishReason : uint8_t { kNone = 0, kStop = 1, kLength = 2, kAbort = 3, kError = 4 };

// "stop", "length", "abort" or "error"; "" for kNone.
QUIRE_API const char* finish_reason_name(FinishReason reason);

struct Logprob {
  int32_t token_id = 0;
  float logprob = 0.0F;  // natural logarithm, of the model's own distribution (before penalties and filters)
  int32_t rank = 0;      // 1 is the likeliest token

  bool operator==(const Logprob&) const = default;
};

// One position: the chosen token first, then the likeliest ones in order (the chosen one again if it is
// among them).
using PositionLogprobs = std::vector<Logprob>;

struct CompletionOutput {
  int32_t index = 0;  // which of the n completions
  std::string text;
  std::vector<int32_t> token_ids;
  std::optional<double> cumulative_logprob;  // over all tokens so far; when logprobs were asked for
  std::vector<PositionLogprobs> logprobs;    // one for each of token_ids, when asked for
  FinishReason finish_reason = FinishReason::kNone;
  // Which stop ended it: a stop string, or a stop token id; nothing for end-of-sequence.
  std::variant<std::monostate, std::string, int32_t> stop_reason;
  std::string error;  // why, when finish_reason is kError

  bool finished() const { return finish_reason != FinishReason::kNone; }
  bool operator==(const CompletionOutput&) const = default;
};

// When things happened to a request: seconds of std::chrono::steady_clock, whose differences mean something
// and whose values do not; 0: it has not happened. arrival_time <= first_scheduled_time <= first_token_time
// <= last_token_time. Of several completions, the first of the first ones and the last of the last ones.
struct RequestMetrics {
  double arrival_time = 0.0;          // it was validated and tokenized
  double first_scheduled_time = 0.0;  // its first step was scheduled; known when that gives a token
  double first_token_time = 0.0;      // the step that gave its first token ended
  double last_token_time = 0.0;       // the step that gave its last token so far ended
  int32_t num_generation_tokens = 0;  // so far, of all completions

  bool operator==(const RequestMetrics&) const = default;
};

// With RequestOutputKind::kDelta, `text`, `token_ids` and `logprobs` hold what is new, and only
// completions with something new are listed; otherwise all of it, for every completion.
struct RequestOutput {
  std::string request_id;
  std::shared_ptr<const std::string> prompt;  // null when the prompt was given as ids
  std::shared_ptr<const std::vector<int32_t>> prompt_token_ids;
  // When they were asked for, from the first token on (with kDelta once): one for each prompt token, given
  // those before it. The first is empty: nothing comes before it.
  std::shared_ptr<const std::vector<PositionLogprobs>> prompt_logprobs;
  std::vector<CompletionOutput> outputs;
  bool finished = false;          // all completions are
  int32_t num_cached_tokens = 0;  // prompt tokens whose keys and values were already there
  RequestMetrics metrics;
};

}  // namespace quire
