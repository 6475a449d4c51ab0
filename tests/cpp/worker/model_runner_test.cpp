#include "worker/model_runner.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "worker/runner_rig.h"
#include "worker/scheduler_output_builder.h"

namespace quire {
namespace {

// The query lengths of the batch, as attention last saw them.
std::vector<int32_t> seen_query_lens;
void note_and_attend(const LaunchContext& ctx, TensorView out, TensorView query, const KVCacheView& kv_cache,
                     const AttentionMetadata& batch, const AttentionLayer& layer) {
  seen_query_lens.clear();
  const auto* starts = batch.query_start_loc.as<int32_t>();
  for (int64_t r = 0; r < batch.seq_lens.shape[0]; ++r) seen_query_lens.push_back(starts[r + 1] - starts[r]);
  fake::cpu().paged_attention(ctx, out, query, kv_cache, batch, layer);
}

TEST(ModelRunnerTest, RowsAreOrderedAsTheBackendWishesAndResultsAsTheStep) {
  std::vector<std::vector<int32_t>> tokens;
  for (const bool decodes_first : {false, true}) {
    RunnerRig rig({});
    rig.ops.decodes_first = decodes_first;
    rig.ops.paged_attention = note_and_attend;
    SchedulerOutputBuilder steps;
    std::vector<int32_t>& all = tokens.emplace_back();
    // The second request needs three steps for its prompt.
    steps.next()
        .add(1, prompt_of(20, 1), 20, {1, 2})
        .add(2, prompt_of(30, 2), 10, {3, 4})
        .add(3, prompt_of(5, 3), 5, {5});
    rig.run(steps.scheduler_output);
    for (int32_t i = 0; i < 2; ++i) {
      steps.next().compute(1, 20 + i, 21 + i);
      steps.compute(2, 10 + 10 * i, 20 + 10 * i, /*samples=*/i == 1).compute(3, 5 + i, 6 + i);
      const ModelRunnerOutput output = rig.run(steps.scheduler_output);
      EXPECT_EQ(seen_query_lens,
                decodes_first ? (std::vector<int32_t>{1, 1, 10}) : (std::vector<int32_t>{1, 10, 1}));
      ASSERT_EQ(output.results.size(), 3U);
      for (size_t r = 0; r < 3; ++r) EXPECT_EQ(output.results[r].request_id, r + 1);
      EXPECT_EQ(output.results[1].num_tokens, i);
      all.insert(all.end(), output.sampled_token_ids.begin(), output.sampled_token_ids.end());
    }
  }
  EXPECT_EQ(tokens[0].size(), 5U);
  EXPECT_EQ(tokens[0], tokens[1]);
}

int32_t chosen_kernel, num_selections, num_attentions;
const char* select_chosen(AttentionLayer& layer) {
  layer.kernel = chosen_kernel;
  ++num_selections;
  return fake::cpu().select_attention(layer);
}
void expect_chosen(const LaunchContext& ctx, TensorView out, TensorView query, const KVCacheView& kv_cache,
                   const AttentionMetadata& batch, const AttentionLayer& layer) {
  EXPECT_EQ(layer.kernel, 7);
  ++num_attentions;
  fake::cpu().paged_attention(ctx, out, query, kv_cache, batch, layer);
}

TEST(ModelRunnerTest, ALayersKernelIsChosenWhenItIsBuiltAndNotLater) {
  chosen_kernel = 7;
  num_selections = num_attentions = 0;
  RunnerRig rig({.select_attention = select_chosen});
  rig.ops.paged_attention = expect_chosen;
  const auto num_layers = static_cast<int32_t>(rig.model->kv_cache_specs().size());
  EXPECT_EQ(num_selections, num_layers);
  chosen_kernel = 8;
  SchedulerOutputBuilder steps;
  rig.run(steps.next().add(1, prompt_of(5, 1), 5, {1}).scheduler_output);
  EXPECT_EQ(num_selections, num_layers);
  EXPECT_EQ(num_attentions, num_layers);
}

TEST(ModelRunnerTest, WhatLayersChooseIsInTheHashThatGraphsAreFoundBy) {
  const auto hash = [](int32_t kernel) {
    chosen_kernel = kernel;
    return RunnerRig({.select_attention = select_chosen}).model_hash;
  };
  EXPECT_EQ(hash(7), hash(7));
  EXPECT_NE(hash(7), hash(8));
  RunnerRig rig({});
  const auto runner_hash = [&rig](uint64_t model_hash) {
    const ModelRunnerConfig config{1, 1, 1, 1, false, model_hash};
    return ModelRunner(config, *rig.model, *rig.platform, *rig.communicator).compute_hash();
  };
  EXPECT_EQ(runner_hash(1), runner_hash(1));
  EXPECT_NE(runner_hash(1), runner_hash(2));
}

std::vector<int64_t> activated_rows;  // of each layer's feed-forward
void note_and_activate(const LaunchContext& ctx, TensorView out, TensorView x, Activation activation) {
  activated_rows.push_back(x.shape[0]);
  fake::cpu().activate_and_mul(ctx, out, x, activation);
}

TEST(ModelRunnerTest, TheLastLayerGoesOnWithTheRowsThatAreSampledFrom) {
  RunnerRig rig({});
  rig.ops.activate_and_mul = note_and_activate;
  const size_t num_layers = rig.model->kv_cache_specs().size();
  SchedulerOutputBuilder steps;
  // With 0 for `last` that layer has none.
  const auto expect_rows = [&](int64_t all, int64_t last) {
    activated_rows.clear();
    rig.run(steps.scheduler_output);
    std::vector<int64_t> expected(num_layers - (last == 0 ? 1 : 0), all);
    if (last != 0) expected.back() = last;
    EXPECT_EQ(activated_rows, expected);
  };
  steps.next().add(1, prompt_of(30, 1), 16, {1, 2});
  expect_rows(16, 0);
  steps.next().compute(1, 16, 30);
  expect_rows(14, 1);
  steps.next().compute(1, 30, 31).add(2, prompt_of(9, 2), 9, {3});
  expect_rows(10, 2);
  // Of more than half it is not worth it.
  steps.next().compute(1, 31, 32).compute(2, 9, 10).add(3, prompt_of(3, 3), 3, {4});
  expect_rows(5, 5);
  steps.next().add(4, prompt_of(12, 4), 12, {5});
  steps.scheduler_output.scheduled_new_reqs.back().num_prompt_logprobs = 1;
  expect_rows(12, 12);
}

// A model whose last layer leaves out nothing.
class WholeModel final : public WrappedModel {
 public:
  using WrappedModel::WrappedModel;
  TensorView forward(const ForwardContext& ctx, const ModelInput& input) const override {
    ModelInput whole = input;
    whole.wanted_rows.reset();
    return WrappedModel::forward(ctx, whole);
  }
};

TEST(ModelRunnerTest, AModelMayComputeRowsThatAreNotWanted) {
  const auto tokens = [](std::unique_ptr<Model> (*wrap)(std::unique_ptr<Model>)) {
    RunnerRig rig({.wrap = wrap});
    SchedulerOutputBuilder steps;
    std::vector<int32_t> all;
    const auto run = [&] {
      for (const int32_t token : rig.run(steps.scheduler_output).sampled_token_ids) all.push_back(token);
    };
    steps.next().add(1, prompt_of(30, 1), 16, {1, 2});
    run();
    steps.next().compute(1, 16, 30).add(2, prompt_of(9, 2), 9, {3});
    run();
    steps.next().compute(1, 30, 31).compute(2, 9, 10).add(3, prompt_of(12, 3), 12, {4});
    run();
    return all;
  };
  const auto expected = tokens(nullptr);
  EXPECT_EQ(expected.size(), 5U);
  EXPECT_EQ(tokens(wrap_model<WholeModel>), expected);
}

void note_and_activate_on_device(const LaunchContext& ctx, TensorView out, TensorView x,
                                 Activation activation) {
  activated_rows.push_back(x.shape[0]);
  fake_kernel_table().activate_and_mul(ctx, out, x, activation);
}

TEST(ModelRunnerTest, WhatMayBeAGraphComputesAllRowsWithoutOne) {
  RunnerRig rig({.on_device = true});
  rig.ops.activate_and_mul = note_and_activate_on_device;
  activated_rows.clear();
  SchedulerOutputBuilder steps;
  rig.run(steps.next().add(1, prompt_of(30, 1), 30, {1, 2}).scheduler_output);
  EXPECT_EQ(activated_rows, std::vector<int64_t>(rig.model->kv_cache_specs().size(), 30));
}

TEST(ModelRunnerTest, ARequestThatSitsOutAStepKeepsItsState) {
  const auto run = [](bool sits_out) {
    RunnerRig rig({});
    SchedulerOutputBuilder steps;
    std::vector<int32_t> all;
    rig.run(steps.next().add(1, prompt_of(15, 1), 15, {1}).add(2, prompt_of(5, 2), 5, {2}).scheduler_output);
    if (sits_out) {
      const BlockId more[] = {3};
      rig.run(steps.next().compute(2, 5, 6).scheduler_output);
      rig.run(steps.next().scheduler_output);  // nothing to compute
      rig.run(steps.next().compute(1, 15, 16).scheduler_output);
      return rig.run(steps.next().compute(1, 16, 17, true, more).compute(2, 6, 7).scheduler_output)
          .sampled_token_ids;
    }
    const BlockId more[] = {3};
    rig.run(steps.next().compute(1, 15, 16).compute(2, 5, 6).scheduler_output);
    return rig.run(steps.next().compute(1, 16, 17, true, more).compute(2, 6, 7).scheduler_output)
        .sampled_token_ids;
  };
  EXPECT_EQ(run(true), run(false));
}

TEST(ModelRunnerTest, AResumedRequestIsComputedAgainElsewhere) {
  const auto run = [](bool preempted) {
    RunnerRig rig({});
    SchedulerOutputBuilder steps;
    rig.run(steps.next().add(1, prompt_of(20, 1), 20, {1, 2}).scheduler_output);
    rig.run(steps.next().compute(1, 20, 21).scheduler_output);
    const BlockId others[] = {7, 9};
    if (preempted) {
      steps.next()
          .compute(1, 0, 22, true, others)
          .scheduler_output.scheduled_reqs[0]
          .resumed_from_preemption = 1;
    } else {
      steps.next().compute(1, 21, 22);
    }
    return rig.run(steps.scheduler_output).sampled_token_ids;
  };
  EXPECT_EQ(run(true), run(false));
}

TEST(ModelRunnerTest, AStepThatDoesNotAddUpIsOurOwnMistake) {
  RunnerRig rig({});
  SchedulerOutputBuilder steps;
  EXPECT_THROW(rig.run(steps.next().compute(5, 0, 1).scheduler_output), InternalError);  // unknown
  EXPECT_THROW(rig.run(steps.next().add(1, prompt_of(5, 1), 6, {1}).scheduler_output),
               InternalError);  // not so many tokens
  EXPECT_THROW(rig.run(steps.next().add(2, prompt_of(17, 1), 17, {1}).scheduler_output),
               InternalError);  // too few blocks
  EXPECT_THROW(rig.run(steps.next().add(2, prompt_of(5, 1), 5, {1}).scheduler_output),
               InternalError);  // not new
}

}  // namespace
}  // namespace quire
