// An executor whose "model" knows when it is fed wrong keys and values.
//
// What a real model would read of the KV cache is compared with the request's real prefix
// (shadow_kv_cache.h), so a block that was freed too early, shared wrongly, found under a wrong hash or
// without memory is an error, not a slightly different number. The next token is a function of the prefix
// alone: outputs are the same however they were scheduled.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <unordered_map>

#include "engine/shadow_kv_cache.h"
#include "executor/executor.h"
#include "util/ring_queue.h"

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

// All tokens and what a request may ask of them, the likeliest first: next_token is only one of these.
inline PositionLogprobs shadow_logprobs(uint64_t prefix) {
  std::vector<double> weights;
  double sum = 0.0;
  for (int32_t token = 0; token < kShadowVocabSize; ++token) {
    const double u =
        static_cast<double>(extend_prefix(prefix, token) >> 11) / static_cast<double>(uint64_t{1} << 53);
    sum += weights.emplace_back(u * u * u + 1e-6);
  }
  PositionLogprobs all;
  for (int32_t token = 0; token < kShadowVocabSize; ++token)
    all.push_back({token, static_cast<float>(std::log(weights[static_cast<size_t>(token)] / sum)), 0});
  std::ranges::stable_sort(all, [](const Logprob& a, const Logprob& b) { return a.logprob > b.logprob; });
  return all;
}

// A guess at it: right half of the time.
inline int32_t draft_token(uint64_t prefix) {
  const int32_t right = next_token(prefix);
  return (prefix >> 40) % 2 == 0 ? right : right % (kShadowVocabSize - 1) + 1;
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

// One layer of the shadow model.
inline KVCacheSpec shadow_spec(int32_t block_size, KVCacheKind kind = KVCacheKind::kFullAttention,
                               int32_t sliding_window = 0) {
  KVCacheSpec spec;
  spec.kind = kind;
  spec.block_size = block_size;
  spec.page_bytes = 64;
  spec.sliding_window = sliding_window;
  return spec;
}

class ShadowExecutor : public Executor {
 public:
  // A layer for each spec. Proposes num_speculative_tokens drafts after each sampled token.
  ShadowExecutor(std::vector<KVCacheSpec> specs, int32_t max_model_len, int32_t max_in_flight_steps,
                 int32_t num_speculative_tokens = 0)
      : max_in_flight_steps_(max_in_flight_steps),
        num_speculative_tokens_(num_speculative_tokens),
        specs_(std::move(specs)) {
    model_info_.vocab_size = kShadowVocabSize;
    model_info_.max_model_len = max_model_len;
    model_info_.max_num_seqs = 64;
    model_info_.max_num_batched_tokens = 2048;
  }
  ShadowExecutor(int32_t block_size, int32_t max_model_len, int32_t max_in_flight_steps)
      : ShadowExecutor({shadow_spec(block_size)}, max_model_len, max_in_flight_steps) {}

  const ModelInfo& model_info() const override { return model_info_; }
  std::vector<KVCacheSpec> kv_cache_specs() const override { return specs_; }
  int64_t available_kv_cache_bytes() const override { return 1 << 20; }
  void initialize_kv_cache(const KVCacheConfig& config) override {
    kv_cache_bytes_ = config.bytes;
    for (const KVCacheGroup& group : config.groups) groups_.emplace_back(group);
  }
  int32_t max_in_flight_steps() const override { return max_in_flight_steps_; }
  bool copies_loras() const override { return has_lora_copies; }

  // Computes at once; the result waits until it is collected.
  void launch(const SchedulerOutput& scheduler_output) override {
    EXPECT_EQ(scheduler_output.step_id, ++num_steps_);
    ++num_uncollected_;
    ModelRunnerOutput& result = results_.push();
    result.reset(scheduler_output.step_id);
    change_memory(scheduler_output.kv_extents);
    for (const KVBlockCopy& copy : scheduler_output.kv_copies)
      groups_.at(static_cast<size_t>(copy.group)).copy(copy.from, copy.to);
    for (RequestId id : scheduler_output.finished_req_ids) requests_.erase(id);
    if (fail_step > 0 && num_steps_ >= fail_step && num_steps_ < fail_step + num_failing_steps) {
      result.error = "injected";
      is_behind_failure_ = true;
      return;
    }
    if (num_uncollected_ == 1) is_behind_failure_ = false;
    // A step on its way behind a failed one computes on what that left: nobody may use what it computes.
    if (is_behind_failure_) {
      constexpr int32_t kNonsense = 1;
      for (const ScheduledRequest& request : scheduler_output.scheduled_reqs)
        result.add(request.request_id, {&kNonsense, 1});
      return;
    }
    update_requests(scheduler_output);
    EXPECT_EQ(std::accumulate(batch_.begin(), batch_.end(), 0,
                              [](int32_t sum, const Row& row) { return sum + row.end - row.begin; }),
              scheduler_output.total_num_scheduled_tokens);
    for (size_t g = 0; g < groups_.size(); ++g) {
      for (const Row& row : batch_) groups_[g].read_state(row.tokens(g));
      for (const Row& row : batch_) groups_[g].store(row.tokens(g));
      for (const Row& row : batch_) groups_[g].attend(row.tokens(g));
    }
    for (const Row& row : batch_) sample(row, result);
    max_step_tokens = std::max(max_step_tokens, scheduler_output.total_num_scheduled_tokens);
    max_step_requests = std::max(max_step_requests, static_cast<int32_t>(batch_.size()));
  }
  void sample(StepId, const GrammarOutput*) override {}
  void collect(StepId step_id, ModelRunnerOutput& output) override {
    ASSERT_FALSE(results_.empty());
    std::swap(output, results_.front());
    results_.pop();
    --num_uncollected_;
    EXPECT_EQ(output.step_id, step_id);
  }

  bool has_lora_copies = false;    // said before an engine is made with it
  uint64_t fail_step = 0;          // the first step that fails as a whole; 0: none
  uint64_t num_failing_steps = 1;  // steps that fail, from fail_step on
  RequestId failing_request = 0;   // has an error instead of what it samples
  int32_t num_good_samples = 0;    // after so many times
  int32_t max_step_tokens = 0, max_step_requests = 0;

 private:
  int32_t num_uncollected_ = 0;
  bool is_behind_failure_ = false;
  struct State {
    RequestId request_id = 0;
    std::vector<int32_t> tokens;
    std::vector<uint64_t> prefixes{0};  // [n]: hash of the first n tokens
    int32_t num_logprobs = -1;          // -1: none
    BlockIdsByGroup blocks;
    bool preempted = false;

    void append(int32_t token) {
      tokens.push_back(token);
      prefixes.push_back(extend_prefix(prefixes.back(), token));
    }
    void truncate(size_t num_tokens) {
      tokens.resize(num_tokens);
      prefixes.resize(num_tokens + 1);
    }
  };
  // A request of the step at hand.
  struct Row {
    State* state;
    int32_t begin, end;
    int32_t num_drafts;  // the last of state->tokens
    bool samples;

    ShadowTokens tokens(size_t group) const {
      return {state->request_id, &state->blocks[group], &state->prefixes, begin, end};
    }
  };

  void change_memory(const std::vector<KVExtent>& extents) {
    for (const KVExtent& extent : extents)
      groups_.at(static_cast<size_t>(extent.group)).change_memory(extent);
    if (extents.empty()) return;
    int64_t mapped_bytes = 0;
    for (const ShadowKVGroup& group : groups_) mapped_bytes += group.mapped_bytes();
    EXPECT_LE(mapped_bytes, kv_cache_bytes_);
  }

  void update_requests(const SchedulerOutput& scheduler_output) {
    for (RequestId id : scheduler_output.preempted_req_ids) {
      const auto found = requests_.find(id);
      if (found == requests_.end()) continue;
      found->second.preempted = true;
      for (auto& blocks : found->second.blocks) blocks.clear();
    }
    EXPECT_EQ(scheduler_output.new_block_ids.num_rows(), scheduler_output.scheduled_reqs.size());
    batch_.clear();
    auto new_request = scheduler_output.scheduled_new_reqs.begin();
    size_t first_draft = 0;
    for (size_t i = 0; i < scheduler_output.scheduled_reqs.size(); ++i) {
      const ScheduledRequest& scheduled = scheduler_output.scheduled_reqs[i];
      if (scheduled.is_new) add_request(*new_request++, scheduled.request_id);
      State& state = requests_.at(scheduled.request_id);
      EXPECT_TRUE(scheduled.resumed_from_preemption || !state.preempted) << scheduled.request_id;
      state.preempted = false;
      for (size_t g = 0; g < groups_.size(); ++g) {
        if (scheduled.resumed_from_preemption) state.blocks[g].clear();
        const auto ids = scheduler_output.new_block_ids.at(i, g);
        state.blocks[g].insert(state.blocks[g].end(), ids.begin(), ids.end());
      }
      const auto num_drafts = static_cast<size_t>(scheduled.num_spec_tokens);
      for (int32_t token : std::span(scheduler_output.spec_token_ids).subspan(first_draft, num_drafts))
        state.append(token);
      first_draft += num_drafts;
      const int32_t end = scheduled.num_computed_tokens + scheduled.num_tokens;
      EXPECT_GT(scheduled.num_tokens, scheduled.num_spec_tokens);
      EXPECT_LE(end, static_cast<int32_t>(state.tokens.size()));
      EXPECT_EQ(scheduled.samples != 0, end == static_cast<int32_t>(state.tokens.size()));
      batch_.push_back(
          {&state, scheduled.num_computed_tokens, end, scheduled.num_spec_tokens, scheduled.samples != 0});
    }
    EXPECT_EQ(first_draft, scheduler_output.spec_token_ids.size());
    EXPECT_EQ(new_request, scheduler_output.scheduled_new_reqs.end());
  }
  void add_request(const NewRequestData& data, RequestId request_id) {
    EXPECT_EQ(data.request_id, request_id);
    const auto [entry, inserted] = requests_.try_emplace(request_id);
    EXPECT_TRUE(inserted) << request_id;
    State& state = entry->second;
    state.request_id = request_id;
    state.blocks.resize(groups_.size());
    for (int32_t token : *data.prompt_token_ids) state.append(token);
    for (int32_t token : data.output_token_ids) state.append(token);
    state.num_logprobs = data.sampling_params->logprobs.value_or(-1);
  }

  // The drafts that greedy decoding would have chosen, and the token behind them.
  void sample(const Row& row, ModelRunnerOutput& result) {
    State& state = *row.state;
    sampled_.clear();
    drafts_.clear();
    if (row.samples) {
      const size_t drafts_end = state.tokens.size();
      size_t known = drafts_end - static_cast<size_t>(row.num_drafts);
      while (true) {
        sampled_.push_back(next_token(state.prefixes[known]));
        if (known == drafts_end || state.tokens[known] != sampled_.back()) break;
        ++known;
      }
      state.truncate(known);
      state.append(sampled_.back());
      if (state.request_id == failing_request && num_good_samples-- <= 0) {
        result.errors.push_back({static_cast<uint32_t>(result.results.size()), "injected"});
        sampled_.clear();
        result.add(state.request_id, sampled_, drafts_);
        return;
      }
      if (state.num_logprobs >= 0) {
        RequestLogprobs& logprobs = result.logprobs.emplace_back();
        logprobs.result_index = static_cast<uint32_t>(result.results.size());
        PositionLogprobs all = shadow_logprobs(state.prefixes[known]);
        all.resize(static_cast<size_t>(state.num_logprobs));
        all.insert(all.begin(), {sampled_.back(), 0.0F, 0});
        logprobs.positions.assign(sampled_.size(), all);
      }
      uint64_t prefix = state.prefixes.back();
      for (int32_t i = 0; i < num_speculative_tokens_; ++i) {
        drafts_.push_back(draft_token(prefix));
        prefix = extend_prefix(prefix, drafts_.back());
      }
    }
    result.add(state.request_id, sampled_, drafts_);
  }

  int32_t max_in_flight_steps_;
  int32_t num_speculative_tokens_;
  ModelInfo model_info_;
  std::vector<KVCacheSpec> specs_;
  std::vector<ShadowKVGroup> groups_;
  int64_t kv_cache_bytes_ = 0;
  uint64_t num_steps_ = 0;
  std::unordered_map<RequestId, State> requests_;
  RingQueue<ModelRunnerOutput> results_;
  std::vector<Row> batch_;  // the step at hand
  std::vector<int32_t> sampled_, drafts_;
};

}  // namespace quire
