// The part of a step that is about log-probabilities of prompts.
#include <algorithm>
#include <numeric>

#include "util/check.h"
#include "worker/model_runner.h"

namespace quire {

void ModelRunner::finish_prompt_logprobs(CachedRequestState& request) {
  if (request.num_prompt_logprobs < 0) return;
  request.num_prompt_logprobs = -1;
  --num_prompt_logprobs_reqs_;
}

// A position's logits say what follows it, so the last one of a prompt is not looked at. What was computed
// before a preemption is not computed again.
void ModelRunner::prepare_prompt_logprobs() {
  prompt_chunks_.clear();
  if (num_prompt_logprobs_reqs_ == 0) return;
  for (size_t i = 0; i < scheduled_.size(); ++i) {
    CachedRequestState& request = *scheduled_[i];
    if (request.num_prompt_logprobs < 0) continue;
    const auto row = num_scheduled_.begin() + request.row;
    const int32_t begin = request.num_computed_tokens, last = request.num_prompt_tokens - 1;
    QUIRE_CHECK(begin <= request.num_logprob_tokens, "request ", request.request_id, " has ",
                request.num_logprob_tokens, " prompt log-probabilities and starts at ", begin);
    const int32_t from = request.num_logprob_tokens, to = std::min(begin + *row, last);
    if (from < to) {
      const int32_t first_row = std::accumulate(num_scheduled_.begin(), row, 0) + from - begin;
      prompt_chunks_.push_back({static_cast<uint32_t>(i), first_row, to - from, request.num_prompt_logprobs,
                                request.prompt_token_ids->data() + from + 1});
      request.num_logprob_tokens = to;
    }
    if (request.num_logprob_tokens == last) finish_prompt_logprobs(request);
  }
}

// As many rows at a time as the step has room for logits, which sampling needs only afterwards.
void ModelRunner::compute_prompt_logprobs(const ForwardContext& ctx, TensorView hidden) {
  PromptLogprobs& prompts = buffers_->sampler().prompt_logprobs();
  const int64_t max_rows = all_logits_.shape[0], num_positions = prompts.num_positions();
  for (int64_t begin = 0; begin < num_positions; begin += max_rows) {
    const int64_t count = std::min(max_rows, num_positions - begin);
    const size_t mark = arena_->mark();
    const TensorView rows = arena_->take(hidden.dtype, count, model_.hidden_size());
    ops_.gather_rows(launch_, rows, hidden, prompts.rows(begin, count));
    const TensorView logits = all_logits_.rows(0, count);
    model_.compute_logits(ctx, logits, rows);
    prompts.compute(launch_, logits, ring_index_, begin);
    arena_->release(mark);
  }
}

}  // namespace quire
