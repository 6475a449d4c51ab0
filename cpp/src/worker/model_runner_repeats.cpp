// Steps that repeat the one before: the same requests decode, each by one token more. Most steps of an engine
// under load do, and what the host writes for one is what it wrote for the last, some columns counted on; no
// request is looked at.
#include <algorithm>
#include <cstring>
#include <utility>

#include "worker/model_runner.h"

namespace quire {

void ModelRunner::remember_repeatable(const SchedulerOutput& scheduler_output) {
  if (is_repeat_) {
    repeatable_.swap(repeated_);
    return;
  }
  if (uniform_query_len_ != 1 || drafter_ != nullptr || num_logits_processor_reqs_ > 0 ||
      !buffers_->can_repeat()) {
    return;
  }
  repeatable_ = scheduler_output.scheduled_reqs;
  max_num_tokens_ = 0;
  for (ScheduledRequest& scheduled : repeatable_) {
    scheduled.is_new = scheduled.resumed_from_preemption = 0;
    max_num_tokens_ = std::max(max_num_tokens_, scheduled.num_computed_tokens + scheduled.num_tokens);
  }
}

bool ModelRunner::repeats_last_step(const SchedulerOutput& scheduler_output) {
  const auto& scheduled_reqs = scheduler_output.scheduled_reqs;
  // The last token that a row has room for is sampled by a step that looks.
  if (repeatable_.empty() || repeatable_.size() != scheduled_reqs.size() ||
      !scheduler_output.finished_req_ids.empty() || max_num_tokens_ + 1 >= config_.max_model_len) {
    return false;
  }
  for (ScheduledRequest& scheduled : repeatable_) ++scheduled.num_computed_tokens;
  if (std::memcmp(repeatable_.data(), scheduled_reqs.data(),
                  scheduled_reqs.size() * sizeof(ScheduledRequest)) != 0) {
    return false;
  }
  ++max_num_tokens_;
  repeated_.swap(repeatable_);
  return true;
}

void ModelRunner::stage_repeat(const SchedulerOutput& scheduler_output) {
  StepRecord& step = record(ring_index_);
  const StepRecord& last = record(last_ring_index(ring_index_));
  step.begin(scheduler_output.step_id);
  step.entries = last.entries;
  grown_states_.clear();
  scheduler_output.new_block_ids.for_each([this](size_t i, size_t group, std::span<const BlockId> ids) {
    const int32_t state_index = scheduled_[i]->state_index;
    batch_->block_table(group).append(state_index, ids);
    grown_states_.emplace_back(static_cast<int32_t>(group), state_index);
  });
  buffers_->begin_step();
  buffers_->inputs().stage_repeat(launch_, *batch_, grown_states_);
  buffers_->sampler().stage_repeat(ring_index_);
  buffers_->sampler().prompt_logprobs().stage(ring_index_, {});
}

void ModelRunner::settle_repeats() {
  const int32_t count = std::exchange(num_unsettled_repeats_, 0);
  for (int32_t row = 0; row < batch_->size() && count > 0; ++row) {
    CachedRequestState& request = batch_->request(row);
    request.num_tokens += count;
    request.num_computed_tokens += count;
  }
}

}  // namespace quire
