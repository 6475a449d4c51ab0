#include "engine/admission.h"

#include <algorithm>
#include <cmath>

#include "scheduler/step_time_model.h"
#include "util/check.h"

namespace quire {
namespace {

int64_t num_completions(std::span<const AdmissionRequest> requests) {
  int64_t sum = 0;
  for (const AdmissionRequest& request : requests) sum += request.n;
  return sum;
}

// Requests on their way to the engine core begin at once as long as there is room for more, and nobody waits.
void check_waiting(const EngineConfig& config, const AdmissionState& state,
                   std::span<const AdmissionRequest> requests) {
  if (config.max_waiting_requests == 0) return;
  const int64_t num_new = num_completions(requests);
  int64_t num_new_without_lora = 0;
  for (const AdmissionRequest& request : requests)
    if (request.waits_for_lora) num_new_without_lora += request.n;
  const int64_t num_free = state.stats.num_waiting_reqs > 0
                               ? 0
                               : std::max(config.max_num_seqs.value() - state.stats.num_running_reqs, 0);
  const auto num_pending = static_cast<int64_t>(state.num_submitted_reqs - state.stats.num_added_reqs);
  const int64_t num_waiting = state.stats.num_waiting_reqs + state.num_waiting_for_lora;
  const int64_t num_after = num_waiting + num_new_without_lora +
                            std::max<int64_t>(num_pending + num_new - num_new_without_lora - num_free, 0);
  if (num_after <= config.max_waiting_requests) return;
  throw ResourceExhausted(str("the queue is full: ", state.stats.num_running_reqs, " requests run, ",
                              num_waiting + num_pending, " wait, ", num_new,
                              " more would exceed max_waiting_requests ", config.max_waiting_requests,
                              "; try again later"));
}

}  // namespace

void check_admission(const EngineConfig& config, const AdmissionState& state,
                     std::span<const AdmissionRequest> requests) {
  if (!state.closed.empty()) throw ResourceExhausted(state.closed);
  if (state.draining) throw ResourceExhausted("the engine is draining; resume() accepts requests again");
  const int64_t num_new = num_completions(requests);
  if (config.max_queued_requests > 0 && state.num_unfinished_reqs + num_new > config.max_queued_requests) {
    throw ResourceExhausted(
        str("the queue is full: ", state.num_unfinished_reqs, " requests are unfinished, ", num_new,
            " more would exceed max_queued_requests ", config.max_queued_requests,
            num_new > config.max_queued_requests ? "; ask for fewer at once" : "; try again later"));
  }
  check_waiting(config, state, requests);
  int64_t num_new_tokens = 0;
  for (const AdmissionRequest& request : requests) num_new_tokens += request.num_prompt_tokens * request.n;
  if (config.max_queued_tokens > 0 &&
      state.num_unfinished_tokens + num_new_tokens > config.max_queued_tokens) {
    throw ResourceExhausted(str("the queue is full: unfinished prompts have ", state.num_unfinished_tokens,
                                " tokens, ", num_new_tokens, " more would exceed max_queued_tokens ",
                                config.max_queued_tokens, "; try again later"));
  }
  TtftQuestion question;
  question.max_num_seqs = config.max_num_seqs.value();
  question.max_num_batched_tokens = config.max_num_batched_tokens.value();
  question.num_pending_reqs = static_cast<int32_t>(state.num_submitted_reqs - state.stats.num_added_reqs) +
                              state.num_waiting_for_lora;
  question.num_pending_tokens =
      static_cast<int64_t>(state.num_submitted_tokens - state.stats.num_added_tokens) +
      state.num_tokens_waiting_for_lora;
  for (const AdmissionRequest& request : requests) {
    question.num_prompt_tokens = static_cast<int32_t>(request.num_prompt_tokens);
    const auto predicted_ms = static_cast<int64_t>(std::ceil(predict_ttft(state.stats, question) * 1000.0));
    if (request.deadline_ms > 0 && predicted_ms > request.deadline_ms) {
      const int64_t tokens_ahead =
          state.stats.num_waiting_tokens + state.stats.num_prefill_tokens + question.num_pending_tokens;
      throw ResourceExhausted(str("deadline_ms ", request.deadline_ms, " cannot be met: the first token is ",
                                  "predicted in ", predicted_ms, " ms (", state.stats.num_running_reqs,
                                  " requests run, ", state.stats.num_waiting_reqs + question.num_pending_reqs,
                                  " wait, ", tokens_ahead,
                                  " prompt tokens are ahead); raise it, or try again later"));
    }
    question.num_pending_reqs += request.n;
    question.num_pending_tokens += request.num_prompt_tokens * request.n;
  }
}

}  // namespace quire
