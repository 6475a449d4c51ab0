// Plans written by hand, for tests of the half that computes.
#pragma once

#include <vector>

#include "messages/scheduler_output.h"

namespace quire {

class PlanBuilder {
 public:
  explicit PlanBuilder(size_t num_groups = 1) : num_groups_(num_groups) {}

  // Starts the next plan, in the buffers of the last one.
  PlanBuilder& next() {
    ++plan.step_id;
    plan.scheduled_reqs.clear();
    plan.scheduled_new_reqs.clear();
    plan.new_block_ids.clear(num_groups_);
    plan.spec_token_ids.clear();
    plan.total_num_scheduled_tokens = 0;
    plan.finished_req_ids.clear();
    plan.kv_extents.clear();
    return *this;
  }
  // Tokens [begin, end) of a request that the workers know. The same new blocks in every group.
  PlanBuilder& compute(RequestId id, int32_t begin, int32_t end, bool samples = true,
                       std::span<const BlockId> new_blocks = {}) {
    plan.scheduled_reqs.push_back({id, end - begin, begin, 0, samples, 0, 0, 0});
    plan.total_num_scheduled_tokens += end - begin;
    for (size_t group = 0; group < num_groups_; ++group) {
      plan.new_block_ids.push(new_blocks);
      plan.new_block_ids.end_list();
    }
    return *this;
  }
  // The request named last has these drafts behind its tokens.
  PlanBuilder& draft(const std::vector<int32_t>& token_ids) {
    const auto count = static_cast<int32_t>(token_ids.size());
    plan.scheduled_reqs.back().num_tokens += count;
    plan.scheduled_reqs.back().num_spec_tokens = count;
    plan.total_num_scheduled_tokens += count;
    plan.spec_token_ids.insert(plan.spec_token_ids.end(), token_ids.begin(), token_ids.end());
    return *this;
  }
  // The first `end` tokens of a new one; greedy.
  PlanBuilder& add(RequestId id, std::vector<int32_t> prompt, int32_t end, std::vector<BlockId> blocks) {
    compute(id, 0, end, end == static_cast<int32_t>(prompt.size()), blocks);
    plan.scheduled_reqs.back().is_new = 1;
    NewRequestData& data = plan.scheduled_new_reqs.emplace_back();
    data.request_id = id;
    data.prompt_token_ids = std::move(prompt);
    data.sampling_params.edit().temperature = 0;
    data.sampling_params.edit().max_tokens = 1000;
    return *this;
  }

  SchedulerOutput plan;

 private:
  size_t num_groups_;
};

}  // namespace quire
