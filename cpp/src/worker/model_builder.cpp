#include "worker/model_builder.h"

#include <algorithm>
#include <utility>

#include "layers/quantization.h"
#include "models/model_registry.h"
#include "quire/error.h"
#include "util/str.h"

namespace quire {
namespace {

// Without adapters, with them, and with those of experts.
size_t num_graphs_of_a_size(const LoraTargets* targets) {
  return targets == nullptr ? 1 : targets->has_mixtures() ? 3 : 2;
}

}  // namespace

ModelBuilder::ModelBuilder(const EngineConfig& config, const HfConfig& hf_config,
                           const ModelRunnerConfig& runner_config, Platform& platform,
                           Communicator& communicator)
    : hf_config_(hf_config),
      quantization_(read_quantization(hf_config, config.model)),
      runner_config_(runner_config),
      block_size_(config.block_size),
      platform_(platform),
      communicator_(communicator) {}

BuiltModel ModelBuilder::build(DType dtype, Checkpoint& checkpoint, DeviceArena& arena,
                               WeightLoader& loader) const {
  const KernelTable& ops = platform_.ops();
  BuildContext build{ops, platform_.launch(), checkpoint, arena, loader, dtype};
  build.rank = communicator_.rank();
  build.world_size = communicator_.world_size();
  build.max_model_len = runner_config_.max_model_len;
  build.max_num_tokens = runner_config_.max_num_batched_tokens;
  build.max_num_seqs = runner_config_.max_num_logits();
  build.block_size = block_size_;
  build.quantization = quantization_;
  BuiltModel built;
  if (runner_config_.max_loras > 0) {
    built.lora_targets = std::make_unique<LoraTargets>(
        ops, runner_config_.max_loras, runner_config_.max_lora_rank, runner_config_.have_lora_experts);
    build.lora_targets = built.lora_targets.get();
  }
  built.model = build_model(build, hf_config_);
  built.workspace_bytes = build.workspace_bytes;
  if (ops.sampling_workspace_bytes != nullptr) {
    built.workspace_bytes = std::max(
        built.workspace_bytes, ops.sampling_workspace_bytes(build.max_num_seqs, built.model->vocab_size()));
  }
  built.hash = build.compute_hash.value();
  built.expert_loads = std::move(build.expert_loads);
  return built;
}

ModelBuilder::Measure ModelBuilder::measure(DType dtype, Checkpoint& checkpoint) const {
  const auto counter = make_measuring_arena();
  const auto nothing = make_measuring_loader();
  const BuiltModel built = build(dtype, checkpoint, *counter, *nothing);
  ModelRunnerConfig runner_config = runner_config_;
  runner_config.expert_loads = built.expert_loads;
  const ModelRunner runner(runner_config, *built.model, platform_, communicator_);
  Measure measure;
  measure.kv_cache_specs = built.model->kv_cache_specs();
  DeviceMemoryPlan& plan = measure.plan;
  plan.weights = counter->used();
  plan.workspace = DeviceArena::rounded(built.workspace_bytes);
  plan.activations = DeviceArena::rounded(runner.activation_bytes());
  plan.batch = runner.batch_bytes(group_block_sizes(measure.kv_cache_specs));
  if (built.lora_targets) plan.adapters = platform_.lora_memory_bytes(*built.lora_targets, dtype);
  if (platform_.runtime() != nullptr && runner_config_.use_graphs)
    plan.graphs = num_graphs_of_a_size(built.lora_targets.get()) * kGraphBytes;
  plan.exchange = communicator_.device_bytes();
  return measure;
}

}  // namespace quire
