// One rank: its share of the model, its KV cache, its threads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/buffer.h"
#include "device/thread_pool.h"
#include "distributed/communicator.h"
#include "formats/hf_config.h"
#include "messages/kv_cache_spec.h"
#include "models/model.h"
#include "quire/engine_config.h"
#include "worker/kv_cache_memory.h"
#include "worker/model_runner.h"

namespace quire {

// The dtype that config.dtype and the checkpoint lead to.
DType resolve_dtype(const EngineConfig& config, const Checkpoint& checkpoint);

class Worker {
 public:
  // Loads the model. `max_model_len` is resolved. Throws InvalidArgument for anything wrong with the
  // directory.
  Worker(const EngineConfig& config, const HfConfig& hf_config, int32_t max_model_len, int32_t num_threads,
         std::unique_ptr<Communicator> communicator);

  const Model& model() const { return *model_; }
  DType dtype() const { return dtype_; }
  const KernelTable& ops() const { return ops_; }
  // Bytes that a step takes besides weights and KV cache.
  size_t activation_bytes() const { return runner_->activation_bytes() + workspace_.size(); }

  // Reserves the address space of every group. Called once, before the first step.
  void initialize_kv_cache(const KVCacheConfig& config);

  // Gives back the memory of the blocks that lose it, then computes. Never throw: an exception becomes
  // output.error, at the latest from sample_tokens.
  void execute_model(const SchedulerOutput& plan);
  void sample_tokens(const SchedulerOutput& plan, const GrammarOutput* grammar, ModelRunnerOutput& output);

 private:
  const KernelTable& ops_;
  std::unique_ptr<ThreadPool> thread_pool_;
  std::unique_ptr<Communicator> communicator_;
  LaunchContext launch_;
  Buffer workspace_;
  DType dtype_ = DType::kFloat32;
  std::unique_ptr<Model> model_;
  std::vector<KVCacheMemory> kv_cache_;  // per group
  std::unique_ptr<ModelRunner> runner_;
  std::string error_;  // of execute_model, for the sample_tokens that follows
};

}  // namespace quire
