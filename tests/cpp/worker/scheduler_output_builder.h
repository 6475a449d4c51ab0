// Steps written by hand, for tests of the half that computes.
#pragma once

#include <vector>

#include "messages/scheduler_output.h"

namespace quire {

// Token ids of the demo model to be a prompt; with another `first`, others.
inline std::vector<int32_t> prompt_of(int32_t length, int32_t first = 1) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < length; ++i) ids.push_back(10 + (first + i * 7) % 4000);
  return ids;
}

class SchedulerOutputBuilder {
 public:
  explicit SchedulerOutputBuilder(size_t num_groups = 1) : num_groups_(num_groups) {}

  // Starts the next step, in the buffers of the last one.
  SchedulerOutputBuilder& next() {
    ++scheduler_output.step_id;
    scheduler_output.scheduled_reqs.clear();
    scheduler_output.scheduled_new_reqs.clear();
    scheduler_output.new_block_ids.clear(num_groups_);
    scheduler_output.spec_token_ids.clear();
    scheduler_output.total_num_scheduled_tokens = 0;
    scheduler_output.finished_req_ids.clear();
    scheduler_output.kv_extents.clear();
    return *this;
  }
  // Tokens [begin, end) of a request that the workers know. The same new blocks in every group.
  SchedulerOutputBuilder& compute(RequestId id, int32_t begin, int32_t end, bool samples = true,
                                  std::span<const BlockId> new_blocks = {}) {
    scheduler_output.scheduled_reqs.push_back({id, end - begin, begin, 0, samples, 0, 0, 0});
    scheduler_output.total_num_scheduled_tokens += end - begin;
    for (size_t group = 0; group < num_groups_; ++group) {
      scheduler_output.new_block_ids.push(new_blocks);
      scheduler_output.new_block_ids.end_list();
    }
    return *this;
  }
  // The request named last has these drafts behind its tokens.
  SchedulerOutputBuilder& draft(const std::vector<int32_t>& token_ids) {
    const auto count = static_cast<int32_t>(token_ids.size());
    scheduler_output.scheduled_reqs.back().num_tokens += count;
    scheduler_output.scheduled_reqs.back().num_spec_tokens = count;
    scheduler_output.total_num_scheduled_tokens += count;
    scheduler_output.spec_token_ids.insert(scheduler_output.spec_token_ids.end(), token_ids.begin(),
                                           token_ids.end());
    return *this;
  }
  // The first `end` tokens of a new one, of which `num_cached` are in its blocks already; greedy.
  SchedulerOutputBuilder& add(RequestId id, std::vector<int32_t> prompt, int32_t end,
                              std::vector<BlockId> blocks, int32_t num_cached = 0) {
    compute(id, num_cached, end, end == static_cast<int32_t>(prompt.size()), blocks);
    scheduler_output.scheduled_reqs.back().is_new = 1;
    NewRequestData& data = scheduler_output.scheduled_new_reqs.emplace_back();
    data.request_id = id;
    data.prompt_token_ids = std::move(prompt);
    data.sampling_params.edit().temperature = 0;
    data.sampling_params.edit().max_tokens = 1000;
    return *this;
  }

  SchedulerOutput scheduler_output;

 private:
  size_t num_groups_;
};

}  // namespace quire
