// What a step that has ended gives its requests.
#include <algorithm>
#include <utility>

#include "worker/model_runner.h"

namespace quire {

// The results of a step that may have drafts, whose requests' processors may have failed.
void ModelRunner::add_results(const StepRecord& step, std::span<const int32_t> tokens,
                              ModelRunnerOutput& output) {
  for (const StepRecord::Entry& entry : step.entries) {
    std::span<const int32_t> sampled;
    if (entry.sampled >= 0) {
      const auto num_drafts = static_cast<size_t>(entry.num_drafts);
      sampled = tokens.subspan(static_cast<size_t>(entry.sampled), 1 + num_drafts);
      const auto drafts = std::span(step.draft_token_ids).subspan(entry.first_draft, num_drafts);
      sampled = sampled.first(static_cast<size_t>(num_accepted_drafts(sampled, drafts)) + 1);
    }
    const auto index = static_cast<uint32_t>(output.results.size());
    const auto failed =
        std::ranges::find(step.processor_errors, index, &std::pair<uint32_t, std::string>::first);
    if (failed != step.processor_errors.end()) {
      output.errors.push_back({index, failed->second});
      sampled = {};
    } else if (!sampled.empty() && sampled.back() < 0) {
      output.errors.push_back({index, why_no_token(sampled.back(), entry.is_processed)});
      sampled = {};
    }
    output.add(entry.request_id, sampled,
               drafter_ != nullptr && !sampled.empty() ? propose(entry.request_id, sampled)
                                                       : std::span<const int32_t>{});
  }
}

// The same of most steps: a token each, or none.
void ModelRunner::add_tokens(const StepRecord& step, std::span<const int32_t> tokens,
                             ModelRunnerOutput& output) {
  for (const StepRecord::Entry& entry : step.entries) {
    RequestResult& result = output.results.emplace_back();
    result.request_id = entry.request_id;
    result.first_token = static_cast<uint32_t>(output.sampled_token_ids.size());
    if (entry.sampled < 0) continue;
    const int32_t token = tokens[static_cast<size_t>(entry.sampled)];
    if (token < 0) {
      const auto index = static_cast<uint32_t>(output.results.size() - 1);
      output.errors.push_back({index, why_no_token(token, entry.is_processed)});
      continue;
    }
    result.num_tokens = 1;
    output.sampled_token_ids.push_back(token);
  }
}

void ModelRunner::finish_step(ModelRunnerOutput& output) {
  // Whatever comes of it, the next call is about the next step.
  const int32_t ring_index = std::exchange(finish_ring_index_, next_ring_index(finish_ring_index_));
  --num_unfinished_;
  const StepRecord& step = record(ring_index);
  buffers_->wait_for_step(ring_index);
  output.reset(step.step_id);
  output.has_cudagraphs = dispatcher_.has_graphs() ? 1 : 0;
  output.cudagraph_mode = step.mode;
  const auto tokens = buffers_->sampler().token_ids(ring_index);
  if (drafter_ == nullptr && step.draft_token_ids.empty() && step.processor_errors.empty()) {
    add_tokens(step, tokens, output);
  } else {
    add_results(step, tokens, output);
  }
  if (step.num_sampled > 0) buffers_->sampler().take_logprobs(ring_index, output.logprobs);
  buffers_->sampler().prompt_logprobs().take(ring_index, output.prompt_logprobs);
  if (step.draft_token_ids.empty()) return;
  // Drafts that were not right have no log-probabilities.
  for (RequestLogprobs& logprobs : output.logprobs) {
    const auto num_tokens = static_cast<size_t>(output.results[logprobs.result_index].num_tokens);
    if (logprobs.positions.size() > num_tokens) logprobs.positions.resize(num_tokens);
  }
}

}  // namespace quire
