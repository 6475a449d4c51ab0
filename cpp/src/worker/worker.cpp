#include "worker/worker.h"

#include "models/model_registry.h"
#include "quire/kernels/backend_registry.h"
#include "quire/kernels/cuda_device.h"
#include "util/check.h"
#include "util/log.h"

namespace quire {
namespace {

const KernelTable& require_kernel_table(const std::string& device) {
  if (device == "cuda") {
    // Honest about what is there: a device may be, kernels are not.
    const int32_t count = cuda_device_count();
    throw InvalidArgument(str("device 'cuda' has no kernels in this version (",
                              built_with_cuda() ? str(count, " CUDA devices found") : "built without CUDA",
                              "); use 'cpu'"));
  }
  const KernelTable* table = find_kernel_table("cpu");
  QUIRE_CHECK(table != nullptr);
  return *table;
}

}  // namespace

DType resolve_dtype(const EngineConfig& config, const Checkpoint& checkpoint) {
  if (config.dtype == "float32") return DType::kFloat32;
  if (config.dtype == "bfloat16") return DType::kBFloat16;
  if (checkpoint.main_dtype() == "F32") return DType::kFloat32;
  if (checkpoint.main_dtype() == "F16") {
    log(LogLevel::kWarning, checkpoint.directory(),
        ": float16 weights run as bfloat16 on the CPU; dtype='float32' keeps every bit");
  }
  return DType::kBFloat16;
}

Worker::Worker(const EngineConfig& config, const HfConfig& hf_config, int32_t max_model_len,
               int32_t num_threads, std::unique_ptr<Communicator> communicator)
    : ops_(require_kernel_table(config.device)),
      thread_pool_(std::make_unique<ThreadPool>(num_threads)),
      communicator_(std::move(communicator)) {
  launch_.host = thread_pool_->host_parallel();
  Checkpoint checkpoint = Checkpoint::open(config.model);
  dtype_ = resolve_dtype(config, checkpoint);
  BuildContext build{ops_, launch_, checkpoint, dtype_};
  build.rank = communicator_->rank();
  build.world_size = communicator_->world_size();
  build.max_model_len = max_model_len;
  build.max_num_tokens = config.max_num_batched_tokens;
  build.max_num_seqs = config.max_num_seqs;
  build.block_size = config.block_size;
  model_ = find_model(hf_config)(build, hf_config);
  workspace_ = Buffer(build.workspace_bytes);
  launch_.workspace = workspace_.data();
  launch_.workspace_bytes = workspace_.size();
  runner_ = std::make_unique<ModelRunner>(
      ModelRunnerConfig{config.max_num_seqs, config.max_num_batched_tokens, max_model_len}, *model_, ops_,
      launch_, *communicator_);
}

void Worker::initialize_kv_cache(const KVCacheConfig& config) {
  const auto specs = model_->kv_cache_specs();
  std::vector<KVCacheView> layers(specs.size());
  for (const KVCacheGroup& group : config.groups) {
    const KVCacheMemory& memory = kv_cache_.emplace_back(group, /*may_all_be_mapped=*/!config.shared);
    for (size_t i = 0; i < group.layers.size(); ++i) {
      const auto layer = static_cast<size_t>(group.layers[i]);
      QUIRE_CHECK(layer < specs.size() && !layers[layer].data && specs[layer] == group.spec, "layer ", layer);
      layers[layer] = memory.view(i, dtype_);
    }
  }
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    QUIRE_CHECK(layers[layer].data, "layer ", layer, " is in no group");
  }
  runner_->set_kv_cache(config, std::move(layers));
}

void Worker::execute_model(const SchedulerOutput& plan) {
  error_.clear();
  try {
    for (const KVExtent& extent : plan.kv_extents) {
      kv_cache_.at(static_cast<size_t>(extent.group)).apply(extent);
    }
    runner_->execute_model(plan);
  } catch (const std::exception& error) {
    error_ = error.what();
    communicator_->abort();
  }
}

void Worker::sample_tokens(const SchedulerOutput& plan, const GrammarOutput* grammar,
                           ModelRunnerOutput& output) {
  if (error_.empty()) {
    try {
      runner_->sample_tokens(plan, grammar, output);
      return;
    } catch (const std::exception& error) {
      error_ = error.what();
      communicator_->abort();
    }
  }
  output.reset(plan.step_id);
  output.error = error_;
}

}  // namespace quire
