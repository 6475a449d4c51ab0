// What a scenario's lines say of the scheduler's counts, of a step and of its outputs.
#include <gtest/gtest.h>

#include <algorithm>

#include "scheduler/scenario_doubles.h"

namespace quire {

void ScenarioRunner::check_values(const ScenarioLine& line, const SchedulerOutput* scheduler_output,
                                  const EngineCoreOutputs* outputs) {
  const SchedulerStats stats = scheduler_->stats();
  // What a line does not mention must not happen.
  if (scheduler_output && !line.values.contains("preempted")) {
    EXPECT_EQ(names(scheduler_output->preempted_req_ids), "-");
  }
  if (scheduler_output && !line.values.contains("lora_loads")) {
    EXPECT_EQ(scheduler_output->lora_loads, std::vector<LoraLoad>());
  }
  for (const auto& [key, expected] : line.values) {
    std::vector<std::string> found;
    if (key == "free") {
      found = {std::to_string(stats.num_free_blocks)};
    } else if (key == "running") {
      found = {std::to_string(stats.num_running_reqs)};
    } else if (key == "waiting") {
      found = {std::to_string(stats.num_waiting_reqs)};
    } else if (key == "waiting_tokens") {
      found = {std::to_string(stats.num_waiting_tokens)};
    } else if (key == "prefill_tokens") {
      found = {std::to_string(stats.num_prefill_tokens)};
    } else if (key == "wasted") {
      found = {std::to_string(stats.num_wasted_slots)};
    } else if (key == "used") {
      found = {std::to_string(stats.num_used_slots)};
    } else if (key == "preemptions") {
      found = {std::to_string(stats.num_preemptions)};
    } else if (key == "unknown_aborts") {
      found = {std::to_string(stats.num_unknown_aborts)};
    } else if (key == "expired") {
      found = {std::to_string(stats.num_expired_reqs)};
    } else if (key == "accepted_drafts") {
      found = {std::to_string(stats.num_accepted_spec_tokens)};
    } else if (key == "held") {
      found = {std::to_string(scheduler_->num_held_requests())};
    } else if (key == "encoder_free") {
      found = {std::to_string(scheduler_->encoder_cache_manager().num_free())};
    } else if (key == "load") {
      for (const auto& [id, num_tokens] : connector_->loads) {
        if (num_tokens > 0) found.push_back(name_of(id) + ":" + std::to_string(num_tokens));
      }
    } else if (scheduler_output && key == "preempted") {
      found = {names(scheduler_output->preempted_req_ids)};
    } else if (scheduler_output && key == "hit") {
      // What was cached when a request began or resumed.
      for (const ScheduledRequest& s : scheduler_output->scheduled_reqs) {
        if ((s.is_new || s.resumed_from_preemption) && s.num_computed_tokens > 0)
          found.push_back(name_of(s.request_id) + ":" + std::to_string(s.num_computed_tokens));
      }
    } else if (scheduler_output && key == "drafts") {
      for (const ScheduledRequest& s : scheduler_output->scheduled_reqs) {
        if (s.num_spec_tokens > 0)
          found.push_back(name_of(s.request_id) + ":" + std::to_string(s.num_spec_tokens));
      }
    } else if (scheduler_output && key == "encoder") {
      for (const ScheduledEncoderInput& input : scheduler_output->scheduled_encoder_inputs)
        found.push_back(name_of(input.request_id) + ":" + std::to_string(input.input_index));
    } else if (scheduler_output && key == "encoder_freed") {
      found = scheduler_output->free_encoder_mm_hashes;
    } else if (scheduler_output && key == "lora_loads") {
      for (const LoraLoad& load : scheduler_output->lora_loads)
        found.push_back(std::to_string(load.lora_id) + ":" + std::to_string(load.slot));
    } else if (scheduler_output && key == "meta") {
      found = {scheduler_output->kv_connector_metadata};
    } else if (scheduler_output && key == "new_blocks") {
      // Of each request, in the first group.
      for (size_t i = 0; i < scheduler_output->scheduled_reqs.size(); ++i) {
        found.push_back(name_of(scheduler_output->scheduled_reqs[i].request_id) + ":" +
                        std::to_string(scheduler_output->new_block_ids.at(i, 0).size()));
      }
    } else if (outputs && key == "finished") {
      for (const EngineCoreOutput& output : outputs->outputs) {
        if (output.finish_reason != FinishReason::kNone)
          found.push_back(name_of(output.request_id) + ":" + finish_reason_name(output.finish_reason));
      }
    } else if (outputs && key == "error") {
      for (const EngineCoreOutput& output : outputs->outputs) {
        if (!output.error.empty()) found.push_back(*output.error);
      }
      std::string text = join(found, ";");
      std::replace(text.begin(), text.end(), ' ', '_');
      EXPECT_NE(text.find(expected), std::string::npos) << text;
      continue;
    } else if (outputs && key == "tokens") {
      for (const EngineCoreOutput& output : outputs->outputs)
        found.push_back(name_of(output.request_id) + ":" + std::to_string(output.num_tokens));
    } else if (scheduler_output || outputs) {
      continue;  // said of the other half of the step
    } else {
      ADD_FAILURE() << "nothing is called " << key;
      continue;
    }
    EXPECT_EQ(found.empty() ? "-" : join(found, ","), expected) << key;
  }
}

}  // namespace quire
