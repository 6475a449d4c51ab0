// Logits processors: which rows they are given, and what comes of it, on the host and on a device.
#include "worker/logits_processors.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <stdexcept>

#include "worker/runner_rig.h"
#include "worker/scheduler_output_builder.h"

namespace quire {
namespace {

// What the batch of a processor looks like from inside: the seed of the request in each row.
struct Seen {
  std::map<int32_t, uint64_t> rows;
  std::vector<std::vector<uint64_t>> applied;
};
class SeeingProcessor final : public LogitsProcessor {
 public:
  explicit SeeingProcessor(Seen& seen) : seen_(seen) {}
  void update_state(const BatchUpdate& update) override {
    for (const int32_t row : update.removed) EXPECT_EQ(seen_.rows.erase(row), 1U);
    for (const AddedRequest& added : update.added)
      EXPECT_TRUE(seen_.rows.emplace(added.row, *added.params->seed).second);
    for (const MovedRequest& moved : update.moved) {
      EXPECT_FALSE(seen_.rows.contains(moved.to));
      seen_.rows[moved.to] = seen_.rows.at(moved.from);
      seen_.rows.erase(moved.from);
    }
    EXPECT_EQ(static_cast<int32_t>(seen_.rows.size()), update.batch_size);
    for (int32_t row = 0; row < update.batch_size; ++row) EXPECT_TRUE(seen_.rows.contains(row)) << row;
  }
  void apply(std::span<const LogitsRow> rows) override {
    auto& applied = seen_.applied.emplace_back();
    for (const LogitsRow& row : rows) applied.push_back(seen_.rows.at(row.row));
  }

 private:
  Seen& seen_;
};

TEST(LogitsProcessorsTest, RowsAreThoseOfTheRequestsThatUseItWhoeverComesAndGoes) {
  Seen seen;
  LogitsProcessors all(
      {{"seeing",
        {[&](const LogitsProcessorConfig&) { return std::make_unique<SeeingProcessor>(seen); },
         [](const SamplingParams& params) { return params.seed.has_value(); }}}},
      {});
  std::vector<SamplingParams> params(20);
  std::map<RequestId, uint32_t> there;
  std::vector<std::pair<uint32_t, std::string>> errors;
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    for (RequestId id = 0; id < 20; ++id) {
      if (random() % 5 != 0) continue;
      if (const auto found = there.find(id); found != there.end()) {
        all.remove(id, found->second);
        there.erase(found);
      } else {
        params[id].seed = id % 4 == 3 ? std::nullopt : std::optional<uint64_t>(id);
        there[id] = all.add(id, params[id], {});
        EXPECT_EQ(there[id], id % 4 == 3 ? 0U : 1U);
      }
    }
    std::vector<LogitsProcessors::Row> rows;
    std::vector<uint64_t> expected;
    for (const auto& [id, uses] : there) {
      if (random() % 2 == 0) continue;
      rows.emplace_back();
      rows.back().request_id = id;
      rows.back().uses = uses;
      if (uses != 0) expected.push_back(id);
    }
    const size_t num_applied = seen.applied.size();
    all.apply(rows, errors);
    ASSERT_EQ(seen.applied.size() > num_applied, !expected.empty());
    if (!expected.empty()) {
      ASSERT_EQ(seen.applied.back(), expected);
    }
  }
  EXPECT_TRUE(errors.empty());
}

// Forces the token that extra_args names, and throws where that is none.
class ForcingProcessor final : public LogitsProcessor {
 public:
  void update_state(const BatchUpdate& update) override {
    for (const AddedRequest& added : update.added)
      tokens_[added.row] = std::stoi(added.params->extra_args.text.substr(9));
    for (const MovedRequest& moved : update.moved) tokens_[moved.to] = tokens_[moved.from];
  }
  void apply(std::span<const LogitsRow> rows) override {
    for (const LogitsRow& row : rows) {
      const int32_t token = tokens_.at(row.row);
      if (token < 0) throw std::runtime_error("no such token");
      // Its own number more each time: the tokens so far are what was drawn.
      const auto next =
          static_cast<size_t>(row.output_token_ids.empty() ? token : row.output_token_ids.back() + 1);
      row.logits[next] = 1000;
    }
  }

 private:
  std::map<int32_t, int32_t> tokens_;
};
NamedLogitsProcessor forcing() {
  return {"forcing",
          {[](const LogitsProcessorConfig&) { return std::make_unique<ForcingProcessor>(); },
           [](const SamplingParams& params) { return params.extra_args.text.starts_with("{\"force\""); }}};
}

class RunnerLogitsProcessorsTest : public testing::TestWithParam<bool> {
 protected:
  RunnerRig::Options options(std::vector<NamedLogitsProcessor> processors) const {
    RunnerRig::Options options;
    options.on_device = options.graphs = GetParam();
    options.in_flight = GetParam() ? 2 : 1;
    options.logits_processors = std::move(processors);
    return options;
  }
};

TEST_P(RunnerLogitsProcessorsTest, ARequestThatUsesOneGetsWhatItSaysAndOthersAreAsTheyWere) {
  const auto tokens_with = [&](const char* first, const char* second) {
    SchedulerOutputBuilder steps;
    Script script;
    steps.next()
        .add(1, prompt_of(5, 1), 5, {1})
        .add(2, prompt_of(7, 2), 7, {2})
        .add(3, prompt_of(4, 3), 4, {3});
    steps.scheduler_output.scheduled_new_reqs[0].sampling_params.edit().extra_args.text = first;
    steps.scheduler_output.scheduled_new_reqs[1].sampling_params.edit().extra_args.text = second;
    steps.scheduler_output.scheduled_new_reqs[1].sampling_params.edit().logprobs = 1;
    script.push_back({steps.scheduler_output, {}});
    for (int32_t i = 0; i < 4; ++i) {
      steps.next().compute(1, 5 + i, 6 + i).compute(2, 7 + i, 8 + i).compute(3, 4 + i, 5 + i);
      script.push_back({steps.scheduler_output, {}});
    }
    RunnerRig rig(options({forcing()}));
    return run(rig, script, GetParam() ? 2 : 1);
  };
  const Outputs plain = tokens_with("{}", "{}");
  const Outputs forced = tokens_with("{}", R"({"force":300})");
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_EQ(forced[i].sampled_token_ids[0], plain[i].sampled_token_ids[0]);
    EXPECT_EQ(forced[i].sampled_token_ids[1], 300 + static_cast<int32_t>(i));
    EXPECT_EQ(forced[i].sampled_token_ids[2], plain[i].sampled_token_ids[2]);
  }
  // Log-probabilities are the model's own.
  EXPECT_EQ(forced[0].logprobs.at(0).positions.at(0).at(1), plain[0].logprobs.at(0).positions.at(0).at(1));
  const Outputs failed = tokens_with(R"({"force":-1})", "{}");
  for (size_t i = 0; i < 2; ++i) {
    ASSERT_EQ(failed[i].errors.size(), 1U);
    EXPECT_EQ(failed[i].errors[0].result_index, 0U);
    EXPECT_EQ(failed[i].errors[0].message, "logits processor 'forcing': no such token");
    EXPECT_EQ(failed[i].results[0].num_tokens, 0);
    EXPECT_EQ(failed[i].sampled_token_ids,
              (std::vector<int32_t>{plain[i].sampled_token_ids[1], plain[i].sampled_token_ids[2]}));
  }
}

// Keeps the memory of its rows, and writes there when the next ones come.
class KeepingProcessor final : public LogitsProcessor {
 public:
  void update_state(const BatchUpdate&) override {}
  void apply(std::span<const LogitsRow> rows) override {
    for (auto& [memory, logits] : kept_) std::ranges::fill(logits, 1000.0F);
    for (const LogitsRow& row : rows) {
      ASSERT_NE(row.memory, nullptr);
      EXPECT_TRUE(std::ranges::none_of(row.logits, [](float x) { return x == 1000.0F; }));
      kept_.emplace_back(*row.memory, row.logits);
    }
  }

 private:
  std::vector<std::pair<std::shared_ptr<void>, std::span<float>>> kept_;
};

Script greedy_script(const std::function<void(SamplingParams&)>& edit) {
  SchedulerOutputBuilder steps;
  Script script;
  steps.next().add(1, prompt_of(5, 1), 5, {1}).add(2, prompt_of(7, 2), 7, {2});
  for (NewRequestData& request : steps.scheduler_output.scheduled_new_reqs)
    edit(request.sampling_params.edit());
  script.push_back({steps.scheduler_output, {}});
  for (int32_t i = 0; i < 6; ++i) {
    steps.next().compute(1, 5 + i, 6 + i).compute(2, 7 + i, 8 + i);
    script.push_back({steps.scheduler_output, {}});
  }
  return script;
}

TEST_P(RunnerLogitsProcessorsTest, WhatAProcessorKeepsTheEngineNoLongerUses) {
  const Script script = greedy_script([](SamplingParams& params) { params.temperature = 0; });
  RunnerRig plain(options({}));
  const Outputs expected = run(plain, script, GetParam() ? 2 : 1);
  RunnerRig rig(options({{"keeping",
                          {[](const LogitsProcessorConfig&) { return std::make_unique<KeepingProcessor>(); },
                           [](const SamplingParams&) { return true; }}}}));
  const Outputs outputs = run(rig, script, GetParam() ? 2 : 1);
  for (size_t i = 0; i < script.size(); ++i)
    EXPECT_EQ(outputs[i].sampled_token_ids, expected[i].sampled_token_ids) << i;
}

class ForbiddingProcessor final : public LogitsProcessor {
 public:
  void update_state(const BatchUpdate&) override {}
  void apply(std::span<const LogitsRow> rows) override {
    for (const LogitsRow& row : rows) std::ranges::fill(row.logits, -std::numeric_limits<float>::infinity());
  }
};

TEST_P(RunnerLogitsProcessorsTest, WhereNoTokenIsLeftTheRequestFailsAlone) {
  const auto forbidding = [](const char* extra_args) {
    int32_t i = 0;
    return greedy_script([&](SamplingParams& params) {
      params.temperature = 0.8F;
      params.top_p = 0.9F;
      params.logprobs = 1;
      if (i++ == 0) params.extra_args.text = extra_args;
    });
  };
  RunnerRig plain(options({})),
      rig(options({{"forbidding",
                    {[](const LogitsProcessorConfig&) { return std::make_unique<ForbiddingProcessor>(); },
                     [](const SamplingParams& params) { return has_extra_arg(params, "forbid"); }}}}));
  const Outputs expected = run(plain, forbidding("{}"), GetParam() ? 2 : 1);
  const Outputs outputs = run(rig, forbidding(R"({"forbid":1})"), GetParam() ? 2 : 1);
  ASSERT_EQ(outputs[0].errors.size(), 1U);
  EXPECT_EQ(outputs[0].errors[0].result_index, 0U);
  EXPECT_TRUE(outputs[0].errors[0].message.ends_with("together leave no token to choose"));
  EXPECT_EQ(outputs[0].results[0].num_tokens, 0);
  EXPECT_EQ(outputs[0].sampled_token_ids, std::vector<int32_t>{expected[0].sampled_token_ids[1]});
}

class InvariantProcessor final : public LogitsProcessor {
 public:
  explicit InvariantProcessor(int& num_rows) : num_rows_(num_rows) {}
  void update_state(const BatchUpdate&) override {}
  void apply(std::span<const LogitsRow> rows) override { num_rows_ += static_cast<int>(rows.size()); }
  bool is_argmax_invariant() const override { return true; }

 private:
  int& num_rows_;
};

TEST_P(RunnerLogitsProcessorsTest, OneThatIsArgmaxInvariantCostsGreedyRowsNothing) {
  int num_rows = 0;
  const NamedLogitsProcessor invariant = {
      "invariant",
      {[&](const LogitsProcessorConfig&) { return std::make_unique<InvariantProcessor>(num_rows); },
       [](const SamplingParams&) { return true; }}};
  const auto num_waits = [&](const Script& script) {
    RunnerRig rig(options({invariant}));
    run(rig, script, GetParam() ? 2 : 1);
    return num_rows;
  };
  EXPECT_EQ(num_waits(greedy_script([](SamplingParams& params) { params.temperature = 0; })), 0);
  EXPECT_EQ(num_waits(greedy_script([](SamplingParams& params) { params.temperature = 1; })), 14);
}

// The block begins in the prompt, or is forced to begin by the other processor.
TEST_P(RunnerLogitsProcessorsTest, BehindItsBudgetThinkingEnds) {
  const auto thinking = find_logits_processors({"thinking_budget"});
  for (const int32_t budget : {0, 1, 3}) {
    SchedulerOutputBuilder steps;
    Script script;
    steps.next().add(1, {50, 100, 101, 60}, 4, {1}).add(2, {50, 100, 101, 60, 102, 103, 104}, 7, {2});
    steps.scheduler_output.scheduled_new_reqs[0].sampling_params.edit().max_thinking_tokens = budget;
    steps.scheduler_output.scheduled_new_reqs[1].sampling_params.edit().max_thinking_tokens = budget;
    script.push_back({steps.scheduler_output, {}});
    for (int32_t i = 0; i < 8; ++i) {
      steps.next().compute(1, 4 + i, 5 + i).compute(2, 7 + i, 8 + i);
      script.push_back({steps.scheduler_output, {}});
    }
    RunnerRig with(options(thinking)), without(options({}));
    const Outputs thinks = run(with, script, GetParam() ? 2 : 1),
                  plain = run(without, script, GetParam() ? 2 : 1);
    for (size_t i = 0; i < script.size(); ++i) {
      const int32_t token = thinks[i].sampled_token_ids[0];
      const auto behind = static_cast<int32_t>(i) - budget;
      if (behind < 0) {
        EXPECT_EQ(token, plain[i].sampled_token_ids[0]) << i;
      } else if (behind < 3) {
        EXPECT_EQ(token, 102 + behind) << i;
      }
      EXPECT_EQ(thinks[i].sampled_token_ids[1], plain[i].sampled_token_ids[1]) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Samplers, RunnerLogitsProcessorsTest, testing::Values(false, true),
                         [](const auto& info) { return info.param ? "device" : "host"; });

}  // namespace
}  // namespace quire
