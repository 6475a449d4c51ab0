// Random steps, for a runner on a device and one on the host.
#pragma once

#include <algorithm>
#include <cstddef>
#include <random>
#include <utility>
#include <vector>

#include "worker/runner_rig.h"
#include "worker/scheduler_output_builder.h"

namespace quire {

// Steps that do not depend on tokens, as a scheduler might make them.
class ScriptWriter {
 public:
  // What requests ask for: all there is, or seldom more than a temperature, so that many steps sample with
  // one kernel.
  enum class Wishes { kAll, kFew };
  explicit ScriptWriter(uint32_t seed, Wishes wishes = Wishes::kAll) : wishes_(wishes), random_(seed) {
    for (BlockId block = 1; block < RunnerRig::kNumBlocks; ++block) free_blocks_.push_back(block);
  }
  Script write(int num_steps) {
    Script script;
    for (int i = 0; i < num_steps; ++i) write_step(script.emplace_back());
    return script;
  }

 private:
  struct Sequence {
    RequestId id;
    std::vector<int32_t> prompt;
    SamplingParams params;
    int32_t num_tokens, num_computed = 0;
    std::vector<BlockId> blocks;
    bool is_new = true, resumed = false, over = false;
  };

  int32_t uniform(int32_t low, int32_t high) { return std::uniform_int_distribution(low, high)(random_); }
  bool chance(double p) { return std::bernoulli_distribution(p)(random_); }

  SamplingParams any_params() {
    SamplingParams params;
    params.seed = random_();
    params.max_tokens = 1000;
    params.temperature = chance(0.5) ? 0.0F : 0.9F;
    if (wishes_ == Wishes::kFew) {
      if (chance(0.2)) add_a_wish(params);
      return params;
    }
    if (chance(0.3)) params.structured_outputs.emplace();
    if (chance(0.3)) params.top_k = uniform(1, 50);
    if (chance(0.3)) params.top_p = 0.8F;
    if (chance(0.2)) params.min_p = 0.05F;
    if (chance(0.2)) params.presence_penalty = 1.5F;
    if (chance(0.2)) params.frequency_penalty = 1.0F;
    if (chance(0.2)) params.repetition_penalty = 1.3F;
    if (chance(0.3)) params.logprobs = (std::vector{0, 1, 5, 100})[static_cast<size_t>(uniform(0, 3))];
    if (chance(0.3)) params.min_tokens = uniform(1, 10);
    if (chance(0.2)) params.stop_token_ids = {7, 2, 9};
    // Sometimes more than is sent with the rest, in one request or in several.
    if (chance(0.3)) {
      for (int32_t i = chance(0.4) ? 700 : 3; i > 0; --i)
        params.logit_bias[uniform(0, RunnerRig::kVocab - 1)] = static_cast<float>(uniform(-8, 8));
      params.logit_bias[2] = 5;
    }
    return params;
  }
  // Each would change the tokens, or what is said of them, if it were forgotten.
  void add_a_wish(SamplingParams& params) {
    const int32_t token = uniform(3, RunnerRig::kVocab - 1);
    switch (uniform(0, 6)) {
      case 0: params.logit_bias[token] = 100; break;
      case 1: params.allowed_token_ids = {token}; break;
      case 2: params.structured_outputs.emplace(); break;
      case 3: params.repetition_penalty = 1.8F; break;
      case 4: params.logprobs = 2; break;
      case 5:
        params.min_tokens = 1000;
        params.stop_token_ids.resize(RunnerRig::kVocab);
        for (int32_t i = 0; i < RunnerRig::kVocab; ++i) params.stop_token_ids[static_cast<size_t>(i)] = i;
        params.stop_token_ids.erase(params.stop_token_ids.begin() + token);
        break;
      default: params.top_k = 1;
    }
  }
  void free_blocks(Sequence& sequence) {
    free_blocks_.insert(free_blocks_.end(), sequence.blocks.begin(), sequence.blocks.end());
    sequence.blocks.clear();
  }
  void preempt(Sequence& sequence) {
    free_blocks(sequence);
    sequence.num_computed = 0;
    sequence.resumed = true;
  }
  void schedule(Sequence& sequence, int32_t count, Step& step) {
    const auto needed = (sequence.num_computed + count + RunnerRig::kBlockSize - 1) / RunnerRig::kBlockSize;
    std::vector<BlockId> fresh;
    while (static_cast<int32_t>(sequence.blocks.size() + fresh.size()) < needed) {
      std::swap(free_blocks_[random_() % free_blocks_.size()], free_blocks_.back());
      fresh.push_back(free_blocks_.back());
      free_blocks_.pop_back();
    }
    const int32_t end = sequence.num_computed + count;
    const bool samples = end == sequence.num_tokens;
    if (sequence.is_new) {
      builder_.add(sequence.id, sequence.prompt, count, fresh);
      NewRequestData& data = builder_.scheduler_output.scheduled_new_reqs.back();
      data.sampling_params = sequence.params;
      data.seed = sequence.params.seed.value();
      data.eos_token_ids = {0, 2};
      // What was generated elsewhere is not prompt.
      if (sequence.prompt.size() > 3 && sequence.id % 3 == 0) {
        data.output_token_ids = {data.prompt_token_ids->back()};
        data.prompt_token_ids.edit().pop_back();
      }
    } else {
      builder_.compute(sequence.id, sequence.num_computed, end, samples, fresh);
      builder_.scheduler_output.scheduled_reqs.back().resumed_from_preemption = sequence.resumed;
    }
    builder_.scheduler_output.scheduled_reqs.back().samples = samples;
    sequence.is_new = sequence.resumed = false;
    sequence.blocks.insert(sequence.blocks.end(), fresh.begin(), fresh.end());
    sequence.num_computed = end;
    if (!samples) return;
    if (sequence.params.structured_outputs) add_mask(step);
    // The last token allowed is sampled, and has no place.
    if (sequence.num_tokens == RunnerRig::kMaxModelLen) {
      sequence.over = true;
    } else {
      ++sequence.num_tokens;
    }
  }
  // For the request added last.
  void add_mask(Step& step) {
    if (!step.grammar) step.grammar.emplace();
    const size_t index = builder_.scheduler_output.scheduled_reqs.size() - 1;
    step.grammar->result_indices.push_back(static_cast<uint32_t>(index));
    for (int32_t word = 0; word < RunnerRig::kVocab / 32; ++word)
      step.grammar->bitmask.push_back(static_cast<int32_t>(random_() & random_()));
  }
  void write_step(Step& step) {
    builder_.next();
    // Sequences that are over leave, and others while they are in flight.
    for (size_t i = 0; i < sequences_.size();) {
      Sequence& sequence = sequences_[i];
      if (!sequence.over && !chance(0.02)) {
        if (!sequence.is_new && chance(0.05)) preempt(sequence);
        ++i;
        continue;
      }
      if (!sequence.is_new) builder_.scheduler_output.finished_req_ids.push_back(sequence.id);
      free_blocks(sequence);
      sequences_.erase(sequences_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    while (sequences_.size() < RunnerRig::kMaxSeqs + 2 && chance(0.6)) {
      Sequence& sequence = sequences_.emplace_back();
      sequence.id = ++last_id_;
      sequence.prompt.resize(static_cast<size_t>(uniform(1, 40)));
      for (int32_t& token : sequence.prompt) token = uniform(3, RunnerRig::kVocab - 1);
      sequence.num_tokens = static_cast<int32_t>(sequence.prompt.size());
      sequence.params = any_params();
    }
    // Often only those that decode, sometimes nothing; most go on.
    const bool only_decodes = chance(0.4);
    int32_t budget = chance(0.05) ? 0 : RunnerRig::kMaxTokens, rows = 0;
    for (Sequence& sequence : sequences_) {
      const int32_t left = sequence.num_tokens - sequence.num_computed;
      if (budget == 0 || rows == RunnerRig::kMaxSeqs || (only_decodes && left > 1) || chance(0.08)) continue;
      const int32_t count = std::min(chance(0.7) ? left : uniform(1, left), budget);
      schedule(sequence, count, step);
      budget -= count;
      ++rows;
    }
    step.scheduler_output = builder_.scheduler_output;
  }

  Wishes wishes_;
  std::mt19937 random_;
  SchedulerOutputBuilder builder_;
  std::vector<Sequence> sequences_;
  std::vector<BlockId> free_blocks_;
  RequestId last_id_ = 0;
};

}  // namespace quire
