// The demo model behind a ModelRunner, on the CPU or on a fake device, for plans written by hand.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "device/fake_kernels.h"
#include "models/model_registry.h"
#include "worker/model_runner.h"

namespace quire {

struct RunnerRig {
  static constexpr int32_t kMaxSeqs = 8, kMaxTokens = 64, kMaxModelLen = 48, kNumBlocks = 40, kBlockSize = 16;

  struct Options {
    bool on_device = false;
    int32_t in_flight = 1;
    bool graphs = false;
    bool hurried = false;  // see FakeDevice::hurries
  };
  explicit RunnerRig(const Options& options)
      : device(FakeDeviceRuntime::reset()), ops(options.on_device ? fake_kernel_table() : fake::cpu()) {
    const DeviceRuntime* runtime = options.on_device ? &FakeDeviceRuntime::table() : nullptr;
    if (options.hurried) device.hurries.emplace(options.in_flight);
    if (runtime != nullptr) {
      stream = make_stream(*runtime);
      launch.stream = stream.get();
    }
    Checkpoint checkpoint = Checkpoint::open(QUIRE_DEMO_MODEL);
    const HfConfig hf_config = HfConfig::load(QUIRE_DEMO_MODEL "/config.json");
    const auto loader = make_host_loader();
    BuildContext build{ops, launch, checkpoint, *weights, *loader, DType::kBFloat16};
    build.max_model_len = kMaxModelLen;
    build.max_num_tokens = kMaxTokens;
    build.max_num_seqs = kMaxSeqs;
    build.block_size = kBlockSize;
    model = find_model(hf_config)(build, hf_config);
    workspace = Buffer(build.workspace_bytes);
    launch.workspace = workspace.data();
    launch.workspace_bytes = workspace.size();
    runner = std::make_unique<ModelRunner>(
        ModelRunnerConfig{kMaxSeqs, kMaxTokens, kMaxModelLen, options.in_flight, options.graphs}, *model, ops,
        launch, *communicator, runtime);
    set_kv_cache(runtime);
    runner->warm_up();
  }
  ~RunnerRig() { runner.reset(); }

  FakeDevice& device;
  KernelTable ops;
  LaunchContext launch;
  DeviceStream stream;
  std::unique_ptr<Communicator> communicator = make_single_communicator();
  std::unique_ptr<DeviceArena> weights = make_host_arena();
  std::unique_ptr<Model> model;
  Buffer workspace, pages;
  std::unique_ptr<DeviceArena> memory;
  std::unique_ptr<ModelRunner> runner;

 private:
  void set_kv_cache(const DeviceRuntime* runtime) {
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
    memory = runtime != nullptr ? make_device_arena(*runtime, bytes) : make_host_arena();
    runner->set_kv_cache(config, std::move(layers), *memory);
    EXPECT_EQ(memory->used(), bytes);
  }
};

}  // namespace quire
