// Steps of a rank whose graphs have logits of its part of the vocabulary alone.
#include <algorithm>

#include "worker/runner_rig.h"
#include "worker/scheduler_output_builder.h"

namespace quire {
namespace {

// Which of how many ranks the model is one of.
struct Ranks {
  int32_t rank = 4, world_size = 5;
  bool can_choose = true;

  Shard part() const { return even_shard(RunnerRig::kVocab, rank, world_size); }
  // Without padding.
  int64_t num_tokens() const { return std::min(part().count, RunnerRig::kVocab - part().begin); }
};

// Of all ranks, which one model computes here.
std::vector<float> all_logits;
TensorView all_of(int64_t rows) { return {all_logits.data(), DType::kFloat32, rows, RunnerRig::kVocab}; }
void copy_columns(TensorView to, TensorView from) {
  for (int64_t row = 0; row < to.shape[0]; ++row)
    std::copy_n(from.rows(row, 1).as<float>(), to.shape[1], to.rows(row, 1).as<float>());
}

Ranks ranks;
int num_gathered, num_chosen;

class PartOfModel final : public WrappedModel {
 public:
  using WrappedModel::WrappedModel;
  void compute_logits(const ForwardContext& ctx, TensorView logits, TensorView hidden) const override {
    if (logits.shape[1] == vocab_size()) return WrappedModel::compute_logits(ctx, logits, hidden);
    ASSERT_EQ(logits.shape[1], ranks.part().count);
    const TensorView all = all_of(logits.shape[0]);
    WrappedModel::compute_logits(ctx, all, hidden);
    FakeDeviceRuntime::enqueue(ctx.launch.stream, [=] {
      for (int64_t row = 0; row < logits.shape[0]; ++row)
        std::fill_n(logits.rows(row, 1).as<float>(), logits.shape[1], 1e9F);  // no padding is sampled
      copy_columns(logits.columns(0, ranks.num_tokens()),
                   all.columns(ranks.part().begin, ranks.num_tokens()));
    });
  }
};

class OneOfRanks final : public Communicator {
 public:
  int32_t rank() const override { return ranks.rank; }
  int32_t world_size() const override { return ranks.world_size; }
  void all_reduce_sum(const LaunchContext&, TensorView) override {}
  void all_gather_columns(const LaunchContext& ctx, TensorView out, TensorView x) override {
    FakeDeviceRuntime::enqueue(ctx, [=] {
      ++num_gathered;
      copy_columns(out, all_of(out.shape[0]));
      copy_columns(out.columns(ranks.part().begin, ranks.num_tokens()), x);
    });
  }
  bool chooses_tokens() const override { return ranks.can_choose; }
  void choose_tokens(const LaunchContext& ctx, const SamplingArgs& args) override {
    FakeDeviceRuntime::enqueue(ctx, [args] {
      ++num_chosen;
      const auto rows = args.logits.shape[0];
      SamplingArgs of_all = args, of_part = args;
      of_all.logits = all_of(rows);
      of_part.first_token_id = static_cast<int32_t>(ranks.part().begin);
      of_part.logits = of_all.logits.columns(ranks.part().begin, ranks.num_tokens());
      for (int64_t row = 0; row < rows; ++row) EXPECT_EQ(args.best[row], fake::digest_of(of_part, row));
      fake::sample_now({}, of_all);
    });
  }
  void abort() override {}
  void reset() override {}
};

// Three requests of which the second, while it is there, wants a filter, which wants all logits.
Script three_requests() {
  SchedulerOutputBuilder steps;
  Script script;
  steps.next().add(1, {50, 51}, 2, {1}).add(2, {60}, 1, {2}).add(3, {70, 71, 72}, 3, {3});
  auto& requests = steps.scheduler_output.scheduled_new_reqs;
  for (const size_t i : {1, 2}) requests[i].sampling_params.edit().temperature = 1.5F;
  requests[1].sampling_params.edit().top_k = 7;
  script.push_back({steps.scheduler_output, {}});
  for (int32_t i = 0; i < 6; ++i) {
    steps.next();
    if (i == 3) steps.scheduler_output.finished_req_ids = {2};
    steps.compute(1, 2 + i, 3 + i);
    if (i < 3) steps.compute(2, 1 + i, 2 + i);
    script.push_back({steps.compute(3, 3 + i, 4 + i).scheduler_output, {}});
  }
  steps.next().compute(1, 8, 9).add(4, {80}, 1, {4}).compute(3, 9, 10);
  SamplingParams& filtered = steps.scheduler_output.scheduled_new_reqs[0].sampling_params.edit();
  filtered.temperature = 1.5F;
  filtered.min_p = 0.1F;
  script.push_back({steps.scheduler_output, {}});
  script.push_back({steps.next().compute(1, 9, 10).compute(3, 10, 11).scheduler_output, {}});
  return script;
}

// Expects the tokens of one device.
void expect_tokens(const Ranks& of, bool hurried) {
  const Script script = three_requests();
  const Outputs expected = run(RunnerRig::Options{.on_device = true, .in_flight = 2, .graphs = true}, script);
  ranks = of;
  all_logits.assign(size_t{RunnerRig::kMaxTokens} * RunnerRig::kVocab, 0);
  RunnerRig rig({.on_device = true,
                 .in_flight = 2,
                 .graphs = true,
                 .hurried = hurried,
                 .wrap = wrap_model<PartOfModel>,
                 .make_communicator = []() -> std::unique_ptr<Communicator> {
                   return std::make_unique<OneOfRanks>();
                 }});
  num_gathered = num_chosen = 0;
  const Outputs outputs = run(rig, script, 2);
  for (size_t i = 0; i < script.size(); ++i)
    EXPECT_EQ(outputs[i].sampled_token_ids, expected[i].sampled_token_ids) << i;
}

TEST(VocabPartTest, StepsThatGraphsSampleTellNobodyTheirLogits) {
  // Of the last rank's 820 tokens 4 are padding.
  for (const bool hurried : {false, true}) {
    expect_tokens({.rank = 4, .world_size = 5}, hurried);
    EXPECT_EQ(num_gathered, 4);
    EXPECT_EQ(num_chosen, 4);
  }
}

TEST(VocabPartTest, AllLogitsAreGatheredWhereRanksCannotChoose) {
  constexpr Ranks kCases[] = {
      {.can_choose = false},
      {.rank = 1, .world_size = 3},   // 1,366 tokens: four that share their noise would be two ranks'
      {.rank = 0, .world_size = 65},  // of 64 tokens each, the last rank has none
  };
  for (const Ranks& each : kCases) {
    expect_tokens(each, false);
    EXPECT_EQ(num_gathered, 0) << each.world_size;  // but by the model, which has them all here
    EXPECT_EQ(num_chosen, 0) << each.world_size;
  }
}

}  // namespace
}  // namespace quire
