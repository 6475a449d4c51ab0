// An executor whose "model" knows when it is fed wrong keys and values.
//
// A slot of the shadow KV cache holds a hash of every token up to its position. Before a token is computed,
// all slots that it would attend to are compared with the request's real prefix, so a block that was freed
// too early, shared wrongly or found under a wrong hash is an error, not a slightly different number. The
// next token is a function of the prefix alone: outputs are the same however they were scheduled.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <unordered_map>

#include "executor/executor.h"

namespace quire {

constexpr int32_t kShadowVocabSize = 50;
constexpr int32_t kShadowEos = 0;

inline uint64_t extend_prefix(uint64_t prefix, int32_t token) {
  uint64_t x = (prefix ^ static_cast<uint64_t>(token + 1)) * 0x9E3779B97F4A7C15;
  return x ^ (x >> 29);
}

// About one token in 17 ends a sequence.
inline int32_t next_token(uint64_t prefix) {
  const uint64_t draw = prefix * 0xD1B54A32D192ED03 >> 33;
  return draw % 17 == 0 ? kShadowEos : static_cast<int32_t>(1 + draw % (kShadowVocabSize - 1));
}

// What a request must produce: greedy decoding of the shadow model.
inline std::vector<int32_t> shadow_output(const std::vector<int32_t>& prompt, int32_t max_tokens,
                                          bool ignore_eos) {
  uint64_t prefix = 0;
  for (int32_t token : prompt) prefix = extend_prefix(prefix, token);
  std::vector<int32_t> output;
  while (static_cast<int32_t>(output.size()) < max_tokens) {
    output.push_back(next_token(prefix));
    if (output.back() == kShadowEos && !ignore_eos) break;
    prefix = extend_prefix(prefix, output.back());
  }
  return output;
}

class ShadowExecutor : public Executor {
 public:
  ShadowExecutor(int32_t block_size, int32_t max_model_len, int32_t max_in_flight_steps)
      : max_in_flight_steps_(max_in_flight_steps) {
    model_info_.vocab_size = kShadowVocabSize;
    model_info_.max_model_len = max_model_len;
    spec_.block_size = block_size;
    spec_.page_bytes = 64;
  }
  const ModelInfo& model_info() const override { return model_info_; }
  std::vector<KVCacheSpec> kv_cache_specs() const override { return {spec_}; }
  int64_t available_kv_cache_bytes() const override { return 1 << 20; }
  void initialize_kv_cache(const KVCacheConfig& config) override {
    slots_.assign(static_cast<size_t>(config.num_blocks * spec_.block_size), 0);
  }
  int32_t max_in_flight_steps() const override { return max_in_flight_steps_; }

  // Computes at once; the result waits until it is collected.
  void launch(const SchedulerOutput& plan) override {
    EXPECT_EQ(plan.step_id, ++num_steps_);
    ModelRunnerOutput result;
    result.step_id = plan.step_id;
    // Steps already on their way behind a failed one have nothing to compute on.
    if (fail_step > 0 && num_steps_ >= fail_step &&
        num_steps_ < fail_step + static_cast<uint64_t>(max_in_flight_steps_)) {
      result.error = "injected";
      results_.push_back(result);
      return;
    }
    for (RequestId id : plan.finished_req_ids) requests_.erase(id);
    for (const NewRequestData& data : plan.scheduled_new_reqs) {
      State& state = requests_[data.request_id];
      state.tokens = data.prompt_token_ids;
      state.tokens.insert(state.tokens.end(), data.output_token_ids.begin(), data.output_token_ids.end());
      state.blocks = data.block_ids.at(0);
      state.num_computed = data.num_computed_tokens;
    }
    for (const CachedRequestData& data : plan.scheduled_cached_reqs) {
      State& state = requests_.at(data.request_id);
      if (data.resumed_from_preemption) state.blocks.clear();
      state.blocks.insert(state.blocks.end(), data.new_block_ids.at(0).begin(),
                          data.new_block_ids.at(0).end());
      state.num_computed = data.num_computed_tokens;
    }
    int32_t total = 0;
    // All keys and values of a layer are stored before any is read.
    for (const ScheduledTokens& scheduled : plan.num_scheduled_tokens) store(scheduled);
    for (const ScheduledTokens& scheduled : plan.num_scheduled_tokens) {
      total += scheduled.num_tokens;
      result.sampled.push_back(compute(scheduled));
    }
    EXPECT_EQ(total, plan.total_num_scheduled_tokens);
    max_step_tokens = std::max(max_step_tokens, total);
    max_step_requests = std::max(max_step_requests, static_cast<int32_t>(plan.num_scheduled_tokens.size()));
    results_.push_back(std::move(result));
  }
  void sample(StepId, std::unique_ptr<GrammarOutput>) override {}
  void collect(StepId step_id, ModelRunnerOutput& output) override {
    output = std::move(results_.front());
    results_.pop_front();
    EXPECT_EQ(output.step_id, step_id);
  }

  uint64_t fail_step = 0;  // this step fails as a whole
  int32_t max_step_tokens = 0, max_step_requests = 0;

 private:
  struct State {
    std::vector<int32_t> tokens;
    std::vector<BlockId> blocks;
    int32_t num_computed = 0;
  };
  size_t slot(const State& state, int32_t position) const {
    const BlockId block = state.blocks.at(static_cast<size_t>(position / spec_.block_size));
    EXPECT_GT(block, kNullBlock);
    return static_cast<size_t>(block * spec_.block_size + position % spec_.block_size);
  }
  void store(const ScheduledTokens& scheduled) {
    State& state = requests_.at(scheduled.request_id);
    const int32_t end = state.num_computed + scheduled.num_tokens;
    ASSERT_LE(end, static_cast<int32_t>(state.tokens.size()));
    uint64_t prefix = 0;
    for (int32_t p = 0; p < end; ++p) {
      prefix = extend_prefix(prefix, state.tokens[static_cast<size_t>(p)]);
      if (p >= state.num_computed) slots_[slot(state, p)] = prefix;
    }
  }
  SampledTokens compute(const ScheduledTokens& scheduled) {
    State& state = requests_.at(scheduled.request_id);
    const int32_t end = state.num_computed + scheduled.num_tokens;
    uint64_t prefix = 0;
    for (int32_t p = 0; p < end; ++p) {
      prefix = extend_prefix(prefix, state.tokens[static_cast<size_t>(p)]);
      EXPECT_EQ(slots_[slot(state, p)], prefix) << "request " << scheduled.request_id << " position " << p;
    }
    SampledTokens sampled;
    sampled.request_id = scheduled.request_id;
    EXPECT_EQ(scheduled.samples, end == static_cast<int32_t>(state.tokens.size()));
    if (scheduled.samples) {
      sampled.token_ids = {next_token(prefix)};
      state.tokens.push_back(sampled.token_ids[0]);
    }
    return sampled;
  }

  int32_t max_in_flight_steps_;
  ModelInfo model_info_;
  KVCacheSpec spec_;
  uint64_t num_steps_ = 0;
  std::vector<uint64_t> slots_;
  std::unordered_map<RequestId, State> requests_;
  std::deque<ModelRunnerOutput> results_;
};

}  // namespace quire
