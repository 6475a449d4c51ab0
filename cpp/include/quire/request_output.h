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
  // Of all tokens so far, those inside a reasoning block: EngineConfig's think_start_token_ids and
  // think_end_token_ids, which are not counted. What may be the beginning of the end is counted once that is
  // decided. A block may begin in the prompt. 0 in an engine without them.
  int32_t num_reasoning_tokens = 0;
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
  // Seconds from one token of a completion to its next one, on average so far: from the first to the last,
  // over one less than there are. Of several completions, of all their tokens alike. 0: none has two.
  double mean_time_per_output_token = 0.0;

  // Seconds, under vLLM's names; 0 until the last of the two times is known.
  double queued_time() const { return between(arrival_time, first_scheduled_time); }
  double prefill_time() const { return between(first_scheduled_time, first_token_time); }
  double first_token_latency() const { return between(arrival_time, first_token_time); }
  double decode_time() const { return between(first_token_time, last_token_time); }
  double inference_time() const { return between(first_scheduled_time, last_token_time); }

  static double between(double begin, double end) { return begin == 0.0 || end == 0.0 ? 0.0 : end - begin; }
  bool operator==(const RequestMetrics&) const = default;
};

// What a request has used so far, of all its completions. A prompt is counted once.
struct RequestUsage {
  int32_t num_prompt_tokens = 0;
  int32_t num_cached_tokens = 0;      // of those, the ones whose keys and values were already there
  int32_t num_generation_tokens = 0;  // delivered: what follows a stop string is dropped, and not counted
  int32_t num_reasoning_tokens = 0;   // of those, the ones inside a reasoning block

  bool operator==(const RequestUsage&) const = default;
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
  RequestUsage usage;  // whatever the output kind, of all so far
};

}  // namespace quire
