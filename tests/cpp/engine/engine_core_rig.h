// An engine core over the shadow model (shadow_executor.h), for tests of what a core decides.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <vector>

#include "engine/engine_core.h"
#include "engine/shadow_executor.h"

namespace quire {

inline constexpr int32_t kCoreBlockSize = 16;

inline EngineConfig small_core_config(int32_t usable_blocks) {
  EngineConfig config;
  config.model = "shadow";
  config.block_size = kCoreBlockSize;
  config.num_gpu_blocks_override = usable_blocks + 1;
  config.max_num_seqs = 8;
  config.max_num_batched_tokens = 40;
  return config;
}

// An engine core over the shadow model, and what came out of it.
struct CoreHarness {
  CoreHarness(const EngineConfig& config, int32_t max_model_len, int32_t max_in_flight)
      : CoreHarness(config, std::make_unique<ShadowExecutor>(kCoreBlockSize, max_model_len, max_in_flight)) {}
  CoreHarness(const EngineConfig& config, std::unique_ptr<ShadowExecutor> owned) {
    executor = owned.get();
    core = std::make_unique<EngineCore>(config, std::move(owned), SchedulerParts{}, [this] { return now; });
    num_free_at_start = free_blocks();
  }
  int32_t free_blocks() const { return core->scheduler().stats().num_free_blocks; }
  bool step() {
    EngineCoreOutputs outputs;
    const bool stepped = core->step_once(outputs);
    for (EngineCoreOutput& output : outputs.outputs) {
      auto& tokens = produced[output.request_id];
      const auto ids = outputs.new_token_ids(output);
      tokens.insert(tokens.end(), ids.begin(), ids.end());
      if (output.finish_reason != FinishReason::kNone) finished[output.request_id] = output.finish_reason;
    }
    return stepped;
  }
  void run() {
    // A step may do nothing but preempt.
    for (int num_dry = 0; core->has_unfinished_requests(); num_dry = step() ? 0 : num_dry + 1)
      ASSERT_LT(num_dry, 2);
  }

  double now = 1.0;
  ShadowExecutor* executor;
  std::unique_ptr<EngineCore> core;
  int32_t num_free_at_start = 0;
  std::map<RequestId, std::vector<int32_t>> produced;
  std::map<RequestId, FinishReason> finished;
};

}  // namespace quire
