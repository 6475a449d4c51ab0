// The part of a step that is about drafts: which it verifies, what became of those before, who proposes the
// next.
#include <algorithm>

#include "util/check.h"
#include "worker/model_runner.h"

namespace quire {

void ModelRunner::set_drafts(const SchedulerOutput& scheduler_output) {
  std::span<const int32_t> drafts = scheduler_output.spec_token_ids;
  for (size_t i = 0; i < scheduled_.size(); ++i) {
    const ScheduledRequest& scheduled = scheduler_output.scheduled_reqs[i];
    const auto count = static_cast<size_t>(scheduled.num_spec_tokens);
    if (count == 0) continue;
    QUIRE_CHECK(scheduled.samples != 0 && scheduled.num_spec_tokens < scheduled.num_tokens &&
                    count <= proposed_.size() && count <= drafts.size(),
                "request ", scheduled.request_id, " has ", count, " drafts of at most ", proposed_.size());
    batch_->set_drafts(*scheduled_[i], drafts.first(count));
    drafts = drafts.subspan(count);
  }
}

// A step that samples names all tokens the request has; any other says less, and the tokens are asked.
void ModelRunner::settle_drafts(CachedRequestState& request, const ScheduledRequest& scheduled) {
  if (scheduled.samples == 0) {
    settle_by_tokens(request);
    return;
  }
  const int32_t num_known = scheduled.num_computed_tokens + scheduled.num_tokens - scheduled.num_spec_tokens;
  batch_->accept_drafts(request, num_known - request.num_tokens);
}

// Seldom: when it is preempted, or sits out the step after. Waits for the device.
void ModelRunner::settle_by_tokens(CachedRequestState& request) {
  const int32_t num_certain = request.num_tokens;
  request.num_tokens += request.num_drafts;
  buffers_->inputs().bring_tokens(launch_, *batch_, request);
  request.num_tokens = num_certain;
  const std::span sampled(batch_->token_ids(request) + num_certain - 1,
                          static_cast<size_t>(request.num_drafts));
  batch_->accept_drafts(request, num_accepted_drafts(sampled, request.draft_token_ids));
}

int32_t ModelRunner::uniform_query_len(const SchedulerOutput& scheduler_output) const {
  const size_t rows = scheduled_.size();
  const auto num_tokens = static_cast<size_t>(scheduler_output.total_num_scheduled_tokens);
  if (sampled_rows_.size() != rows) return 0;
  if (num_tokens == rows) return 1;
  // No row has more drafts than that, so all have as many.
  const auto query_len = static_cast<size_t>(draft_query_len());
  const bool all_draft = sampling_rows_.size() == rows * query_len && num_tokens == rows * query_len;
  return all_draft ? draft_query_len() : 0;
}

std::span<const int32_t> ModelRunner::propose(RequestId id, std::span<const int32_t> new_token_ids) {
  const int32_t count = drafter_->propose(id, new_token_ids, proposed_);
  QUIRE_CHECK(count >= 0 && static_cast<size_t>(count) <= proposed_.size(), count, " drafts for request ",
              id);
  const auto end = proposed_.begin() + count;
  const auto is_no_token = [this](int32_t token) { return token < 0 || token >= model_.vocab_size(); };
  return {proposed_.begin(), std::find_if(proposed_.begin(), end, is_no_token)};
}

}  // namespace quire
