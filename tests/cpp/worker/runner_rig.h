// The demo model behind a ModelRunner, on the CPU or on a fake device, for steps written by hand.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "device/fake_kernels.h"
#include "models/model_registry.h"
#include "worker/model_runner.h"

namespace quire {

// What a scheduler sends for one step.
struct Step {
  SchedulerOutput scheduler_output;
  std::optional<GrammarOutput> grammar;
  const GrammarOutput* masks() const { return grammar ? &*grammar : nullptr; }
};
using Script = std::vector<Step>;
using Outputs = std::vector<ModelRunnerOutput>;

// Another model, but for what a test overrides.
class WrappedModel : public Model {
 public:
  explicit WrappedModel(std::unique_ptr<Model> model) : model_(std::move(model)) {}
  int32_t vocab_size() const override { return model_->vocab_size(); }
  int32_t hidden_size() const override { return model_->hidden_size(); }
  std::vector<KVCacheSpec> kv_cache_specs() const override { return model_->kv_cache_specs(); }
  TensorView forward(const ForwardContext& ctx, const ModelInput& input) const override {
    return model_->forward(ctx, input);
  }
  void compute_logits(const ForwardContext& ctx, TensorView logits, TensorView hidden) const override {
    model_->compute_logits(ctx, logits, hidden);
  }

 private:
  std::unique_ptr<Model> model_;
};
// For RunnerRig::Options::wrap.
template <typename Wrapped>
std::unique_ptr<Model> wrap_model(std::unique_ptr<Model> model) {
  return std::make_unique<Wrapped>(std::move(model));
}

struct RunnerRig {
  static constexpr int32_t kMaxSeqs = 8, kMaxTokens = 64, kMaxModelLen = 48, kNumBlocks = 40, kBlockSize = 16;
  static constexpr int32_t kVocab = 4096;  // the demo model's

  struct Options {
    bool on_device = false;
    int32_t in_flight = 1;
    bool graphs = false;
    bool hurried = false;                                              // see FakeDevice::hurries
    const char* (*select_attention)(AttentionLayer& layer) = nullptr;  // null: the CPU's
    int32_t num_speculative_tokens = 0;
    std::vector<NamedLogitsProcessor> logits_processors = {};
    // Null: the table's.
    bool (*use_cascade_attention)(const KVCacheView&, int32_t, int32_t) = nullptr;
    void (*paged_attention)(const LaunchContext&, TensorView, TensorView, const KVCacheView&,
                            const AttentionMetadata&, const AttentionLayer&) = nullptr;
    bool use_cascade = true;
    std::unique_ptr<Model> (*wrap)(std::unique_ptr<Model>) = nullptr;  // what the runner has instead
    std::unique_ptr<Communicator> (*make_communicator)() = make_single_communicator;
  };
  explicit RunnerRig(const Options& options)
      : device(FakeDeviceRuntime::reset()),
        ops(options.on_device ? fake_kernel_table() : fake::cpu()),
        communicator(options.make_communicator()) {
    if (options.hurried) device.hurries.emplace(options.in_flight);
    const Backend backend{&ops, options.on_device ? &FakeDeviceRuntime::table() : nullptr, 0};
    platform = make_platform(backend, /*num_threads=*/1);
    if (options.use_cascade_attention != nullptr) ops.use_cascade_attention = options.use_cascade_attention;
    if (options.paged_attention != nullptr) ops.paged_attention = options.paged_attention;
    if (options.select_attention != nullptr) ops.select_attention = options.select_attention;
    Checkpoint checkpoint = Checkpoint::open(QUIRE_DEMO_MODEL);
    const HfConfig hf_config = HfConfig::load(QUIRE_DEMO_MODEL "/config.json");
    const auto loader = make_host_loader();
    BuildContext build{ops, platform->launch(), checkpoint, *weights, *loader, DType::kBFloat16};
    build.max_model_len = kMaxModelLen;
    build.max_num_tokens = kMaxTokens;
    ModelRunnerConfig config{kMaxSeqs,
                             kMaxTokens,
                             kMaxModelLen,
                             options.in_flight,
                             options.graphs,
                             0,
                             {options.num_speculative_tokens, nullptr}};
    config.use_cascade = options.use_cascade;
    build.max_num_seqs = config.max_num_logits();
    build.block_size = kBlockSize;
    model = build_model(build, hf_config);
    if (options.wrap != nullptr) model = options.wrap(std::move(model));
    model_hash = build.compute_hash.value();
    workspace = Buffer(build.workspace_bytes);
    platform->set_workspace(workspace.data(), workspace.size());
    ModelRunnerConfig hashed = config;
    hashed.model_hash = model_hash;
    runner = std::make_unique<ModelRunner>(hashed, *model, *platform, *communicator);
    if (!options.logits_processors.empty()) {
      LogitsProcessorConfig made_for;
      made_for.vocab_size = kVocab;
      made_for.think_start_token_ids = {100, 101};
      made_for.think_end_token_ids = {102, 103, 104};
      runner->set_logits_processors(std::make_unique<LogitsProcessors>(options.logits_processors, made_for));
    }
    set_kv_cache();
    runner->warm_up();
  }
  ~RunnerRig() { runner.reset(); }

  ModelRunnerOutput run(const SchedulerOutput& scheduler_output) {
    ModelRunnerOutput output;
    runner->execute_model(scheduler_output);
    runner->sample_tokens(scheduler_output, nullptr);
    runner->finish_step(output);
    return output;
  }

  FakeDevice& device;
  KernelTable ops;
  std::unique_ptr<Platform> platform;
  std::unique_ptr<Communicator> communicator;
  std::unique_ptr<DeviceArena> weights = make_host_arena();
  std::unique_ptr<Model> model;
  uint64_t model_hash = 0;
  Buffer workspace, pages;
  std::unique_ptr<DeviceArena> memory;
  std::unique_ptr<ModelRunner> runner;

 private:
  void set_kv_cache() {
    KVCacheConfig config;
    KVCacheGroup& group = config.groups.emplace_back();
    group.spec = model->kv_cache_specs()[0];
    group.num_blocks = kNumBlocks;
    for (size_t i = 0; i < model->kv_cache_specs().size(); ++i)
      group.layers.push_back(static_cast<int32_t>(i));
    pages = Buffer(static_cast<size_t>(kNumBlocks * group.block_bytes()));
    std::vector<KVCacheView> layers;
    for (size_t i = 0; i < group.layers.size(); ++i) {
      layers.push_back({pages.data() + static_cast<int64_t>(i) * group.spec.page_bytes, group.block_bytes(),
                        kNumBlocks, kBlockSize, group.spec.num_kv_heads, group.spec.head_size,
                        DType::kBFloat16});
    }
    // No more than the runner says that it takes.
    const size_t bytes =
        DeviceArena::rounded(runner->activation_bytes()) + runner->batch_bytes({{kBlockSize}});
    const DeviceRuntime* runtime = platform->runtime();
    memory = runtime != nullptr ? make_device_arena(*runtime, bytes) : make_host_arena();
    runner->set_kv_cache(config, std::move(layers), *memory);
    EXPECT_EQ(memory->used(), bytes);
  }
};

// With `in_flight` of 2 a step is executed, and mostly sampled too, before the one before it is finished.
inline Outputs run(RunnerRig& rig, const Script& script, int32_t in_flight) {
  Outputs outputs(script.size());
  size_t finished = 0;
  for (size_t i = 0; i < script.size(); ++i) {
    rig.runner->execute_model(script[i].scheduler_output);
    if (in_flight > 1 && i > 0 && i % 3 == 0) rig.runner->finish_step(outputs[finished++]);
    rig.runner->sample_tokens(script[i].scheduler_output, script[i].masks());
    while (finished + static_cast<size_t>(in_flight) <= i + 1) rig.runner->finish_step(outputs[finished++]);
  }
  while (finished < script.size()) rig.runner->finish_step(outputs[finished++]);
  return outputs;
}
inline Outputs run(const RunnerRig::Options& options, const Script& script) {
  RunnerRig rig(options);
  return run(rig, script, options.in_flight);
}

}  // namespace quire
