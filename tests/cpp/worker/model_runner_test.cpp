#include "worker/model_runner.h"

#include <gtest/gtest.h>

#include "device/thread_pool.h"
#include "models/model_registry.h"
#include "quire/kernels/backend_registry.h"
#include "worker/plan_builder.h"

namespace quire {
namespace {

constexpr int32_t kMaxSeqs = 8, kMaxTokens = 64, kMaxModelLen = 128, kNumBlocks = 32;

const KernelTable& cpu() { return *find_kernel_table("cpu"); }

// The query lengths of the batch, as attention last saw them.
std::vector<int32_t> seen_query_lens;
void note_and_attend(const LaunchContext& ctx, const PagedAttentionArgs& args) {
  seen_query_lens.clear();
  const auto* starts = args.query_start_loc.as<int32_t>();
  for (int64_t r = 0; r < args.seq_lens.shape[0]; ++r) seen_query_lens.push_back(starts[r + 1] - starts[r]);
  cpu().paged_attention(ctx, args);
}

// The demo model behind a backend with or without the wish.
struct Rig {
  explicit Rig(bool decodes_first) : ops(cpu()) {
    ops.decodes_first = decodes_first;
    ops.paged_attention = note_and_attend;
    Checkpoint checkpoint = Checkpoint::open(QUIRE_DEMO_MODEL);
    const HfConfig hf_config = HfConfig::load(QUIRE_DEMO_MODEL "/config.json");
    const auto loader = make_host_loader();
    BuildContext build{ops, launch, checkpoint, *weights, *loader, DType::kBFloat16};
    build.max_model_len = kMaxModelLen;
    build.max_num_tokens = kMaxTokens;
    build.max_num_seqs = kMaxSeqs;
    model = find_model(hf_config)(build, hf_config);
    workspace = Buffer(build.workspace_bytes);
    launch.workspace = workspace.data();
    launch.workspace_bytes = workspace.size();
    runner = std::make_unique<ModelRunner>(ModelRunnerConfig{kMaxSeqs, kMaxTokens, kMaxModelLen}, *model, ops,
                                           launch, *communicator);
    KVCacheConfig config;
    KVCacheGroup& group = config.groups.emplace_back();
    group.spec = model->kv_cache_specs()[0];
    group.num_blocks = kNumBlocks;
    for (const auto& spec : model->kv_cache_specs()) {
      group.layers.push_back(static_cast<int32_t>(group.layers.size()));
      EXPECT_EQ(spec, group.spec);
    }
    pages = Buffer(static_cast<size_t>(kNumBlocks * group.block_bytes()));
    std::vector<KVCacheView> layers;
    for (size_t i = 0; i < group.layers.size(); ++i) {
      layers.push_back({pages.data() + static_cast<int64_t>(i) * group.spec.page_bytes, group.block_bytes(),
                        kNumBlocks, group.spec.block_size, group.spec.num_kv_heads, group.spec.head_size,
                        DType::kBFloat16});
    }
    runner->set_kv_cache(config, std::move(layers), *weights);
  }
  const ModelRunnerOutput& run(const SchedulerOutput& plan) {
    runner->execute_model(plan);
    runner->sample_tokens(plan, nullptr);
    runner->finish_step(output);
    return output;
  }

  KernelTable ops;
  LaunchContext launch;
  std::unique_ptr<Communicator> communicator = make_single_communicator();
  std::unique_ptr<DeviceArena> weights = make_host_arena();
  std::unique_ptr<Model> model;
  Buffer workspace, pages;
  std::unique_ptr<ModelRunner> runner;
  ModelRunnerOutput output;
};

std::vector<int32_t> prompt(int32_t length, int32_t first) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < length; ++i) ids.push_back(10 + (first + i * 7) % 4000);
  return ids;
}

TEST(ModelRunnerTest, RowsAreOrderedAsTheBackendWishesAndResultsAsThePlan) {
  std::vector<std::vector<int32_t>> tokens;
  for (const bool decodes_first : {false, true}) {
    Rig rig(decodes_first);
    PlanBuilder steps;
    std::vector<int32_t>& all = tokens.emplace_back();
    // The second request needs three steps for its prompt.
    steps.next()
        .add(1, prompt(20, 1), 20, {1, 2})
        .add(2, prompt(30, 2), 10, {3, 4})
        .add(3, prompt(5, 3), 5, {5});
    rig.run(steps.plan);
    for (int32_t i = 0; i < 2; ++i) {
      steps.next().compute(1, 20 + i, 21 + i);
      steps.compute(2, 10 + 10 * i, 20 + 10 * i, /*samples=*/i == 1).compute(3, 5 + i, 6 + i);
      const ModelRunnerOutput& output = rig.run(steps.plan);
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

TEST(ModelRunnerTest, ARequestThatSitsOutAStepKeepsItsState) {
  const auto run = [](bool sits_out) {
    Rig rig(false);
    PlanBuilder steps;
    std::vector<int32_t> all;
    rig.run(steps.next().add(1, prompt(15, 1), 15, {1}).add(2, prompt(5, 2), 5, {2}).plan);
    if (sits_out) {
      const BlockId more[] = {3};
      rig.run(steps.next().compute(2, 5, 6).plan);
      rig.run(steps.next().plan);  // nothing to compute
      rig.run(steps.next().compute(1, 15, 16).plan);
      return rig.run(steps.next().compute(1, 16, 17, true, more).compute(2, 6, 7).plan).sampled_token_ids;
    }
    const BlockId more[] = {3};
    rig.run(steps.next().compute(1, 15, 16).compute(2, 5, 6).plan);
    return rig.run(steps.next().compute(1, 16, 17, true, more).compute(2, 6, 7).plan).sampled_token_ids;
  };
  EXPECT_EQ(run(true), run(false));
}

TEST(ModelRunnerTest, AResumedRequestIsComputedAgainElsewhere) {
  const auto run = [](bool preempted) {
    Rig rig(false);
    PlanBuilder steps;
    rig.run(steps.next().add(1, prompt(20, 1), 20, {1, 2}).plan);
    rig.run(steps.next().compute(1, 20, 21).plan);
    const BlockId others[] = {7, 9};
    if (preempted) {
      steps.next().compute(1, 0, 22, true, others).plan.scheduled_reqs[0].resumed_from_preemption = 1;
    } else {
      steps.next().compute(1, 21, 22);
    }
    return rig.run(steps.plan).sampled_token_ids;
  };
  EXPECT_EQ(run(true), run(false));
}

TEST(ModelRunnerTest, APlanThatDoesNotAddUpIsOurOwnMistake) {
  Rig rig(false);
  PlanBuilder steps;
  EXPECT_THROW(rig.run(steps.next().compute(5, 0, 1).plan), InternalError);              // unknown
  EXPECT_THROW(rig.run(steps.next().add(1, prompt(5, 1), 6, {1}).plan), InternalError);  // not so many tokens
  EXPECT_THROW(rig.run(steps.next().add(2, prompt(17, 1), 17, {1}).plan), InternalError);  // too few blocks
  EXPECT_THROW(rig.run(steps.next().add(2, prompt(5, 1), 5, {1}).plan), InternalError);    // not new
}

}  // namespace
}  // namespace quire
