#include "worker/common_prefix.h"

#include <gtest/gtest.h>

#include "device/fake_kernels.h"
#include "worker/runner_rig.h"
#include "worker/scheduler_output_builder.h"

namespace quire {
namespace {

class CommonPrefixTest : public testing::Test {
 protected:
  static constexpr int32_t kBlockSize = 2;

  // A row with these blocks, all but one token of which were computed.
  void add(std::vector<BlockId> blocks) {
    const auto num_tokens = static_cast<int32_t>(blocks.size()) * kBlockSize;
    CachedRequestState& request = requests_[requests_used_++];
    request.request_id = requests_used_;
    request.prompt_token_ids = std::vector<int32_t>(static_cast<size_t>(num_tokens), 1);
    request.block_ids = {std::move(blocks)};
    batch_.add(request);
    request.num_computed_tokens = num_tokens - 1;
  }
  int32_t of_first(int32_t num_rows) { return common_prefix_len(batch_, 0, num_rows); }

  InputBatch batch_{/*max_num_seqs=*/8, /*max_model_len=*/16, std::vector{kBlockSize}};
  std::array<CachedRequestState, 8> requests_;
  size_t requests_used_ = 0;
};

TEST_F(CommonPrefixTest, AreTheBlocksThatAllHaveInFront) {
  add({1, 2, 3, 4});
  add({1, 2, 3, 5, 6});
  add({1, 2, 7, 4});
  add({8, 2, 3});
  EXPECT_EQ(of_first(0), 0);
  EXPECT_EQ(of_first(1), 0) << "one row shares nothing";
  EXPECT_EQ(of_first(2), 6);
  EXPECT_EQ(of_first(3), 4) << "a block behind one that differs is another's part";
  EXPECT_EQ(of_first(4), 0);
}

TEST_F(CommonPrefixTest, LeaveEachRowATokenOfItsOwn) {
  add({1, 2, 3});
  add({1, 2, 3, 4});
  EXPECT_EQ(of_first(2), 4) << "the first row computes the last token of block 3";
  add({1, 2});
  EXPECT_EQ(of_first(3), 2);
}

// What a device's attention was told in each of its layers, when it ran; -1: nothing.
std::vector<int32_t> told;
// In which it was told not to read ahead.
std::vector<bool> told_to_wait;

void listening_attention(const LaunchContext& ctx, TensorView out, TensorView query, const KVCacheView& cache,
                         const AttentionMetadata& batch, const AttentionLayer& layer) {
  told_to_wait.push_back(batch.has_new_prefixes);
  FakeDeviceRuntime::enqueue(ctx.stream, [batch] {
    const auto* length = static_cast<const int32_t*>(batch.common_prefix_len.data);
    told.push_back(length != nullptr ? *length : -1);
  });
  fake::Queued<&KernelTable::paged_attention>::launch(ctx, out, query, cache, batch, layer);
}

struct Case {
  bool graphs;
  int32_t in_flight;
};
class CascadeTest : public testing::TestWithParam<Case> {
 protected:
  static RunnerRig::Options device() {
    return {
        .on_device = true,
        .in_flight = GetParam().in_flight,
        .graphs = GetParam().graphs,
        .use_cascade_attention = [](const KVCacheView&, int32_t rows,
                                    int32_t length) { return rows >= 2 && length >= RunnerRig::kBlockSize; },
        .paged_attention = listening_attention};
  }
};

// Three requests with a block in common; a fourth with none of it comes and goes.
Script steps_that_share() {
  constexpr int32_t kShared = RunnerRig::kBlockSize;
  SchedulerOutputBuilder steps;
  Script script;
  const auto add = [&](SchedulerOutputBuilder& step, RequestId id, BlockId first, int32_t seed) {
    std::vector<int32_t> prompt = prompt_of(kShared, seed);
    for (int32_t token : prompt_of(2, static_cast<int32_t>(id) * 50)) prompt.push_back(token);
    step.add(id, prompt, kShared + 2, {first, static_cast<BlockId>(10 + id)});
  };
  const auto push = [&] { script.push_back({steps.scheduler_output, {}}); };
  steps.next();
  for (RequestId id : {1, 2, 3}) add(steps, id, 1, 1);
  push();
  const auto decode = [&](std::initializer_list<RequestId> ids, int32_t token) {
    for (RequestId id : ids) steps.compute(id, kShared + token, kShared + token + 1);
  };
  steps.next();
  decode({1, 2, 3}, 2);
  push();
  steps.next();
  decode({1, 2, 3}, 3);
  add(steps, 4, 2, 9);
  push();
  steps.next();
  decode({1, 2, 3}, 4);
  decode({4}, 2);
  push();
  steps.next();
  decode({1, 2, 3}, 5);
  steps.scheduler_output.finished_req_ids = {4};
  push();
  steps.next();
  decode({1}, 6);
  push();
  return script;
}

TEST_P(CascadeTest, AttentionHearsOfWhatDecodesShareAndOfNothingElse) {
  const Script script = steps_that_share();
  RunnerRig rig(device());
  told.clear();
  const Outputs outputs = run(rig, script, GetParam().in_flight);
  const size_t layers = told.size() / script.size();
  std::vector<int32_t> of_steps;
  for (size_t i = 0; i < told.size(); ++i) {
    if (i % layers == 0) of_steps.push_back(told[i]);
    EXPECT_EQ(told[i], of_steps.back()) << "step " << i / layers << ", layer " << i % layers;
  }
  EXPECT_EQ(of_steps, (std::vector{-1, 16, 16, -1, 16, -1}));
  const Outputs host = run(RunnerRig::Options{}, script);
  for (size_t i = 0; i < script.size(); ++i)
    EXPECT_EQ(host[i].sampled_token_ids, outputs[i].sampled_token_ids) << i;
}

TEST_P(CascadeTest, IsNotUsedWhereItIsDisabled) {
  const Script script = steps_that_share();
  RunnerRig::Options options = device();
  options.use_cascade = false;
  RunnerRig rig(options);
  told.clear();
  run(rig, script, GetParam().in_flight);
  EXPECT_EQ(told, std::vector(told.size(), -1));
  EXPECT_FALSE(told.empty());
}

// The scheduler lets a request find blocks in the step that fills them, so that whoever attends to them waits
// for those who write. A graph that was captured before would not.
TEST_P(CascadeTest, BlocksThatWereJustFoundAreNotReadAhead) {
  constexpr int32_t kShared = RunnerRig::kBlockSize;
  std::vector<int32_t> prompt = prompt_of(kShared + 1);
  SchedulerOutputBuilder steps;
  Script script;
  script.push_back({steps.next().add(1, prompt, kShared + 1, {1, 11}).scheduler_output, {}});
  script.push_back({steps.next()
                        .compute(1, kShared + 1, kShared + 2)
                        .add(2, prompt, kShared + 1, {1, 12}, /*num_cached=*/kShared)
                        .scheduler_output,
                    {}});
  script.push_back({steps.next()
                        .compute(1, kShared + 2, kShared + 3)
                        .compute(2, kShared + 1, kShared + 2)
                        .scheduler_output,
                    {}});
  RunnerRig::Options options = device();
  options.use_cascade = false;
  RunnerRig rig(options);
  told_to_wait.clear();
  const Outputs outputs = run(rig, script, GetParam().in_flight);
  std::vector<CudagraphMode> modes;
  for (const ModelRunnerOutput& output : outputs) modes.push_back(output.cudagraph_mode);
  using enum CudagraphMode;
  EXPECT_EQ(modes, GetParam().graphs ? (std::vector{kPiecewise, kPiecewise, kFull}) : std::vector(3, kNone));
  // In a graph nothing is launched again.
  const size_t layers = told_to_wait.size() / (GetParam().graphs ? 2 : 3);
  std::vector<bool> expected(told_to_wait.size());
  std::fill_n(expected.begin() + static_cast<long>(layers), layers, true);
  EXPECT_EQ(told_to_wait, expected);
  const Outputs host = run(RunnerRig::Options{}, script);
  for (size_t i = 0; i < script.size(); ++i)
    EXPECT_EQ(host[i].sampled_token_ids, outputs[i].sampled_token_ids) << i;
}

INSTANTIATE_TEST_SUITE_P(Devices, CascadeTest, testing::Values(Case{false, 1}, Case{true, 1}, Case{true, 2}),
                         [](const auto& info) {
                           return std::string(info.param.graphs ? "Graphs" : "Eager") +
                                  std::to_string(info.param.in_flight);
                         });

}  // namespace
}  // namespace quire
